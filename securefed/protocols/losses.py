"""Losses f(H, y) of the generalised linear objective (equation 2), exact and as Taylor polynomials.

H_i is the sum of the parties' H_i^k. y_i is -1 or +1, or any number for the linear loss. The *residual* is
the paper's g(H_i, y_i) = df/dH_i of equation 4. Every party's gradient needs this one number per row.

Encryption allows only sums and products with known numbers. So a second-order Taylor polynomial around H = 0
replaces the loss. Its residual is affine in H with public weights:

    taylor_residual = label_weight * y + margin_weight * H

    logistic        log(1 + exp(-yH))     log 2 - yH/2 + H^2/8    label -1/2, margin 1/4
    linear          (H - y)^2 / 2         the same                label -1,   margin 1
    squared_hinge   max(0, 1 - yH)^2      (1 - yH)^2              label -2,   margin 2

The logistic polynomial is close only near 0: its residual is off by at most |H|^3/48. Its minimum is not that
of the exact loss. The squared hinge's polynomial is exact up to the margin, yH <= 1, and pulls back beyond.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from securefed.declare import check_choice
from securefed.errors import DataError, SettingError
from securefed.models.local import sigmoid

Array = NDArray[np.float64]


class Loss(ABC):
    """A loss, row by row. Losses have no state and compare by type.

    `binary` says that labels are -1 and +1. `margin_weight` is the polynomial's curvature in H, and the
    largest curvature of the exact loss.
    """

    name: ClassVar[str]
    binary: ClassVar[bool]
    label_weight: ClassVar[float]
    margin_weight: ClassVar[float]

    @property
    def reach(self) -> float:
        """The H of a perfect fit of the Taylor polynomial to a label of 1."""
        return abs(self.label_weight) / self.margin_weight

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(self.name)

    def value(self, H: ArrayLike, y: ArrayLike) -> Array:
        """Return f(H_i, y_i)."""
        return self._value(*_pair(H, y))

    def residual(self, H: ArrayLike, y: ArrayLike) -> Array:
        """Return g(H_i, y_i) = df/dH_i (equation 4)."""
        return self._residual(*_pair(H, y))

    def taylor_residual(self, H: ArrayLike, y: ArrayLike) -> Array:
        """Return the residual of the second-order Taylor polynomial of f around H = 0."""
        margins, labels = _pair(H, y)
        result: Array = self.label_weight * labels + self.margin_weight * margins
        return result

    def check_labels(self, y: ArrayLike) -> Array:
        """Return y as float64. Raises DataError unless labels are finite and, for a binary loss, -1 or +1."""
        try:
            labels = np.asarray(y, dtype=np.float64)
        except (TypeError, ValueError) as error:
            hint = "; two classes take loss = 'logistic'"
            raise DataError(f"labels must be numbers for the loss {self.name!r}: {error}{hint}") from None
        if not np.isfinite(labels).all():
            raise DataError("labels must be finite, but some are missing or infinite; leave such rows out")
        if self.binary and not np.isin(labels, (-1.0, 1.0)).all():
            classes = ", ".join(f"{label:g}" for label in np.unique(labels)[:5])
            raise DataError(f"labels must be -1 or +1 for the loss {self.name!r}; found {classes}")
        return labels

    @abstractmethod
    def _value(self, H: Array, y: Array) -> Array: ...

    @abstractmethod
    def _residual(self, H: Array, y: Array) -> Array: ...


class Logistic(Loss):
    """Logistic regression: log(1 + exp(-yH))."""

    name = "logistic"
    binary = True
    label_weight = -0.5
    margin_weight = 0.25

    def predict_proba(self, H: ArrayLike) -> Array:
        """Return the probability of the label +1: 1 / (1 + exp(-H))."""
        return sigmoid(np.asarray(H, dtype=np.float64))

    def _value(self, H: Array, y: Array) -> Array:
        result: Array = np.logaddexp(0.0, -y * H)
        return result

    def _residual(self, H: Array, y: Array) -> Array:
        result: Array = -y * sigmoid(-y * H)
        return result


class SquaredError(Loss):
    """Linear regression: (H - y)^2 / 2. It equals its Taylor polynomial."""

    name = "linear"
    binary = False
    label_weight = -1.0
    margin_weight = 1.0

    def _value(self, H: Array, y: Array) -> Array:
        result: Array = 0.5 * (H - y) ** 2
        return result

    def _residual(self, H: Array, y: Array) -> Array:
        return H - y


class SquaredHinge(Loss):
    """A support vector machine with squared slack: max(0, 1 - yH)^2."""

    name = "squared_hinge"
    binary = True
    label_weight = -2.0
    margin_weight = 2.0

    def _value(self, H: Array, y: Array) -> Array:
        result: Array = np.maximum(0.0, 1.0 - y * H) ** 2
        return result

    def _residual(self, H: Array, y: Array) -> Array:
        result: Array = -2.0 * y * np.maximum(0.0, 1.0 - y * H)
        return result


_LOSSES: dict[str, Loss] = {loss.name: loss for loss in (Logistic(), SquaredError(), SquaredHinge())}
LOSSES: Mapping[str, Loss] = MappingProxyType(_LOSSES)


def register(loss: Loss) -> None:
    """Add a loss under its name (docs/extending.md)."""
    if loss.name in LOSSES:
        raise SettingError(f"loss: {loss.name!r} given, and there is one of that name")
    if not loss.margin_weight > 0:
        raise SettingError(f"margin_weight: {loss.margin_weight} given, a loss bends upwards: more than 0")
    _LOSSES[loss.name] = loss


def get_loss(name: str) -> Loss:
    """Return the loss of that name."""
    return LOSSES[check_choice("loss", name, LOSSES)]


def _pair(H: ArrayLike, y: ArrayLike) -> tuple[Array, Array]:
    margins, labels = np.asarray(H, dtype=np.float64), np.asarray(y, dtype=np.float64)
    # Broadcasting (S,) against (S, 1) would quietly give S x S residuals.
    if margins.shape != labels.shape:
        raise DataError(f"H and y must have the same shape, not {margins.shape} and {labels.shape}")
    return margins, labels
