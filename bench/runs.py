"""Training runs of the bench by their settings, made once and kept: a bench that was stopped goes on where it
was.

A run that has ended is a JSON file named after its settings: what it scored after each round, its parties'
events (bench.replay tells from them what it takes on any network), what was sent, and on which machine and
with which sources it was measured. A table is computed from these files, and says so if some of them were
made by other sources than the present ones.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from tqdm import tqdm

import securefed
from bench import machine
from bench.blind_transfer import BlindTransfer
from bench.replay import Event, read_events, write_events
from bench.simulate import Finished, Simulation, Task, finish
from securefed.errors import DataError
from securefed.protocols.messages import KINDS
from securefed.protocols.schedules import Algorithm, FedBCD, FedSGD

Order = Literal["parallel", "sequential"]


@dataclass(frozen=True)
class Spec:
    """Everything that decides a run. `options` are the task's own: sizes, learning rate, split."""

    task: str
    local_steps: int = 1
    order: Order = "parallel"
    proximal: float = 0.0
    seed: int = 0
    scheme: str = "plain"
    key_bits: int = 2048
    workers: int = 1
    rounds: int = 100
    target: float | None = None
    """Where the label party stops the run, by the protocol's own evaluation; None: after `rounds`."""
    look: bool = True
    """Read loss and AUC from all parties' parameters after each round."""
    timed: bool = False
    """Keep the parties' events."""
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def algorithm(self) -> Algorithm:
        if self.order == "parallel" and self.local_steps == 1:
            return FedSGD()
        return FedBCD(self.local_steps, self.order, self.proximal)

    @property
    def label(self) -> str:
        return f"{self.task} {self.scheme} {self.algorithm.name} Q={self.local_steps} seed {self.seed}"

    def with_options(self, **options: Any) -> Spec:
        return replace(self, options=tuple(sorted({**dict(self.options), **options}.items())))

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "options": dict(self.options)}

    @property
    def digest(self) -> str:
        settings = self.to_dict()
        if self.scheme != "paillier":
            del settings["key_bits"]
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Record:
    """A run that has ended."""

    settings: dict[str, Any]
    points: list[dict[str, float]]
    """After each round: auc, loss, held_out_auc, ... whatever was looked at."""
    reason: str
    events: dict[str, list[Event]]
    sent: list[dict[str, int]]
    """Up to the end of each round, by all parties: messages, bytes and ciphertexts."""
    ledger: list[dict[str, Any]]
    facts: dict[str, Any]

    def metric(self, name: str = "auc") -> list[float]:
        return [point[name] for point in self.points]

    def rounds_to(self, target: float, name: str = "auc") -> int | None:
        """R: how many rounds it took to get there first."""
        return next((number for number, value in enumerate(self.metric(name), 1) if value >= target), None)

    def to_json(self) -> str:
        fields = {**vars(self), "events": write_events(self.events)}
        return json.dumps(fields, separators=(",", ":")) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Record:
        try:
            fields = json.loads(text)
            return cls(**{**fields, "events": read_events(fields["events"])})
        except (ValueError, TypeError, KeyError) as error:
            raise DataError(f"not a record of a run ({error})") from None


class Store:
    """A folder of records. `fresh`: do not use what is there already."""

    def __init__(self, folder: Path, *, fresh: bool = False) -> None:
        self.folder, self.fresh = folder, fresh
        folder.mkdir(parents=True, exist_ok=True)

    def path(self, spec: Spec) -> Path:
        return self.folder / f"{spec.task}-{spec.scheme}-q{spec.local_steps}-s{spec.seed}-{spec.digest}.json"

    def find(self, spec: Spec) -> Record | None:
        path = self.path(spec)
        if self.fresh or not path.exists():
            return None
        try:
            return Record.from_json(path.read_text())
        except DataError as error:
            raise DataError(f"{path}: {error}; delete it to have it measured again") from None

    def keep(self, spec: Spec, record: Record) -> None:
        # Whole or not at all: a bench may be stopped at any moment.
        path = self.path(spec)
        partial = path.with_suffix(f".{os.getpid()}.partial")
        partial.write_text(record.to_json())
        partial.replace(path)


Build = Callable[[Spec], Task]


def make(spec: Spec, build: Build, position: int = 0) -> Record:
    """Run it now, with a bar for its rounds."""
    begun, load = time.time(), os.getloadavg()[0]
    task = build(spec)
    bar = tqdm(
        total=spec.rounds,
        desc=spec.label,
        unit="round",
        position=position,
        leave=False,
        disable=None,  # at a terminal only
    )

    def on_look(number: int, point: dict[str, float]) -> None:
        bar.update()
        bar.set_postfix({name: f"{value:.4f}" for name, value in point.items()}, refresh=False)

    with bar:
        if isinstance(task, BlindTransfer) and task.clear:
            finished = task.finish(on_look)
        else:
            finished = finish(task, Simulation(spec.key_bits, spec.workers), on_look, look=spec.look)
    return _record(spec, finished, begun, load)


def _record(spec: Spec, finished: Finished, begun: float, load: float) -> Record:
    ledger = [entry.to_dict() for entry in finished.ledger]
    facts = {
        **machine.describe(("numpy", "gmpy2", "tenseal")),
        "sources": source_digest(),
        "seconds": round(time.time() - begun, 1),
        "load": round(max(load, os.getloadavg()[0]), 1),
    }
    links = finished.links if spec.timed else {}
    events = {name: [Event(*each) for each in link.events] for name, link in links.items()}
    return Record(spec.to_dict(), finished.points, finished.reason, events, _sent(finished), ledger, facts)


def _sent(finished: Finished) -> list[dict[str, int]]:
    """Totals of all parties after each round; what a blind run exchanges in its setup is the first's."""
    rounds = len(finished.points)
    totals = [{"messages": 0, "bytes_exchange": 0, "bytes_open": 0, "ciphertexts": 0} for _ in range(rounds)]
    for link in finished.links.values():
        for entry in link.transcript.of("sent"):
            traffic = KINDS[entry.kind].traffic
            if entry.phase != "training" and (entry.phase, traffic) != ("setup", "exchange"):
                continue
            here = totals[entry.round]
            here["messages"] += 1
            if traffic == "exchange":
                here["bytes_exchange"] += entry.bytes
                here["ciphertexts"] += finished.ciphertexts
            elif traffic == "opening":
                here["bytes_open"] += entry.bytes
                here["ciphertexts"] += entry.detail.get("facts", {}).get("ciphertexts", 0)
    for before, after in pairwise(totals):
        for name, value in before.items():
            after[name] += value
    return totals


def make_all(specs: Iterable[Spec], store: Store, build: Build, *, jobs: int = 1) -> dict[Spec, Record]:
    """Every run: from the store, or made now, `jobs` at a time; each is kept as soon as it has ended."""
    wanted = list(dict.fromkeys(specs))
    found = {spec: record for spec in wanted if (record := store.find(spec)) is not None}
    missing = [spec for spec in wanted if spec not in found]
    done = len(found)

    def keep(spec: Spec) -> None:
        nonlocal done
        done += 1
        store.keep(spec, found[spec])
        spent = found[spec].facts["seconds"]
        tqdm.write(f"{done}/{len(wanted)} {spec.label}: {len(found[spec].points)} rounds in {spent} s")

    if jobs == 1 or len(missing) < 2:
        for spec in missing:
            found[spec] = make(spec, build)
            keep(spec)
    elif missing:
        with ProcessPoolExecutor(jobs) as pool:
            # The longest first, so that none is left alone at the end.
            ordered = sorted(missing, key=lambda spec: -_work(spec))
            futures = {
                pool.submit(make, spec, build, place % jobs): spec for place, spec in enumerate(ordered)
            }
            for future in as_completed(futures):
                spec = futures[future]
                found[spec] = future.result()
                keep(spec)
    return {spec: found[spec] for spec in wanted}


def _work(spec: Spec) -> int:
    return spec.rounds * (1 + spec.local_steps)


@cache
def source_digest() -> str:
    """Of the package's sources: says whether two runs were made by the same code."""
    whole = hashlib.sha256()
    root = Path(securefed.__file__).parent
    for path in sorted(root.rglob("*.py")):
        whole.update(str(path.relative_to(root)).encode() + path.read_bytes())
    return whole.hexdigest()[:12]


def notes_on(records: Sequence[Record]) -> list[str]:
    """What a reader of a table has to know about how its runs were made."""
    others = sum(record.facts["sources"] != source_digest() for record in records)
    loads = [float(record.facts["load"]) for record in records if record.events]
    notes = []
    if loads:
        notes.append(f"load average while the timed runs were made: {min(loads):.1f} to {max(loads):.1f}")
    if others:
        notes.append(f"{others} of {len(records)} runs were made by other sources (--fresh makes them again)")
    return notes
