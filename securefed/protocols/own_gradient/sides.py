"""One party's side of an objective: its contributions, and its gradient from opened sums.

Every objective here has one shape. In an exchange each party gives a *contribution*, an array of numbers. The
others' contributions add up to a matrix E that a party holds encrypted. At a local step its gradient, up to
plaintext terms of its own, is

    sums[a, j] = sum over i of multipliers[j, a, i] * E[i, j]

with multipliers from its own rows and parameters. The party opens the sums (never an E[i, j]) and adds its
own part. E stays fixed during the Q local steps: the stale H of FedBCD. Where the multipliers do not depend
on the parameters (`is_linear`), one opening serves all Q steps.

    equation 2, linear:  E = residuals less the party's own part (S), multipliers = jacobian of its model
    transfer:            securefed.protocols.own_gradient.transfer
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from securefed.crypto import FixedPoint
from securefed.crypto.fixed import Multipliers
from securefed.errors import DataError
from securefed.models import LocalModel
from securefed.protocols.losses import Loss
from securefed.protocols.scoring.scorers import LinearScorer, Scorer

__all__ = ["LinearSide", "Side"]

Array = NDArray[np.float64]


class Side(Protocol):
    """A party's objective as the training loop uses it."""

    is_linear: bool
    """The multipliers stay the same during a round."""
    exact: bool
    """Plain only: contributions in the clear and the exact loss."""

    @property
    def parameters(self) -> Array: ...

    @parameters.setter
    def parameters(self, values: Array) -> None: ...

    @property
    def equations(self) -> int:
        """Numbers opened at a local step."""
        ...

    def begin(self, batch: NDArray[np.intp]) -> None:
        """Start a round with these rows."""
        ...

    def contribution(self) -> Array:
        """Return the contribution at the current parameters."""
        ...

    def fixed(self) -> FixedPoint:
        """Return the public range and precision of the contributions."""
        ...

    def peer_shape(self) -> tuple[int, ...]:
        """Return the shape of the others' contributions."""
        ...

    def multipliers(self) -> Array | Multipliers:
        """Return the multipliers; a large tensor yields blocks.

        A class may also have `sums(E)`, a shorter way to the same sums of an E in the clear. Plain runs use
        it.
        """
        ...

    def gradient(self, sums: Array, included: bool) -> Array:
        """Return the gradient of the objective by the flat parameters, from opened sums.

        `included`: the opened sums contain the party's own contribution of the round's start.
        """
        ...

    def exact_gradient(self, others: Array, included: bool) -> Array:
        """Return the gradient from contributions in the clear."""
        ...

    def scorer(self) -> Scorer:
        """Return a scorer with the current parameters."""
        ...


class LinearSide:
    """A party of the generalised linear objective (equations 2 to 4), with or without labels.

    It contributes margin_weight * H^k. The label party adds label_weight * y, so that the sum over all
    parties is the Taylor residual. The exact loss, in plain, has two columns: H^k and y.
    """

    def __init__(
        self,
        model: LocalModel,
        features: Array,
        labels: Array | None,
        loss: Loss,
        *,
        l2: float,
        exact: bool,
        margin_bound: float,
        fraction_bits: int = 32,
        overlap: int = 1,
    ) -> None:
        self.model = model
        self.is_linear = model.is_linear
        self.exact = exact
        self._features, self._labels = features, labels
        self._loss = loss
        self._l2, self._overlap = l2, overlap
        self._margin_bound, self._fraction_bits = margin_bound, fraction_bits
        self.begin(np.arange(len(features)))

    @property
    def parameters(self) -> Array:
        return self.model.parameters

    @parameters.setter
    def parameters(self, values: Array) -> None:
        self.model.parameters = values

    @property
    def equations(self) -> int:
        return self.model.size

    def begin(self, batch: NDArray[np.intp]) -> None:
        self._rows = self._features[batch]
        self._targets = None if self._labels is None else self._labels[batch]
        self._start = self.model.forward(self._rows)

    def contribution(self) -> Array:
        self._start = self.model.forward(self._rows)
        largest = float(np.max(np.abs(self._start)))
        if largest > self._margin_bound:
            raise DataError(
                f"margin_bound: |H| reached {largest:.4g}, at most {self._margin_bound:.4g} was declared; "
                "a smaller learning rate keeps it low, a larger margin_bound allows it"
            )
        if self.exact:
            targets = np.zeros(len(self._rows)) if self._targets is None else self._targets
            return np.column_stack([self._start, targets])
        return self._part(self._start)

    def _part(self, margins: Array) -> Array:
        part: Array = self._loss.margin_weight * margins
        if self._targets is not None:
            part = part + self._loss.label_weight * self._targets
        return part

    def fixed(self) -> FixedPoint:
        labels = 1.0 if self._loss.binary else self._margin_bound
        if self.exact:
            return FixedPoint(max(self._margin_bound, labels), self._fraction_bits)
        margins = self._loss.margin_weight * self._margin_bound
        return FixedPoint(margins + abs(self._loss.label_weight) * labels, self._fraction_bits)

    def peer_shape(self) -> tuple[int, ...]:
        return (len(self._rows), 2) if self.exact else (len(self._rows),)

    def multipliers(self) -> Array:
        return self.model.jacobian(self._rows)[None]

    def gradient(self, sums: Array, included: bool) -> Array:
        now = self.model.forward(self._rows)
        own = self._loss.margin_weight * (now - self._start) if included else self._part(now)
        return self._regularised(sums + self.model.vjp(self._rows, own))

    def exact_gradient(self, others: Array, included: bool) -> Array:
        # What this party moves counts `overlap` times: the others may move the same way (steps.py).
        total = others[:, 0] + self._overlap * (self.model.forward(self._rows) - self._start)
        if not included:
            total = total + self._start
        labels = others[:, 1]
        if self._targets is not None and not included:
            labels = labels + self._targets
        return self._regularised(self.model.vjp(self._rows, self._loss.residual(total, labels)))

    def _regularised(self, sums: Array) -> Array:
        result: Array = sums / len(self._rows) + self._l2 * self.model.parameters
        return result

    def scorer(self) -> LinearScorer:
        return LinearScorer(self.model, self._margin_bound, self._fraction_bits)
