"""Faults that a run cannot survive by itself: a person mends something, and then nothing may be lost.

renewal        a kill or a full disk during `init --renew tls`; the identity is the old one or the new one
expiry         a certificate ends in the middle of a run; all parties end and say so
middlebox      every connection is cut after 150 kB; all parties end in bounded time and say so
"""

from __future__ import annotations

import resource
import subprocess
import time
from datetime import UTC, datetime, timedelta
from random import Random

from bench.chaos_faults import Outcome, traceback_of
from bench.chaos_parties import COMMAND, Fleet
from bench.fleet import ROOT
from securefed.errors import SecurefedError
from securefed.transport.identity import Certificate, Identity

__all__ = ["expiry", "middlebox", "renewal"]

ENDS_WITHIN = 150.0
"""Seconds in which parties have to end that can get no further; their `wait` is 12."""
CERTIFICATE_SECONDS = 14.0


def renewal(fleet: Fleet, seed: int, faults: int) -> Outcome:
    """Interrupt renewals at random moments. The parties' next run uses the identities that they left."""
    chance, outcome, begun = Random(seed), Outcome("renewal", seed), time.monotonic()
    fleet.clean()
    passphrase = fleet.environment["SECUREFED_PASSPHRASE"]
    whole = _timed(fleet, fleet.everybody[0])
    for number in range(faults):
        name = fleet.everybody[number % len(fleet.everybody)]
        folder = fleet.folder / name
        if chance.random() < 0.3:
            kind, most = "full disk in a renewal", chance.randrange(1200)
            code = _renew(fleet, name, most=most).wait()
            if code not in (0, 1):
                outcome.lose(f"{name}: a renewal on a full disk ends with exit code {code}")
        else:
            kind = "kill in a renewal"
            process = _renew(fleet, name)
            time.sleep(chance.uniform(0.5, 1.05) * whole)
            process.kill()
            process.wait()
        outcome.faults[kind] += 1
        try:
            identity = Identity.load(folder, passphrase)
            if identity.certificate != Certificate.read(folder / "certificate.pem"):
                outcome.lose(f"{name}: key and certificate do not belong together after a {kind}")
        except SecurefedError as error:
            outcome.lose(f"{name}: no identity after a {kind}: {error}")
            break
    for name in fleet.everybody:
        code = _renew(fleet, name).wait()
        if code != 0:
            outcome.lose(f"{name}: the next renewal ends with exit code {code}")
        for path in (fleet.folder / name).glob("*.old-*"):
            path.unlink()
    fleet.exchange()
    outcome.seconds = round(time.monotonic() - begun, 1)
    return outcome


def _renew(fleet: Fleet, name: str, most: int | None = None) -> subprocess.Popen[bytes]:
    """Start a renewal; no file may get longer than `most` bytes."""
    process = subprocess.Popen(
        [*COMMAND, "init", name, "--folder", str(fleet.folder / name), "--renew", "tls", "-q"],
        cwd=ROOT,
        env=fleet.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    if most is not None:  # long before it writes anything
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
    return process


def _timed(fleet: Fleet, name: str) -> float:
    begun = time.monotonic()
    _renew(fleet, name).wait()
    return time.monotonic() - begun


def expiry(fleet: Fleet, seed: int) -> Outcome:
    """Let the certificate of the first party end while the parties train over slow lines."""
    outcome, begun = Outcome("expiry", seed), time.monotonic()
    name, passphrase = fleet.everybody[0], fleet.environment["SECUREFED_PASSPHRASE"]
    fleet.clean()
    now = datetime.now(UTC)
    end = now + timedelta(seconds=CERTIFICATE_SECONDS)
    short = Identity.generate(name, days=1, now=end - timedelta(days=1))
    short.replace(fleet.folder / name, passphrase, now.strftime("%H%M%S%f"))
    fleet.exchange()
    for wire in fleet.wires.values():
        wire.delay(CERTIFICATE_SECONDS + 1)
    for each in fleet.everybody:
        fleet.start(each)
    while datetime.now(UTC) < end + timedelta(seconds=1):
        time.sleep(0.1)
    outcome.faults["certificate expires in a run"] += 1
    for wire in fleet.wires.values():
        wire.cut()
    _all_end(fleet, outcome, ("certificate", "expired"))
    if _renew(fleet, name).wait() != 0:
        outcome.lose(f"{name}: cannot renew an expired certificate")
    fleet.exchange()
    _finish(fleet, outcome)
    outcome.seconds = round(time.monotonic() - begun, 1)
    return outcome


def middlebox(fleet: Fleet, seed: int) -> Outcome:
    """Cut every connection after 20 kB, which greetings pass and a piece of a message does not.

    After 150 kB would be no fault: a message goes on with its next piece, and the run ends well.
    """
    outcome, begun = Outcome("middlebox", seed), time.monotonic()
    fleet.clean()
    for wire in fleet.wires.values():
        wire.drop(float("inf"), 20_000)
    for name in fleet.everybody:
        fleet.start(name)
    outcome.faults["middlebox for good"] += 1
    _all_end(fleet, outcome, ("came no further", "could not be reached", "left the run"))
    for wire in fleet.wires.values():
        wire.mend()
    _finish(fleet, outcome)
    outcome.seconds = round(time.monotonic() - begun, 1)
    return outcome


def _all_end(fleet: Fleet, outcome: Outcome, words: tuple[str, ...]) -> None:
    """Wait until all parties have ended; each last line has to have one of the words."""
    deadline = time.monotonic() + ENDS_WITHIN
    for name in fleet.everybody:
        try:
            code = fleet.processes[name].wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            outcome.verdict, outcome.why = "stuck", f"{name} has not ended: {_last(fleet, name)}"
            fleet.end()
            return
        line = fleet.verdict(name)
        if code not in (1, 2) or not line:
            outcome.lose(f"{name}: exit code {code}; {_last(fleet, name)}")
        elif not any(word in line for word in words):
            outcome.lose(f"{name}: the last line does not name the cause; {line}")


def _finish(fleet: Fleet, outcome: Outcome) -> None:
    """Start everybody again; the run has to end well."""
    if outcome.verdict != "survived":
        return
    for name in fleet.everybody:
        fleet.start(name)
        outcome.restarts += 1
    deadline = time.monotonic() + ENDS_WITHIN
    for name in fleet.everybody:
        try:
            code = fleet.processes[name].wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            outcome.verdict, outcome.why = "stuck", f"{name}: {_last(fleet, name)}"
            break
        if code != 0:
            outcome.lose(f"{name}: mended, and exit code {code}; {_last(fleet, name)}")
        if (text := traceback_of(fleet.log(name))) is not None:
            outcome.lose(f"{name}: {text}")
    fleet.end()


def _last(fleet: Fleet, name: str) -> str:
    return " / ".join(fleet.lines(name)[-3:]) or "nothing said"
