"""Federated transfer learning (FTL), two parties: A has labels for some of its rows, B has none.

Each party maps its columns to a hidden representation, u = act(X W + b). With Phi = mean of y_l u_l^A over
A's labelled rows, B's row i has the score phi_i = Phi . u_i^B. The loss, over the n overlapping rows of a
batch (w_i = 1 where the row is labelled, else 0):

    L = 1/n sum_i [ w_i (log 2 - y_i phi_i / 2 + phi_i^2 / 8) + gamma |u_i^A - u_i^B|^2 ] + l2/2 |W|^2

The gradient by u_i^B, times n, is  w_i (-y_i Phi / 2 + Phi Phi' u_i^B / 4) - 2 gamma u_i^A + 2 gamma u_i^B.
So A sends only

    C_i = -w_i y_i Phi / 2 - 2 gamma u_i^A   (n x h)   and   M = Phi Phi' / 4   (h x h),

and B only u^B (n x h) and S = sum_i w_i u_i^B u_i^B' (h x h). Stacked, that is one contribution of n + h rows
and h columns. At a local step B opens its parameter gradient, which is linear in C and M. A opens sums that
are linear in u^B and S:

    n dL/dPhi = -1/2 sum_i w_i y_i u_i^B + 1/4 S Phi.

The h x h blocks are scaled by sqrt(n) (M) and 1/sqrt(n) (S), so that both blocks have multipliers of similar
size. FATE's layout of the same exchange has n (h^2 + 2h) ciphertexts each way. Both parties know which
overlapping rows are labelled (w).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from securefed.crypto import FixedPoint
from securefed.crypto.fixed import Multipliers
from securefed.errors import DataError
from securefed.models import HiddenLayer
from securefed.protocols.scoring.scorers import TransferScorer

__all__ = ["TransferSide"]

Array = NDArray[np.float64]
Rows = NDArray[np.intp]


class MultipliersOfB(Multipliers):
    """B's multipliers.

    For C_i they are x_ia act'(z_ij). For a row of M they are the sum of those over the labelled rows' u^B.
    """

    def __init__(self, inputs: Array, slope: Array, hidden: Array) -> None:
        self._inputs, self._slope, self._hidden = inputs, slope, hidden
        self.shape = (slope.shape[1], inputs.shape[1], sum(hidden.shape))

    def block(self, columns: slice, outputs: slice) -> Array:
        rows = self._slope.T[columns, None] * self._inputs.T[outputs]
        return np.concatenate([rows, rows @ self._hidden], axis=2)


class MultipliersOfA(Multipliers):
    """A's multipliers of u_i^B and S: q_aj times Phi's gradient terms, plus alignment for u_i^B."""

    def __init__(self, inputs: Array, slope: Array, pull: Array, pulled: Array) -> None:
        self._inputs, self._slope, self._pull, self._pulled = inputs, slope, pull, pulled
        self.shape = (slope.shape[1], inputs.shape[1], len(pulled))

    def block(self, columns: slice, outputs: slice) -> Array:
        block = self._pull.T[columns, outputs, None] * self._pulled
        block[:, :, : len(self._inputs)] += self._slope.T[columns, None] * self._inputs.T[outputs]
        return block


class TransferSide:
    """A party of the transfer objective: A with labels, or B without."""

    is_linear = False
    exact = False

    def __init__(
        self,
        model: HiddenLayer,
        features: Array,
        overlap: Rows,
        labelled: NDArray[np.bool_],
        labels: Array | None,
        *,
        gamma: float,
        l2: float,
        activation_bound: float,
        fraction_bits: int = 32,
    ) -> None:
        """Prepare the side.

        `overlap` has this party's row numbers of the overlapping rows, in the agreed order, and `labelled`
        their w. `labels` (A only) are -1, +1 or NaN (unlabelled) for each of this party's rows.
        """
        self.model = model
        self._features = features
        self._overlap, self._weights = overlap, labelled.astype(np.float64)
        self._labels = labels
        self._gamma, self._l2 = gamma, l2
        self._bound = activation_bound if model.activation == "relu" else 1.0
        self._fraction_bits = fraction_bits
        if labels is not None:
            known = ~np.isnan(labels)
            self._known_rows, self._known_labels = model.augmented(features[known]), labels[known]
            self._known_features = features[known]
        self.begin(np.arange(len(overlap)))

    @property
    def labelled(self) -> bool:
        """Whether this is A."""
        return self._labels is not None

    @property
    def parameters(self) -> Array:
        return self.model.parameters

    @parameters.setter
    def parameters(self, values: Array) -> None:
        self.model.parameters = values

    @property
    def equations(self) -> int:
        return self.model.size

    def begin(self, batch: Rows) -> None:
        chosen = self._overlap[batch]
        self._rows = self._features[chosen]
        self._inputs = self.model.augmented(self._rows)
        self._w = self._weights[batch]
        self._y = np.zeros(len(batch))
        if self._labels is not None:
            self._y = np.where(self._w > 0, np.nan_to_num(self._labels[chosen]), 0.0)
        self._root = float(np.sqrt(len(batch)))

    def phi(self) -> Array:
        """Return Phi = mean of y_l u_l^A over A's labelled rows (A only)."""
        result: Array = (
            self._known_labels @ self.model.forward(self._known_features) / len(self._known_labels)
        )
        return result

    def contribution(self) -> Array:
        hidden = self.model.forward(self._rows)
        largest = float(np.max(np.abs(hidden)))
        if largest > self._bound:
            raise DataError(
                f"activation_bound: |u| reached {largest:.4g}, at most {self._bound:.4g} was declared; "
                "a smaller learning rate keeps it low, a larger activation_bound allows it"
            )
        if self._labels is None:
            outer = (hidden * self._w[:, None]).T @ hidden
            return np.vstack([hidden, outer / self._root])
        phi = self.phi()
        constant = -0.5 * np.outer(self._y, phi) - 2.0 * self._gamma * hidden
        return np.vstack([constant, 0.25 * self._root * np.outer(phi, phi)])

    def fixed(self) -> FixedPoint:
        u = self._bound
        if self._labels is None:
            bound = max(u, self._root * u * u)
        else:
            bound = max(u * (0.5 + 2.0 * self._gamma), 0.25 * self._root * u * u)
        # Saturated activations reach the bound up to the rounding of a sum of n products.
        return FixedPoint(bound * (1.0 + 2.0**-20), self._fraction_bits)

    def peer_shape(self) -> tuple[int, ...]:
        return (len(self._rows) + self.model.width, self.model.width)

    def multipliers(self) -> Multipliers:
        """Return the multipliers, of shape (h, d + 1, n + h)."""
        slope = self.model.derivative(self._rows)
        if self._labels is None:
            hidden = self.model.forward(self._rows) * self._w[:, None]
            return MultipliersOfB(self._inputs, slope, hidden / self._root)
        pulled = np.concatenate([-0.5 * self._y, 0.25 * self._root * self.phi()])
        return MultipliersOfA(self._inputs, -2.0 * self._gamma * slope, self._label_pull(), pulled)

    def sums(self, values: Array) -> Array:
        """Return the sums (d + 1, h) of values in the clear, without the tensor of multipliers."""
        slope, n = self.model.derivative(self._rows), len(self._rows)
        rows, square = values[:n], values[n:]
        result: Array
        if self._labels is None:
            hidden = self.model.forward(self._rows) * self._w[:, None]
            result = self._inputs.T @ (slope * (rows + hidden @ square / self._root))
            return result
        push = -0.5 * self._y @ rows + 0.25 * self._root * self.phi() @ square
        result = self._label_pull() * push - 2.0 * self._gamma * (self._inputs.T @ (slope * rows))
        return result

    def _label_pull(self) -> Array:
        """Return q[a, j] = dPhi_j / dW_aj = mean over the labelled rows of y_l x_la act'(z_lj)."""
        slope = self.model.derivative(self._known_features) * self._known_labels[:, None]
        result: Array = self._known_rows.T @ slope / len(self._known_labels)
        return result

    def gradient(self, sums: Array, included: bool) -> Array:
        """Return the gradient. The party's own part is the alignment's 2 gamma u, and L2."""
        own = self.model.vjp(self._rows, 2.0 * self._gamma * self.model.forward(self._rows))
        result: Array = ((sums + own) / len(self._rows)).ravel() + self._l2 * self.model.parameters
        return result

    def exact_gradient(self, others: Array, included: bool) -> Array:
        raise DataError("the transfer objective has no exact form: its loss is the Taylor polynomial")

    def scorer(self) -> TransferScorer:
        phi = None if self._labels is None else self.phi()
        return TransferScorer(self.model, phi, self._bound, self._fraction_bits)
