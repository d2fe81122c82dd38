"""One setting of `python -m bench scale`, in a process of its own, so that its peak memory is its own.

`python -m bench.scale_case JSON`: all parties of a blind run are in this process; it prints one JSON object.
Processor seconds are of all parties together, keys and preparation included, and so are bytes.

Settings that compare engines (`sweep` "workers") measure the pass alone, which is what workers share. Its
processor seconds are those on the critical path: of this process, and of each batch of work those of the
worker that had most of it. That is what it would take on free cores, measured on a machine that has none.
Ray and processes are compared by wall time: Ray does work that no worker counts.
"""

from __future__ import annotations

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
from bench.passes import passed
from securefed import Blind, FedBCD, GeneralisedLinear, Party, Simulation
from securefed.engine import Processes, Ray, SerialEngine
from securefed.protocols.own_gradient.ledger import LedgerWarning

T = TypeVar("T")
R = TypeVar("R")
ROUNDS = 24
WARM = 8192
"""Rows of a pass that starts workers and makes tables, before the one that is measured."""


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
    critical_s: float | None = None
    """The pass alone, processor seconds on the critical path."""

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
        "protection": Blind(scheme=case.scheme, key_bits=2048),
        "holdout": 0,
        "seed": seed,
        "simulation": Simulation(engine="serial", progress=False),
    }


def engine_of(case: Case) -> Watched | WatchedRay | SerialEngine:
    if case.workers == 1:
        return SerialEngine()
    return WatchedRay() if case.engine == "ray" else Watched(case.workers)


def critical_pass(case: Case, seed: int) -> dict[str, Any]:
    """The pass over all rows by this engine."""
    if case.engine == "ray":
        import ray  # started before anything is measured

        ray.init(num_cpus=case.workers, log_to_driver=False, include_dashboard=False)
    left, right = case.columns
    with engine_of(case) as engine:
        passed(min(case.rows, WARM), left, right, seed, mapper=engine, scheme=case.scheme)
        if isinstance(engine, Longest):
            engine.longest = 0.0
        found = passed(case.rows, left, right, seed, mapper=engine, scheme=case.scheme)
        spent = found.cpu_s + (engine.longest if isinstance(engine, Longest) else 0.0)
    return {
        "cpu_s": round(found.cpu_s, 3),
        "wall_s": round(found.wall_s, 3),
        "bytes": found.bytes,
        "messages": found.messages,
        "critical_s": round(spent, 3),
    }


def whole_run(case: Case, seed: int) -> dict[str, Any]:
    """A training of all parties."""
    parties = parties_of(case, seed)
    began, spent = time.perf_counter(), _processor_seconds()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LedgerWarning)
        model = GeneralisedLinear(rounds=ROUNDS, **settings(case, seed))
        results = [each.result_ for each in getattr(model.fit(parties), "models_", [model])]
    return {
        "cpu_s": round(_processor_seconds() - spent, 3),
        "wall_s": round(time.perf_counter() - began, 3),
        "bytes": sum(sum(result.bytes(None).values()) for result in results),
        "messages": sum(sum(result.messages(None).values()) for result in results),
    }


def main(given: dict[str, Any]) -> None:
    seed = given.pop("seed")
    case = Case(**{**given, "columns": tuple(given["columns"])})
    found = (critical_pass if case.sweep == "workers" else whole_run)(case, seed)
    worker = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    memory = {"peak_mib": round(peak_rss_mib(), 1), "worker_mib": round(worker, 1)}
    json.dump(found | memory, sys.stdout)


def _processor_seconds() -> float:
    """Of this process and of the workers that have ended."""
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
