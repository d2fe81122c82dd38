"""One setting of `python -m bench scale`, in a process of its own, so that its peak memory is its own.

`python -m bench.scale_case JSON`: all parties of a blind run of one round are in this process; it prints one
JSON object. Processor seconds are of all parties together, keys and preparation included, and so are bytes.

Settings that compare engines (`sweep` "workers") also have `step_s`: what a round after the first takes as
processor seconds on the critical path: those of this process, and of each batch of work those of the worker
that had most of it. That is what it would take on free cores, measured on a machine that has none. Its wall
time, `step_wall_s`, is what Ray and processes are compared by: Ray does work that no worker counts.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from bench.memory import peak_rss_mib
from securefed import FedBCD, GeneralisedLinear, Party
from securefed.crypto import generate, key_kind
from securefed.engine import Processes, Ray, SerialEngine
from securefed.estimators.multiclass import MultiClass
from securefed.protocols.ledger import LedgerWarning

__all__ = ["Case", "Row", "measured"]

T = TypeVar("T")
R = TypeVar("R")
NEVER = 1 << 62
"""One array in so many is checked: checks come at random, and what they cost `bench blind` says."""
STEPS = (1, 3)
"""Rounds of the two runs whose difference is a round."""


@dataclass(frozen=True)
class Case:
    """One setting."""

    sweep: str
    scheme: str
    rows: int
    columns: tuple[int, ...]
    """Of each party."""
    classes: int = 2
    workers: int = 1
    engine: str = "processes"
    """What has the workers: "processes" or "ray"."""

    @property
    def parties(self) -> int:
        return len(self.columns)


@dataclass(frozen=True)
class Row:
    """One setting, measured."""

    case: Case
    cpu_s: float
    """Of all parties and their workers."""
    wall_s: float
    bytes: int
    messages: int
    peak_mib: float
    """Of the process that holds all parties."""
    worker_mib: float
    """Of the largest worker."""
    step_s: float | None = None
    """A round after the first, on the critical path."""
    step_wall_s: float | None = None
    """Its wall time."""

    def to_dict(self) -> dict[str, Any]:
        measured = {name: value for name, value in asdict(self).items() if name != "case"}
        return {**asdict(self.case), "parties": self.case.parties, **measured}


def measured(case: Case, seed: int) -> Row:
    """Run this module in a fresh process and read what it says."""
    given = json.dumps({**asdict(case), "seed": seed})
    done = subprocess.run(
        [sys.executable, "-m", "bench.scale_case", given],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd=Path(__file__).parent.parent,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    return Row(case, **json.loads(done.stdout))


def parties_of(case: Case, seed: int) -> list[Party]:
    rng = np.random.default_rng(seed)
    blocks = [rng.uniform(-1, 1, size=(case.rows, count)) for count in case.columns]
    score = np.sum([block[:, 0] for block in blocks], axis=0) + 0.3 * rng.normal(size=case.rows)
    cuts = np.quantile(score, np.linspace(0, 1, case.classes + 1)[1:-1])
    labels = np.searchsorted(cuts, score)
    last = len(blocks) - 1
    return [
        Party(f"p{place}", block, labels=labels if place == last else None)
        for place, block in enumerate(blocks)
    ]


class Longest:
    """Workers whose longest is counted, for each batch of work."""

    longest = 0.0

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> list[R]:
        spent: dict[int, float] = {}
        results = []
        timed: Any = super()
        for result, worker, seconds in timed.map(partial(_timed, function), items):
            spent[worker] = spent.get(worker, 0.0) + seconds
            results.append(result)
        self.longest += max(spent.values(), default=0.0)
        return results


class Watched(Longest, Processes):
    pass


class WatchedRay(Longest, Ray):
    pass


def _timed(function: Callable[[T], R], item: T) -> tuple[R, int, float]:
    began = time.process_time()
    result = function(item)
    return result, os.getpid(), time.process_time() - began


def settings(case: Case, seed: int) -> dict[str, Any]:
    return {
        "algorithm": FedBCD(local_steps=5),
        "scheme": case.scheme,
        "key_bits": 2048,
        "holdout": 0,
        "seed": seed,
        "progress": False,
    }


def engine_of(case: Case) -> Watched | WatchedRay | SerialEngine:
    if case.workers == 1:
        return SerialEngine()
    return WatchedRay() if case.engine == "ray" else Watched(case.workers)


def critical_step(case: Case, parties: list[Party], seed: int) -> tuple[float, float]:
    """The difference of two runs with the same keys, with no check in either: processor
    seconds on the critical path, and wall time.
    """
    kind, found = key_kind(case.scheme, "nothing"), list[tuple[float, float]]()
    keys = {party.name: generate(kind, key_bits=2048) for party in parties}
    few = [party.take(np.arange(16)) for party in parties]
    if case.engine == "ray":
        import ray  # started before anything is measured, and for all runs

        ray.init(num_cpus=case.workers, log_to_driver=False, include_dashboard=False)
    for rounds in (0, *STEPS):  # first what a key makes once, on a few rows
        gc.collect()  # what an earlier run kept
        with engine_of(case) as engine:
            chosen: dict[str, Any] = {"rounds": max(1, rounds), "engine": engine, "check_every": NEVER}
            model = GeneralisedLinear(**settings(case, seed), **chosen)
            began, wall = time.process_time(), time.perf_counter()
            model.fit(parties if rounds else few, keys=keys)
            own, wall = time.process_time() - began, time.perf_counter() - wall
        found.append((own + (engine.longest if isinstance(engine, Longest) else 0.0), wall))
    of_each = [(many - few_) / (STEPS[1] - STEPS[0]) for few_, many in zip(*found[1:], strict=True)]
    return of_each[0], of_each[1]


def main(given: dict[str, Any]) -> None:
    seed = given.pop("seed")
    case = Case(**{**given, "columns": tuple(given["columns"])})
    parties = parties_of(case, seed)
    began, spent = time.perf_counter(), _processor_seconds()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LedgerWarning)
        engine = "ray" if case.engine == "ray" else case.workers
        model = GeneralisedLinear(**settings(case, seed), rounds=1, engine=engine)
        results = MultiClass(model).fit(parties).runs_
    cpu, wall = _processor_seconds() - spent, time.perf_counter() - began
    peak, worker = peak_rss_mib(), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    step, step_wall = critical_step(case, parties, seed) if case.sweep == "workers" else (None, None)
    json.dump(
        {
            "cpu_s": round(cpu, 3),
            "wall_s": round(wall, 3),
            "bytes": sum(sum(result.bytes().values()) for result in results),
            "messages": sum(sum(result.messages().values()) for result in results),
            "peak_mib": round(peak, 1),
            "worker_mib": round(worker, 1),
            "step_s": None if step is None else round(step, 3),
            "step_wall_s": None if step_wall is None else round(step_wall, 3),
        },
        sys.stdout,
    )


def _processor_seconds() -> float:
    """Of this process and of the workers that have ended."""
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
