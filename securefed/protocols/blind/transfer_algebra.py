"""Blind transfer learning: the objective with linear maps over frozen local features, and each party's part.

Each party's non-linearity is local and fixed (splines, one-hot, random features: F, with a column of ones);
what is trained are linear maps to one number, u = F W: more columns of W would gain nothing. With the loss of
protocols.own_gradient.sides,

    Phi = W_A'q,  q = F_A'y / n_A over A's labelled rows        v = W_B Phi: a row of B's has the score f'v
    dL/dW_B = (G v/4 - c/2) Phi + 2 gamma (H_B W_B - K'W_A) + l2 W_B
    dL/dW_A = q (S Phi/4 - W_B'c/2) + 2 gamma (H_A W_A - K W_B) + l2 W_A,      S = W_B'G W_B,

where H = F'F/n over the n shared rows, G the same over the labelled ones among them, K = F_A'F_B/n and
c = F_B'(w y)/n. Only K and c take both parties' rows; they are computed once, hidden, and from then on
nothing depends on the number of rows.

*Several classes*: each against the rest is an output with a Phi, a q, a c and a column of both maps. Outputs
share F, H, G, K and P, and every message. A product by a constant matrix is made for all columns, and what it
has away from an output's own columns is dropped. Rates are those of the output that allows the smallest.

*Steps.* W <- W - eta P gradient with P = (H + delta I)^-1, the party's own (A: H plus the same matrix over
its labelled rows, so that q'P q <= 1). Each party takes eta = 1/lambda from its own columns, as if Phi^2 and
S q'P q were R = 4. Its map is held to where it was at the exchange, by tau/2 |W - W_0|^2 in the metric of
P^-1 (docs/proofs.md says why rounds lower the loss). Q steps of B on a Phi that stays, with N = eta P,
T = mu N + eta tau I, M = I - N (2 gamma H + l2) - T:

    W_B <- M W_B - sigma N G W_B + 2 gamma N K'W_A + T W_0 + N Phi c/2,      sigma = Phi^2 / 4

W_B after p steps is a polynomial of degree p in sigma, whose coefficients are B's matrices times W_B, W_0,
K'W_A and Phi c (`OwnMaps.chunk`). So p steps take one product by a matrix and one by the powers of sigma.
Coefficients grow like binomials, so p is at most `CHUNK`, and more steps are made in several chunks.

Q steps of A on a W_B that stays, with g_j = S Phi_j/4 - W_B'c/2 and w_i = q'M^i N q:

    Phi_j = q'((M^j + R_j T) W_A + 2 gamma R_j N K W_B) - sum over i < j of w_(j-1-i) g_i
    W_A <- (M^Q + R T) W_A + 2 gamma R N K W_B - sum over i of M^(Q-1-i) N q g_i

with R_j = I + M + ... + M^(j-1). So a local step takes the product of g_i with w_j S/4.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from securefed.errors import DataError

Array = NDArray[np.float64]
Rows = NDArray[np.intp]
CHUNK = 6
"""Steps of B that one polynomial covers at most."""
DAMPING = 0.1
"""delta, as a part of the mean second moment of a party's columns."""
REACH = 4.0
"""R, what |Phi|^2 and S q'P q are taken for: labels of -1 and +1 want scores of -2 and +2, |Phi|^2 S = 4."""
COUPLING = 1.5
"""R/4 + 1/2: of the loss, between the two maps, for q'P q = 1."""
HOLD = 0.25
"""B's part of what it takes to cover that where both move at once; A's is COUPLING^2 q'P q / HOLD."""
WAVES = 64
"""Random features that every party's columns get: cosines, so that a linear map can bend (Rahimi, Recht)."""


def with_waves(features: Array, untransformed: Rows) -> Array:
    """Return the columns, and random waves of the `untransformed` ones, the same for all who have as many."""
    rng = np.random.default_rng([WAVES, len(untransformed)])
    directions = rng.normal(size=(len(untransformed), WAVES)) / sqrt(len(untransformed))
    phases = rng.uniform(0.0, 2.0 * np.pi, size=WAVES)
    return np.hstack([features, sqrt(2.0) * np.cos(features[:, untransformed] @ directions + phases)])


@dataclass(frozen=True)
class TransferPlan:
    """What is public: sizes and weights."""

    size_a: int
    size_b: int
    """Columns, with the ones."""
    rows: int
    gamma: float
    l2: float
    proximal: float
    local_steps: int
    sequential: bool
    outputs: int = 1
    """Classes, each against the rest; one for two classes."""

    @property
    def chunks(self) -> list[int]:
        """B's local steps, as equal pieces of `CHUNK` steps or fewer."""
        count = -(-self.local_steps // CHUNK)
        least, more = divmod(self.local_steps, count)
        return [least + (place < more) for place in range(count)]


@dataclass(frozen=True, eq=False)
class TransferRows:
    """A party's rows: features with ones, the shared rows' numbers in the agreed order, which of them are
    labelled, and A's labels (-1, +1, NaN where unknown), with a column for each output if there are several.
    """

    features: Array
    overlap: Rows
    labelled: NDArray[np.bool_]
    labels: Array | None

    @cached_property
    def shared(self) -> Array:
        return self.features[self.overlap]

    @cached_property
    def _signs(self) -> Array:
        """A's labels, a column for each output."""
        if self.labels is None:
            raise DataError("no labels")
        return self.labels.reshape(len(self.labels), -1)

    @cached_property
    def _known(self) -> NDArray[np.bool_]:
        """Which of A's rows have labels."""
        return np.asarray(~np.isnan(self._signs).any(axis=1), dtype=np.bool_)

    def targets(self) -> Array:
        """w y, of the shared rows: (rows, outputs)."""
        return np.where(self.labelled[:, None], np.nan_to_num(self._signs[self.overlap]), 0.0)

    @cached_property
    def pull(self) -> Array:
        """q, a column for each output."""
        signs = self._signs[self._known]
        return self.features[self._known].T @ signs / len(signs)

    @cached_property
    def gram(self) -> Array:
        """H."""
        return self.shared.T @ self.shared / len(self.overlap)

    @cached_property
    def labelled_gram(self) -> Array:
        """G."""
        chosen = self.shared[self.labelled]
        return chosen.T @ chosen / len(self.overlap)

    @cached_property
    def inverse(self) -> Array:
        """P."""
        total = self.gram
        if self.labels is not None:
            known = self.features[self._known]
            total = total + known.T @ known / len(known)
        size = len(total)
        return np.linalg.inv(total + DAMPING * np.trace(self.gram) / size * np.eye(size))

    @cached_property
    def reaches(self) -> Array:
        """q'P q, of A, for each output: at most 1."""
        reaches: Array = np.einsum("ik,ij,jk->k", self.pull, self.inverse, self.pull)
        return reaches

    def hold(self, plan: TransferPlan) -> float:
        """tau: how much the map is held to where it was at the exchange."""
        return 2.0 * plan.gamma + (
            HOLD if self.labels is None else COUPLING**2 * float(self.reaches.max()) / HOLD
        )

    def curvature(self, plan: TransferPlan) -> float:
        """lambda: the largest of the local problem after P, from this party's own columns."""
        losses: list[Array] = [self.labelled_gram]
        if self.labels is not None:
            pairs = zip(self.pull.T, self.reaches, strict=True)
            losses = [np.outer(q, q) / (reach or 1.0) for q, reach in pairs]
        size, root = len(self.gram), np.linalg.cholesky(self.inverse)
        same = 2.0 * plan.gamma * self.gram + (plan.l2 + plan.proximal) * np.eye(size)
        totals = [root.T @ (REACH / 4.0 * loss + same) @ root for loss in losses]
        return self.hold(plan) + max(float(np.linalg.eigvalsh(total)[-1]) for total in totals)

    def start(self) -> Array:
        """W_A before training, which tells A's own labelled rows apart: (d_A, outputs). W_B is 0."""
        apart = self.inverse @ self.pull
        # Shared people have a u of 1; |Phi| starts between sqrt(q'P q) and 1 all the same.
        sizes = np.maximum(np.sqrt(np.einsum("ik,ij,jk->k", apart, self.gram, apart)), self.reaches)
        start: Array = apart / np.where(sizes > 0.0, sizes, np.inf)
        return start


@dataclass(frozen=True, eq=False)
class OwnMaps:
    """The matrices of a party's Q local steps."""

    rows: TransferRows
    plan: TransferPlan

    @cached_property
    def rate(self) -> float:
        """eta of this party."""
        return 1.0 / self.rows.curvature(self.plan)

    @cached_property
    def scaled(self) -> Array:
        """N."""
        return self.rate * self.rows.inverse

    @cached_property
    def kept(self) -> Array:
        """T: what the map at the exchange counts for in a step."""
        return self.plan.proximal * self.scaled + self.rate * self.rows.hold(self.plan) * np.eye(
            len(self.scaled)
        )

    @cached_property
    def powers(self) -> list[tuple[Array, Array]]:
        """M^j and R_j, j from 0 to Q."""
        plan, size = self.plan, len(self.rows.gram)
        pull = 2.0 * plan.gamma * self.rows.gram + plan.l2 * np.eye(size)
        step = np.eye(size) - self.scaled @ pull - self.kept
        powers = [(np.eye(size), np.zeros((size, size)))]
        for _ in range(plan.local_steps):
            power, total = powers[-1]
            powers.append((step @ power, total + power))
        return powers

    def base(self, steps: int) -> Array:
        """(d, 2d): what `steps` steps make of W, and of the peer's part of the alignment."""
        power, total = self.powers[steps]
        return np.hstack([power + total @ self.kept, 2.0 * self.plan.gamma * total @ self.scaled])

    def matrix(self, kind: str, place: int = 0) -> Array:
        """Return the matrix of that kind; `place`: the number of a chunk."""
        if kind == "chunk":
            return self.chunk(self.plan.chunks[place], start=place == 0)
        if kind == "G":
            return self.rows.labelled_gram
        return {"bases": self.bases, "pushes": self.pushes, "weights": self.weights}[kind]()

    # B's

    def chunk(self, steps: int, *, start: bool) -> Array:
        """What some steps make of W, by powers of sigma: the coefficients of sigma^0 to sigma^p, one below
        the other. The inputs are W, W_0, K'W_A and Phi c; at the start W is W_0, and left out.
        """
        size, n, once = len(self.scaled), self.scaled, self.powers[1][0]
        w_in, kept_in, pulled_in, labels_in = np.split(np.eye(4 * size), 4)
        pushed = self.kept @ kept_in + 2.0 * self.plan.gamma * n @ pulled_in + 0.5 * n @ labels_in
        felt, parts = -n @ self.rows.labelled_gram, [w_in]
        for _ in range(steps):
            kept = [once @ part for part in parts]
            kept[0] = kept[0] + pushed
            moved = [felt @ part for part in parts]
            parts = [kept[0], *(np.add(*both) for both in zip(kept[1:], moved, strict=False)), moved[-1]]
        coefficients = np.vstack(parts)
        if not start:
            return coefficients
        by_w, by_kept, *rest = np.split(coefficients, 4, axis=1)
        return np.hstack([by_w + by_kept, *rest])

    # A's

    def bases(self) -> Array:
        """(d + Q outputs, 2d): W after Q steps, and each Phi after 1 to Q, but for the g."""
        q = self.rows.pull.T
        phis = [q @ self.base(steps) for steps in range(1, self.plan.local_steps + 1)]
        return np.vstack([self.base(self.plan.local_steps), *phis])

    def pushes(self) -> Array:
        """(d + outputs, Q outputs): M^(Q-1-i) N q, all outputs of a step together, and q' times that."""
        pulled = self.scaled @ self.rows.pull
        pushes = np.hstack([power @ pulled for power, _ in reversed(self.powers[:-1])])
        return np.vstack([pushes, self.rows.pull.T @ pushes])

    def weights(self) -> Array:
        """((Q - 1) outputs, outputs): w_i of every output, one output a column."""
        outputs = self.rows.pull.shape[1]
        weights = [
            np.diag(np.einsum("dk,de,ek->k", self.rows.pull, power @ self.scaled, self.rows.pull))
            for power, _ in self.powers[: self.plan.local_steps - 1]
        ]
        return np.vstack(weights) if weights else np.zeros((0, outputs))
