"""Real parties, each a process, while everything that can happen to them does, at random moments.

    SIGKILL, SIGSTOP      of any party and the key-holder; who is killed is started again with --resume
    dead worker           SIGKILL of a party's worker processes
    full disk             a party's files may not grow (RLIMIT_FSIZE); it stops, and is started again
    cut, stall, throttle, half-open
                          of a line, in both directions

A run counts as *survived* when all parties end with exit code 0, the same rounds, no transcripts that differ,
and the model of an unbroken run; *lost* when a party ends with exit code 2, a traceback, or another model;
*stuck* when it takes longer than everything that may be waited for. What failed is printed with its seed:
`--seed N --runs 1 --scene NAME` plays that run again (the same faults at the same moments after the start;
processes are not deterministic).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench import machine
from bench.chaos_parties import Fleet, Scene, distance
from bench.chaos_wires import FAULTS, disturb
from securefed.errors import SettingError

__all__ = ["SCENES", "Outcome", "add_arguments", "bars", "run"]

OPEN: dict[str, Any] = {
    "reveal": "own-gradient",
    "batch_size": 30,
    "learning_rate": 0.05,
    "l2": 0.01,
    "loss_form": "taylor",
}
BLIND = {"reveal": "nothing", "release": True, "learning_rate": 0.05, "l2": 0.01}
BLURRED = 3e-3
"""How far released parameters of two runs may be apart: each is blurred beyond three digits."""
TRANSFER: dict[str, Any] = {
    "alignment": "psi",
    "objective": "transfer",
    "reveal": "own-gradient",
    "hidden": 3,
    "rounds": 8,
    "batch_size": 20,
    "learning_rate": 0.05,
}
BLIND_TRANSFER: dict[str, Any] = {
    "alignment": "psi",
    "objective": "transfer",
    "reveal": "nothing",
    "hidden": 3,
    "rounds": 12,
}
SCENES = (
    Scene("plain", 2, {**OPEN, "scheme": "plain", "rounds": 150}),
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
QUICK = ("plain", "paillier")
STUCK_SECONDS = 420.0
FAULTS_A_RUN = 9
"""At most: a run may end before."""
SIGNALS = ("kill", "stop", "dead worker", "full disk")
KILLS, NETWORK_FAULTS = 100, 50
"""What a long run has to have seen."""


@dataclass
class Outcome:
    """One run under fire."""

    scene: str
    seed: int
    verdict: str = "survived"
    seconds: float = 0.0
    restarts: int = 0
    uncompared: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    why: str = ""


class Torment:
    """One run of a fleet, with its faults."""

    def __init__(self, fleet: Fleet, seed: int) -> None:
        self.fleet, self.chance = fleet, Random(seed)
        self.outcome = Outcome(fleet.scene.name, seed)
        self._ready: dict[str, float] = {}
        """Who has to be started (or woken, or given its disk back) at what moment."""
        self._stopped: dict[str, float] = {}
        self._full: dict[str, float] = {}
        self._doomed: set[str] = set()
        """Whose workers are to die as soon as there are some."""

    def run(self, faults: int) -> Outcome:
        fleet, outcome, begun = self.fleet, self.outcome, time.monotonic()
        fleet.clean()
        for name in fleet.everybody:
            fleet.start(name)
        left, due = faults, begun + self.chance.uniform(0.0, 6.0)
        try:
            while outcome.verdict == "survived" and not self._over():
                now = time.monotonic()
                if left and now >= due:
                    self._strike(now)
                    left, due = left - 1, now + self.chance.uniform(0.2, 6.0)
                self._supervise(now)
                if now - begun > STUCK_SECONDS:
                    outcome.verdict, outcome.why = "stuck", self._last_lines()
                time.sleep(0.05)
        finally:
            fleet.end()
        outcome.seconds = round(time.monotonic() - begun, 1)
        return outcome

    def _over(self) -> bool:
        return all(self.fleet.processes[name].poll() == 0 for name in self.fleet.everybody)

    def _strike(self, now: float) -> None:
        fleet, chance = self.fleet, self.chance
        kind = chance.choice([*FAULTS, *SIGNALS, "kill"])
        victim = chance.choice(fleet.everybody)
        if kind in FAULTS:
            other = chance.choice([name for name in fleet.everybody if name != victim])
            disturb([fleet.wires[victim, other], fleet.wires[other, victim]], kind, chance)
        elif fleet.processes[victim].poll() is not None or victim in self._stopped:
            return  # it is down already
        elif kind == "kill":
            fleet.signal(victim, signal.SIGKILL)
        elif kind == "stop":
            fleet.signal(victim, signal.SIGSTOP)
            self._stopped[victim] = now + chance.uniform(0.5, 14.0)
        elif kind == "full disk":
            fleet.fill_disk(victim, full=True)
            self._full[victim] = now + chance.uniform(0.5, 3.0)
        else:
            if fleet.scene.engine != "serial":
                self._doomed.add(victim)  # it may have no workers yet
            return
        self.outcome.faults[kind] += 1

    def _kill_workers(self) -> None:
        for name in sorted(self._doomed):
            if self.fleet.processes[name].poll() is None and (workers := self.fleet.workers(name)):
                for pid in workers:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                self._doomed.discard(name)
                self.outcome.faults["dead worker"] += 1

    def _supervise(self, now: float) -> None:
        """As systemd with Restart=on-failure and RestartPreventExitStatus=2."""
        fleet, outcome = self.fleet, self.outcome
        self._kill_workers()
        for name, until in list(self._stopped.items()):
            if now >= until:
                del self._stopped[name]
                fleet.signal(name, signal.SIGCONT)
        for name, until in list(self._full.items()):
            if now >= until:
                del self._full[name]
                fleet.fill_disk(name, full=False)
        for name in fleet.everybody:
            code = fleet.processes[name].poll()
            if code is None or code == 0:
                continue
            if code == 2 or "Traceback" in fleet.log(name):
                word = "a traceback" if "Traceback" in fleet.log(name) else f"exit code {code}"
                outcome.verdict, outcome.why = "lost", f"{name}: {word}; {self._last_lines()}"
                return
            if name not in self._ready:
                self._ready[name] = now + self.chance.uniform(0.0, 2.0)
            elif now >= self._ready[name]:
                del self._ready[name]
                fleet.start(name)
                outcome.restarts += 1

    def _last_lines(self) -> str:
        return " | ".join(
            f"{name}: {(self.fleet.log(name).strip().splitlines() or ['nothing said'])[-1]}"
            for name in self.fleet.everybody
        )


def judge(fleet: Fleet, outcome: Outcome, expected: Sequence[NDArray[np.float64]]) -> None:
    """Whether what a survived run left is what an unbroken one leaves."""
    results = {name: fleet.result(name) for name in fleet.everybody}
    rounds = {name: found["rounds"] for name, found in results.items()}
    compared = [peer["transcripts"] for found in results.values() for peer in found["peers"].values()]
    outcome.uncompared = sum(word.startswith("not compared") for word in compared)
    far = 0.0 if fleet.scene.tolerance is None else distance(fleet.model(), expected)
    if set(rounds.values()) != {fleet.scene.run["rounds"]}:
        outcome.verdict, outcome.why = "lost", f"rounds {rounds}"
    elif "DIFFER" in compared:
        outcome.verdict, outcome.why = "lost", "transcripts differ"
    elif fleet.scene.tolerance is not None and far > fleet.scene.tolerance:
        outcome.verdict, outcome.why = "lost", f"another model: {far:.3g} apart"


def bars(outcomes: Sequence[Outcome], *, long: bool) -> list[dict[str, Any]]:
    """As the other commands' bars; a short run is not asked for its numbers of faults."""
    faults: Counter[str] = sum((outcome.faults for outcome in outcomes), Counter())
    verdicts = Counter(outcome.verdict for outcome in outcomes)
    kills, network = faults["kill"], sum(faults[kind] for kind in FAULTS)
    note = f"{len(outcomes)} runs, {sum(faults.values())} faults"
    found = [
        _bar("runs lost", verdicts["lost"], 0, "less", note),
        _bar("runs stuck", verdicts["stuck"], 0, "less", f"longer than {STUCK_SECONDS:.0f} s"),
    ]
    if long:
        found += [
            _bar("kills", kills, KILLS, "more", "SIGKILL of a party or the key-holder"),
            _bar("network faults", network, NETWORK_FAULTS, "more", ", ".join(FAULTS)),
        ]
    return found


def _bar(name: str, value: float, bar: float, better: str, note: str) -> dict[str, Any]:
    met = value <= bar if better == "less" else value >= bar
    return {"name": name, "value": value, "bar": bar, "better": better, "met": met, "note": note}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--minutes", type=float, default=30.0, help="of runs; default %(default)s")
    parser.add_argument("--runs", type=int, help="so many runs, however long they take")
    parser.add_argument("--scene", action="append", metavar="NAME", help="only this one; may be repeated")


def chosen(args: argparse.Namespace) -> list[Scene]:
    names = args.scene or (QUICK if args.quick else [scene.name for scene in SCENES])
    known = {scene.name: scene for scene in SCENES}
    for name in names:
        if name not in known:
            raise SettingError(f"scene: {name!r} given, {', '.join(known)} are allowed")
    return [known[name] for name in names]


def run(args: argparse.Namespace) -> int:
    facts = machine.describe(("grpcio",))
    minutes = 0.6 if args.quick else args.minutes
    scenes, outcomes = chosen(args), []
    with tempfile.TemporaryDirectory(prefix="securefed-chaos-") as folder, ExitStack() as stack:
        fleets: list[tuple[Fleet, list[NDArray[np.float64]]]] = []
        end = time.monotonic() + 60 * minutes
        number = 0
        while (number < args.runs) if args.runs else (time.monotonic() < end):
            if number < len(scenes):
                fleets.append(_begin(scenes[number], Path(folder), stack))
            fleet, expected = fleets[number % len(scenes)]
            seed = args.seed + number
            outcome = Torment(fleet, seed).run(2 if args.quick else FAULTS_A_RUN)
            if outcome.verdict == "survived":
                judge(fleet, outcome, expected)
            outcomes.append(outcome)
            print(_line(outcome), flush=True)
            number += 1
    found = bars(outcomes, long=not args.quick and not args.runs)
    _report(outcomes, found)
    if args.json is not None:
        rows = [{**asdict(outcome), "faults": dict(outcome.faults)} for outcome in outcomes]
        args.json.write_text(json.dumps({"machine": facts, "rows": rows, "bars": found}, indent=2) + "\n")
    return 0 if all(bar["met"] for bar in found) else 1


def _begin(scene: Scene, folder: Path, stack: ExitStack) -> tuple[Fleet, list[NDArray[np.float64]]]:
    """A fleet, and the model of its unbroken run."""
    fleet = Fleet(scene, folder / scene.name.replace(" ", "-"), seed=1)
    stack.callback(fleet.close)
    whole = Torment(fleet, 0).run(0)
    if whole.verdict != "survived" or whole.restarts:
        raise OSError(f"{scene.name} does not even run in peace: {whole.why}")
    return fleet, fleet.model()


def _line(outcome: Outcome) -> str:
    struck = ", ".join(f"{count} {kind}" for kind, count in sorted(outcome.faults.items())) or "no fault"
    text = f"{outcome.scene:<16} seed {outcome.seed:<5} {outcome.verdict:<9} {outcome.seconds:>6.1f} s  "
    text += struck
    text += f"; {outcome.restarts} restarts" if outcome.restarts else ""
    text += f"; {outcome.uncompared} transcripts not compared" if outcome.uncompared else ""
    return text + (f"\n    {outcome.why}" if outcome.why else "")


def _report(outcomes: Sequence[Outcome], found: Sequence[dict[str, Any]]) -> None:
    faults: Counter[str] = sum((outcome.faults for outcome in outcomes), Counter())
    verdicts = Counter(outcome.verdict for outcome in outcomes)
    print(f"\n{len(outcomes)} runs: {', '.join(f'{count} {word}' for word, count in verdicts.items())}")
    print("faults: " + (", ".join(f"{count} {kind}" for kind, count in sorted(faults.items())) or "none"))
    for bar in found:
        print(f"{bar['name']:<16}{bar['value']:>8g}  bar {bar['bar']:g}  {'met' if bar['met'] else 'MISSED'}")
