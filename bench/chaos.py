"""Real parties, each a process, under faults at random moments and at chosen places.

`bench.chaos_faults` has the faults of a run: kills, stops, full disks, broken lines, strangers, a hostile
peer, damaged files, an operator's mistakes. Parties that end are started again with --resume.
`bench.chaos_endings` has faults that a person has to mend.

A run *survived* when all parties end with exit code 0, the same rounds, transcripts that agree, the model of
an unbroken run, and each score booked once. It is *lost* when a party ends with exit code 2, a traceback or
another model, and *stuck* when it takes longer than everything that may be waited for. A failure is printed
with its seed: `--seed N --faults 60 --scene NAME` plays that run again with the same choices. Processes are
not deterministic.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench import machine
from bench.chaos_endings import expiry, middlebox, renewal
from bench.chaos_faults import STUCK_SECONDS, Outcome, Torment
from bench.chaos_mutations import run_mutations
from bench.chaos_parties import Fleet, Scene, distance
from securefed.errors import SettingError

__all__ = ["SCENES", "Outcome", "add_arguments", "bars", "run"]

OPEN: dict[str, Any] = {
    "reveal": "own-gradient",
    "batch_size": 30,
    "learning_rate": 0.05,
    "l2": 0.01,
}
BLIND = {"reveal": "nothing", "release": True, "learning_rate": 0.05, "l2": 0.01}
SCORED: dict[str, Any] = {**BLIND, "scheme": "ckks", "rounds": 60, "evaluate_every": 10, "holdout": 0.2}
BLURRED = 3e-3
"""How far released parameters of two runs may be apart: each is blurred beyond three digits."""
TRANSFER: dict[str, Any] = {
    "alignment": "psi",
    "objective": "transfer",
    "reveal": "own-gradient",
    "allow_determined": True,  # every attempt at a round counts, and the ledger would refuse after seven
    "hidden": 3,
    "rounds": 8,
    "batch_size": 20,
    "learning_rate": 0.05,
}
BLIND_TRANSFER: dict[str, Any] = {
    "alignment": "psi",
    "objective": "transfer",
    "reveal": "nothing",
    "rounds": 12,
}
SCENES = (
    Scene("plain", 2, {**OPEN, "scheme": "plain", "rounds": 400}),
    Scene("scored", 2, SCORED, tolerance=BLURRED),
    Scene("four plain", 4, {**OPEN, "scheme": "plain", "rounds": 80}),
    Scene("paillier", 2, {**OPEN, "scheme": "paillier", "rounds": 60}, engine=2),
    Scene("four paillier", 4, {**OPEN, "scheme": "paillier", "rounds": 8}),
    Scene("ckks", 2, {**OPEN, "scheme": "ckks", "rounds": 40}, tolerance=0.1),
    Scene("blind paillier", 2, {**BLIND, "scheme": "paillier", "rounds": 20}, tolerance=BLURRED, engine=2),
    Scene("blind ckks", 2, {**BLIND, "scheme": "ckks", "rounds": 150}, tolerance=BLURRED),
    Scene("four blind ckks", 4, {**BLIND, "scheme": "ckks", "rounds": 100}, tolerance=BLURRED),
    Scene("transfer", 2, {**TRANSFER, "scheme": "paillier"}, tolerance=None),
    Scene("blind transfer", 2, {**BLIND_TRANSFER, "scheme": "ckks"}, tolerance=None),
)
QUICK = ("plain", "scored")
KINDS_NEEDED = 10
GROWTH_MB = 200.0
"""More memory than in an unbroken run: what no fault may cause."""
FAULTS_A_RUN, QUICK_FAULTS = 60, 14
"""At most: a run may end before."""
ENDINGS: dict[str, Callable[[Fleet, int], Outcome]] = {"expiry": expiry, "middlebox": middlebox}
SLOW_TO_END = (
    Scene("expiry", 2, {**OPEN, "scheme": "plain", "rounds": 60}, patience=4, wait=12),
    Scene("middlebox", 2, {**BLIND, "scheme": "ckks", "rounds": 8}, BLURRED, patience=4, wait=12),
)


@dataclass
class Ground:
    """A fleet and what its unbroken run left."""

    fleet: Fleet
    model: list[NDArray[np.float64]]
    bookings: dict[str, list[int]]
    peak_mb: float


def judge(ground: Ground, outcome: Outcome) -> None:
    """Compare what a survived run left with an unbroken one."""
    fleet = ground.fleet
    results = {name: fleet.result(name) for name in fleet.everybody}
    rounds = {name: result["rounds"] for name, result in results.items()}
    compared = [peer["transcripts"] for result in results.values() for peer in result["peers"].values()]
    outcome.uncompared = sum(word.startswith("not compared") for word in compared)
    if set(rounds.values()) != {fleet.scene.run["rounds"]}:
        outcome.lose(f"rounds {rounds}")
    if "DIFFER" in compared:
        outcome.lose("transcripts differ")
    if fleet.scene.tolerance is not None:
        apart = distance(fleet.model(), ground.model)
        if apart > fleet.scene.tolerance:
            outcome.lose(f"another model: {apart:.3g} apart")
    for name in fleet.scene.names:
        found = fleet.bookings(name)
        expected = ground.bookings[name]
        # A party that goes back behind an evaluation trains on with new randomness: that is another question.
        repeated = max(0, len(found) - len(expected) - outcome.faults["damaged checkpoint"])
        twice = len(found) - len({question for question, _ in found})
        outcome.double_bookings += twice + repeated
        if twice or repeated or len(found) < len(expected):
            outcome.lose(f"{name}: {len(found)} bookings of scores, {len(expected)} in an unbroken run")


def bars(outcomes: Sequence[Outcome], asked: int) -> list[dict[str, Any]]:
    """The bars: faults, kinds, nothing lost, nothing stuck, no double booking, bounded memory."""
    faults, verdicts = _count(outcomes), Counter(outcome.verdict for outcome in outcomes)
    kinds = sorted(kind for kind, count in faults.items() if count)
    rows = [
        _bar("faults", sum(faults.values()), asked, "more", f"{len(outcomes)} runs"),
        _bar("kinds of faults", len(kinds), min(KINDS_NEEDED, asked), "more", ", ".join(kinds)),
        _bar("runs lost", verdicts["lost"], 0, "less", "exit code 2, a traceback or another model"),
        _bar("runs stuck", verdicts["stuck"], 0, "less", f"no event for {STUCK_SECONDS:.0f} s, or no end"),
        _bar("double bookings", sum(o.double_bookings for o in outcomes), 0, "less", "in score ledgers"),
        _bar(
            "growth of a party, MB",
            max((outcome.growth_mb for outcome in outcomes), default=0.0),
            GROWTH_MB,
            "less",
            "largest peak beside an unbroken run",
        ),
    ]
    return rows


def _count(outcomes: Sequence[Outcome]) -> Counter[str]:
    """How often each kind of fault was done."""
    return sum((outcome.faults for outcome in outcomes), Counter())


def _bar(name: str, value: float, bar: float, better: str, note: str) -> dict[str, Any]:
    met = value <= bar if better == "less" else value >= bar
    return {"name": name, "value": value, "bar": bar, "better": better, "met": met, "note": note}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--faults", type=int, help="so many over all runs; default 1000, --quick 30")
    parser.add_argument("--mutations", type=int, help="instead: so many mutated messages, frames and files")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no run after so many")
    parser.add_argument("--lanes", type=int, default=3, help="so many runs at once; default 3")
    parser.add_argument("--scene", action="append", metavar="NAME", help="only this one; may be repeated")


def chosen(args: argparse.Namespace) -> list[str]:
    """The names of the scenes, which are played in turn."""
    known = [*(scene.name for scene in SCENES), "renewal", *(scene.name for scene in SLOW_TO_END)]
    names = args.scene or (["renewal", *QUICK] if args.quick else known)
    for name in names:
        if name not in known:
            raise SettingError(f"scene: {name!r} given, {', '.join(known)} are allowed")
    return list(names)


class Stage:
    """Plays scenes. The fleets are made when they are first needed."""

    def __init__(self, folder: Path, stack: ExitStack, outcomes: Sequence[Outcome], *, quick: bool) -> None:
        self._folder, self._stack, self._outcomes, self._quick = folder, stack, outcomes, quick
        self._grounds: dict[str, Ground] = {}

    def play(self, name: str, seed: int, most: int) -> Outcome:
        """One run of a scene with at most so many faults."""
        ground = self._ground("plain" if name == "renewal" else name)
        if name == "renewal":
            return renewal(ground.fleet, seed, min(most, 6 if self._quick else 12))
        if name in ENDINGS:
            outcome = ENDINGS[name](ground.fleet, seed)
        else:
            before = _count(self._outcomes)
            longest = 2.0 if self._quick else 5.0
            torment = Torment(ground.fleet, seed, longest=longest, peak_mb=ground.peak_mb, before=before)
            outcome = torment.run(min(most, QUICK_FAULTS if self._quick else FAULTS_A_RUN))
        if outcome.verdict == "survived":
            judge(ground, outcome)
        if outcome.verdict != "survived":
            outcome.tails = ground.fleet.tails()
        return outcome

    def _ground(self, name: str) -> Ground:
        if name not in self._grounds:
            scene = next(scene for scene in (*SCENES, *SLOW_TO_END) if scene.name == name)
            fleet = Fleet(scene, self._folder / name.replace(" ", "-"), seed=1, trapped=True)
            self._stack.callback(fleet.close)
            whole = Torment(fleet, 0)
            outcome = whole.run(0)
            if outcome.verdict != "survived" or outcome.restarts:
                raise OSError(f"{name}: the run without faults does not end well: {outcome.why}")
            bookings = {each: sorted(n for _, n in fleet.bookings(each)) for each in scene.names}
            self._grounds[name] = Ground(fleet, fleet.model(), bookings, whole.peak_mb)
        return self._grounds[name]


def run(args: argparse.Namespace) -> int:
    if args.mutations:
        return _mutate(args)
    facts = machine.describe(())
    names, outcomes, begun = chosen(args), list[Outcome](), time.monotonic()
    asked = args.faults or (30 if args.quick else 1000)

    def play(lane: int) -> None:
        """Play the scenes of a lane in turn."""
        stage, number = Stage(Path(folder) / str(lane), stack, outcomes, quick=args.quick), lane
        own = names[lane::lanes]
        while (left := asked - _count(outcomes).total()) > 0 and time.monotonic() < begun + 60 * args.minutes:
            outcome = stage.play(own[number // lanes % len(own)], args.seed + number, left)
            outcomes.append(outcome)
            print(_line(outcome), flush=True)
            number += lanes

    lanes = min(args.lanes, len(names))
    with (
        tempfile.TemporaryDirectory(prefix="securefed-chaos-") as folder,
        ExitStack() as stack,
        ThreadPoolExecutor(lanes) as pool,
    ):
        list(pool.map(play, range(lanes)))
    print(f"{(time.monotonic() - begun) / 60:.1f} minutes, {lanes} runs at once")
    rows = bars(outcomes, asked)
    _report(outcomes, rows)
    if args.json is not None:
        listed = [{**asdict(outcome), "faults": dict(outcome.faults)} for outcome in outcomes]
        args.json.write_text(json.dumps({"machine": facts, "rows": listed, "bars": rows}, indent=2) + "\n")
    return 0 if all(bar["met"] for bar in rows) else 1


def _mutate(args: argparse.Namespace) -> int:
    facts = machine.describe(())
    with tempfile.TemporaryDirectory(prefix="securefed-mutations-") as folder:
        report = run_mutations(args.mutations, args.seed, Path(folder))
    for line in report.failures:
        print(f"FAILED {line}")
    rows = report.bars(args.mutations)
    print("mutations: " + ", ".join(f"{count} {layer}" for layer, count in sorted(report.mutations.items())))
    print("exit codes: " + ", ".join(f"{count} x {code}" for code, count in sorted(report.exits.items())))
    _print_bars(rows)
    if args.json is not None:
        counts = {**vars(report), "mutations": dict(report.mutations), "exits": dict(report.exits)}
        args.json.write_text(json.dumps({"machine": facts, "rows": [counts], "bars": rows}, indent=2) + "\n")
    return 0 if all(bar["met"] for bar in rows) else 1


def _line(outcome: Outcome) -> str:
    struck = ", ".join(f"{count} {kind}" for kind, count in sorted(outcome.faults.items())) or "no fault"
    text = f"{outcome.scene:<16} seed {outcome.seed:<5} {outcome.verdict:<9} {outcome.seconds:>6.1f} s  "
    text += struck
    text += f"; {outcome.restarts} restarts" if outcome.restarts else ""
    text += f"; {outcome.uncompared} transcripts not compared" if outcome.uncompared else ""
    lines = [outcome.why] if outcome.why else []
    lines += [f"{name}: {line}" for name, tail in outcome.tails.items() for line in tail]
    return "\n    ".join([text, *lines])


def _report(outcomes: Sequence[Outcome], rows: Sequence[dict[str, Any]]) -> None:
    faults, verdicts = _count(outcomes), Counter(outcome.verdict for outcome in outcomes)
    print(f"\n{len(outcomes)} runs: {', '.join(f'{count} {word}' for word, count in verdicts.items())}")
    print("faults: " + (", ".join(f"{count} {kind}" for kind, count in sorted(faults.items())) or "none"))
    _print_bars(rows)


def _print_bars(rows: Sequence[dict[str, Any]]) -> None:
    for bar in rows:
        print(f"{bar['name']:<24}{bar['value']:>8g}  bar {bar['bar']:g}  {'met' if bar['met'] else 'MISSED'}")
