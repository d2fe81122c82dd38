"""`python -m bench peers --real`: other systems that train without showing the model, run beside ours.

The same rows, columns, full batches, steps and rate for all, two parties with 50 columns each. Each peer gets
an environment of its own under a folder that is not committed; one that cannot be installed or run has a row
that says why. A *step* leaves out what is done once in a run (keys, base oblivious transfers, encodings):
that is a column of its own, for it decides short runs.

Networks are modelled alike for all: work, plus half of the bytes over the bandwidth (both directions carry
at once), plus one latency for each message of a party. A protocol may have several messages under way at a
time; "floor" leaves latency out altogether for the peer, and counts it in full for us.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score

from bench.blind import Bar, Keys, fitted, generated
from securefed import FedSGD, Party

__all__ = ["NETWORKS", "RealRow", "compare_real", "fate"]

NETWORKS = {"LAN": (1000.0, 0.001), "100 Mbit/s, 50 ms": (100.0, 0.05), "10 Mbit/s, 50 ms": (10.0, 0.05)}
"""Mbit/s and seconds of latency."""
SPU = "0.9.5"
RATE = 0.3
OURS = "securefed, blind RLWE"
REVEALS = {
    OURS: "nothing; noise and masks within 2^-40 of independence",
    "SPU Cheetah": "nothing to two semi-honest parties",
    "SPU Semi2k": "nothing, if its first party deals the multiplication triples honestly: it is trusted",
}
HESS = (
    "secretflow==1.11.0b1",
    "spu==0.9.3b0",
    "sf-heu==0.5.2b0",
    "jax==0.4.26",
    "jaxlib==0.4.26",
    "ray==2.9.3",
)
PROBE = "from secretflow.ml.linear.hess_sgd import HESSLogisticRegression"
FATE = (("FATE 2.0 SSHE-LR", 294.0, "secret-shared weights"), ("FATE 2.0 coordinated LR", 136.0, "weights"))
"""An epoch of 100,000 x 30+300 with 16 cores at each party and 1 Gbit/s, as FATE publishes it."""


@dataclass(frozen=True)
class RealRow:
    """A step of one system; numbers are 0 where a note says why there are none."""

    system: str
    rows: int
    cpu_seconds: float = 0.0
    wall_seconds: float = 0.0
    """Without a network: both parties at work, where they can be at once."""
    bytes: int = 0
    messages: float = 0.0
    once_cpu_seconds: float = 0.0
    once_bytes: int = 0
    auc: float = 0.0
    reveals: str = ""
    note: str = ""

    def seconds(self, network: str, *, floor: bool = False) -> float:
        megabits, latency = NETWORKS[network]
        waits = 0.0 if floor else self.messages / 2 * latency
        return self.wall_seconds + self.bytes / 2 * 8 / (megabits * 1e6) + waits


def environment(folder: Path, packages: tuple[str, ...], *more: str) -> Path:
    """A Python with these packages, made once in a folder."""
    python = folder / "bin" / "python"
    if not (folder / "installed").exists():
        print(f"installing {', '.join(packages)} into {folder}, once", flush=True)
        began = time.perf_counter()
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        command = [str(python), "-m", "pip", "install", "-q", *more, *packages]
        subprocess.run(command, check=True, capture_output=True, text=True)
        (folder / "installed").touch()
        print(
            f"installed in {time.perf_counter() - began:.0f} s, which are no part of the times below",
            flush=True,
        )
    return python


def ours(parties: list[Party], keys: Keys, steps: int) -> RealRow:
    settings: dict[str, Any] = {"algorithm": FedSGD(), "learning_rate": RATE, "l2": 0.0}
    fitted([party.take(np.arange(16)) for party in parties], keys, "ckks", 1, **settings)  # warm
    once, short, _ = fitted(parties, keys, "ckks", 1, **settings)
    cpu, result, model = fitted(parties, keys, "ckks", 1 + steps, **settings)
    few, many = (sum(r.bytes(phase=None).values()) for r in (short, result))
    sends = [sum(r.messages(phase=None).values()) for r in (short, result)]
    return RealRow(
        OURS,
        parties[0].rows,
        (cpu - once) / steps,
        (result.computation - short.computation) / steps,
        (many - few) // steps,
        (sends[1] - sends[0]) / steps,
        once,
        few,
        float(roc_auc_score(parties[-1].labels, model.decision_function(parties))),
        REVEALS[OURS],
    )


def spu(parties: list[Party], folder: Path, protocol: str, steps: int) -> RealRow:
    name = f"SPU {protocol.capitalize()}"
    features = np.hstack([np.asarray(party.features) for party in parties])
    try:
        python = environment(folder / f"spu-{SPU}", (f"spu=={SPU}",))
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch) / "rows.npz"
            np.savez(path, features=features, labels=np.asarray(parties[-1].labels) > 0)
            command = [str(python), str(Path(__file__).with_name("spu_step.py")), str(path)]
            command += [protocol.upper(), str(steps), str(RATE)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        return RealRow(name, len(features), note=f"not run: {_last_line(error)}")
    found = json.loads(done.stdout.strip().split("\n")[-1])
    return RealRow(
        name,
        len(features),
        max(found["cpu"], 0.0),
        max(found["wall"], 0.0),
        int(found["bytes"]),
        found["messages"],
        found["once_cpu"],
        int(found["once_bytes"]),
        float(roc_auc_score(parties[-1].labels, features @ np.array(found["weights"]))),
        REVEALS[name],
    )


def hess(folder: Path, install: bool) -> RealRow:
    """SecretFlow's HESS-SGD, nearest to ours in idea: whether it can be used here."""
    name = "SecretFlow HESS-SGD"
    if not install and not (folder / "hess" / "installed").exists():
        return RealRow(name, 0, note="not run: --quick installs SPU alone")
    try:
        python = environment(folder / "hess", HESS, "--no-deps")
        command = [str(python), "-c", PROBE]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    except (OSError, subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        return RealRow(name, 0, note=f"not run: {_last_line(error)}")
    return RealRow(name, 0, note="not run: installed, but it takes Ray actors for two HEUs and an SPU")


def _last_line(error: Exception) -> str:
    words = str(getattr(error, "stderr", "") or error).strip().splitlines()
    return words[-1][:160] if words else type(error).__name__


def compare_real(
    folder: Path, keys: Keys, sizes: tuple[int, ...], seed: int, steps: int, *, install: bool
) -> dict[str, Any]:
    """Rows, bars and printed tables."""
    rows: list[RealRow] = []
    bars: list[Bar] = []
    heads = ("system", "rows", "cpu s", "wall s", "kB", "msgs", "once cpu", "once kB", "AUC")
    print(
        "\none step, 50+50 columns, full batch\n{:<24}{:>7}{:>9}{:>9}{:>9}{:>7}{:>10}{:>10}{:>8}".format(
            *heads
        )
    )
    for size in sizes:
        parties = generated(size, 50, 50, seed)
        made = [ours(parties, keys, steps), *(spu(parties, folder, p, steps) for p in ("cheetah", "semi2k"))]
        for row in made:
            _show(row)
        rows += made
        bars += _bars(made[0], made[1])
    rows.append(hess(folder, install))
    _show(rows[-1])
    for network in NETWORKS:
        print(f"\n{network}: seconds a step (floor: without latency)")
        for row in rows:
            if row.cpu_seconds or row.bytes:
                whole, floor = row.seconds(network), row.seconds(network, floor=True)
                print(f"  {row.system:<24}{row.rows:>7,}{whole:>10.2f}{floor:>10.2f}")
    for first, *others in (rows[i : i + 3] for i in range(0, 3 * len(sizes), 3)):
        for other in others:
            for quantity in ("cpu_seconds", "bytes", "messages"):
                if not other.note and getattr(other, quantity) < getattr(first, quantity):
                    print(f"{other.system} needs fewer {quantity} than we at {other.rows:,} rows")
    return {"rows": [asdict(row) for row in rows], "bars": [asdict(bar) for bar in bars]}


def _bars(mine: RealRow, cheetah: RealRow) -> list[Bar]:
    size, slow = f"{mine.rows:,} rows", "10 Mbit/s, 50 ms"
    if cheetah.note:
        return [Bar(f"SPU Cheetah / ours, {size}", 0.0, 8.0, "more", False, cheetah.note)]
    first = cheetah.once_bytes / mine.once_bytes
    floor = cheetah.seconds(slow, floor=True) / mine.seconds(slow)
    return [
        Bar.of(
            f"SPU Cheetah / ours, processor seconds, {size}",
            cheetah.cpu_seconds / mine.cpu_seconds,
            8.0,
            "more",
        ),
        Bar.of(
            f"SPU Cheetah / ours, bytes of a step, {size}",
            cheetah.bytes / mine.bytes,
            20.0 if mine.rows >= 4096 else 10.0,
            "more",
            f"without what is sent once; a run of one step, all counted: {first:.1f}",
        ),
        Bar.of(
            f"SPU Cheetah / ours, wall at {slow}, {size}",
            cheetah.seconds(slow) / mine.seconds(slow),
            3.0,
            "more",
            f"modelled, one latency for each message of a party; without latency for Cheetah {floor:.1f}",
        ),
    ]


def fate(rows: int, keys: Keys, seed: int) -> dict[str, Any]:
    """One pass over FATE's published shape, ours; `rows` of its 100,000 where time is short."""
    began = time.perf_counter()
    parties = generated(rows, 30, 300, seed)
    cpu, result, _ = fitted(parties, keys, "ckks", 1)
    wall = time.perf_counter() - began
    print(f"\n{rows:,} x 30+300, one pass, ours, both parties here: {wall:.1f} s wall, {cpu:.1f} s of")
    print(f"processor, critical path {result.computation:.1f} s; all keys and encodings included")
    for name, published, reveals in FATE:
        print(f"  {name}: {published:g} s published for 100,000 rows, 16 cores a party; reveals {reveals}")
    note = "FATE publishes 294 s (SSHE-LR) and 136 s (coordinated) with 16 cores a party"
    bars = [Bar.of("100,000 x 30+300, one pass, s", wall, 30.0, "less", note)] if rows == 100_000 else []
    found = {"rows": rows, "wall_seconds": wall, "cpu_seconds": cpu, "critical_seconds": result.computation}
    return {**found, "bars": [asdict(bar) for bar in bars]}


def _show(row: RealRow) -> None:
    if row.note:
        print(f"{row.system:<24}{row.rows or '':>7}  {row.note}", flush=True)
        return
    print(
        f"{row.system:<24}{row.rows:>7,}{row.cpu_seconds:>9.3f}{row.wall_seconds:>9.3f}"
        f"{row.bytes / 1e3:>9,.0f}{row.messages:>7.0f}{row.once_cpu_seconds:>10.2f}"
        f"{row.once_bytes / 1e3:>10,.0f}{row.auc:>8.4f}",
        flush=True,
    )
