"""Transfer learning as FATE's hetero FTL does it: the gradient by every single row is opened to its owner.

The exchange is ours (C and M from A, u and S from B, encrypted, masked openings); only what is opened
differs. B gets, for each row i, what its hidden layer needs from A:

    C_i + M u_i = w_i (-y_i Phi / 2 + Phi Phi' u_i / 4) - 2 gamma u_i^A          (n x h numbers)

and A gets, for each of its rows l, the gradient by u_l^A up to its own terms:

    y_l / N (-1/2 sum_i w_i y_i u_i^B + 1/4 S Phi)  -  2 gamma u_l^B where l is shared   (N x h numbers)

From that each takes the same parameter gradient as ours, so training is the same; what it learns on the way
is not. Kept here because attacks have to be seen to succeed somewhere.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefed.protocols.own_gradient.sides import TransferSide

Array = NDArray[np.float64]


class PerSample:
    """A TransferSide that opens gradients of single rows. Everything else is the side's own."""

    def __init__(self, side: TransferSide) -> None:
        self.side = side
        self.seen: list[Array] = []
        """What was opened to this party, in order."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.side, name)

    @property
    def parameters(self) -> Array:
        return self.side.parameters

    @parameters.setter
    def parameters(self, values: Array) -> None:
        self.side.parameters = values

    @property
    def has_labels(self) -> bool:
        return self.side.labels is not None

    @property
    def equations(self) -> int:
        return self._outputs() * self.side.model.width

    def _outputs(self) -> int:
        """B: its shared rows. A: its shared rows, and one more for all rows that are not shared."""
        return len(self.side._rows) + (1 if self.has_labels else 0)

    def multipliers(self) -> Array:
        """(h, outputs, n + h)."""
        side, (n, h) = self.side, (len(self.side._rows), self.side.model.width)
        table = np.zeros((h, self._outputs(), n + h))
        if not self.has_labels:
            hidden = side.model.forward(side._rows) * side._w[:, None]
            for j in range(h):
                table[j, :, :n] = np.eye(n)
                table[j, :, n:] = hidden / side._root
            return table
        count = len(side._known_labels)
        pull = np.concatenate([-0.5 * side._y, 0.25 * side._root * side.phi()]) / count
        for j in range(h):
            table[j, :n] = side._y[:, None] * pull
            table[j, :n, :n] -= 2.0 * side.gamma * np.eye(n)
            table[j, n] = pull
        return table

    def gradient(self, sums: Array, included: bool) -> Array:
        """The parameter gradient from the rows' gradients: the chain rule, at home."""
        self.seen.append(sums.copy())
        side, n = self.side, len(self.side._rows)
        if not self.has_labels:
            return side.gradient(side.model.vjp(side._rows, sums), included)
        common = sums[n]  # every labelled row's part of it has this direction, times its label
        shared = side.model.vjp(side._rows, sums[:n] - side._y[:, None] * common)
        labelled = side.model.vjp(side._known_features, side._known_labels[:, None] * common)
        return side.gradient(shared + labelled, included)
