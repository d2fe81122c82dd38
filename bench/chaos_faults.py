"""One run of real parties under faults, and the supervisor that starts them again.

A fault is a method of `Torment`. It returns whether it could be done now: no party is killed twice, and a
ledger that is not there cannot be cut. Every process that ends is looked at: exit code, last line, traceback.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from bench.chaos_launch import PLACES
from bench.chaos_parties import Fleet
from bench.chaos_wires import FAULTS, HOST, disturb
from bench.fleet import ROOT
from securefed.errors import SettingError
from securefed.files import only_process

__all__ = ["KINDS", "Outcome", "Torment", "control_characters", "traceback_of"]

STUCK_SECONDS, LONGEST_SECONDS = 420.0, 2400.0
"""Without a fault or an event of any party, and since the last fault. Every wait of a party ends before."""
LONGEST_PAUSE = 6.0
PROGRESS = (0, 0, 1, 600)
"""Bytes of events that parties write between two faults, so that faults meet a training at any load."""
KINDS = (
    *FAULTS,
    "kill",
    "kill at a chosen place",
    "stop",
    "dead worker",
    "full disk",
    "second shell",
    "idle strangers",
    "noisy strangers",
    "failed thread start",
    "oversized message",
    "terminal escapes",
    "damaged checkpoint",
    "cut ledger",
    "output into head",
)
FINISHED = "this run is finished"
LEAST_CHECKPOINT = 200
"""Bytes that every checkpoint of a round has."""
STRANGERS = 40
NOISE = (
    b"GET / HTTP/1.1\r\nHost: party\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(2000),
    b"\x16\x03\x01\xff\xff" + bytes(65535),
    b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00",
    b"SSH-2.0-OpenSSH_9.6\r\n\x1b]0;owned\x07\x1b[2J\r\n",
)


@dataclass
class Outcome:
    """One run under faults. `verdict`: "survived", "lost" or "stuck"."""

    scene: str
    seed: int
    verdict: str = "survived"
    seconds: float = 0.0
    restarts: int = 0
    uncompared: int = 0
    double_bookings: int = 0
    growth_mb: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    why: str = ""
    tails: dict[str, list[str]] = field(default_factory=dict)
    """The last lines of each party, over all its starts, where the run did not survive."""

    def lose(self, why: str) -> None:
        if self.verdict == "survived":
            self.verdict, self.why = "lost", why


@dataclass
class Shell:
    """A second process on the folder of a running party."""

    victim: str
    process: subprocess.Popen[bytes]
    log: Path


class Torment:
    """One run of a fleet with its faults.

    `peak_mb` is the memory of a run without faults. `before` says how often each kind has been done: rare
    kinds come first.
    """

    def __init__(
        self,
        fleet: Fleet,
        seed: int,
        *,
        longest: float = 5.0,
        peak_mb: float = 0.0,
        before: Mapping[str, int] | None = None,
    ) -> None:
        self._before = Counter(before or {})
        self.fleet, self.chance, self._longest = fleet, Random(seed), longest
        self.outcome = Outcome(fleet.scene.name, seed)
        self.peak_mb = 0.0
        self._usual_mb = peak_mb
        self._ready: dict[str, float] = {}
        """Who has to be started at what moment."""
        self._stopped: dict[str, float] = {}
        self._full: dict[str, float] = {}
        self._mute: set[str] = set()
        """Whose disk was full: its log is on it, so that its last line may be missing."""
        self._doomed: set[str] = set()
        """Whose workers are to die as soon as there are some."""
        self._headed: set[str] = set()
        """Whose next start writes into a closed pipe."""
        self._cut: dict[str, bytes] = {}
        """The whole ledgers of parties whose ledger is cut: their next end has to be a refusal."""
        self._traps: list[tuple[str, Path]] = []
        """Kinds of faults that wait for a function to be called, and their files."""
        self._shells: list[Shell] = []
        self._strangers: list[tuple[float, list[socket.socket]]] = []

    def run(self, faults: int) -> Outcome:
        fleet, outcome, begun = self.fleet, self.outcome, time.monotonic()
        fleet.clean()
        for name in fleet.everybody:
            fleet.start(name)
        due = last = alive = begun + self.chance.uniform(0.0, 3.0)
        goal = heard = 0
        try:
            while outcome.verdict == "survived" and not self._over():
                now = time.monotonic()
                left = faults - sum(outcome.faults.values()) - len(self._doomed)
                before, heard = heard, fleet.progress()
                alive = now if heard > before else alive
                if left > 0 and now >= due and (heard >= goal or now - last > LONGEST_PAUSE):
                    self._strike(now)
                    last, alive, due = now, now, now + self.chance.uniform(0.05, 1.2)
                    goal = heard + self.chance.choice(PROGRESS)
                self._supervise(now)
                if now - alive > STUCK_SECONDS or now - last > LONGEST_SECONDS:
                    outcome.verdict, outcome.why = "stuck", self._last_lines()
                time.sleep(0.05)
        finally:
            self._end()
        for name in fleet.everybody:
            if odd := control_characters(fleet.log(name)):
                outcome.lose(f"{name}: control characters {odd} in its output")
            if (text := traceback_of(fleet.log(name))) is not None:
                outcome.lose(f"{name}: {text}")
        outcome.faults -= Counter(kind for kind, path in self._traps if path.exists())
        outcome.seconds = round(time.monotonic() - begun, 1)
        outcome.growth_mb = round(max(0.0, self.peak_mb - self._usual_mb), 1)
        return outcome

    def _end(self) -> None:
        self.fleet.end()
        for shell in self._shells:
            shell.process.kill()
            shell.process.wait()
        for _, callers in self._strangers:
            for caller in callers:
                caller.close()

    def _over(self) -> bool:
        return not (self._shells or self._cut) and all(self._code(name) == 0 for name in self.fleet.everybody)

    def _code(self, name: str) -> int | None:
        return self.fleet.processes[name].poll()

    # Faults.

    def _strike(self, now: float) -> None:
        """Do one fault that can be done now."""
        done = self._before + self.outcome.faults
        kinds = sorted(KINDS, key=lambda kind: (done[kind], self.chance.random()))
        there = [name for name in self.fleet.everybody if self._code(name) is None]
        victim = self.chance.choice(there or self.fleet.everybody)
        for kind in kinds:
            if self._do(kind, victim, now):
                self.outcome.faults[kind] += kind != "dead worker"
                return

    def _do(self, kind: str, victim: str, now: float) -> bool:
        if kind in FAULTS:
            return self._disturb(kind, victim)
        busy = victim in self._stopped or victim in self._cut or any(s.victim == victim for s in self._shells)
        if self._code(victim) is not None or busy:
            return False
        actions: dict[str, Callable[[str, float], bool]] = {
            "kill": self._kill,
            "kill at a chosen place": self._kill_at_a_place,
            "stop": self._stop,
            "dead worker": self._doom,
            "full disk": self._fill,
            "second shell": self._second_shell,
            "idle strangers": self._idle_strangers,
            "noisy strangers": self._noisy_strangers,
            "failed thread start": lambda name, _: self._trap(kind, name, "threads"),
            "oversized message": self._oversize,
            "terminal escapes": lambda name, _: self._trap(kind, name, "escapes"),
            "damaged checkpoint": self._damage_checkpoint,
            "cut ledger": self._cut_ledger,
            "output into head": self._into_head,
        }
        return actions[kind](victim, now)

    def _disturb(self, kind: str, victim: str) -> bool:
        other = self.chance.choice([name for name in self.fleet.everybody if name != victim])
        wires = [self.fleet.wires[victim, other], self.fleet.wires[other, victim]]
        if self.chance.random() < 0.3:
            wires = wires[:1]
        disturb(wires, kind, self.chance, self._seconds())
        return True

    def _seconds(self) -> float:
        """How long a fault may last: in long runs now and then longer than the patience."""
        return 14.0 if self._longest > 3.0 and self.chance.random() < 0.1 else self._longest

    def _kill(self, victim: str, _: float) -> bool:
        self.fleet.signal(victim, signal.SIGKILL)
        return True

    def _kill_at_a_place(self, victim: str, _: float) -> bool:
        return self._trap("kill at a chosen place", victim, f"die-{self.chance.choice(list(PLACES))}")

    def _oversize(self, victim: str, _: float) -> bool:
        return self._trap("oversized message", victim, self.chance.choice(["oversized", "announced"]))

    def _stop(self, victim: str, now: float) -> bool:
        self.fleet.signal(victim, signal.SIGSTOP)
        self._stopped[victim] = now + self.chance.uniform(0.3, self._seconds())
        return True

    def _doom(self, victim: str, _: float) -> bool:
        if self.fleet.scene.engine == "serial" or victim in self._doomed:
            return False
        self._doomed.add(victim)  # it may have no workers yet
        return True

    def _fill(self, victim: str, now: float) -> bool:
        if victim in self._full:
            return False
        self.fleet.fill_disk(victim, full=True)
        self._mute.add(victim)
        self._full[victim] = now + self.chance.uniform(0.3, 2.0)
        return True

    def _second_shell(self, victim: str, _: float) -> bool:
        """Stop a party and start another process of it with `--restart`, which has to refuse.

        A party that is about to end has let its folder go. Its run would be thrown away, as it was told to.
        """
        if self.fleet.round(victim) == 0 or victim in self._full:
            return False
        self.fleet.signal(victim, signal.SIGSTOP)
        with suppress(SettingError), only_process(self.fleet.lock(victim)):
            self.fleet.signal(victim, signal.SIGCONT)
            return False
        log = self.fleet.folder / f"{victim}.shell"
        with log.open("wb") as file:
            process = subprocess.Popen(
                self.fleet.command(victim, "--restart"),
                cwd=ROOT,
                env=self.fleet.environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )
        self._shells.append(Shell(victim, process, log))
        return True

    def _idle_strangers(self, victim: str, now: float) -> bool:
        return self._call(victim, now, STRANGERS, b"")

    def _noisy_strangers(self, victim: str, now: float) -> bool:
        return self._call(victim, now, 5, self.chance.choice(NOISE))

    def _call(self, victim: str, now: float, count: int, data: bytes) -> bool:
        callers: list[socket.socket] = []
        with suppress(OSError):
            for number in range(count):
                source = (f"127.0.0.{2 + number % 3}", 0)
                callers.append(
                    socket.create_connection(
                        (HOST, self.fleet.ports[victim]), timeout=2, source_address=source
                    )
                )
                callers[-1].sendall(data)
        self._strangers.append((now + self.chance.uniform(0.3, self._seconds()), callers))
        return bool(callers)

    def _trap(self, kind: str, victim: str, key: str) -> bool:
        path = self.fleet.traps(victim) / key
        if path.exists():
            return False
        path.touch()
        self._traps.append((kind, path))
        return True

    def _damage_checkpoint(self, victim: str, _: float) -> bool:
        """Kill a party and change its newest checkpoint, if there is an older one."""
        path = self.fleet.checkpoints(victim)
        if self.fleet.round(victim) < 2 or not path.exists():
            return False
        self._kill_and_wait(victim)
        if path.exists():
            data = bytearray(path.read_bytes())
            place = self.chance.randrange(len(data) - LEAST_CHECKPOINT, len(data))
            if self.chance.random() < 0.5:
                data[place] ^= 1 << self.chance.randrange(8)
            else:
                del data[place:]
            path.write_bytes(data)
        return True

    def _cut_ledger(self, victim: str, _: float) -> bool:
        """Kill a party and cut its score ledger. It has to refuse; then the ledger is put back.

        A party whose run is finished reads it no more, and may end well.
        """
        if not self.fleet.bookings(victim):
            return False
        self._kill_and_wait(victim)
        if self._code(victim) == 0:  # it had ended well before the kill
            return False
        path = self.fleet.ledger(victim)
        whole = path.read_bytes()
        self._cut[victim] = whole
        if self.chance.random() < 0.3:
            path.unlink()
        else:
            path.write_bytes(whole[: self.chance.randrange(len(whole))])
        return True

    def _kill_and_wait(self, victim: str) -> None:
        self.fleet.signal(victim, signal.SIGKILL)
        self.fleet.processes[victim].wait()

    def _into_head(self, victim: str, _: float) -> bool:
        """Kill a party and start it with its results going into `| head -0`."""
        self._headed.add(victim)
        return self._kill(victim, 0.0)

    # The supervisor, as systemd with Restart=on-failure and RestartPreventExitStatus=2.

    def _supervise(self, now: float) -> None:
        self._kill_workers()
        self._look_at_shells()
        self._end_what_is_due(now)
        for name in self.fleet.everybody:
            self._measure(name)
            code = self._code(name)
            if code is None or (code == 0 and name not in self._cut):
                continue
            if name not in self._ready:
                self._look_at_end(name, code)
                self._ready[name] = now + self.chance.uniform(0.0, 1.0)
            elif now >= self._ready[name]:
                del self._ready[name]
                self.fleet.start(name, head=name in self._headed)
                self._headed.discard(name)
                self._full.pop(name, None)
                self._mute.discard(name)
                self.outcome.restarts += 1

    def _look_at_end(self, name: str, code: int) -> None:
        line = self.fleet.verdict(name)
        if name in self._cut and code != -signal.SIGKILL:
            finished = code == 0 and any(FINISHED in each for each in self.fleet.lines(name))
            if finished or (code == 2 and "score-ledger" in line):
                self.fleet.ledger(name).write_bytes(self._cut.pop(name))
            elif code != 1:
                self.outcome.lose(f"{name}: a cut ledger was not refused, exit code {code}; {line}")
        elif code == 2:
            self.outcome.lose(f"{name}: exit code 2; {self._last_lines()}")
        elif code == 1 and not line and name not in self._mute:
            self.outcome.lose(f"{name}: exit code 1 and no line that says why; {self.fleet.lines(name)[-5:]}")
        elif code not in (1, -signal.SIGKILL):
            self.outcome.lose(f"{name}: exit code {code}; {line}")

    def _kill_workers(self) -> None:
        for name in sorted(self._doomed):
            if self._code(name) is None and (workers := self.fleet.workers(name)):
                for pid in workers:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                self._doomed.discard(name)
                self.outcome.faults["dead worker"] += 1

    def _look_at_shells(self) -> None:
        for shell in list(self._shells):
            code = shell.process.poll()
            if code is None:
                continue
            self._shells.remove(shell)
            self.fleet.signal(shell.victim, signal.SIGCONT)
            text = shell.log.read_text(errors="replace")
            if code != 2 or "is in use by another securefed process" not in text:
                self.outcome.lose(f"a second shell at {shell.victim}: exit code {code}; {text[-300:]}")

    def _end_what_is_due(self, now: float) -> None:
        for name, until in list(self._stopped.items()):
            if now >= until:
                del self._stopped[name]
                self.fleet.signal(name, signal.SIGCONT)
        for name, until in list(self._full.items()):
            if now >= until:
                del self._full[name]
                self.fleet.fill_disk(name, full=False)
        for until, callers in list(self._strangers):
            if now >= until:
                self._strangers.remove((until, callers))
                for caller in callers:
                    caller.close()

    def _measure(self, name: str) -> None:
        with suppress(OSError):
            text = Path(f"/proc/{self.fleet.processes[name].pid}/status").read_text()
            for line in text.splitlines():
                if line.startswith("VmHWM:"):
                    self.peak_mb = max(self.peak_mb, int(line.split()[1]) / 1024)

    def _last_lines(self) -> str:
        return " | ".join(
            f"{name}: {' / '.join(self.fleet.lines(name)[-3:]) or 'nothing said'}"
            for name in self.fleet.everybody
        )


def traceback_of(text: str) -> str | None:
    """Return the first traceback of a log, or None."""
    place = text.find("Traceback")
    return None if place < 0 else text[place : place + 3000]


def control_characters(text: str) -> str:
    """Return the control characters of a log as repr shows them, without line breaks and tabs."""
    odd = sorted({character for character in text if ord(character) < 32 and character not in "\n\r\t"})
    return "".join(map(repr, odd))
