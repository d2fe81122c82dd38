"""Whether local steps are worth as much as joint ones: rounds, bytes and time to the *same training loss*.

Everybody but HESS-SGD descends one objective, the second-order logistic loss mean(log 2 - s H/2 + H^2/8),
s = +-1. It is a quadratic, so what a system has after each round is computed here in the clear, for any rate
and number of local steps; a run that does not agree with it gets a note and no place (`agreed`). Where the
parties' columns have nothing to do with each other local steps lose nothing, which is the best case for us:
the second kind of data shares ten factors between the parties.

The *best rate* of a system is found by trying many in the clear, which nobody can do on data that stay
hidden; our automatic steps need no rate, and are run encrypted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from bench.bars import Bar
from bench.peers_rows import NETWORKS, SLOW, Cost, RealRow
from securefed import Party

Floats = NDArray[np.float64]
MARGIN = 1e-4
"""A loss is reached within this: scores of a run carry a blur, and four digits are shown."""
MOST = 200
RATES = tuple(0.3 * 2 ** (k / 4) for k in range(-12, 25))
JUDGED = 512
"""Rows at which whole runs have bars."""
AT_ONE_RATE, AT_BEST_RATE = (60.0, 15.0), (6.0, 4.0)
"""Cheetah over ours: processor time and bytes, at least."""


def log_loss(scores: Floats, labels: NDArray[np.bool_]) -> float:
    return float(np.mean(np.logaddexp(0.0, np.where(labels, -scores, scores))))


def shared_factors(rows: int, left: int, right: int, seed: int) -> list[Party]:
    """As bench.blind.generated, but half of every column's variance is ten factors that both parties see."""
    rng = np.random.default_rng(seed)
    columns = left + right
    loadings = rng.normal(size=(10, columns))
    common = rng.normal(size=(rows, 10)) @ (loadings / np.linalg.norm(loadings, axis=0))
    features = np.sqrt(0.5) * (common + rng.normal(size=(rows, columns)))
    weights = rng.normal(size=columns) * (rng.random(columns) < 0.3)
    labels = features @ weights + 2.0 * rng.normal(size=rows) > 0
    return [Party("shop", features[:, :left]), Party("bank", features[:, left:], labels=labels)]


class Quadratic:
    """The objective of two parties' rows, by its Gram matrix."""

    def __init__(self, parties: list[Party]) -> None:
        self.features = np.hstack([np.asarray(party.features) for party in parties])
        self.labels = np.asarray(parties[-1].labels) > 0
        count, first = len(self.features), np.asarray(parties[0].features).shape[1]
        self._blocks = (slice(0, first), slice(first, None))
        self._gram = self.features.T @ self.features / (4 * count)
        self._at_zero = self.features.T @ (0.5 - self.labels) / count

    def loss(self, weights: Floats) -> float:
        return float(np.log(2) + weights @ self._at_zero + weights @ self._gram @ weights / 2)

    def after(self, local_steps: int, rate: float) -> Iterator[Floats]:
        """All weights after each round: Q steps of each party on what the other had at its beginning."""
        weights = np.zeros(len(self._gram))
        while True:
            begun = weights.copy()
            for block in self._blocks:
                own = begun.copy()
                for _ in range(local_steps):
                    own[block] -= rate * (self._gram[block] @ own + self._at_zero[block])
                weights[block] = own[block]
            yield weights.copy()

    def rounds(self, local_steps: int, rate: float, target: float) -> int | None:
        """Rounds until the loss is `target`; None if it rises, or takes more than 200."""
        for count, weights in enumerate(islice(self.after(local_steps, rate), MOST), 1):
            loss = self.loss(weights)
            if loss <= target + MARGIN:
                return count
            if not loss < 10.0:
                return None
        return None

    def best(self, local_steps: int, target: float) -> tuple[int, float]:
        """The fewest rounds, and the rate that takes them."""
        found = ((self.rounds(local_steps, rate, target), rate) for rate in RATES)
        return min((count, rate) for count, rate in found if count is not None)


def hess_weights(parties: list[Party], rate: float, steps: int) -> Floats:
    """SecretFlow's HESS-SGD in the clear: 1/2 + H/8 cut to [0, 1], an intercept in the last entry."""
    features = np.hstack([np.asarray(party.features) for party in parties])
    labels = np.asarray(parties[-1].labels) > 0
    count = len(features)
    columns = np.hstack([features, np.full((count, 1), np.sqrt(2.0))])  # each party has one of 1
    weights = np.zeros(columns.shape[1])
    for _ in range(steps):
        residuals = np.clip(0.5 + columns @ weights / 8, 0.0, 1.0) - labels
        weights -= rate * columns.T @ residuals / count
    weights[-1] *= np.sqrt(2.0)
    return weights


def agreed(row: RealRow, parties: list[Party], rate: float) -> RealRow:
    """The row, with a note in place of its numbers if its loss is not what the arithmetic says."""
    problem = Quadratic(parties)
    rounds = row.steps // row.local_steps
    weights = next(islice(problem.after(row.local_steps, rate), rounds - 1, None))
    expected = log_loss(problem.features @ weights, problem.labels)
    if abs(row.loss - expected) <= 10 * MARGIN:
        return row
    return RealRow(row.system, row.rows, note=f"its loss is {row.loss:.4f} and should be {expected:.4f}")


@dataclass(frozen=True)
class Way:
    """One way to the loss: which system, at which rate, in how many rounds; None: it does not get there."""

    data: str
    row: RealRow
    rate: str
    rounds: int | None
    measured: Cost | None = None
    """Of a run of that many rounds, where one was made."""

    @property
    def total(self) -> Cost:
        if self.measured is not None:
            return self.measured
        return Cost() if self.rounds is None else self.row.total(self.rounds)

    def line(self) -> str:
        head = f"{self.data:<12}{self.row.rows:>6,}  {self.row.system:<30}{self.rate:<10}"
        if self.rounds is None:
            return f"{head}  not reached"
        total = self.total
        times = "".join(f"{total.seconds(network):>19.1f}" for network in NETWORKS)
        floor = total.seconds(SLOW, floor=True)
        return f"{head}{self.rounds:>7}{total.cpu:>9.1f}{total.bytes / 1e6:>9.1f}{times}{floor:>19.1f}"


HEADING = (
    f"{'columns':<12}{'rows':>6}  {'system':<30}{'rate':<10}{'rounds':>7}{'cpu s':>9}{'MB':>9}"
    + "".join(f"{name:>19}" for name in NETWORKS)
    + f"{'the same, no wait':>19}"
)


Reached = Callable[[Floats], bool]
"""Whether a model with these scores of the training rows has the loss that is looked for."""


def paths(
    data: str,
    parties: list[Party],
    rows: list[RealRow],
    rate: float,
    steps: int,
    automatic: Callable[[list[Party], Reached], int | None],
    whole: Callable[[list[Party], int, float | str, int], Cost],
) -> list[Way]:
    """Ways to the loss that `steps` joint steps at `rate` have. Peers cost what `rows` of one shape say; ours
    is run again from its beginning to that loss: `whole` by local steps, rate and rounds.
    """
    problem = Quadratic(parties)
    target = problem.loss(next(islice(problem.after(1, rate), steps - 1, None)))
    found, ours = [], [row for row in rows if not row.system.startswith("SPU")]
    for row in rows:
        found.append(Way(data, row, f"{rate:g}", problem.rounds(row.local_steps, rate, target)))
        if row not in ours:
            count, best = problem.best(row.local_steps, target)
            found.append(Way(data, row, f"best {best:.2g}", count))
    signs = np.where(problem.labels, 1.0, -1.0)

    def reached(scores: Floats) -> bool:
        return float(np.mean(np.log(2) - signs * scores / 2 + scores**2 / 8)) <= target + MARGIN

    if ours:
        found.append(Way(data, ours[-1], "auto", automatic(parties, reached)))
    return [
        replace(way, measured=whole(parties, way.row.local_steps, _number(way.rate), way.rounds))
        if way.row in ours and way.rounds is not None
        else way
        for way in found
    ]


def _number(rate: str) -> float | str:
    return rate if rate == "auto" else float(rate)


def bars_to_loss(found: list[Way]) -> list[Bar]:
    """A peer's whole run over ours: both at one rate, and Cheetah's best rate beside our automatic steps."""
    made = []
    peers = {(way.row.system, way.rate.split()[0]): way for way in found}
    for mine in found:
        if mine.row.system.startswith("SPU") or mine.row.rows != JUDGED:
            continue
        kind = "best" if mine.rate == "auto" else mine.rate
        cheetah, dealer = peers.get(("SPU Cheetah", kind)), peers.get(("SPU Semi2k", kind))
        where = f"to the same loss, {mine.data}, Q = {mine.row.local_steps}, rate {mine.rate}"
        where += f", {mine.row.rows:,} rows"
        if kind == "best":
            where += " (the peer at its best rate)"
        due = AT_BEST_RATE if kind == "best" else AT_ONE_RATE
        made += [
            _over(cheetah, mine, "cpu", f"SPU Cheetah / ours, processor, {where}", due[0]),
            _over(cheetah, mine, "bytes", f"SPU Cheetah / ours, bytes, {where}", due[1]),
        ]
        if kind != "best":
            made.append(_over(dealer, mine, "cpu", f"SPU Semi2k / ours, processor, {where}", 1.0))
    return made


def _over(theirs: Way | None, mine: Way, quantity: str, name: str, bar: float) -> Bar:
    if theirs is None:
        return Bar.unmeasured(name, bar, "more", "the peer was not run")
    if theirs.rounds is None or mine.rounds is None:
        return Bar.unmeasured(name, bar, "more", "the loss was not reached")
    note = f"{theirs.rounds} steps and {mine.rounds} rounds"
    if theirs.row.recorded:
        note += f"; the peer as recorded on {theirs.row.recorded}"
    ratio = getattr(theirs.total, quantity) / max(getattr(mine.total, quantity), 1e-9)
    return Bar.of(name, float(ratio), bar, "more", note)
