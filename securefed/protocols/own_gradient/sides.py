"""One party's side of an objective: its contributions, its gradient from opened sums, and its part of scores.

Every objective here has one shape. In an exchange each party gives a *contribution*, an array of numbers. The
others' contributions add up to a matrix E that a party holds encrypted. At a local step its gradient, up to
plaintext terms of its own, is

    sums[a, j] = sum over i of multipliers[j, a, i] * E[i, j]

with multipliers from its own rows and parameters. The party opens the sums (never an E[i, j]) and adds its
own part. E stays fixed during the Q local steps: the stale H of FedBCD. Where the multipliers do not depend
on the parameters (`is_linear`), one opening serves all Q steps.

*Linear* (equation 2): E = residuals less the party's own part, multipliers = jacobian of its model.
*Transfer*: E has n + h rows and h columns, C and M or u^B and S of docs/protocols.md (own gradients).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import KW_ONLY, dataclass, field

import numpy as np
from numpy.typing import NDArray

from securefed.crypto import FixedPoint
from securefed.crypto.fixed import Multipliers
from securefed.errors import DataError
from securefed.models import HiddenLayer, LocalModel
from securefed.protocols.agreement import FRACTION_BITS
from securefed.protocols.losses import Loss

Array = NDArray[np.float64]
Places = NDArray[np.intp]


def _check_bound(name: str, what: str, values: Array, bound: float, *, trains: bool) -> None:
    """Raise DataError for a value that is larger than was declared."""
    largest = float(np.max(np.abs(values)))
    if largest > bound:
        hint = f"; lower the learning rate or raise {name}" if trains else ""
        reached = f"{what} {'reached' if trains else 'is'} {largest:.4g}"
        raise DataError(f"{reached}, above {name}={bound:.4g}{hint}")


@dataclass(frozen=True)
class LinearScorer:
    """A party's part of H in the generalised linear objective."""

    model: LocalModel
    margin_bound: float

    def content(self) -> bytes:
        """Return what determines the part besides the row."""
        return type(self.model).__name__.encode() + self.model.parameters.tobytes()

    def to_arrays(self) -> dict[str, NDArray[np.generic]]:
        return dict(self.model.to_arrays())

    def part(self, features: Array) -> Array:
        part = self.model.forward(features)
        _check_bound("margin_bound", "a score part", part, self.margin_bound, trains=False)
        return part


@dataclass(frozen=True)
class TransferScorer:
    """A's Phi, or B's hidden layer, in the transfer objective."""

    model: HiddenLayer
    phi: Array | None
    bound: float
    sealed: dict[bytes, bytes] = field(default_factory=dict, repr=False, compare=False)
    """A's first encryption of Phi, by key, so that the same question looks the same to B."""

    @property
    def fixed(self) -> FixedPoint:
        return FixedPoint(self.bound, FRACTION_BITS)

    def content(self) -> bytes:
        """Return what determines a score besides the row (B)."""
        return self.model.activation.encode() + self.model.parameters.tobytes()

    def to_arrays(self) -> dict[str, NDArray[np.generic]]:
        phi = {} if self.phi is None else {"phi": self.phi}
        return {**self.model.to_arrays(), **phi}

    def hidden(self, features: Array) -> Array:
        """Return u of each row (B)."""
        hidden = self.model.forward(features)
        _check_bound("activation_bound", "a hidden unit", hidden, self.bound, trains=False)
        return hidden


Scorer = LinearScorer | TransferScorer


class Side(ABC):
    """A party's objective as the training loop uses it, with the party's own model."""

    model: LocalModel | HiddenLayer
    is_linear: bool
    """The multipliers stay the same during a round."""
    exact = False
    """Plain only: contributions in the clear and the exact loss."""

    @property
    def parameters(self) -> Array:
        return self.model.parameters

    @parameters.setter
    def parameters(self, values: Array) -> None:
        self.model.parameters = values

    @property
    def equations(self) -> int:
        """Numbers opened at a local step."""
        return self.model.size

    @abstractmethod
    def begin(self, batch: Places) -> None:
        """Start a round with these rows."""

    @abstractmethod
    def contribution(self) -> Array:
        """Return the contribution at the current parameters."""

    @abstractmethod
    def fixed(self) -> FixedPoint:
        """Return the public range and precision of the contributions."""

    @abstractmethod
    def peer_shape(self) -> tuple[int, ...]:
        """Return the shape of the others' contributions."""

    @abstractmethod
    def multipliers(self) -> Array | Multipliers:
        """Return the multipliers; a large tensor yields blocks.

        Plain runs use `sums(E)` of a class that has it: a shorter way to the same sums of an E in the clear.
        """

    @abstractmethod
    def gradient(self, sums: Array, included: bool) -> Array:
        """Return the gradient of the objective by the flat parameters, from opened sums.

        `included`: the opened sums contain the party's own contribution of the round's start.
        """

    def exact_gradient(self, others: Array, included: bool) -> Array:
        """Return the gradient from contributions in the clear."""
        raise DataError("the objective has no exact form: its loss is the Taylor polynomial")

    @abstractmethod
    def scorer(self) -> Scorer:
        """Return a scorer with the current parameters."""


@dataclass(eq=False, repr=False)
class LinearSide(Side):
    """A party of the generalised linear objective (equations 2 to 4), with or without labels.

    It contributes margin_weight * H^k. The label party adds label_weight * y, so that the sum over all
    parties is the Taylor residual. The exact loss, in plain, has two columns: H^k and y.
    """

    model: LocalModel
    features: Array
    labels: Array | None
    loss: Loss
    _: KW_ONLY
    l2: float
    exact: bool
    margin_bound: float
    overlap: int = 1

    def __post_init__(self) -> None:
        self.is_linear = self.model.is_linear
        self.begin(np.arange(len(self.features)))

    def begin(self, batch: Places) -> None:
        self._rows = self.features[batch]
        self._targets = None if self.labels is None else self.labels[batch]
        self._start = self.model.forward(self._rows)

    def contribution(self) -> Array:
        self._start = self.model.forward(self._rows)
        _check_bound("margin_bound", "a score part", self._start, self.margin_bound, trains=True)
        if self.exact:
            targets = np.zeros(len(self._rows)) if self._targets is None else self._targets
            return np.column_stack([self._start, targets])
        return self._part(self._start)

    def _part(self, margins: Array) -> Array:
        part: Array = self.loss.margin_weight * margins
        if self._targets is not None:
            part = part + self.loss.label_weight * self._targets
        return part

    def fixed(self) -> FixedPoint:
        labels = 1.0 if self.loss.binary else self.margin_bound
        if self.exact:
            return FixedPoint(max(self.margin_bound, labels), FRACTION_BITS)
        margins = self.loss.margin_weight * self.margin_bound
        return FixedPoint(margins + abs(self.loss.label_weight) * labels, FRACTION_BITS)

    def peer_shape(self) -> tuple[int, ...]:
        return (len(self._rows), 2) if self.exact else (len(self._rows),)

    def multipliers(self) -> Array:
        return self.model.jacobian(self._rows)[None]

    def gradient(self, sums: Array, included: bool) -> Array:
        now = self.model.forward(self._rows)
        own = self.loss.margin_weight * (now - self._start) if included else self._part(now)
        return self._regularised(sums + self.model.vjp(self._rows, own))

    def exact_gradient(self, others: Array, included: bool) -> Array:
        # What this party moves counts `overlap` times: the others may move the same way (steps.py).
        total = others[:, 0] + self.overlap * (self.model.forward(self._rows) - self._start)
        if not included:
            total = total + self._start
        labels = others[:, 1]
        if self._targets is not None and not included:
            labels = labels + self._targets
        return self._regularised(self.model.vjp(self._rows, self.loss.residual(total, labels)))

    def _regularised(self, sums: Array) -> Array:
        return sums / len(self._rows) + self.l2 * self.model.parameters

    def scorer(self) -> LinearScorer:
        return LinearScorer(self.model, self.margin_bound)


@dataclass(eq=False, repr=False)
class TransferSide(Side):
    """A party of the transfer objective: A with labels, or B without."""

    model: HiddenLayer
    features: Array
    overlap: Places
    """This party's row numbers of the overlapping rows, in the agreed order."""
    labelled: NDArray[np.bool_]
    """w of the overlapping rows."""
    labels: Array | None
    """A's: -1, +1 or NaN (unlabelled) for each of its rows."""
    _: KW_ONLY
    gamma: float
    l2: float
    activation_bound: float
    is_linear = False

    def __post_init__(self) -> None:
        self._bound = self.activation_bound if self.model.activation == "relu" else 1.0
        if self.labels is not None:
            known = ~np.isnan(self.labels)
            self._known_features, self._known_labels = self.features[known], self.labels[known]
            self._known_rows = self.model.augmented(self._known_features)
        self.begin(np.arange(len(self.overlap)))

    def begin(self, batch: Places) -> None:
        chosen = self.overlap[batch]
        self._rows = self.features[chosen]
        self._inputs = self.model.augmented(self._rows)
        self._w = self.labelled[batch].astype(np.float64)
        self._y = np.zeros(len(batch))
        if self.labels is not None:
            self._y = np.where(self._w > 0, np.nan_to_num(self.labels[chosen]), 0.0)
        self._root = float(np.sqrt(len(batch)))

    def phi(self) -> Array:
        """Return Phi = mean of y_l u_l^A over A's labelled rows (A only)."""
        return self._known_labels @ self.model.forward(self._known_features) / len(self._known_labels)

    def contribution(self) -> Array:
        hidden = self.model.forward(self._rows)
        _check_bound("activation_bound", "a hidden unit", hidden, self._bound, trains=True)
        if self.labels is None:
            outer = (hidden * self._w[:, None]).T @ hidden
            return np.vstack([hidden, outer / self._root])
        phi = self.phi()
        constant = -0.5 * np.outer(self._y, phi) - 2.0 * self.gamma * hidden
        return np.vstack([constant, 0.25 * self._root * np.outer(phi, phi)])

    def fixed(self) -> FixedPoint:
        u = self._bound
        if self.labels is None:
            bound = max(u, self._root * u * u)
        else:
            bound = max(u * (0.5 + 2.0 * self.gamma), 0.25 * self._root * u * u)
        # Saturated activations reach the bound up to the rounding of a sum of n products.
        return FixedPoint(bound * (1.0 + 2.0**-20), FRACTION_BITS)

    def peer_shape(self) -> tuple[int, ...]:
        return (len(self._rows) + self.model.width, self.model.width)

    def multipliers(self) -> Multipliers:
        """Return them, of shape (h, d + 1, n + h).

        B's of C_i are x_ia act'(z_ij), and those of a row of M the sum of these over the labelled rows' u^B.
        A's of u_i^B and S are q_aj times Phi's gradient terms, plus alignment for u_i^B.
        """
        inputs, slope = self._inputs.T, self.model.derivative(self._rows).T
        n, h = len(self._rows), self.model.width
        if self.labels is None:
            weighted = self.model.forward(self._rows) * self._w[:, None] / self._root

            def block_of_b(columns: slice, outputs: slice) -> Array:
                rows = slope[columns, None] * inputs[outputs]
                return np.concatenate([rows, rows @ weighted], axis=2)

            return Multipliers((h, len(inputs), n + h), block_of_b)
        pulled = np.concatenate([-0.5 * self._y, 0.25 * self._root * self.phi()])
        pull, aligned = self._label_pull().T, -2.0 * self.gamma * slope

        def block_of_a(columns: slice, outputs: slice) -> Array:
            block: Array = pull[columns, outputs, None] * pulled
            block[:, :, :n] += aligned[columns, None] * inputs[outputs]
            return block

        return Multipliers((h, len(inputs), n + h), block_of_a)

    def sums(self, values: Array) -> Array:
        """Return the sums (d + 1, h) of values in the clear, without the tensor of multipliers."""
        slope, n = self.model.derivative(self._rows), len(self._rows)
        rows, square = values[:n], values[n:]
        if self.labels is None:
            hidden = self.model.forward(self._rows) * self._w[:, None]
            return self._inputs.T @ (slope * (rows + hidden @ square / self._root))
        push = -0.5 * self._y @ rows + 0.25 * self._root * self.phi() @ square
        return self._label_pull() * push - 2.0 * self.gamma * (self._inputs.T @ (slope * rows))

    def _label_pull(self) -> Array:
        """Return q[a, j] = dPhi_j / dW_aj = mean over the labelled rows of y_l x_la act'(z_lj)."""
        slope = self.model.derivative(self._known_features) * self._known_labels[:, None]
        return self._known_rows.T @ slope / len(self._known_labels)

    def gradient(self, sums: Array, included: bool) -> Array:
        """Return the gradient. The party's own part is the alignment's 2 gamma u, and L2."""
        own = self.model.vjp(self._rows, 2.0 * self.gamma * self.model.forward(self._rows))
        return ((sums + own) / len(self._rows)).ravel() + self.l2 * self.model.parameters

    def scorer(self) -> TransferScorer:
        phi = None if self.labels is None else self.phi()
        return TransferScorer(self.model, phi, self._bound)
