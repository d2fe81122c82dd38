"""Updates of a party's parameters: optimisers, and local steps of linear models that cannot diverge.

docs/proofs.md (steps that cannot diverge) has the curvature K_k of a party's local problem, its rate eta and
the matrix P that makes its Q local steps: theta <- theta - P (X_k'g/S + l2 theta). A party computes its step
from its own columns and tells no other party. With mini-batches the curvature is that of all own rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from securefed.data.storage import Array, take_rows
from securefed.declare import check_choice, check_number
from securefed.errors import SettingError
from securefed.protocols.agreement import Agreement
from securefed.protocols.losses import Loss
from securefed.protocols.schedules import Automatic


@dataclass(eq=False)
class Optimiser:
    """An update rule: gradient in, new flat parameters out. Its fields are its settings."""

    def step(self, parameters: Array, gradient: Array, learning_rate: float) -> Array:
        """Return new parameters. A rate of 0 freezes a party."""
        rate = check_number("learning_rate", learning_rate, least=0.0)
        return parameters - rate * self._direction(gradient)

    def _direction(self, gradient: Array) -> Array:
        """Return the step at a learning rate of 1."""
        return gradient

    def state(self) -> dict[str, NDArray[np.generic]]:
        """Return a copy of everything that the next step depends on besides its arguments."""
        return {}

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Continue from a `state()` of an optimiser with the same settings."""

    def clone(self) -> Self:
        """Return an optimiser with the same settings and no history."""
        return replace(self)


@dataclass(eq=False)
class SGD(Optimiser):
    """Gradient descent: theta - eta g (equation 9)."""


@dataclass(eq=False)
class Adam(Optimiser):
    """Adam with bias correction and its authors' defaults."""

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        for name in ("beta1", "beta2"):
            check_number(name, getattr(self, name), least=0.0, below=1.0)
        check_number("epsilon", self.epsilon, above=0.0)
        self._steps = 0
        self._first: Array = np.zeros(0)
        self._second: Array = np.zeros(0)

    def _direction(self, gradient: Array) -> Array:
        if self._steps == 0:
            self._first, self._second = np.zeros(gradient.shape), np.zeros(gradient.shape)
        self._steps += 1
        self._first = self.beta1 * self._first + (1.0 - self.beta1) * gradient
        self._second = self.beta2 * self._second + (1.0 - self.beta2) * gradient**2
        first = self._first / (1.0 - self.beta1**self._steps)
        second = self._second / (1.0 - self.beta2**self._steps)
        return first / (np.sqrt(second) + self.epsilon)

    def state(self) -> dict[str, NDArray[np.generic]]:
        return {"steps": np.array(self._steps), "first": self._first.copy(), "second": self._second.copy()}

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        self._steps = int(state["steps"])
        self._first, self._second = (np.array(state[name], np.float64) for name in ("first", "second"))


def get_optimiser(optimiser: str | Optimiser) -> Optimiser:
    """Return a new optimiser, by name ("sgd" or "adam") or with the settings of `optimiser`."""
    if isinstance(optimiser, Optimiser):
        return optimiser.clone()
    return SGD() if check_choice("optimiser", optimiser, ("sgd", "adam")) == "sgd" else Adam()


@dataclass(frozen=True, eq=False)
class LocalProblem:
    """A party's quadratic problem of one round, as the spectrum of its curvature.

    `values` are the eigenvalues x of (b/S) X'X that are not 0 by rank. `vectors` (d x r) are the
    eigenvectors.
    """

    values: Array
    vectors: Array
    l2: float
    proximal: float
    overlap: int
    """K where all parties move at once, else 1."""

    @classmethod
    def of(
        cls, rows: Array, margin_weight: float, *, l2: float, proximal: float = 0.0, overlap: int = 1
    ) -> LocalProblem:
        """Decompose a party's own rows, through the smaller of X'X and XX'."""
        count, size = rows.shape
        scale = margin_weight / count
        if count >= size:
            values, vectors = np.linalg.eigh(scale * (rows.T @ rows))
            return cls(np.maximum(values, 0.0), vectors, l2, proximal, overlap)
        values, left = np.linalg.eigh(scale * (rows @ rows.T))
        # Directions without weight have no vector here: X'u is 0 up to rounding.
        kept = values > values[-1] * 1e-12
        vectors = rows.T @ left[:, kept] * np.sqrt(scale / values[kept])
        return cls(values[kept], vectors, l2, proximal, overlap)

    @property
    def pull(self) -> float:
        """l2 + mu: the curvature that every direction has."""
        return self.l2 + self.proximal

    @property
    def largest(self) -> float:
        """lambda_max of K_k."""
        return self.overlap * float(self.values.max(initial=0.0)) + self.pull

    @property
    def step(self) -> float:
        """1/lambda_max, or 0 where there is no curvature and so no gradient."""
        return 1.0 / self.largest if self.largest > 0 else 0.0

    def update_matrix(self, eta: float, steps: int) -> Array:
        """Return P, which maps the round's first gradient to the change of Q steps of size eta."""
        return self._matrix(self._weights(eta, steps))

    def update_root(self, eta: float, steps: int) -> Array:
        """Return the symmetric P^(1/2). Raises SettingError if P has a negative direction: such steps
        diverge.
        """
        weights = self._weights(eta, steps)
        if not (np.isfinite(weights).all() and (weights >= 0.0).all()):
            raise SettingError(f"learning_rate: {eta:g} given; with {steps} local steps it diverges")
        return self._matrix(np.sqrt(weights))

    def _weights(self, eta: float, steps: int) -> Array:
        """Return P's eigenvalue in each direction, and last in those without a vector."""
        return _summed(np.append(self.overlap * self.values, 0.0) + self.pull, eta, steps)

    def _matrix(self, weights: Array) -> Array:
        """Return the symmetric matrix with these eigenvalues."""
        size, within = self.vectors.shape
        inside, outside = weights[:-1], float(weights[-1])
        if size == within:
            return (self.vectors * inside) @ self.vectors.T
        return (self.vectors * (inside - outside)) @ self.vectors.T + outside * np.eye(size)


def _summed(curvature: Array, eta: float, steps: int) -> Array:
    """Return eta * sum over q < Q of (1 - eta k)^q, for each k."""
    moved = eta * curvature
    small = moved < 1e-3  # 1 - (1 - eta k)^Q would cancel; expm1 and log1p do not
    safe = np.where(curvature > 0, curvature, 1.0)
    near = -np.expm1(steps * np.log1p(-np.where(small, moved, 0.0)))
    with np.errstate(over="ignore"):  # an unstable rate may take it to infinity, and is refused elsewhere
        far = 1.0 - (1.0 - np.where(small, 0.0, moved)) ** steps
    return np.where(curvature > 0, np.where(small, near, far) / safe, eta * steps)


def stable(problem: LocalProblem, parties: int, steps: int) -> float:
    """Return the largest constant rate at which rounds of `parties` such parties are sure to contract.

    docs/proofs.md (given rates) has the condition. Its left half matters for even Q: past eta k = 2 steps
    grow without changing sign. `parties` is 1 where one party moves at a time.
    """
    bound, values = math.inf, problem.values.tolist()
    if problem.vectors.shape[0] > problem.vectors.shape[1]:
        values.append(0.0)
    for value in values:
        curvature = value + problem.pull
        joint = parties * value + problem.l2
        if curvature <= 0 or joint <= 0:
            continue
        left = 1.0 - 2.0 * curvature / joint  # (1 - eta k)^Q has to stay above this
        root = math.copysign(abs(left) ** (1.0 / steps), left)
        reach = 1.0 - root if left >= 0 or steps % 2 else 2.0
        bound = min(bound, reach / curvature)
    return bound


class OwnSteps:
    """The steps of one party with a linear model, from the agreement, the loss and its own columns.

    Columns include the intercept's ones, where the party has one. A fixed rate that these columns show to be
    unstable raises SettingError before anything is sent.
    """

    def __init__(
        self, agreement: Agreement, loss: Loss, features: Array, *, l2: float, allow_unstable: bool = False
    ) -> None:
        self._agreement, self._loss, self._l2 = agreement, loss, l2
        self._features = features
        self.automatic = isinstance(agreement.learning_rate, Automatic)
        """Each party computes its own step."""
        self._parties = len(agreement.turns[0])
        self.overlap = self._parties if self.automatic else 1
        """The factor of the party's own curvature in local steps."""
        self._all = self._problem(features)
        self._matrices: dict[tuple[int, ...], Array] = {}
        """Matrices by the folds that are left out."""
        if not self.automatic and not allow_unstable:
            self._check()

    def _problem(self, rows: Array) -> LocalProblem:
        proximal, weight = self._agreement.algorithm.proximal, self._loss.margin_weight
        return LocalProblem.of(rows, weight, l2=self._l2, proximal=proximal, overlap=self.overlap)

    def _check(self) -> None:
        algorithm, rate = self._agreement.algorithm, self._agreement.learning_rate(0)
        most = stable(self._all, self._parties, algorithm.local_steps)
        if rate >= most:
            raise SettingError(
                f"learning_rate: {rate:g} given; with {algorithm.local_steps} local steps and "
                f"{len(self._agreement.members)} parties it may diverge on this party's columns, the largest "
                f"that cannot is {floored(most)}; 'auto' never does, and allow_unstable=True tries"
            )

    def matrix(self, t: int) -> Array:
        """Return P of round t."""
        agreed, steps = self._agreement.learning_rate(t), self._agreement.algorithm.local_steps
        if not self.automatic:
            return self._problem(self._batch(t)).update_matrix(agreed, steps)
        folds = self._agreement.batches.left_out(t)
        if folds not in self._matrices:
            # Before they are learnt from, rows that are set aside say nothing, not even by their columns.
            problem = self._problem(self._batch(t)) if folds else self._all
            self._matrices[folds] = problem.update_matrix(problem.step, steps)
        return agreed * self._matrices[folds]

    def root(self) -> Array:
        """Return P^(1/2) of all own rows, for blind training. It serves all rounds, scaled by `factor`."""
        rate, steps = self._agreement.learning_rate, self._agreement.algorithm.local_steps
        if self.automatic:
            return self._all.update_root(self._all.step, steps)
        if steps > 1 and any(rate(t) != rate(0) for t in range(self._agreement.stopping.rounds)):
            raise SettingError(
                f"learning_rate: {rate!r} changes from round to round; with {steps} local steps and nothing"
                " revealed it has to stay, or be 'auto'"
            )
        return self._all.update_root(rate(0), steps)

    def momentum(self, t: int) -> float:
        """Return the fraction of the last round's change that round t repeats; 0 with a fixed rate."""
        rate = self._agreement.learning_rate
        return rate.momentum(t) if isinstance(rate, Automatic) else 0.0

    def rate(self, t: int) -> float:
        """Return the size of a single local step, where steps are made one by one (the exact loss)."""
        agreed = self._agreement.learning_rate(t)
        if not self.automatic:
            return agreed
        step = self._all.step
        if self._agreement.batches.effective_size < len(self._features):
            step = min(step, self._problem(self._batch(t)).step)
        return agreed * step

    def _batch(self, t: int) -> Array:
        return take_rows(self._features, self._agreement.batches.trained(t))


def floored(rate: float) -> str:
    """Return the number with three digits, rounded down."""
    digits = 10.0 ** (2 - math.floor(math.log10(rate)))
    return f"{math.floor(rate * digits) / digits:g}"
