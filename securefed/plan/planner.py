"""The forecast of a run: ciphertexts, bytes, minutes and memory.

docs/performance.md says what `securefed plan` computes from rehearsals of the real programs, how exact it is,
and where these numbers come from. Only the number of rounds depends on the data. Local steps save rounds
nearly in proportion, never all:

    R(Q) = max(R(1) / Q**alpha, floor * R(1))
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

from securefed.audit.blind import Schedule
from securefed.crypto import cross_lengths, cross_scheme
from securefed.crypto.lattice.ring import DEGREE, PRIMES
from securefed.crypto.shares import LIMBS
from securefed.errors import SettingError
from securefed.plan.rehearsal import Scenario, rehearse
from securefed.protocols.agreement import Agreement
from securefed.protocols.own_gradient.openings import refusal
from securefed.transport.message import Network, get_network

PRACTICAL_COLUMNS = 2000
"""Columns of all parties together that take less than a minute on two cores."""
WORD = 8
WINDOWS = 128 << 20
"""Bytes for blocks of ciphertexts in transit."""


def peak_memory(agreement: Agreement) -> int:
    """Estimate the bytes that a share-holding party of a blind run needs besides its own table."""
    columns = sum(member.parameters for member in agreement.members)
    systems = agreement.batches.folds + 1 if agreement.batches.holdout_rows else 1
    matrices = WORD * LIMBS * columns**2 * (2 * systems + 1)
    sums = 0
    if cross_scheme(agreement.scheme).name == "rlwe":
        sums = 2 * WORD * len(PRIMES) * DEGREE * columns * systems
    return matrices + sums + WINDOWS


def machine_memory() -> int:
    """Return the bytes of memory that this process may use; a terabyte if unknown.

    It is the least of the machine's memory, the container's (cgroup) and the process's limit (ulimit -v).
    """
    limits = [1 << 40]
    with suppress(AttributeError, OSError, ValueError):
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # "max" is no number, and no limit
            limits.append(int(Path(path).read_text()))
    address_space = resource.getrlimit(resource.RLIMIT_AS)[0]
    if address_space != resource.RLIM_INFINITY:
        limits.append(address_space)
    return min(limits)


def check_memory(agreement: Agreement, memory: int | None = None) -> None:
    """Refuse a blind run whose shares need more bytes than `memory`, or this machine, has."""
    columns, due = sum(member.parameters for member in agreement.members), peak_memory(agreement)
    there = machine_memory() if memory is None else memory
    if due > there:
        raise SettingError(
            f"columns: {columns:,} in all given; shares of {columns:,} x {columns:,} numbers take"
            f" {due / 1e9:.1f} GB at each of two parties, this machine has {there / 1e9:.1f} GB; up to"
            f" {PRACTICAL_COLUMNS:,} columns are practical. Use fewer columns, or protection=OwnGradient()"
        )


ALPHA = 0.8
FEW, MANY = 1, 3
"""Local steps that are rehearsed with own gradients."""
LEAST_ROWS, LEAST_BLIND_ROWS = 8, 256
LONG_ENOUGH = 0.25
"""Seconds of a rehearsed round, or of the rows added to a blind run, from which more rows are not needed."""
LARGE_ENOUGH = 0.1
"""The part of a blind run that the added rows have to take."""
EQUAL = 1.05
"""Two forecasts within this ratio count as equal."""


@dataclass(frozen=True)
class RoundsModel:
    at_one: float
    floor: float = 0.15

    @classmethod
    def through(cls, rounds: int, local_steps: int, floor: float = 0.15) -> RoundsModel:
        """Return the model in which `local_steps` local steps take `rounds` rounds."""
        return cls(max(1.0, rounds / max(local_steps**-ALPHA, floor)), floor)

    def rounds(self, local_steps: int) -> int:
        share: float = max(float(local_steps) ** -ALPHA, self.floor)
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
        totals = ("total_bytes", "total_computation", "total_communication", "total")
        return asdict(self) | {name: getattr(self, name) for name in totals}


def estimates(
    scenario: Scenario,
    local_steps: Sequence[int] | None = None,
    network: Network | str = "lan",
    rounds: RoundsModel | None = None,
    workers: int = 1,
) -> list[Estimate]:
    """Forecast a run with each of several numbers of local steps; None: with the settings' own.

    `rounds`: how many rounds so many local steps take; those of the settings if None. `workers`: processes of
    each party. SettingError for settings that a run refuses, or shares that do not fit into the memory.
    """
    settings, network = scenario.settings.for_parties(len(scenario.columns)), get_network(network)
    rounds = rounds or RoundsModel.through(settings.rounds, settings.algorithm.local_steps)
    due = [
        replace(each, settings=replace(each.settings, rounds=rounds.rounds(q)))
        for q, each in ((q, scenario.with_steps(q)) for q in local_steps or [settings.algorithm.local_steps])
    ]
    last = due[-1]
    few = many = None
    if scenario.settings.blind:
        check_memory(last.agreement)
    elif any(last.agreement.opens_at(name, 1) for name in last.columns):
        few, many = (_grown(last.with_steps(q), network, workers) for q in (FEW, MANY))
    else:  # local steps between openings take no time that counts
        few = many = _grown(last, network, workers)
    rows = []
    for each in due:
        q, agreement, refused = each.settings.algorithm.local_steps, each.agreement, ""
        if few is None or many is None:
            plan, (once, round_bytes) = _grown(each, network, workers), _blind_bytes(each)
            plan = replace(plan, bytes=round_bytes, setup_bytes=once, memory=peak_memory(agreement))
        else:
            plan = _beyond(few, many, (q - FEW) / (MANY - FEW))
        if (entry := refusal(agreement)) is not None:
            refused = f"{entry.party} would hold {entry.equations} equations for {entry.unknowns} unknowns"
        rows.append(replace(plan, local_steps=q, rounds=agreement.stopping.rounds, refused=refused))
    return rows


def _blind_bytes(scenario: Scenario) -> tuple[int, int]:
    """Return the bytes of a blind run besides its rounds, and those of its last round.

    Rounds of several models send more than the last one. The first number has the difference.
    """
    agreement = scenario.agreement
    rounds, lengths = agreement.stopping.rounds, cross_lengths(agreement.scheme, scenario.key_bits)
    schedule = Schedule(agreement, lengths)
    due = list(schedule.training(rounds, lambda _: agreement.batches.rows))
    last = sum(m.size or 0 for m in due if m.when[:2] == ("training", rounds - 1))
    return sum(m.size or 0 for m in due) - rounds * last, last


def _grown(scenario: Scenario, network: Network, workers: int) -> Estimate:
    """Rehearse more and more rows, all of them if that does not take long.

    Sizes differ from the planned one by multiples of the last size but one. That is at least the rows of a
    ciphertext, so whole ciphertexts are counted.
    """
    due, size, before = scenario.batch, LEAST_BLIND_ROWS if scenario.settings.blind else LEAST_ROWS, None
    folds = scenario.agreement.batches.folds
    while True:
        rows = due if size + due % size >= due else size + due % size
        smaller = scenario.with_batch(rows)
        if smaller.agreement.batches.folds != folds:  # few rows are held out in turns, which is another run
            size *= 2
            continue
        plan = _rehearsed(smaller, network, workers)
        if rows == due:
            return plan
        packed = len(scenario.columns) * rows / max(1, plan.ciphertexts)
        if before is not None:
            took, large = plan.computation, size >= 4 * packed
            if scenario.settings.blind:
                took = plan.setup - before[1].setup
                large = took > LARGE_ENOUGH * plan.setup
            if took > LONG_ENOUGH and large:
                # What the time of a run is proportional to, for several numbers of rows.
                blind, compared = scenario.settings.blind, (before[0], smaller, scenario)
                amounts = [_blind_bytes(each)[0] if blind else each.batch for each in compared]
                return _beyond(before[1], plan, (amounts[2] - amounts[0]) / (amounts[1] - amounts[0]))
        before, size = (smaller, plan), 4 * size


def _rehearsed(scenario: Scenario, network: Network, workers: int) -> Estimate:
    rehearsal, agreement = rehearse(scenario, network, workers=workers), scenario.agreement
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
        setup_bytes=rehearsal.traffic("setup").total() + rehearsal.traffic("release").total(),
    )


def _beyond(few: Estimate, many: Estimate, share: float) -> Estimate:
    """Return few + share * (many - few). Times of few can be longer; beyond both, many is the least."""

    def grown(name: str) -> float:
        low, high = getattr(few, name), getattr(many, name)
        return float(max(high if share >= 1.0 else min(low, high), low + (high - low) * share))

    counts = {name: round(grown(name)) for name in ("ciphertexts", "bytes", "setup_bytes")}
    times = ("computation", "communication", "setup", "setup_communication")
    return replace(many, **counts, **{name: grown(name) for name in times})  # type: ignore[arg-type]


def best(rows: Iterable[Estimate]) -> Estimate | None:
    """The fastest that the ledger lets pass. Of nearly equal ones that with the fewest local steps."""
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
