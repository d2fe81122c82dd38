"""What processes of their own cost: four parties and a key-holder over mutual TLS, beside one process.

Same settings, rows, batches and key sizes. Over the network each party is `securefed party`: TLS, grpc,
checksums, transcripts and checkpoints on disk, progress. In one process the same programs take turns
(securefed.transport.local). Everything is held to one core, so that five processes have no more of the
machine than one; the time is from the start of the training to the end of its last round, alignment and
start-up aside.

    overhead     (time over the network - time in one process) / time over the network
    cpu          the same of processor seconds, which a busy neighbour does not change
    all cores    time over the network with every core, where parties work side by side
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

from sklearn.preprocessing import StandardScaler

from bench import machine
from securefed import FedBCD, GeneralisedLinear, Party
from securefed.cli.demo_data import DemoData, demo_data
from securefed.cli.demo_parties import DemoRun
from securefed.cli.demo_settings import DemoSettings
from securefed.cli.terminal import Terminal
from securefed.crypto import KeyHolder, generate
from securefed.protocols.ledger import LedgerWarning
from securefed.protocols.recipe import KEY_HOLDER

__all__ = ["Row", "Spent", "add_arguments", "measure", "over_network", "run"]

BAR = 0.15
PARTIES = 4


@dataclass(frozen=True)
class Case:
    scheme: str
    reveal: str
    rounds: int

    @property
    def values(self) -> dict[str, Any]:
        return {
            "scheme": self.scheme,
            "reveal": self.reveal,
            "rounds": self.rounds,
            "batch_size": 128,
            "local_steps": 10,
            "learning_rate": 0.1,
            "l2": 0.001,
            "seed": 0,
        }


CASES = (
    Case("paillier", "nothing", 4),
    Case("paillier", "own-gradient", 12),
    Case("ckks", "own-gradient", 60),
)


@dataclass(frozen=True)
class Row:
    """One protocol. Seconds of the training."""

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

    @property
    def verdict(self) -> str:
        return "pass" if self.overhead <= self.bar else "MISSED"


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


def over_network(data: DemoData, settings: DemoSettings) -> tuple[Spent, dict[str, list[dict[str, Any]]]]:
    """Train with `securefed party` processes; what it took, and everybody's events."""
    with tempfile.TemporaryDirectory() as folder, Terminal(quiet=True) as terminal:
        made = DemoRun(Path(folder), data, settings, secrets.token_urlsafe(24), terminal)
        with made:
            made.prepare()
            made.train()
        events = {
            name: list(map(json.loads, (Path(folder) / name / "events.jsonl").read_text().splitlines()))
            for name in made.everybody
        }
    begins = [next(e for e in each if e["event"] == "training") for each in events.values()]
    ends = [[e for e in each if e["event"] == "round"][-1] for each in events.values()]
    spent = Spent(
        max(e["time"] for e in ends) - min(e["time"] for e in begins),
        sum(end["cpu"] - begin["cpu"] for begin, end in zip(begins, ends, strict=True)),
    )
    return spent, events


def in_process(data: DemoData, values: dict[str, Any], keys: dict[str, KeyHolder]) -> Spent:
    """The same training with everybody in this process, one after the other."""
    common = sorted(set.intersection(*(set(rows.tolist()) for rows in data.train.values())))
    parties = [
        Party(
            name,
            StandardScaler().fit_transform(data.table[common][:, columns]),
            labels=data.labels[common] if name == data.label_party else None,
        )
        for name, columns in data.columns.items()
    ]
    given = {key: value for key, value in values.items() if key != "local_steps"}
    model = GeneralisedLinear(
        algorithm=FedBCD(values["local_steps"]), engine="serial", network="loopback", progress=False, **given
    )
    begin, cpu = perf_counter(), process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LedgerWarning)
        model.fit(parties, keys=keys)
    return Spent(perf_counter() - begin, process_time() - cpu)


def measure(case: Case, data: DemoData, key_bits: int, repeats: int) -> Row:
    """In turns, so that a slow moment of the machine hits both."""
    settings = DemoSettings(case.values, "linear", key_bits)
    keys = {KEY_HOLDER: generate(case.scheme, key_bits=key_bits)}
    local, network = [], []
    with one_core():
        for _ in range(repeats):
            local.append(in_process(data, case.values, {KEY_HOLDER: KeyHolder(keys[KEY_HOLDER]._secret)}))
            network.append(over_network(data, settings)[0])
    free, _ = over_network(data, settings)
    here, there = (median(spent.seconds for spent in each) for each in (local, network))
    cpu_here, cpu_there = (median(spent.cpu for spent in each) for each in (local, network))
    return Row(
        case.scheme,
        case.reveal,
        len(data.parties),
        case.rounds,
        round(here, 3),
        round(there, 3),
        round(1 - here / there, 3),
        round(1 - cpu_here / cpu_there, 3),
        round(free.seconds, 3),
        BAR,
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--key-bits", type=int, default=3072, help="of Paillier keys; default %(default)s")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when the bar is missed")


def run(args: argparse.Namespace) -> int:
    facts = machine.describe(("grpcio", "gmpy2", "tenseal", "numpy"))
    facts["load"] = " ".join(f"{value:.1f}" for value in os.getloadavg())
    for name, fact in facts.items():
        print(f"{name:<13}{fact}")
    data = demo_data("generated", PARTIES, "linear", args.seed)
    print(f"\n{PARTIES} parties and a key-holder; seconds of the training, on one core")
    print(
        f"{'scheme':<10}{'reveals':<14}{'rounds':>7}{'one process':>13}{'network':>9}{'overhead':>10}"
        f"{'cpu':>8}{'bar':>6}  {'verdict':<8}{'all cores':>10}"
    )
    rows = []
    for case in CASES:
        if args.quick:
            case = Case(case.scheme, case.reveal, max(1, case.rounds // 4))
        row = measure(case, data, args.key_bits, 1 if args.quick else 3)
        rows.append(row)
        print(
            f"{row.scheme:<10}{row.reveal:<14}{row.rounds:>7}{row.local_seconds:>13.2f}"
            f"{row.network_seconds:>9.2f}{row.overhead:>10.1%}{row.cpu_overhead:>8.1%}{row.bar:>6.0%}"
            f"  {row.verdict:<8}{row.all_cores_seconds:>10.2f}",
            flush=True,
        )
    if args.json is not None:
        written = {"machine": facts, "rows": [asdict(row) for row in rows]}
        args.json.write_text(json.dumps(written, indent=2) + "\n")
    return 1 if args.strict and any(row.verdict == "MISSED" for row in rows) else 0
