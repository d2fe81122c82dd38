"""What processes of their own cost: four parties and a key-holder over mutual TLS, beside one process.

Same settings, rows, batches and key sizes. Over the network each party is `securefed party`: TLS,
checksums, transcripts and checkpoints on disk, progress. In one process the same programs take turns
(securefed.transport.link). Everything is held to one core, so that five processes have no more of the
machine than one. Seconds and processor seconds are those of all rounds but the first: keys, alignment,
start-up and the quality at the end are the same work in both, and not a round's. Over the network they are
those between the ends of a party's first and last round. In one process they are those of a whole run, less
those of a run of one round: where programs take turns, some are in the second round before all have ended the
first, so that a clock in between would leave out a part of their work.

    overhead     (time over the network - time in one process) / time over the network
    cpu          the same of processor seconds. The bar is for this one: a busy neighbour hardly changes it
    a round      milliseconds of processor time that a round takes in one process, and that the network adds
    all cores    time over the network with every core, where parties work side by side

A round's messages, checkpoints and changes of process take about as long whatever it computes. So the small
rounds show this cost as large as it can be, and the large ones what it is in a training.

Blind rounds are not among them: they are two small messages and no encryption, so that nearly all of their
time is the network's (`bench blind` counts them, `bench wan` runs them).
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.preprocessing import StandardScaler

from bench import machine
from bench.bars import Bar, show_bars
from bench.fleet import Table, run_table, train
from securefed import GeneralisedLinear, Party, Simulation
from securefed.assembly.base import KEY_HOLDER
from securefed.crypto import SCHEMES, KeyHolder, generate
from securefed.protocols.own_gradient.ledger import LedgerWarning
from securefed.settings.run import RunSettings

BAR = 0.15
PARTIES = ("a", "b", "c", "d")
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Case:
    scheme: str
    reveal: str
    rounds: int
    rows: int = 600
    columns: int = 6
    """Of each party."""
    batch: int = 128

    @property
    def values(self) -> dict[str, Any]:
        return {
            "scheme": self.scheme,
            "reveal": self.reveal,
            "rounds": self.rounds,
            "batch_size": self.batch,
            "local_steps": 10,
            "learning_rate": 0.05,
            "l2": 0.001,
            "holdout": 0,
            "seed": 0,
        }


CASES = (
    Case("paillier", "own-gradient", 3),
    Case("ckks", "own-gradient", 60),
    Case("ckks", "own-gradient", 24, rows=4000, columns=25, batch=1024),
)


@dataclass(frozen=True)
class Row:
    """One protocol. Seconds of the training. The verdict is about processor seconds."""

    scheme: str
    reveal: str
    parties: int
    rounds: int
    local_seconds: float
    network_seconds: float
    overhead: float
    cpu_overhead: float
    all_cores_seconds: float
    bar: float
    batch: int = 128
    columns: int = 6
    round_ms: float = 0.0
    added_ms: float = 0.0
    """Processor time of a round in one process, and what the network adds."""

    @property
    def verdict(self) -> str:
        return "pass" if self.cpu_overhead <= self.bar else "MISSED"


@dataclass(frozen=True)
class Spent:
    """On one training."""

    seconds: float
    cpu: float


@contextmanager
def one_core() -> Iterator[None]:
    """This process and those that it starts."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def people(case: Case, seed: int) -> tuple[Floats, NDArray[np.int64]]:
    """Everybody's columns side by side, and the last party's labels."""
    rng = np.random.default_rng(seed)
    table = rng.normal(size=(case.rows, case.columns * len(PARTIES))).round(3)
    return table, (table @ rng.normal(size=table.shape[1]) > 0).astype(np.int64)


def part(table: Floats, place: int) -> Floats:
    return np.split(table, len(PARTIES), axis=1)[place]


def over_network(table: Floats, labels: NDArray[np.int64], run: dict[str, Any], key_bits: int) -> Spent:
    """Train with `securefed party` processes; rows are in one order, so nothing has to be aligned."""
    tables = {}
    for place, name in enumerate(PARTIES):
        rows: list[list[object]] = [list(row) for row in part(table, place).tolist()]
        names = [f"{name}{column}" for column in range(len(rows[0]))]
        if name != PARTIES[-1]:
            tables[name] = Table(names, rows)
            continue
        marked = [[*row, label] for row, label in zip(rows, labels.tolist(), strict=True)]
        tables[name] = Table([*names, "label"], marked, label="label")
    with tempfile.TemporaryDirectory() as folder:
        events = train(Path(folder), tables, {**run, "alignment": "rows"}, key_bits)
    rounds = [[e for e in each if e["event"] == "round"] for each in events.values()]
    return Spent(
        max(each[-1]["time"] for each in rounds) - min(each[0]["time"] for each in rounds),
        sum(each[-1]["cpu"] - each[0]["cpu"] for each in rounds),
    )


def in_process(table: Floats, labels: NDArray[np.int64], run: dict[str, Any], holder: KeyHolder) -> Spent:
    """The same training with everybody in this process, one after the other."""
    whole, first = (_trained(table, labels, {**run, "rounds": n}, holder) for n in (run["rounds"], 1))
    return Spent(whole.seconds - first.seconds, whole.cpu - first.cpu)


def _trained(table: Floats, labels: NDArray[np.int64], run: dict[str, Any], holder: KeyHolder) -> Spent:
    parties = [
        Party(
            name,
            StandardScaler().fit_transform(part(table, place)),
            labels=labels if name == PARTIES[-1] else None,
        )
        for place, name in enumerate(PARTIES)
    ]
    shared = run_table({"name": "here", "parties": PARTIES, "key_holder": KEY_HOLDER, **run})
    here = Simulation(engine="serial", network="loopback", progress=False)
    model = GeneralisedLinear(**{**vars(RunSettings.of(shared).settings), "simulation": here})
    seconds, cpu = perf_counter(), process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LedgerWarning)
        model.fit(parties, keys={KEY_HOLDER: holder})
    return Spent(perf_counter() - seconds, process_time() - cpu)


def measure(case: Case, key_bits: int, repeats: int, seed: int) -> Row:
    """In turns, so that a slow moment of the machine hits both."""
    table, labels = people(case, seed)
    key = generate(SCHEMES[case.scheme].opens, key_bits=key_bits)
    local, network = [], []
    with one_core():
        for _ in range(repeats):
            local.append(in_process(table, labels, case.values, KeyHolder(key._secret)))
            network.append(over_network(table, labels, case.values, key_bits))
    free = over_network(table, labels, case.values, key_bits)
    here, there = (median(spent.seconds for spent in each) for each in (local, network))
    cpu_here, cpu_there = (median(spent.cpu for spent in each) for each in (local, network))
    return Row(
        case.scheme,
        case.reveal,
        len(PARTIES),
        case.rounds,
        round(here, 3),
        round(there, 3),
        round(1 - here / there, 3),
        round(1 - cpu_here / cpu_there, 3),
        round(free.seconds, 3),
        BAR,
        case.batch,
        case.columns,
        round(1000 * cpu_here / (case.rounds - 1), 2),
        round(1000 * (cpu_there - cpu_here) / (case.rounds - 1), 2),
    )


def bars(rows: Sequence[Row]) -> list[Bar]:
    return [
        Bar.of(
            f"share of processes, {row.scheme}, {row.reveal}, batches of {row.batch}",
            row.cpu_overhead,
            row.bar,
            "less",
            f"{row.round_ms:g} ms a round in one process, {row.added_ms:g} ms more over the network, "
            f"which is {row.bar:.0%} of a round of {row.added_ms * (1 / row.bar - 1):.0f} ms",
        )
        for row in rows
    ]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--key-bits", type=int, help="of Paillier keys; default 3072, with --quick 2048")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when the bar is missed")


def run(args: argparse.Namespace) -> int:
    facts = machine.describe(("gmpy2", "tenseal", "numpy"))
    facts["load"] = " ".join(f"{value:.1f}" for value in os.getloadavg())
    for name, fact in facts.items():
        print(f"{name:<13}{fact}")
    print(f"\n{len(PARTIES)} parties and a key-holder; seconds of the training, on one core")
    print(
        f"{'scheme':<10}{'reveals':<14}{'batch':>6}{'rounds':>7}{'one process':>13}{'network':>9}"
        f"{'overhead':>10}{'cpu':>8}{'bar':>6}  {'verdict':<8}{'all cores':>10}{'a round, ms':>15}"
    )
    rows = []
    for case in CASES:
        if args.quick:
            case = replace(case, rounds=max(3, case.rounds // 4))
        key_bits = args.key_bits or (2048 if args.quick else 3072)
        row = measure(case, key_bits, 1 if args.quick else 3, args.seed)
        rows.append(row)
        print(
            f"{row.scheme:<10}{row.reveal:<14}{row.batch:>6}{row.rounds:>7}{row.local_seconds:>13.2f}"
            f"{row.network_seconds:>9.2f}{row.overhead:>10.1%}{row.cpu_overhead:>8.1%}{row.bar:>6.0%}"
            f"  {row.verdict:<8}{row.all_cores_seconds:>10.2f}{row.round_ms:>8.1f} +{row.added_ms:>5.1f}",
            flush=True,
        )
    judged = bars(rows)
    show_bars(judged)
    if args.json is not None:
        written = {
            "machine": facts,
            "rows": [asdict(row) for row in rows],
            "bars": [vars(bar) for bar in judged],
        }
        args.json.write_text(json.dumps(written, indent=2) + "\n")
    return 1 if args.strict and any(row.verdict == "MISSED" for row in rows) else 0
