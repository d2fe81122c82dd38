"""Private set intersection between real parties: 100,000 ids a side, two processes, mutual TLS on loopback.

Each side has `ids` people, nine in ten of them in common. Time is from the moment at which both listen
to the one at which both know their rows: greeting, masking, three crossings of the network, comparing. The
training that follows is one plain round; it is not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from bench import machine
from bench.fleet import Table, train

__all__ = ["Row", "add_arguments", "measure", "run"]

BAR = 60.0
COMMON = 0.9
SETTINGS = {"scheme": "plain", "reveal": "own-gradient", "rounds": 1, "local_steps": 1, "batch_size": 100}


@dataclass(frozen=True)
class Row:
    ids: int
    parties: int
    common: int
    seconds: float
    cpu_seconds: float
    """Of all parties."""
    bar: float

    @property
    def verdict(self) -> str:
        return "pass" if self.seconds <= self.bar else "MISSED"


def people(ids: int, parties: int, seed: int) -> tuple[dict[str, Table], int]:
    """So many ids at each party, and how many are everybody's. The last party has labels."""
    rng = np.random.default_rng(seed)
    common = round(COMMON * ids)
    total = common + parties * (ids - common)
    numbers = rng.permutation(10 * total)[:total]
    tables = {}
    for place, own in enumerate(np.split(np.arange(common, total), parties)):
        known = rng.permutation(np.concatenate([np.arange(common), own])).tolist()
        rows: list[list[object]] = [
            [f"{numbers[row]:012d}", round(float(value), 3)]
            for row, value in zip(known, rng.normal(size=ids), strict=True)
        ]
        if place < parties - 1:
            tables[f"p{place}"] = Table(["id", "x"], rows, id="id")
        else:
            marked = [[*fields, row % 2] for row, fields in zip(known, rows, strict=True)]
            tables[f"p{place}"] = Table(["id", "x", "label"], marked, id="id", label="label")
    return tables, common


def measure(ids: int, parties: int, seed: int) -> Row:
    tables, common = people(ids, parties, seed)
    with tempfile.TemporaryDirectory() as folder:
        events = train(Path(folder), tables, SETTINGS, 2048)
    told = {
        name: {e["event"]: e for e in events[name] if e["event"] in ("listening", "aligned")}
        for name in tables
    }
    found = {each["aligned"]["rows"] for each in told.values()}
    if found != {common}:
        raise ArithmeticError(f"{common} ids are in common, the parties found {found}")
    return Row(
        ids,
        parties,
        common,
        round(
            max(each["aligned"]["time"] for each in told.values())
            - max(each["listening"]["time"] for each in told.values()),
            2,
        ),
        round(sum(each["aligned"]["cpu"] - each["listening"]["cpu"] for each in told.values()), 2),
        BAR,
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ids", type=int, default=100_000, help="of each party; default %(default)s")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when the bar is missed")


def run(args: argparse.Namespace) -> int:
    facts = machine.describe(("cryptography", "grpcio"))
    facts["load"] = " ".join(f"{value:.1f}" for value in os.getloadavg())
    for name, fact in facts.items():
        print(f"{name:<13}{fact}")
    ids = max(100, args.ids // 20) if args.quick else args.ids
    print(f"\n{'ids':>9}{'parties':>9}{'common':>9}{'seconds':>9}{'cpu s':>8}{'bar':>6}  verdict")
    rows = []
    for parties in (2, 3):
        row = measure(ids, parties, args.seed)
        rows.append(row)
        print(
            f"{row.ids:>9,}{row.parties:>9}{row.common:>9,}{row.seconds:>9.1f}{row.cpu_seconds:>8.1f}"
            f"{row.bar:>6g}  {row.verdict}",
            flush=True,
        )
    if args.json is not None:
        written = {"machine": facts, "rows": [asdict(row) for row in rows]}
        args.json.write_text(json.dumps(written, indent=2) + "\n")
    return 1 if args.strict and any(row.verdict == "MISSED" for row in rows) else 0
