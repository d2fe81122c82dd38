"""`python -m bench peers`: one round of ours, measured, beside what the layout of FATE's FTL takes for the
same.

FATE's FTL sends, for each of n shared rows, an h x h matrix and two vectors of h numbers, one number a
ciphertext: n (h^2 + 2h) encryptions each way per exchange. At each local step a party multiplies and adds
n h^2 of them, and has n h per-row gradients opened, none of them packed. Nobody waits for that here: the
counts are multiplied by what one such operation costs with phe and with FATE's own fate_utils, measured in
the same run. Ours is a real encrypted round, its computation on the critical path (both parties work at
once), one process.
"""

from __future__ import annotations

import argparse
import json
import os
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

from bench import machine
from bench.bars import Bar
from bench.peers_real import compare_real, fate
from bench.rivals import Fate, Phe, fate_obstacle
from bench.timing import Task, take_turns
from securefed import FedBCD, GeneralisedLinear, OwnGradient, Party, RunResult, Simulation, TransferLearner
from securefed.crypto import generate
from securefed.protocols.own_gradient.ledger import LedgerWarning

Floats = NDArray[np.float64]
CIPHERTEXT = 512
"""Bytes of a ciphertext under a 2048-bit key."""
BARS = {"ckks": (1000.0, 200.0), "paillier": (50.0, 30.0)}
"""At least so many times less computation, and fewer bytes."""


@dataclass(frozen=True)
class Layout:
    """What FATE's published FTL does in a round of Q local steps, for one of two parties that work at
    once.
    """

    rows: int
    width: int
    steps: int

    @property
    def encryptions(self) -> int:
        return self.rows * (self.width**2 + 2 * self.width)

    @property
    def products(self) -> int:
        """Multiplications, each with an addition."""
        return self.steps * self.rows * self.width**2

    @property
    def decryptions(self) -> int:
        return self.steps * self.rows * self.width

    @property
    def bytes(self) -> int:
        """Both ways: the exchange, and requests (ciphertexts) and replies (floats) of the openings."""
        return 2 * (self.encryptions * CIPHERTEXT + self.decryptions * (CIPHERTEXT + 8))

    def seconds(self, cost: dict[str, float]) -> float:
        return (
            self.encryptions * cost["encrypt"]
            + self.products * cost["multiply-add"]
            + self.decryptions * cost["decrypt"]
        )


@dataclass(frozen=True)
class Row:
    """One comparison of a round."""

    scheme: str
    ours_seconds: float
    ours_bytes: int
    peer: str
    peer_seconds: float
    peer_bytes: int
    seconds_ratio: float
    bytes_ratio: float
    seconds_bar: float
    bytes_bar: float

    def bars(self) -> list[Bar]:
        beside = f"{self.scheme} beside {self.peer}"
        return [
            Bar.of(f"less computation, {beside}", self.seconds_ratio, self.seconds_bar, "more"),
            Bar.of(f"fewer bytes, {beside}", self.bytes_ratio, self.bytes_bar, "more"),
        ]

    @property
    def verdict(self) -> str:
        good = self.seconds_ratio >= self.seconds_bar and self.bytes_ratio >= self.bytes_bar
        return "pass" if good else "MISSED"


def costs(seed: int, repeats: int) -> tuple[dict[str, dict[str, float]], str | None]:
    """Seconds of each operation, by library; and why fate_utils is not among them, if so."""
    values = np.random.default_rng(seed).uniform(-1, 1, 16)
    phe = Phe(2048)
    numbers = phe.encrypt(values)
    matrix = [values.tolist()] * 2
    tasks = {
        "phe encrypt": Task(lambda: phe.encrypt(values), 16),
        "phe multiply-add": Task(lambda: phe.product(matrix, numbers), 32),
        "phe decrypt": Task(lambda: phe.decrypt(numbers), 16),
    }
    obstacle = fate_obstacle()
    if obstacle is None:
        fate = Fate(2048)
        encoded = fate.encode(values)
        encrypted = fate.encrypt_encoded(encoded)
        tasks["fate_utils encrypt"] = Task(fate.encrypt_encoded, 16, lambda: (fate.encode(values),))
        tasks["fate_utils multiply-add"] = Task(lambda: fate.multiply_add(encrypted, encoded), 16)
        tasks["fate_utils decrypt"] = Task(lambda: fate.decrypt(encrypted), 16)
    times = take_turns(tasks, repeats)
    found: dict[str, dict[str, float]] = {}
    for name, microseconds in times.items():
        peer, operation = name.split(" ", 1)
        found.setdefault(peer, {})[operation] = microseconds / 1e6
    return found, obstacle


def transfer_round(scheme: str, rows: int, width: int, steps: int, seed: int) -> RunResult:
    """One encrypted FTL round with 18 + 15 features."""
    rng = np.random.default_rng(seed)
    labels = np.where(rng.random(rows) < 0.5, -1, 1)
    a = Party("a", rng.normal(size=(rows, 18)), labels=labels)
    b = Party("b", rng.normal(size=(rows, 15)))
    learner = TransferLearner(
        width,
        algorithm=FedBCD(local_steps=steps),
        protection=OwnGradient(scheme=scheme, key_bits=2048, allow_determined=True),
        rounds=1,
        simulation=Simulation(engine="serial"),
        seed=seed,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LedgerWarning)
        return learner.fit([b, a]).result_


def linear_round(steps: int, rows: int, batch: int, seed: int, rounds: int) -> list[RunResult]:
    """Encrypted CKKS rounds of logistic regression with 50 + 50 features, several times."""
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(rows, 50)), rng.normal(size=(rows, 50))
    labels = a[:, 0] + b[:, 0] > 0
    keys = {"a": generate("ckks"), "b": generate("ckks")}
    results = []
    for _ in range(rounds):
        model = GeneralisedLinear(
            algorithm=FedBCD(local_steps=steps),
            rounds=1,
            seed=seed,
            protection=OwnGradient(batch_size=batch),
            simulation=Simulation(engine="serial"),
        )
        results.append(model.fit([Party("a", a), Party("b", b, labels=labels)], keys=keys).result_)
    return results


def compare(scheme: str, result: RunResult, peers: dict[str, dict[str, float]], layout: Layout) -> list[Row]:
    ours, sent = result.computation, sum(result.bytes().values())
    return [
        Row(
            scheme,
            round(ours, 4),
            sent,
            peer,
            round(layout.seconds(cost), 1),
            layout.bytes,
            round(layout.seconds(cost) / ours, 1),
            round(layout.bytes / sent, 1),
            *BARS[scheme],
        )
        for peer, cost in peers.items()
    ]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=1000, help="shared rows n; default %(default)s")
    parser.add_argument("--width", type=int, default=32, help="hidden width h; default %(default)s")
    parser.add_argument("--local-steps", type=int, default=5, help="Q; default %(default)s")
    parser.add_argument(
        "--real",
        action="store_true",
        help="install SPU and SecretFlow, the first time, and run them beside ours",
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path("bench-out/peers"),
        help="of environments; default %(default)s",
    )
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a bar is missed")


def run(args: argparse.Namespace) -> int:
    return _real(args) if args.real else _counted(args)


def _real(args: argparse.Namespace) -> int:
    facts = machine.describe(("numpy", "scikit-learn"))
    for name, fact in facts.items():
        print(f"{name:<13}{fact}")
    print(f"{'load':<13}{os.getloadavg()[0]:.1f}")
    sizes = (512,) if args.quick else (512, 4096)
    found = compare_real(args.folder.resolve(), sizes, args.seed, quick=args.quick)
    shape = fate(4096 if args.quick else 100_000, args.seed)
    bars = [*found["bars"], *shape["bars"]]
    print()
    for bar in bars:
        print(
            f"{'met   ' if bar['met'] else 'MISSED'}  {bar['name']}: {bar['value']}"
            f" (bar {bar['bar']:g}) {bar['note']}"
        )
    if args.json is not None:
        report = {"machine": facts, **found, "fate": shape, "bars": bars}
        args.json.write_text(json.dumps(report, indent=2) + "\n")
    return 1 if args.strict and not all(bar["met"] for bar in bars) else 0


def _counted(args: argparse.Namespace) -> int:
    rows_shared = min(args.rows, 100) if args.quick else args.rows
    layout = Layout(rows_shared, args.width, args.local_steps)
    facts = machine.describe(("numpy", "gmpy2", "phe", "tenseal", "fate_utils"))
    for name, fact in facts.items():
        print(f"{name:<11}{fact}")
    print(
        f"\none FTL round, n = {layout.rows}, h = {layout.width}, 18 + 15 features, Q = {layout.steps}; "
        f"FATE's layout: {layout.encryptions:,} encryptions each way, {layout.products:,} products and "
        f"{layout.decryptions:,} openings a party, {layout.bytes / 2**20:,.0f} MiB\n"
    )
    peers, obstacle = costs(args.seed, 3)
    rows: list[Row] = []
    heads = ("scheme", "ours s", "MiB", "peer", "peer s", "MiB", "less work", "bar", "less data", "bar")
    print("{:<10}{:>9}{:>9}  {:<12}{:>11}{:>9}{:>11}{:>7}{:>11}{:>6}  verdict".format(*heads))
    for scheme in ("ckks", "paillier"):
        result = transfer_round(scheme, layout.rows, layout.width, layout.steps, args.seed)
        for row in compare(scheme, result, peers, layout):
            rows.append(row)
            print(
                f"{row.scheme:<10}{row.ours_seconds:>9.2f}{row.ours_bytes / 2**20:>9.2f}  {row.peer:<12}"
                f"{row.peer_seconds:>11,.0f}{row.peer_bytes / 2**20:>9,.0f}{row.seconds_ratio:>11,.0f}"
                f"{row.seconds_bar:>7g}{row.bytes_ratio:>11,.0f}{row.bytes_bar:>6g}  {row.verdict}",
                flush=True,
            )
    linear = {steps: linear_round(steps, 10_000, 4096, args.seed, 3) for steps in (1, 50)}
    print("\ngeneralised linear, 10,000 x (50 + 50), batch 4096, ckks, one round (median of three):")
    summary = []
    for steps, results in linear.items():
        seconds = median(r.computation for r in results)
        first = results[0]
        sent, messages = sum(first.bytes().values()), sum(first.messages().values())
        summary.append({"Q": steps, "seconds": round(seconds, 3), "bytes": sent, "messages": messages})
        print(f"  Q = {steps:<3} {seconds:6.2f} s computation, {sent:,} bytes, {messages} messages")
    if obstacle is not None:
        print(f"note: {obstacle}")
    if args.json is not None:
        report = {
            "machine": facts,
            "layout": asdict(layout) | {"encryptions": layout.encryptions, "bytes": layout.bytes},
            "rows": [asdict(row) for row in rows],
            "linear": summary,
            "notes": [obstacle] if obstacle else [],
            "bars": [asdict(bar) for row in rows for bar in row.bars()],
        }
        args.json.write_text(json.dumps(report, indent=2) + "\n")
    missed = [row for row in rows if row.verdict == "MISSED"]
    return 1 if args.strict and missed else 0
