"""`python -m bench scale --parties`: a whole training by two `securefed party` processes with files on disk.

Rows are the same people in the same order, so that there is no alignment (`bench alignment` measures that).
All rows train: none are held out. Time is from the beginning of the training to the end of the run. Memory is
each process's peak from its start on, with reading and preparing its file. Bytes are those of all messages,
with keys.
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.bars import Bar
from bench.fleet import train

SETTINGS = {"alignment": "rows", "holdout": 0.0, "reveal": "nothing"}
SHAPES = ((1_000_000, (50, 50)), (100_000, (30, 300)))
"""Rows, and the columns of both; the second is the shape of an epoch that FATE publishes."""
BARS = {SHAPES[0]: {"s": 60.0, "MB sent": 1000.0, "peak MiB a party": 2560.0}, SHAPES[1]: {"s": 20.0}}
"""At most."""
BLOCK = 1 << 16


@dataclass(frozen=True)
class Matrix:
    """A party's file of numbers, drawn from a seed a block at a time; the last column of a label party is 0
    or 1.
    """

    rows: int
    columns: int
    seed: int
    label: str | None = None
    id: str | None = None
    file: str = "data.npy"

    def write(self, path: Path) -> None:
        width = self.columns + (self.label is not None)
        made = np.lib.format.open_memmap(path, "w+", np.float64, (self.rows, width))
        rng = np.random.default_rng(self.seed)
        for start in range(0, self.rows, BLOCK):
            stop = min(start + BLOCK, self.rows)
            made[start:stop, : self.columns] = rng.uniform(-1, 1, size=(stop - start, self.columns))
            if self.label is not None:
                made[start:stop, self.columns] = made[start:stop, 0] + 0.3 * rng.normal(size=stop - start) > 0
        made.flush()


def measure(rows: int, columns: tuple[int, int], seed: int) -> dict[str, Any]:
    tables = {
        "shop": Matrix(rows, columns[0], seed),
        "bank": Matrix(rows, columns[1], seed + 1, label=str(columns[1])),
    }
    with tempfile.TemporaryDirectory() as folder:
        events = train(Path(folder), tables, {"scheme": "ckks", **SETTINGS}, 2048)
        results = [Path(folder) / name / "runs" / "bench" / "result.json" for name in tables]
        sent = sum(json.loads(path.read_text())["bytes_sent"] for path in results)
    told = {name: {event["event"]: event for event in events[name]} for name in tables}
    spans = [each["finished"]["time"] - each["training"]["time"] for each in told.values()]
    return {
        "rows": rows,
        "columns": list(columns),
        "seconds": round(max(spans), 1),
        "cpu_seconds": round(
            sum(each["finished"]["cpu"] - each["training"]["cpu"] for each in told.values()), 1
        ),
        "mb_sent": round(sent / 1e6, 1),
        "peak_mib": {name: each["memory"]["peak_mib"] for name, each in told.items()},
        "file_mib": round(rows * max(columns) * 8 / 2**20, 1),
    }


def bars(found: dict[str, Any]) -> list[Bar]:
    due = BARS.get((found["rows"], tuple(found["columns"])), {})
    values = {
        "s": found["seconds"],
        "MB sent": found["mb_sent"],
        "peak MiB a party": max(found["peak_mib"].values()),
    }
    load = f"wall time, load {os.getloadavg()[0]:.1f}, {found['cpu_seconds']:.0f} processor seconds of both"
    name = f"{shape(found)}, whole training by two processes"
    return [
        Bar.of(f"{name}, {what}", values[what], most, "less", load if what == "s" else "")
        for what, most in due.items()
    ]


def shape(found: dict[str, Any]) -> str:
    return f"{found['rows']:,} x {'+'.join(map(str, found['columns']))}"
