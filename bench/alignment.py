"""Private set intersection between real parties: 100,000 ids a side, two processes, mutual TLS on loopback.

Each side has `ids` people, nine in ten of them in common. Time is from the moment at which both listen
to the one at which both know their rows: greeting, masking, three crossings of the network, comparing. The
training that follows is one plain round; it is not counted. Memory is the peak of the largest party, reading
its file and training included. The last line is computed from the one of two parties, and no measurement.
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
from bench.bars import Bar
from bench.fleet import Table, train

BAR = 60.0
"""For 100,000 ids."""
PROJECTED, PROJECTED_BAR = 10_000_000, 3600.0
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
    peak_mib: float
    """Of the largest party."""
    bar: float | None

    @property
    def verdict(self) -> str:
        return "" if self.bar is None else "pass" if self.seconds <= self.bar else "MISSED"


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
        max(e["peak_mib"] for name in tables for e in events[name] if e["event"] == "memory"),
        BAR if ids <= 100_000 else None,
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ids", type=int, default=100_000, help="of each party; default %(default)s")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when the bar is missed")


def run(args: argparse.Namespace) -> int:
    facts = machine.describe(("cryptography",))
    facts["load"] = " ".join(f"{value:.1f}" for value in os.getloadavg())
    for name, fact in facts.items():
        print(f"{name:<13}{fact}")
    ids = max(100, args.ids // 20) if args.quick else args.ids
    print(f"\n{'ids':>10}{'parties':>9}{'common':>10}{'seconds':>9}{'cpu s':>8}{'MiB':>7}{'bar':>6}  verdict")
    rows = []
    for parties in (2, 3) if ids <= 100_000 else (2,):
        row = measure(ids, parties, args.seed)
        rows.append(row)
        print(
            f"{row.ids:>10,}{row.parties:>9}{row.common:>10,}{row.seconds:>9.1f}{row.cpu_seconds:>8.1f}"
            f"{row.peak_mib:>7,.0f}{'' if row.bar is None else f'{row.bar:g}':>6}  {row.verdict}",
            flush=True,
        )
    far = rows[0].cpu_seconds / rows[0].ids * PROJECTED
    print(
        f"projection, computed and not measured: {PROJECTED:,} ids at each of two parties take {far:,.0f} "
        f"processor seconds, {far / 2:,.0f} s on two free cores"
    )
    judged = [
        Bar.of(f"alignment of {row.ids:,} ids, {row.parties} parties, s", row.seconds, row.bar, "less")
        for row in rows
        if row.bar is not None
    ]
    note = f"projected from {rows[0].ids:,} ids, processor seconds over two cores"
    judged.append(Bar.of(f"alignment of {PROJECTED:,} ids, s", far / 2, PROJECTED_BAR, "less", note))
    if args.json is not None:
        written = {
            "machine": facts,
            "rows": [asdict(row) for row in rows],
            "bars": [vars(bar) for bar in judged],
        }
        args.json.write_text(json.dumps(written, indent=2) + "\n")
    return 1 if args.strict and not all(bar.met for bar in judged) else 0
