"""The cells of Table 2: rounds, minutes and bytes of the runs at each target, and what an exchange and a step
take.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from math import comb, inf, log
from statistics import median
from typing import Any

import numpy as np

from bench.paper import table2_cell
from bench.replay import Costs, Replay, replay
from bench.runs import Record
from securefed.transport.message import Network

Key = tuple[int, int]
"""Q and seed."""
INFERRED = "label_inference_auc"


@dataclass(frozen=True)
class Row:
    """One line. Where several seeds were run every number is the median over them, and total = comp +
    comm.
    """

    scheme: str
    reveal: str
    network: str
    algorithm: str
    Q: int
    target_auc: float
    reached: bool
    R: float | None
    comp_min: float | None
    comm_min: float | None
    total_min: float | None
    bytes_exchange: int | None
    bytes_open: int | None
    auc: float
    """Where it was reached; else the best of the run."""
    held_out_auc: float | None
    setup_min: float
    ciphertexts: int | None
    messages: int | None
    seeds: tuple[int, ...]
    R_each: tuple[int | None, ...]
    R_plain_each: tuple[int | None, ...]
    """In plain, on the same seeds."""
    R_plain: float | None
    """The median over all seeds that were trained in plain."""
    R_plain_interval: tuple[float | None, float | None]
    """Of that median, see `median_interval`."""
    R_paper: int | None
    comp_paper: float | None
    comm_paper: float | None
    total_paper: float | None
    label_inference_auc: float | None = None
    """B's guess at A's labels: from its shares (bench.blind_transfer), or from the gradients that were opened
    to it in the whole run (bench.simulate); None: not asked here.
    """

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Bar:
    """A promise, and whether it was kept."""

    name: str
    verdict: str
    detail: str
    value: float | None = None
    bar: float = 1.0
    better: str = "more"
    """Of value and bar; a promise without a number is kept (1) or not (0)."""

    @classmethod
    def of(cls, name: str, kept: bool, detail: str) -> Bar:
        return cls(name, "pass" if kept else "MISSED", detail, float(kept))

    @classmethod
    def at_most(cls, name: str, value: float | None, bar: float, detail: str) -> Bar:
        """`value`: None where it was not reached."""
        kept = value is not None and value <= bar
        return cls(name, "pass" if kept else "MISSED", detail, value, bar, "less")

    @classmethod
    def at_least(cls, name: str, value: float, bar: float, detail: str) -> Bar:
        return cls(name, "pass" if value >= bar else "MISSED", detail, value, bar)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "met": self.verdict == "pass", "note": self.detail}


@dataclass(frozen=True)
class Best:
    """The Q with the shortest total among those trained in plain, at the measured costs."""

    Q: int
    R: float
    total_min: float
    all_min: dict[int, float]


class Cells:
    """The runs of one table, by Q and seed."""

    def __init__(
        self,
        kind: str,
        scheme: str,
        steps: Sequence[int],
        measured: Mapping[Key, Record],
        plain: Mapping[Key, Record],
        reveal: str = "own-gradient",
    ) -> None:
        self.kind, self.scheme, self.steps, self.reveal = kind, scheme, tuple(steps), reveal
        self.measured, self.plain = measured, plain
        self.seeds = tuple(sorted({seed for _, seed in measured}))
        self.plain_seeds = tuple(sorted({seed for _, seed in plain}))
        self.costs_by_network: dict[str, dict[int, dict[str, float]]] = {}
        self._replays: dict[tuple[int, int, Network], Replay] = {}

    @property
    def setup_counts(self) -> bool:
        """A blind run does its encrypted work in its setup, so minutes include it."""
        return self.reveal == "nothing"

    @property
    def metric(self) -> str:
        """Which AUC the targets are about."""
        return {"overlap": "overlap_auc", "held-out": "held_out_auc", "linear": "test_auc"}[self.kind]

    def aucs(self, record: Record) -> list[float]:
        """As the label party learnt it where it evaluated, else as the bench looked it up."""
        return [point.get("auc", point[self.metric]) for point in record.points]

    def rounds_to(self, record: Record, target: float) -> int | None:
        return next((n for n, auc in enumerate(self.aucs(record), 1) if auc >= target), None)

    @property
    def like_paper(self) -> bool:
        """The reading that matches the paper's rounds, at its size."""
        changed = {name for record in self.plain.values() for name in record.settings["options"]}
        return self.kind == "overlap" and changed <= {"data"}

    def replay(self, steps: int, seed: int, network: Network) -> Replay:
        key = (steps, seed, network)
        if key not in self._replays:
            self._replays[key] = replay(self.measured[steps, seed].events, network)
        return self._replays[key]

    def rows(self, network: Network, targets: Sequence[float]) -> list[Row]:
        self._note_costs(network)
        return [self._row(network, target, q) for target in targets for q in self.steps]

    def _row(self, network: Network, target: float, q: int) -> Row:
        records = {seed: self.measured[q, seed] for seed in self.seeds}
        found = {seed: self.rounds_to(record, target) for seed, record in records.items()}
        rounds = _median(found.values())
        there = {seed: number for seed, number in found.items() if number is not None}
        comp, comm, sent = [], [], []
        for seed, number in there.items():
            spent = self.replay(q, seed, network).rounds[number - 1]
            path = (spent if self.setup_counts else training(spent)).path
            comp.append(path.computation / 60)
            comm.append(path.communication / 60)
            sent.append(records[seed].sent[number - 1])
        good = rounds is not None
        comp_min, comm_min = (median(comp), median(comm)) if good else (None, None)
        cell = table2_cell(target, q) if self.like_paper else None
        auc, held_out, inferred = [], [], []
        for seed, record in records.items():
            aucs = self.aucs(record)
            place = there.get(seed, 1 + int(np.argmax(aucs))) - 1
            auc.append(aucs[place])
            if "held_out_auc" in record.points[place]:
                held_out.append(record.points[place]["held_out_auc"])
            point = next((p for p in (record.points[place], record.points[-1]) if INFERRED in p), None)
            if point is not None:
                inferred.append(point[INFERRED])
        return Row(
            scheme=self.scheme,
            reveal=self.reveal,
            network=network.name,
            algorithm="FedSGD" if q == 1 else "FedBCD-p",
            Q=q,
            target_auc=target,
            reached=good,
            R=rounds,
            comp_min=comp_min,
            comm_min=comm_min,
            total_min=None if comp_min is None or comm_min is None else comp_min + comm_min,
            bytes_exchange=_middle(sent, "bytes_exchange") if good else None,
            bytes_open=_middle(sent, "bytes_open") if good else None,
            auc=median(auc),
            held_out_auc=median(held_out) if held_out else None,
            setup_min=median(self.replay(q, seed, network).setup.total for seed in self.seeds) / 60,
            ciphertexts=_middle(sent, "ciphertexts") if good else None,
            messages=_middle(sent, "messages") if good else None,
            seeds=self.seeds,
            R_each=tuple(found.values()),
            R_plain_each=tuple(self.rounds_to(self.plain[q, seed], target) for seed in self.seeds),
            R_plain=self.plain_median(q, target),
            R_plain_interval=median_interval(self.plain_each(q, target)),
            R_paper=None if cell is None else cell.rounds,
            comp_paper=None if cell is None else cell.computation,
            comm_paper=None if cell is None else cell.communication,
            total_paper=None if cell is None else cell.total,
            label_inference_auc=median(inferred) if inferred else None,
        )

    def plain_each(self, q: int, target: float, seeds: Sequence[int] | None = None) -> list[int | None]:
        """Each seed's rounds in plain; of all seeds, unless some are named."""
        return [
            self.rounds_to(self.plain[q, seed], target)
            for seed in (self.plain_seeds if seeds is None else seeds)
            if (q, seed) in self.plain
        ]

    def plain_median(self, q: int, target: float, seeds: Sequence[int] | None = None) -> float | None:
        return _median(self.plain_each(q, target, seeds))

    @property
    def grid(self) -> tuple[int, ...]:
        """Every Q that was trained in plain."""
        return tuple(sorted({q for q, _ in self.plain}))

    @property
    def grid_seeds(self) -> tuple[int, ...]:
        """The seeds that were trained at every one of them."""
        return tuple(s for s in self.plain_seeds if all((q, s) in self.plain for q in self.grid))

    def typical_seed(self, targets: Sequence[float]) -> int:
        """The one whose rounds in plain are nearest to the medians, over every Q of the table and every
        target: where a scheme allows one encrypted run of each, it should not be an odd one.
        """

        def distance(seed: int) -> float:
            found = 0.0
            for q, target in product(self.steps, targets):
                own, middle = self.rounds_to(self.plain[q, seed], target), self.plain_median(q, target)
                if middle is not None:
                    found += inf if own is None else abs(log(own / middle))
            return found

        return min(self.plain_seeds, key=distance)

    def plain_rounds(self, targets: Sequence[float]) -> dict[str, dict[str, list[int | None]]]:
        """Each seed's rounds in plain, by target and Q."""
        return {f"{target:g}": {str(q): self.plain_each(q, target) for q in self.grid} for target in targets}

    def _note_costs(self, network: Network) -> None:
        """Seconds of an exchange and of a local step (linear models: of a round's one opening)."""
        by_steps: dict[int, dict[str, float]] = {}
        for q in self.steps:
            found: dict[str, list[float]] = {}
            for seed in self.seeds:
                rounds = self.replay(q, seed, network).rounds
                last, count = rounds[-1], len(rounds)
                openings = count * (1 if self.kind == "linear" else q)
                parts = training(last)
                found.setdefault("comp_exchange", []).append(parts.computation.get("exchange", 0) / count)
                found.setdefault("comm_exchange", []).append(parts.communication.get("exchange", 0) / count)
                found.setdefault("comp_step", []).append(parts.computation.get("steps", 0) / openings)
                found.setdefault("comm_step", []).append(parts.communication.get("steps", 0) / openings)
                found.setdefault("round", []).append(parts.total / count)
            by_steps[q] = {name: median(values) for name, values in found.items()}
        self.costs_by_network[network.name] = by_steps

    def ledger(self) -> list[dict[str, Any]]:
        """The worst entry of each block, by Q."""
        lines = []
        for q in self.steps:
            worst: dict[tuple[str, str], dict[str, Any]] = {}
            for seed in self.seeds:
                for entry in self.measured[q, seed].ledger:
                    key = (entry["party"], entry["block"])
                    if key not in worst or entry["ratio"] > worst[key]["ratio"]:
                        worst[key] = entry
            lines += [{"Q": q, **entry} for entry in worst.values()]
        return lines


def training(costs: Costs) -> Costs:
    """Without the setup."""

    def without(parts: Mapping[str, float]) -> dict[str, float]:
        return {name: seconds for name, seconds in parts.items() if name != "setup"}

    return Costs(without(costs.computation), without(costs.communication))


def best_steps(cells: Cells, network: Network, target: float) -> Best | None:
    """Rounds from the plain runs of every Q; a round's seconds are a line in Q, from the measured ones."""
    costs = cells.costs_by_network[network.name]
    measured = sorted(costs)
    seconds = [costs[q]["round"] for q in measured]
    slope, base = np.polyfit(measured, seconds, 1) if len(measured) > 1 else (0.0, seconds[0])
    totals: dict[int, float] = {}
    rounds: dict[int, float] = {}
    for q in cells.grid:
        number = cells.plain_median(q, target, cells.grid_seeds)
        if number is not None:
            rounds[q], totals[q] = number, float(number * (base + slope * q)) / 60
    if not totals:
        return None
    q = min(totals, key=lambda each: totals[each])
    return Best(q, rounds[q], totals[q], totals)


def _median(values: Iterable[int | None]) -> float | None:
    """A run that never arrives counts as a long one."""
    return _finite(median(inf if value is None else value for value in values))


def _finite(value: float) -> float | None:
    return None if value == inf else value


def median_interval(values: Sequence[int | None]) -> tuple[float | None, float | None]:
    """Where the median of all seeds lies, 95%, whatever the distribution: between two of the values in
    order, so far from the ends as the binomial allows. Up to five values allow only their range (94%).
    """
    ordered = sorted(inf if value is None else value for value in values)
    count, outside = len(ordered), 0
    tail = 0.0
    while (tail := tail + comb(count, outside) / 2**count) <= 0.025:
        outside += 1
    place = max(outside - 1, 0)
    return _finite(ordered[place]), _finite(ordered[-1 - place])


def _middle(sent: Sequence[Mapping[str, int]], name: str) -> int:
    return round(median(totals[name] for totals in sent))
