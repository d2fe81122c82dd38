"""How long, and how much, before anybody is asked: ciphertexts, bytes and minutes for each number of local
steps.

Sizes are exact: a blind run is rehearsed by its real programs (securefed.measure.rehearsal), the others'
messages are counted (securefed.measure.workload). Times come from a short calibration of this machine and a
network profile: every party's steps are put on the clock that real runs have (securefed.transport.clock), so
a round is computation plus communication on its critical path, and parties that work side by side do not add
up.

How many rounds a run needs is the one thing that depends on the data. The model is

    R(Q) = max(R(1) / Q**alpha, floor * R(1)),

local steps save rounds nearly in proportion, with diminishing returns, and never all of them. alpha = 0.8
is what the paper's Table 2 shows (17, 30, 46 rounds at Q = 1; 4, 8, 13 at 5; 2, 4, 7 at 10: exponents 0.79
to 0.93), and the floor of 0.15 its Table 1 for linear models (334 rounds at Q = 1, 71 at 5, 52 at 50);
transfer learning has got along with 0.04. Both are arguments, to be replaced by what is known of the data
at hand.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from math import ceil
from typing import Any

from securefed.checks import check_integer, check_number
from securefed.errors import SettingError
from securefed.measure.calibration import Costs, ModelCosts
from securefed.measure.dry import HiddenCosts
from securefed.measure.forecast import refusal
from securefed.measure.rehearsal import rehearse
from securefed.measure.workload import Receive, Scenario, Send, Step, Work, ciphertexts, scripts, traffic
from securefed.transport import Network, Path

__all__ = ["Estimate", "RoundsModel", "best", "estimate", "round_path"]

STEADY = 3
"""Rounds that are put on the clock; the last one is what a round takes once all are under way."""
EQUAL = 1.05
"""Two forecasts that are this near to each other are the same."""


@dataclass(frozen=True)
class RoundsModel:
    """R(Q), see the module."""

    at_one: float
    alpha: float = 0.8
    floor: float = 0.15

    def __post_init__(self) -> None:
        check_number("rounds at Q = 1", self.at_one, least=1.0)
        check_number("alpha", self.alpha, least=0.0)
        check_number("floor", self.floor, least=0.0)
        if self.floor > 1.0:
            raise SettingError(f"floor must be a part of the rounds at Q = 1, at most 1, not {self.floor}")

    @classmethod
    def through(
        cls, rounds: int, local_steps: int, *, alpha: float = 0.8, floor: float = 0.15
    ) -> RoundsModel:
        """The model in which so many local steps take so many rounds."""
        check_integer("rounds", rounds, least=1)
        share = max(local_steps**-alpha, floor)
        return cls(max(1.0, rounds / share), alpha, floor)

    def rounds(self, local_steps: int) -> int:
        share: float = max(float(local_steps) ** -self.alpha, self.floor)
        return max(1, ceil(self.at_one * share - 1e-9))


@dataclass(frozen=True)
class Estimate:
    """One row of a plan. Per round, and in all."""

    scheme: str
    reveal: str
    local_steps: int
    rounds: int
    ciphertexts: int
    bytes: int
    computation: float
    """Seconds a round, on the critical path."""
    communication: float
    setup: float
    """Seconds of computation besides the rounds: keys before the first one, the end after the last."""
    refused: str = ""
    """What the solvability ledger would say, if it would refuse."""
    setup_communication: float = 0.0
    setup_bytes: int = 0

    @property
    def seconds(self) -> float:
        """A round."""
        return self.computation + self.communication

    @property
    def total_bytes(self) -> int:
        return self.setup_bytes + self.bytes * self.rounds

    @property
    def total_computation(self) -> float:
        return self.setup + self.computation * self.rounds

    @property
    def total_communication(self) -> float:
        return self.setup_communication + self.communication * self.rounds

    @property
    def total(self) -> float:
        return self.total_computation + self.total_communication

    def to_dict(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "total_bytes": self.total_bytes,
            "total_computation": self.total_computation,
            "total_communication": self.total_communication,
            "total": self.total,
        }


class _Clocks:
    """All parties' clocks, as securefed.transport.link keeps them."""

    def __init__(self, network: Network, parties: Iterable[str], hashing: float) -> None:
        self.network, self.hashing = network, hashing
        self.paths = {name: Path() for name in parties}
        self._busy: dict[tuple[str, str], Path] = defaultdict(Path)
        self._mail: dict[tuple[str, str], deque[tuple[Path, int]]] = defaultdict(deque)

    def work(self, party: str, seconds: float) -> None:
        self.paths[party] = self.paths[party].work(seconds)

    def send(self, sender: str, receiver: str, size: int) -> None:
        self.work(sender, self.hashing * size)
        start = self.paths[sender].later(self._busy[sender, receiver])
        free = start.travel(self.network.transfer(size))
        self._busy[sender, receiver] = free
        self._mail[sender, receiver].append((free.travel(self.network.latency), size))

    def receive(self, sender: str, receiver: str) -> bool:
        if not self._mail[sender, receiver]:
            return False
        arrival, size = self._mail[sender, receiver].popleft()
        self.paths[receiver] = self.paths[receiver].later(arrival)
        self.work(receiver, self.hashing * size)
        return True

    @property
    def critical(self) -> Path:
        last = Path()
        for path in self.paths.values():
            last = last.later(path)
        return last


def round_path(
    found: Mapping[str, list[Step]],
    costs: Costs,
    model: ModelCosts | None,
    network: Network,
    hashing: float = 0.0,
) -> Path:
    """Computation and communication of a round on its critical path, once all are under way."""
    clocks = _Clocks(network, found, hashing)
    before = Path()
    for _ in range(STEADY):
        before = clocks.critical
        _play(found, costs, model, clocks)
    return clocks.critical.since(before)


def _play(found: Mapping[str, list[Step]], costs: Costs, model: ModelCosts | None, clocks: _Clocks) -> None:
    """One round: every party goes on until it waits for what is not there yet."""
    places = dict.fromkeys(found, 0)
    while True:
        moved = False
        for party, script in found.items():
            while places[party] < len(script):
                step = script[places[party]]
                if isinstance(step, Receive) and not clocks.receive(step.sender, party):
                    break
                if isinstance(step, Send):
                    clocks.send(party, step.receiver, step.block.bytes)
                elif isinstance(step, Work):
                    own = 0.0 if model is None else model.seconds(party, step)
                    clocks.work(party, own + costs.seconds(step))
                places[party] += 1
                moved = True
        if all(places[party] == len(script) for party, script in found.items()):
            return
        if not moved:
            raise SettingError("plan: the parties' steps wait for each other")


def estimate(
    scenario: Scenario,
    costs: Costs | HiddenCosts,
    network: Network,
    rounds: RoundsModel,
    *,
    model: ModelCosts | None = None,
    hashing: float = 0.0,
) -> Estimate:
    """A plan's row for one scenario. `model`: of a scenario with the same shapes, if it was measured
    before.
    """
    if scenario.blind:
        return _rehearsed(scenario, costs, network, rounds)
    if not isinstance(costs, Costs):
        raise SettingError(f"plan: {type(costs).__name__} says nothing about own gradients")
    found = scripts(scenario)
    path = round_path(found, costs, model or ModelCosts(scenario), network, hashing)
    entry = refusal(scenario.agreement)
    steps = scenario.agreement.algorithm.local_steps
    refused = ""
    if entry is not None:
        refused = f"{entry.party} would hold {entry.equations} equations for {entry.unknowns} unknowns"
    return Estimate(
        scheme=scenario.recipe.scheme,
        reveal=scenario.agreement.reveal,
        local_steps=steps,
        rounds=rounds.rounds(steps),
        ciphertexts=sum(ciphertexts(found).values()),
        bytes=sum(traffic(found).values()),
        computation=path.computation,
        communication=path.communication,
        setup=costs.setup,
        refused=refused,
    )


def _rehearsed(
    scenario: Scenario, costs: Costs | HiddenCosts, network: Network, rounds: RoundsModel
) -> Estimate:
    """A blind run: for as many rounds as it will have, since the masks' size depends on them."""
    if not isinstance(costs, HiddenCosts):
        raise SettingError(f"plan: {type(costs).__name__} says nothing about hidden arrays")
    steps = scenario.recipe.algorithm.local_steps
    due = replace(scenario, recipe=replace(scenario.recipe, rounds=rounds.rounds(steps)))
    found = rehearse(due, costs, network)
    return Estimate(
        scheme=scenario.recipe.scheme,
        reveal=scenario.agreement.reveal,
        local_steps=steps,
        rounds=due.recipe.rounds,
        ciphertexts=sum(found.ciphertexts.values()),
        bytes=sum(found.traffic().values()),
        computation=found.round.computation,
        communication=found.round.communication,
        setup=found.once.computation,
        setup_communication=found.once.communication,
        setup_bytes=found.bytes_once,
    )


def best(rows: Iterable[Estimate]) -> Estimate | None:
    """The fastest in all of those that the ledger lets pass; of equals, as far as a forecast can tell, that
    with the fewest local steps.
    """
    allowed = [row for row in rows if not row.refused]
    fastest = min(allowed, key=lambda row: row.total, default=None)
    if fastest is None:
        return None
    equals = [
        row
        for row in allowed
        if (row.scheme, row.reveal) == (fastest.scheme, fastest.reveal) and row.total <= EQUAL * fastest.total
    ]
    return min(equals, key=lambda row: row.local_steps)
