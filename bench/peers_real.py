"""`python -m bench peers --real`: other systems that train without showing the model, run beside ours.

The same rows, columns, full batches, steps and rate for all, two parties with 50 columns each. Each peer gets
an environment of its own under a folder that is not committed; one that cannot be installed or run has a row
that says why. A step leaves out what is done once in a run (keys, base oblivious transfers, encodings):
that is a column of its own, for it decides short runs. Ours has a row for each number Q of local steps; what
local steps are worth is bench.peers_losses' table, rounds and bytes to the same training loss.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from bench import scale_parties
from bench.bars import Bar
from bench.blind import fitted
from bench.peers_losses import HEADING as WAYS
from bench.peers_losses import Way, agreed, bars_to_loss, hess_weights, log_loss, paths, shared_factors
from bench.peers_rows import HEADING, OURS, Cost, RealRow, show_faster, show_networks, shown
from bench.whole_fit import parties_of as generated
from securefed import FedBCD, Party, RunResult

Floats = NDArray[np.float64]
SPU = "0.9.5"
RATE = 0.3
LEAST = 11
"""Rounds of a run from which a round is taken, so that ten share what the machine does besides."""
SAME: dict[str, Any] = {"l2": 0.0, "standardise": False, "fit_intercept": False}
"""What SPU's program does: columns as they are."""
HESS = "SecretFlow HESS-SGD"
REVEALS = {
    OURS: "nothing; what the label party receives is statistically independent of the other party's data",
    "SPU Cheetah": "nothing to two semi-honest parties",
    "SPU Semi2k": "nothing, if its first party deals the multiplication triples honestly: it is trusted",
    HESS: "nothing, if its SPU's first party deals the triples honestly, as in Semi2k",
}
RECORDED = {
    ("SPU Cheetah", 512): (Cost(1.7, 0.0, 22.5e6, 1281.0), Cost(0.755, 0.0, 2.136e6, 18.0)),
    ("SPU Semi2k", 512): (Cost(0.1, 0.0, 0.839e6, 12.0), Cost(0.013, 0.0, 0.020e6, 12.0)),
    ("SPU Cheetah", 4096): (Cost(6.0, 0.0, 24.365e6, 24.0), Cost(1.277, 0.0, 2.523e6, 24.0)),
    ("SPU Semi2k", 4096): (Cost(0.2, 0.0, 6.688e6, 12.0), Cost(0.038, 0.0, 0.134e6, 12.0)),
}
"""Once and each further step of SPU 0.9.5, for where it cannot be installed."""
RECORDED_ON = "2026-11-17, 2 cores of an AMD EPYC, nothing beside it"
REPEATS = 3
"""Whole runs of ours whose median counts."""
REQUIREMENTS = Path(__file__).with_name("hess_requirements.txt")
FATE = (("FATE 2.0 SSHE-LR", 294.0, "secret-shared weights"), ("FATE 2.0 coordinated LR", 136.0, "weights"))
"""An epoch of 100,000 x 30+300 with 16 cores at each party and 1 Gbit/s, as FATE publishes it."""


def environment(folder: Path, *packages: str) -> Path:
    """A Python with these packages, made once in a folder, and again when they change."""
    python, installed = folder / "bin" / "python", folder / "installed"
    wanted = "\n".join(Path(name).read_text() if Path(name).is_file() else name for name in packages)
    if not installed.exists() or installed.read_text() != wanted:
        print(f"installing {' '.join(packages)} into {folder}, once", flush=True)
        began = time.perf_counter()
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        command = [str(python), "-m", "pip", "install", "-q", *packages]
        subprocess.run(command, check=True, capture_output=True, text=True)
        installed.write_text(wanted)
        print(f"installed in {time.perf_counter() - began:.0f} s, which are no part of the times below")
    return python


def ours(parties: list[Party], local_steps: int, steps: int) -> RealRow:
    settings: dict[str, Any] = {"algorithm": FedBCD(local_steps), "learning_rate": RATE, **SAME}
    rounds = steps // local_steps
    measured = max(rounds, LEAST)
    costs = {}
    for count in {1, rounds, measured}:
        cpu, result, model = fitted(parties, "ckks", count, **settings)
        costs[count] = _cost(cpu, result)
        if count == rounds:
            scores = np.asarray(model.decision_function(parties))
    system = OURS if local_steps == 1 else f"{OURS}, Q = {local_steps}"
    row = RealRow.of(system, parties[0].rows, costs[1], costs[measured], measured, local_steps)
    row = judged(replace(row, steps=steps), parties, scores, REVEALS[OURS])
    return agreed(row, parties, RATE)


def _cost(cpu: float, result: RunResult) -> Cost:
    """All phases: keys, the pass, rounds, the model at its end."""
    sent, messages = (sum(each.values()) for each in (result.bytes(None), result.messages(None)))
    return Cost(cpu, result.computation, sent, messages)


def whole(parties: list[Party], local_steps: int, rate: float | str, rounds: int) -> Cost:
    """A run of ours from its beginning to its end: the one of median processor time."""
    settings: dict[str, Any] = {"algorithm": FedBCD(local_steps), "learning_rate": rate, **SAME}
    runs = [fitted(parties, "ckks", rounds, **settings)[:2] for _ in range(REPEATS)]
    costs = sorted((_cost(cpu, result) for cpu, result in runs), key=lambda cost: cost.cpu)
    return costs[len(costs) // 2]


def judged(row: RealRow, parties: list[Party], scores: Floats, reveals: str) -> RealRow:
    labels = np.asarray(parties[-1].labels) > 0
    auc = float(roc_auc_score(labels, scores))
    return replace(row, auc=auc, loss=log_loss(scores, labels), reveals=reveals)


def automatic(local_steps: int, parties: list[Party], reached: Callable[[Floats], bool]) -> int | None:
    """Rounds that our automatic steps take to a loss, by encrypted runs: it falls in every round."""

    def there(rounds: int) -> bool:
        settings: dict[str, Any] = {"algorithm": FedBCD(local_steps), "learning_rate": "auto", **SAME}
        _, _, model = fitted(parties, "ckks", rounds, **settings)
        return reached(np.asarray(model.decision_function(parties)))

    counts = range(1, 33)
    first = bisect_left(counts, True, key=there)
    return counts[first] if first < len(counts) else None


def spu(parties: list[Party], folder: Path, protocol: str, steps: int) -> RealRow:
    name = f"SPU {protocol.capitalize()}"
    try:
        python = environment(folder / f"spu-{SPU}", f"spu=={SPU}")
        found = peer(python, "spu_step.py", parties, protocol.upper(), str(steps), str(RATE))
    except (OSError, subprocess.SubprocessError) as error:
        return recorded(RealRow(name, parties[0].rows, note=f"not run: {_last_line(error)}"))
    weights = np.array(found["whole"]["weights"])
    features = np.hstack([np.asarray(party.features) for party in parties])
    row = judged(_measured(name, parties, found, steps), parties, features @ weights, REVEALS[name])
    return agreed(row, parties, RATE)


def recorded(row: RealRow) -> RealRow:
    """Earlier figures of a peer that cannot be run here, with their date; its row where there are none."""
    if (row.system, row.rows) not in RECORDED:
        return row
    print(f"{row.system}: {row.note}; figures of {RECORDED_ON} stand in for it")
    once, each = RECORDED[row.system, row.rows]
    return replace(
        row, once=once, round=each, steps=0, reveals=REVEALS[row.system], note="", recorded=RECORDED_ON
    )


def hess(parties: list[Party], folder: Path, steps: int, quality: int) -> RealRow:
    """SecretFlow's HESS-SGD, nearest to ours in idea. `steps` are run; what it has after `quality` steps is
    computed in the clear, once the run is found to agree with that.
    """
    if not steps:
        return RealRow(HESS, parties[0].rows, note="not run: --quick leaves it out")
    if parties[0].rows > 512:
        return RealRow(HESS, parties[0].rows, note="not run: minutes a step, its work grows with rows")
    try:
        python = environment(folder / "hess", "--no-deps", "-r", str(REQUIREMENTS))
        found = peer(python, "hess_step.py", parties, str(steps), str(RATE))
    except (OSError, subprocess.SubprocessError) as error:
        return RealRow(HESS, parties[0].rows, note=f"not run: {_last_line(error)}")
    run, expected = np.array(found["whole"]["weights"]), hess_weights(parties, RATE, steps)
    if not np.allclose(run, expected, atol=1e-4):
        far = np.abs(run - expected).max()
        return RealRow(HESS, parties[0].rows, note=f"its weights differ by {far:.2g} from its formula")
    weights = hess_weights(parties, RATE, quality)
    features = np.hstack([np.asarray(party.features) for party in parties])
    row = replace(_measured(HESS, parties, found, steps), steps=quality)
    return judged(row, parties, features @ weights[:-1] + weights[-1], REVEALS[HESS])


def peer(python: Path, script: str, parties: list[Party], *arguments: str) -> dict[str, Any]:
    """A driver of bench/, run by a peer's Python in a folder of its own: peers leave logs."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "rows.npz"
        features = np.hstack([np.asarray(party.features) for party in parties])
        np.savez(path, features=features, labels=np.asarray(parties[-1].labels) > 0)
        command = [str(python), str(Path(__file__).with_name(script)), str(path), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=scratch)
    found: dict[str, Any] = json.loads(done.stdout.strip().split("\n")[-1])
    return found


def _measured(name: str, parties: list[Party], found: dict[str, Any], steps: int) -> RealRow:
    names = ("cpu", "wall", "bytes", "messages")
    once, whole = (Cost(*(float(found[run][key]) for key in names)) for run in ("once", "whole"))
    return RealRow.of(name, parties[0].rows, once, whole, steps)


def _last_line(error: Exception) -> str:
    words = str(getattr(error, "stderr", "") or error).strip().splitlines()
    return words[-1][:160] if words else type(error).__name__


def compare_real(folder: Path, sizes: tuple[int, ...], seed: int, *, quick: bool) -> dict[str, Any]:
    """Rows, ways to the same loss, bars; printed as they are found."""
    steps, local_steps = (20, (1, 10)) if quick else (60, (1, 10, 20))
    rows: list[RealRow] = []
    ways: list[Way] = []
    judgements: list[Bar] = []
    print(f"\na step, 50+50 columns, full batch, rate {RATE}\n{HEADING}")
    for size in sizes:
        parties = generated(size, 50, 50, seed)
        fitted([party.take(np.arange(16)) for party in parties], "ckks", 1)  # warm
        mine = [shown(ours(parties, each, steps)) for each in local_steps]
        cheetah, semi2k = (shown(spu(parties, folder, kind, steps)) for kind in ("cheetah", "semi2k"))
        rows += [*mine, cheetah, semi2k, shown(hess(parties, folder, 0 if quick else 3, steps))]
        for data, people in (("independent", parties), ("shared", shared_factors(size, 50, 50, seed))):
            run = [row for row in (*mine, cheetah, semi2k) if not row.note]
            ways += paths(data, people, run, RATE, steps, partial(automatic, local_steps[-1]), whole)
    show_networks(rows)
    show_faster(rows)
    print(f"\nto the training loss of {steps} joint steps at rate {RATE}\n{WAYS}")
    for way in ways:
        print(way.line())
    for size in sizes:
        for data in ("independent", "shared"):
            judgements += bars_to_loss([way for way in ways if (way.row.rows, way.data) == (size, data)])
    return {
        "rows": [asdict(row) for row in rows],
        "to_same_loss": [asdict(way) | {"total": asdict(way.total)} for way in ways],
        "bars": [asdict(bar) for bar in judgements],
    }


def fate(rows: int, seed: int) -> dict[str, Any]:
    """A whole training over FATE's published shape, ours, by two party processes; fewer `rows` for a short
    run.
    """
    found = scale_parties.measure(rows, (30, 300), seed)
    print(
        f"\n{scale_parties.shape(found)}, a whole training, ours, two processes: {found['seconds']:.1f} s of"
        f" wall, {found['cpu_seconds']:.1f} s of processor"
    )
    for name, published, reveals in FATE:
        print(f"  {name}: {published:g} s published for 100,000 rows, 16 cores a party; reveals {reveals}")
    return {**found, "bars": [asdict(bar) for bar in scale_parties.bars(found)]}
