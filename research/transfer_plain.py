"""Blind transfer learning without the blindness: the same steps on the same numbers, in the clear.

The oracle of securefed.protocols.blind.transfer, and what it costs to know: both parties' rows in one place.
Nothing that is installed runs it; the bench counts rounds by it, and tests look at its loss.
"""

from __future__ import annotations

from math import log

import numpy as np
from numpy.typing import NDArray

from securefed.protocols.blind.transfer_algebra import OwnMaps, TransferPlan, TransferRows

Array = NDArray[np.float64]


class PlainTransfer:
    """Both maps of a run; `a` has labels."""

    def __init__(self, plan: TransferPlan, a: TransferRows, b: TransferRows) -> None:
        self._plan, self._a, self._b = plan, a, b
        self._cross: Array = a.shared.T @ b.shared / plan.rows
        self._told: Array = b.shared.T @ a.targets() / plan.rows
        self._maps = {each: OwnMaps(each, plan) for each in (a, b)}
        self.w_a, self.w_b = a.start(), np.zeros((plan.size_b, plan.outputs))

    @property
    def score_map(self) -> Array:
        """v: a row of B's has the score f'v; a column for each output if there are several."""
        score_map: Array = self.w_b * self.phi(self.w_a)
        return score_map[:, 0] if self._plan.outputs == 1 else score_map

    def phi(self, w_a: Array) -> Array:
        """Of every output."""
        phi: Array = (self._a.pull * w_a).sum(axis=0)
        return phi

    def round(self) -> None:
        if self._plan.sequential:
            self.w_b = self._moved_b()
            self.w_a = self._moved_a()
        else:
            self.w_a, self.w_b = self._moved_a(), self._moved_b()

    def _moved_a(self) -> Array:
        """Q steps of A on a W_B that stays."""
        plan, rows, w_b = self._plan, self._a, self.w_b
        own, moved = self._maps[rows], self.w_a
        square, told = ((w_b * each).sum(axis=0) for each in (self._b.labelled_gram @ w_b, self._told))
        for _ in range(plan.local_steps):
            push = rows.pull * (square * self.phi(moved) / 4 - told / 2)
            pulled = 2 * plan.gamma * (rows.gram @ moved - self._cross @ w_b) + plan.l2 * moved
            moved = moved - own.scaled @ (push + pulled) - own.kept @ (moved - self.w_a)
        return moved

    def _moved_b(self) -> Array:
        """Q steps of B on a W_A that stays."""
        plan, rows, w_a = self._plan, self._b, self.w_a
        own, moved, phi = self._maps[rows], self.w_b, self.phi(w_a)
        for _ in range(plan.local_steps):
            felt = rows.labelled_gram @ (moved * phi) / 4 - self._told / 2
            pulled = 2 * plan.gamma * (rows.gram @ moved - self._cross.T @ w_a) + plan.l2 * moved
            moved = moved - own.scaled @ (felt * phi + pulled) - own.kept @ (moved - self.w_b)
        return moved

    def loss(self) -> float:
        """L, over the shared rows."""
        plan, y = self._plan, self._a.targets()
        scores = self._b.shared @ self.score_map.reshape(plan.size_b, -1)
        apart = ((self._a.shared @ self.w_a - self._b.shared @ self.w_b) ** 2).sum(axis=1)
        fit = self._a.labelled * (log(2.0) - y * scores / 2 + scores**2 / 8).sum(axis=1)
        size = float((self.w_a**2).sum() + (self.w_b**2).sum())
        return float(np.mean(fit + plan.gamma * apart)) + plan.l2 / 2 * size
