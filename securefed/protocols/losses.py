"""Losses f(H, y) of the generalised linear objective (equation 2), exact and as Taylor polynomials.

y_i is -1 or +1, or any number for the linear loss. The *residual* is the paper's g(H_i, y_i) = df/dH_i of
equation 4. Under encryption a Taylor polynomial replaces the loss (docs/protocols.md, what is optimised):

    taylor_residual = label_weight * y + margin_weight * H

The logistic polynomial is close only near 0: its residual is off by at most |H|^3/48. Its minimum is not that
of the exact loss.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike

from securefed.declare import check_choice
from securefed.errors import DataError, SettingError
from securefed.models.local import Array, sigmoid


@dataclass(frozen=True)
class Loss:
    """A loss, row by row."""

    name: str
    binary: bool
    """Labels are -1 and +1."""
    label_weight: float
    margin_weight: float
    """The polynomial's curvature in H, and the largest curvature of the exact loss."""
    residual: Callable[[Array, Array], Array]
    """g(H_i, y_i) = df/dH_i of the exact loss (equation 4)."""

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


_LOSSES: dict[str, Loss] = {
    loss.name: loss
    for loss in (
        Loss("logistic", True, -0.5, 0.25, lambda H, y: -y * sigmoid(-y * H)),
        Loss("linear", False, -1.0, 1.0, lambda H, y: H - y),
        Loss("squared_hinge", True, -2.0, 2.0, lambda H, y: -2.0 * y * np.maximum(0.0, 1.0 - y * H)),
    )
}
LOSSES: Mapping[str, Loss] = MappingProxyType(_LOSSES)


def register(loss: Loss) -> None:
    """Add a loss under its name (docs/extending.md)."""
    if loss.name in LOSSES:
        raise SettingError(f"loss: {loss.name!r} given, and there is one of that name")
    if not loss.margin_weight > 0:
        raise SettingError(f"margin_weight: {loss.margin_weight} given, a loss bends upwards: more than 0")
    _LOSSES[loss.name] = loss


def get_loss(name: str) -> Loss:
    return LOSSES[check_choice("loss", name, LOSSES)]
