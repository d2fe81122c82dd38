"""Whole default fits of this code beside the code of the last release, in turns.

The release is a commit, so that the comparison does not move: its files are taken out of the repository into
a temporary folder, and the same interpreter runs them there (bench/whole_fit.py). Ratios of processor time
and bytes are taken in one run; the machine's load then matters little.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench.bars import Bar

COMMIT = "d320207"
"""The last release's code: blind training on encrypted parameters, before training on shares."""
ROOT = Path(__file__).parent.parent
COLUMNS = (50, 50)
BARS = {512: (8.0, 6.0), 4096: (15.0, 6.0)}
"""At least so many times less processor time, and fewer bytes."""


@dataclass(frozen=True)
class Beside:
    """One size: medians of processor seconds, bytes and messages of a whole fit, both parties."""

    rows: int
    cpu_s: float
    bytes: int
    messages: int
    metric: float
    release_cpu_s: float
    release_bytes: int
    release_messages: int
    release_metric: float
    turns: int

    def bars(self) -> list[Bar]:
        processor, sent = BARS.get(self.rows, BARS[512])
        shape = f"{self.rows:,} x {'+'.join(map(str, COLUMNS))}"
        times = f"{self.release_cpu_s:.2f} s beside {self.cpu_s:.2f} s, median of {self.turns}"
        counts = (
            f"{self.release_bytes / 1e6:.1f} MB in {self.release_messages} messages beside"
            f" {self.bytes / 1e6:.1f} MB in {self.messages}"
        )
        return [
            Bar.of(
                f"release / ours, processor, whole default fit, {shape}",
                self.release_cpu_s / self.cpu_s,
                processor,
                "more",
                times,
            ),
            Bar.of(
                f"release / ours, bytes, whole default fit, {shape}",
                self.release_bytes / self.bytes,
                sent,
                "more",
                counts,
            ),
        ]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"commit": COMMIT}


@contextmanager
def released_code() -> Iterator[Path]:
    """A temporary folder with the release's package. OSError where the repository lacks that commit."""
    command = ["git", "-C", str(ROOT), "archive", COMMIT, "securefed"]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        raise OSError(f"commit {COMMIT}: {done.stderr.decode(errors='replace').strip()}")
    with tempfile.TemporaryDirectory(prefix="securefed-release-") as folder:
        with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
            archive.extractall(folder, filter="data")
        yield Path(folder)


def whole_fit(code: Path, rows: int, seed: int) -> dict[str, Any]:
    """One fit by the package in that folder."""
    command = [sys.executable, "-P", str(Path(__file__).with_name("whole_fit.py"))]
    given = [str(number) for number in (rows, *COLUMNS, seed)]
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    environment = os.environ | threads | {"PYTHONPATH": str(code)}
    done = subprocess.run(
        [*command, *given], cwd=code, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise OSError(f"{code}: {(done.stderr.strip().splitlines() or ['no word'])[-1]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    if Path(found["code"]).parent.resolve() != code.resolve():
        raise OSError(f"{code}: the code of {found['code']} was measured in its place")
    return found


def beside_release(sizes: tuple[int, ...], turns: int, seed: int) -> Iterator[Beside]:
    """Both codes in turns: a busy moment slows both. Of few rows ours also trains a model for each fold."""
    with released_code() as earlier:
        for rows in sizes:
            pairs = [(whole_fit(ROOT, rows, seed), whole_fit(earlier, rows, seed)) for _ in range(turns)]
            ours, theirs = zip(*pairs, strict=True)
            yield Beside(
                rows,
                round(median(each["cpu"] for each in ours), 3),
                ours[0]["bytes"],
                ours[0]["messages"],
                ours[0]["metric"],
                round(median(each["cpu"] for each in theirs), 3),
                int(median(each["bytes"] for each in theirs)),
                int(median(each["messages"] for each in theirs)),
                theirs[0]["metric"],
                turns,
            )
