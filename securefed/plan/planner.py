"""The forecast of a run: ciphertexts, bytes and minutes.

Sizes are exact: the real programs rehearse the run (securefed.plan.rehearsal). Times come from a short
calibration of this machine and a network profile, on the clock of real runs (securefed.transport.message).
So a round is computation plus communication on its critical path. Parties that work in parallel do not add
up.

A blind run works once, before its rounds. Its rounds are two small messages, whatever Q is. Where own
gradients are opened, the number of local steps matters. If every local step opens, each is like the one
before: only some are rehearsed, and the others count the same.

Only the number of rounds depends on the data. The model is

    R(Q) = max(R(1) / Q**alpha, floor * R(1)),

Local steps save rounds nearly in proportion, with diminishing returns, and never all of them. alpha = 0.8
comes from the paper's Table 2 (17, 30, 46 rounds at Q = 1; 4, 8, 13 at 5; 2, 4, 7 at 10: exponents 0.79 to
0.93). The floor of 0.15 comes from its Table 1 for linear models (334 rounds at Q = 1, 71 at 5, 52 at 50).
Transfer learning has needed only 0.04. Both are arguments: replace them by what is known about the data.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from math import ceil
from typing import Any

from securefed.checks import check_integer, check_number
from securefed.errors import SettingError
from securefed.plan.calibration import calibrate
from securefed.plan.limits import check_memory, peak_memory, too_large
from securefed.plan.meter import Costs
from securefed.plan.rehearsal import Scenario, rehearse
from securefed.protocols.own_gradient.openings import refusal
from securefed.transport import Network, get_network

FEW, MANY = 1, 3
"""Local steps that are rehearsed for a run that opens at each of more than MANY."""
EQUAL = 1.05
"""Two forecasts within this ratio count as equal."""


@dataclass(frozen=True)
class RoundsModel:
    """The model R(Q) of the module."""

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
        """Return the model in which `local_steps` local steps take `rounds` rounds."""
        check_integer("rounds", rounds, least=1)
        share = max(local_steps**-alpha, floor)
        return cls(max(1.0, rounds / share), alpha, floor)

    def rounds(self, local_steps: int) -> int:
        share: float = max(float(local_steps) ** -self.alpha, self.floor)
        return max(1, ceil(self.at_one * share - 1e-9))


@dataclass(frozen=True)
class Estimate:
    """One row of a plan, per round and in all."""

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
    """Seconds of computation before the first round and after the last."""
    refused: str = ""
    """The solvability ledger's refusal, if any."""
    setup_communication: float = 0.0
    setup_bytes: int = 0
    memory: int = 0
    """The most bytes at a share-holding party of a blind run; 0 for other runs."""
    warnings: tuple[str, ...] = ()
    """Warnings about the size of a blind run."""

    @property
    def seconds(self) -> float:
        """Seconds of a round."""
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


def estimate(
    scenario: Scenario,
    costs: Costs | None = None,
    network: Network | str = "lan",
    rounds: RoundsModel | None = None,
) -> Estimate:
    """Forecast one run: seconds, bytes and memory.

    Parameters
    ----------
    scenario
        The run.
    costs
        What its kind of work takes (`calibrate`); it is measured now if None.
    network
        What is between the parties.
    rounds
        How many rounds so many local steps take; those of the settings if None.

    Raises
    ------
    SettingError
        For settings that a run would refuse, and for shares that do not fit into this machine's memory.
    """
    steps = scenario.settings.algorithm.local_steps
    rounds = rounds or RoundsModel.through(scenario.settings.rounds, steps)
    due = replace(scenario, settings=replace(scenario.settings, rounds=rounds.rounds(steps)))
    agreement, refused, network = due.agreement, "", get_network(network)
    if due.blind:
        check_memory(agreement)
    costs = costs or calibrate(due.cost_kind, due.key_bits)
    if due.blind:
        plan = _rehearsed(due, costs, network)
        warnings = too_large(agreement, plan.total)
        return replace(plan, memory=peak_memory(agreement), warnings=tuple(warnings))
    if (entry := refusal(agreement)) is not None:
        refused = f"{entry.party} would hold {entry.equations} equations for {entry.unknowns} unknowns"
    if steps > MANY and any(agreement.opens_at(name, 1) for name in agreement.names):
        few, many = (_rehearsed(due.with_steps(q), costs, network) for q in (FEW, MANY))
        plan = _beyond(few, many, steps)
    else:
        plan = _rehearsed(due, costs, network)
    return replace(plan, refused=refused)


def _rehearsed(scenario: Scenario, costs: Costs, network: Network) -> Estimate:
    rehearsal, agreement = rehearse(scenario, costs, network), scenario.agreement
    return Estimate(
        scheme=agreement.scheme,
        reveal=agreement.reveal,
        local_steps=agreement.algorithm.local_steps,
        rounds=agreement.stopping.rounds,
        ciphertexts=sum(rehearsal.ciphertexts.values()),
        bytes=sum(rehearsal.traffic().values()),
        computation=rehearsal.round.computation,
        communication=rehearsal.round.communication,
        setup=rehearsal.once.computation,
        setup_communication=rehearsal.once.communication,
        setup_bytes=rehearsal.bytes_once,
    )


def _beyond(few: Estimate, many: Estimate, steps: int) -> Estimate:
    """The same with more local steps, each of which takes what those between the two took."""
    more = steps - few.local_steps

    def grown(name: str) -> float:
        low, high = getattr(few, name), getattr(many, name)
        return float(low + (high - low) * more / (many.local_steps - few.local_steps))

    return replace(
        many,
        local_steps=steps,
        ciphertexts=round(grown("ciphertexts")),
        bytes=round(grown("bytes")),
        computation=grown("computation"),
        communication=grown("communication"),
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
