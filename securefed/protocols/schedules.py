"""The paper's algorithms, learning rates, batches and stopping rules, as small values.

One loop runs them all (docs/protocols.md, who updates when). Round t exchanges, and makes `local_steps`
updates at the rate `rate(t)` on `Batches.batch(t)`, while the others' values stay fixed. Rounds count from 0.
Nothing here depends on data: every party computes it for itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from numbers import Real
from typing import ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from securefed.declare import (
    Declared,
    check_flag,
    check_integer,
    check_number,
    choice,
    flag,
    integer,
    number,
    optional,
    setting,
)
from securefed.errors import DataError, SettingError

Order = Literal["parallel", "sequential"]
PRECISE = 1200
LEAST_HELD_OUT = 10
"""Fewer rows than this cannot measure a model."""
Reason = Literal["target", "rounds", "no progress"]
PULL = "Weight of the pull back to the parameters at the round's start."


@dataclass(frozen=True)
class FedSGD(Declared):
    """Algorithm 1: one local step a round, with the same iterates as SGD on the joined columns.

    A proximal weight is accepted and changes nothing: the pull is zero at the only step.
    """

    proximal: float = setting(0.0, number(least=0.0), PULL)
    name: ClassVar[str] = "FedSGD"
    local_steps: ClassVar[int] = 1
    order: ClassVar[Order] = "parallel"


@dataclass(frozen=True)
class FedBCD(Declared):
    """Algorithms 2 and 3: Q local steps a round on stale messages, parallel (-p) or sequential (-s)."""

    local_steps: int = setting(
        5, integer(least=1), "Q: local updates between two rounds; `securefed plan` says which is fast."
    )
    order: Order = setting(
        "parallel", choice(("parallel", "sequential")), '"parallel" is FedBCD-p, "sequential" FedBCD-s.'
    )
    proximal: float = setting(0.0, number(least=0.0), PULL)

    @property
    def name(self) -> str:
        return f"Fed{'P' if self.proximal > 0 else ''}BCD-{self.order[0]}"


Algorithm = FedSGD | FedBCD


def algorithm(local_steps: int, order: Order = "parallel", proximal: float = 0.0) -> Algorithm:
    """Return the algorithm of these steps: one parallel step is FedSGD."""
    if (local_steps, order) == (1, "parallel"):
        return FedSGD(proximal)
    return FedBCD(local_steps, order, proximal)


@runtime_checkable
class LearningRate(Protocol):
    """The learning rate of round t = 0, 1, ..., the same for its Q local steps."""

    def __call__(self, t: int) -> float: ...


@dataclass(frozen=True)
class _Rate(Declared):
    eta0: float = setting(MISSING, number(above=0.0), "The rate of the first round, but for constants.")


@dataclass(frozen=True)
class Constant(_Rate):
    """The rate eta0 in every round."""

    def __call__(self, t: int) -> float:
        return self.eta0


@dataclass(frozen=True)
class InverseSqrt(_Rate):
    """The rate eta0 / sqrt(t + 1) of all the paper's experiments with two parties."""

    def __call__(self, t: int) -> float:
        return self.eta0 / math.sqrt(t + 1)


@dataclass(frozen=True)
class InverseSqrtParties(_Rate):
    """The rate eta0 / sqrt(T k) of the paper's experiments with k = 5 and 17 parties.

    T is read as the round counted from 1, since the paper calls this rate a *decay* strategy. Remark 4 to
    Theorem 2 has T as the total number of iterations: `Constant(eta0 / math.sqrt(total * parties))`.
    """

    parties: int = setting(MISSING, integer(least=1), "k.")

    def __call__(self, t: int) -> float:
        return self.eta0 / math.sqrt((t + 1) * self.parties)


@dataclass(frozen=True)
class Automatic(Declared):
    """A step for each party from the curvature of its own columns (securefed.protocols.steps).

    Round t makes the returned fraction of that step, less than 1 with batches of a `share` of the rows. An
    `accelerated` run makes longer steps and adds `momentum(t)` of the last one (docs/proofs.md, accelerated
    rounds). It restarts every `again` rounds, `restarts` times.
    """

    share: float = setting(1.0, number(above=0.0), "Part of the rows in a batch.")
    accelerated: bool = setting(False, flag, "Repeat a part of the last round's change.")
    again: int | None = setting(None, optional(integer(least=1)), "Rounds until a restart.")
    restarts: int = 1

    def __call__(self, t: int) -> float:
        if self.accelerated:
            odd = 2 * self._place(t) + 1
            return 4.0 * odd / (odd + 2)
        return 1.0 / math.sqrt(1.0 + t * max(0.0, 1.0 - self.share))

    def momentum(self, t: int) -> float:
        """Return the fraction of the last round's change that is repeated."""
        place = self._place(t)
        return (2 * place - 1) / (2 * place + 3) if self.accelerated and place else 0.0

    def _place(self, t: int) -> int:
        return t if self.again is None else t - min(t // self.again, self.restarts) * self.again


def automatic_rounds(parties: int) -> int:
    """Return the rounds of rounds="auto" (docs/proofs.md, accelerated rounds)."""
    check_integer("parties", parties, least=1)
    return math.ceil((math.sqrt(PRECISE * parties) - 1.0) / 2.0)


def as_learning_rate(rate: str | float | LearningRate) -> LearningRate:
    """Return a learning rate: a number is a constant one, "auto" is `Automatic`."""
    if isinstance(rate, str) and rate == "auto":
        return Automatic()
    # A class can be called too, and would pass for one of its instances.
    if isinstance(rate, LearningRate) and not isinstance(rate, type):
        return rate
    if isinstance(rate, bool) or not isinstance(rate, Real):
        raise SettingError(
            "learning_rate must be 'auto', a number greater than 0 or a rate such as InverseSqrt(0.1),"
            f" not {rate!r}"
        )
    return Constant(check_number("learning_rate", rate, above=0.0))


@dataclass(frozen=True)
class Batches:
    """The rows of each round's mini-batch, the same at every party that knows the seed.

    size=None takes all rows. Otherwise round t takes a random set of `size` rows in ascending order. With
    fixed=True the rows are cut into batches once, and the rounds take them in turn. Where `size` does not
    divide `rows`, the last batch repeats some rows of the one before. Batches are public; they protect
    nothing. They come from Philox with the key (seed, t), a stream that numpy keeps the same over its
    versions.

    `holdout_rows` of the rows (see `held_out`) are held out until round `holdout_until`, and every batch is
    all rows. In `folds` (docs/protocols.md, few rows) the held-out rows take turns. A model for each fold
    leaves it out: `abreast` in the same rounds, or one after another. With two `stages` there are further
    models.
    """

    rows: int
    size: int | None = None
    seed: int = 0
    fixed: bool = False
    holdout_rows: int = 0
    holdout_until: int = 0
    folds: int = 1
    stages: int = 1
    abreast: bool = False

    def __post_init__(self) -> None:
        check_flag("fixed", self.fixed)
        object.__setattr__(self, "rows", check_integer("rows", self.rows, least=1))
        if self.size is not None:
            object.__setattr__(self, "size", check_integer("size", self.size, least=1, most=self.rows))
        object.__setattr__(self, "seed", check_integer("seed", self.seed, least=0, most=2**64 - 1))
        check_integer("folds", self.folds, least=1)
        check_integer("stages", self.stages, least=1, most=1 if self.folds == 1 else 2)
        most = self.rows - 1 if self.folds == 1 else self.rows
        check_integer("holdout_rows", self.holdout_rows, least=0, most=most)
        check_integer("holdout_until", self.holdout_until, least=0)
        if self.holdout_until % (self.stages * self.folds if not self.abreast else self.stages):
            raise SettingError(f"holdout_until: {self.holdout_until} given for {self.folds} folds")
        if self.holdout_rows and self.size is not None:
            raise SettingError(
                f"holdout_rows: {self.holdout_rows} rows given, and batches of {self.size}; all rows are due"
            )

    @property
    def effective_size(self) -> int:
        """S: the rows of each batch."""
        return self.rows if self.size is None else self.size

    def batch(self, t: int) -> NDArray[np.intp]:
        if self.effective_size == self.rows:
            return np.arange(self.rows, dtype=np.intp)
        size, number, start = self.effective_size, t, 0
        if self.fixed:
            number = 2**64 - 1  # one order for all rounds
            start = min(t % -(-self.rows // size) * size, self.rows - size)
        return np.sort(self._order(number)[start : start + size])

    def _order(self, number: int) -> NDArray[np.intp]:
        """Return the rows in a random order, the same for the same number."""
        words = np.random.Philox(key=np.array([self.seed, number], dtype=np.uint64)).random_raw(self.rows)
        return np.argsort(words, kind="stable").astype(np.intp, copy=False)

    @property
    def model_rounds(self) -> int:
        """Rounds of a model that leaves rows out."""
        return self.holdout_until // (self.stages * (1 if self.abreast else self.folds))

    def left_out(self, t: int) -> tuple[int, ...]:
        """Return the folds of which round t trains models, each without its fold; none in the last rounds."""
        if not self.holdout_rows or t >= self.holdout_until:
            return ()
        return tuple(range(self.folds)) if self.abreast else (t // self.model_rounds % self.folds,)

    def stage(self, t: int) -> int:
        """Return the stage of round t; the last rounds, which learn from all rows, belong to the last one."""
        return self.stages - 1 if not self.left_out(t) else t * self.stages // self.holdout_until

    def begins_anew(self, t: int) -> bool:
        """Return whether round t begins models that leave out rows of which the last ones may know."""
        return t > 0 and bool(self.left_out(t)) and t % self.model_rounds == 0

    def aims_anew(self, t: int) -> bool:
        return t > 0 and self.stage(t) != self.stage(t - 1)

    def ends_models(self, t: int) -> bool:
        return bool(self.left_out(t)) and (t + 1) % self.model_rounds == 0

    def held(self, fold: int) -> NDArray[np.intp]:
        """Return the row numbers of a fold, in ascending order."""
        holdout = self._order(2**64 - 2)[: self.holdout_rows]
        return np.sort(np.array_split(holdout, self.folds)[fold])

    def trained(self, t: int) -> NDArray[np.intp]:
        """Return the row numbers that round t learns from; `abreast`: but for those that are left out."""
        folds = [self.held(fold) for fold in self.left_out(t)]
        return np.setdiff1d(np.arange(self.rows), np.concatenate(folds)) if folds else self.batch(t)

    @property
    def fold_sizes(self) -> list[int]:
        return [len(part) for part in np.array_split(np.arange(self.holdout_rows), self.folds)]

    @property
    def division(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """The rows to train on and the rows to measure with; folds one after another."""
        aside = np.concatenate([*map(self.held, range(self.folds))])
        return self.batch(0) if self.folds > 1 else self.trained(0), aside


def held_out(rows: int, share: float, seed: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the rows to train on and the rows to measure with, both in ascending order.

    They are the same at every party that knows the seed. None are held out if either part would be too small.
    """
    count = round(share * rows)
    if count < LEAST_HELD_OUT or rows - count < LEAST_HELD_OUT:
        count = 0
    return Batches(rows, seed=seed, holdout_rows=count, holdout_until=1).division


@dataclass(frozen=True)
class Stopping(Declared):
    """The end of training: after `rounds`, at `target`, or after `patience` evaluations without progress.

    A larger metric is better, as with AUC. Negate a loss. Progress is a rise over the best so far by more
    than `min_improvement`.
    """

    rounds: int = setting(MISSING, integer(least=1), "The most rounds.")
    target: float | None = setting(None, optional(number()), "Metric at which training ends.")
    patience: int | None = setting(None, optional(integer(least=1)), "Evaluations without progress.")
    min_improvement: float = setting(1e-4, number(least=0.0), "The least rise that is progress.")


class StoppingTracker:
    def __init__(self, stopping: Stopping) -> None:
        self._stopping = stopping
        self._best = -math.inf
        self._stale = 0

    @property
    def best_now(self) -> bool:
        """Whether the last metric is the best so far. The run keeps that model."""
        return self._stale == 0 and self._best > -math.inf

    def update(self, round: int, metric: float | None) -> Reason | None:
        """Return the reason to stop after `round`, or None. `metric` is None without an evaluation."""
        rule = self._stopping
        if metric is not None:
            if not math.isfinite(metric):
                raise DataError(f"metric must be a finite number, not {metric!r} after round {round}")
            if metric > self._best + rule.min_improvement:
                self._best, self._stale = metric, 0
            else:
                self._stale += 1
            if rule.target is not None and metric >= rule.target:
                return "target"
        if round + 1 >= rule.rounds:
            return "rounds"
        if rule.patience is not None and self._stale >= rule.patience:
            return "no progress"
        return None

    def state(self) -> dict[str, NDArray[np.generic]]:
        return {"best": np.array(self._best), "stale": np.array(self._stale)}

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        self._best, self._stale = float(state["best"]), int(state["stale"])
