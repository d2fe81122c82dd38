"""Mutated messages, frames, greetings and files from a hostile peer, against real party processes.

    payload     the bytes of a message
    envelope    its kind, round or step
    frame       the encoded message on the wire
    hello       what a party in a run says about itself: settings, facts, sessions, state
    greeting    many frames, one after the other, at a party that waits for its peer
    file        the peer's certificate, and the party's own settings, data, keys, checkpoints and ledger

Each case has one mutation, a greeting case has many. The party must end by itself or go on. A traceback, a
process that does not end, or more than 200 MB beyond an honest run is a failure. Processes are forked from
this one, which has imported everything and never opens a connection: a case costs no interpreter start.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import resource
import runpy
import secrets
import signal
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from bench.chaos_parties import Fleet, Scene
from securefed.crypto import keyfile
from securefed.transport.identity import Certificate, Identity, Peer
from securefed.transport.link import Link
from securefed.transport.message import TransportError
from securefed.transport.network import codec
from securefed.transport.network.calls import GREET, POST, CallChannel, CallFailed, contexts, dial

__all__ = ["LAYERS", "Report", "mutated", "mutated_json", "run_mutations"]

LAYERS = ("payload", "envelope", "frame", "hello", "greeting", "file")
GREETINGS = 200
"""Mutations of one greeting case."""
ENDS_WITHIN = 75.0
"""Seconds for a case; `wait` is 3 and `patience` 2."""
PRELOADED = ("securefed.cli.party", "securefed.cli.check", "securefed.cli.init", "securefed.cli.predict")
PLAIN = {
    "alignment": "psi",
    "reveal": "own-gradient",
    "scheme": "plain",
    "rounds": 2,
    "batch_size": 20,
    "learning_rate": 0.05,
    "allow_determined": True,
}
BLIND = {"alignment": "psi", "reveal": "nothing", "scheme": "ckks", "rounds": 2, "l2": 0.01}
SCORED = {**BLIND, "release": True, "rounds": 4, "evaluate_every": 2, "holdout": 0.2, "learning_rate": 0.05}
TRANSFER = {**BLIND, "objective": "transfer"}
SCENES = tuple(
    Scene(name, parties, run, rows=30, patience=2, wait=3)
    for name, parties, run in (
        ("plain", 2, PLAIN),
        ("blind", 2, BLIND),
        ("scored", 2, SCORED),
        ("three", 3, {**PLAIN, "scheme": "ckks"}),
        ("transfer", 2, TRANSFER),
    )
)
FACTS = '{"parameters": 3, "is_linear": true, "rows": 0, "proposal": "0123456789abcdef", "ids": ""}'
NUMBERS = (10**9, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1, 0, 1, 2**40)
FLOATS = (float("nan"), float("inf"), float("-inf"), 1e308, -1e308, 5e-324)
VALUES: tuple[Any, ...] = (
    *FLOATS[:3],
    10**400,
    -1,
    0,
    2**63,
    "",
    "\x1b[2J\x1b]0;owned\x07",
    "x" * 4000,
    None,
    True,
    [],
    {},
    [[[[]]]],
    {"a": {"b": []}},
)


def mutated(data: bytes, chance: Random) -> bytes:
    """Return bytes that differ from `data` in one of a dozen ways."""
    if not data:
        return bytes(chance.choices(range(256), k=chance.choice([1, 8, 1000])))
    place = chance.randrange(len(data))
    kind = chance.randrange(12)
    if kind == 0:
        return data[:place]
    if kind == 1:
        return data + bytes(chance.choices(range(256), k=chance.choice([1, 7, 8, 100])))
    if kind == 2:
        return b""
    if kind == 3:
        return bytes(chance.choices(range(256), k=min(len(data), 5000)))
    if kind == 4:
        return data[:place] + data[place : place + 64] + data[place:]
    if kind == 5:
        return data[:place] + data[place + chance.choice([1, 8, 64]) :]
    if kind in (6, 7):
        order = "big" if chance.random() < 0.5 else "little"
        start = place if kind == 6 else min(place, 8)
        number = chance.choice(NUMBERS).to_bytes(8, order)  # type: ignore[arg-type]
        return data[:start] + number + data[start + 8 :]
    if kind == 8:
        start = place - place % 8
        return data[:start] + struct.pack("<d", chance.choice(FLOATS)) + data[start + 8 :]
    if kind == 9:
        return data * chance.choice([2, 3])
    if kind == 10:
        with suppress(ValueError):
            return json.dumps(mutated_json(json.loads(data), chance)).encode()
    changed = bytearray(data)
    for _ in range(chance.choice([1, 1, 1, 4, 32])):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def mutated_json(value: Any, chance: Random) -> Any:
    """Return `value` with one part replaced, removed or added."""
    if isinstance(value, dict) and value and chance.random() < 0.9:
        key = chance.choice(sorted(value))
        rest = {name: part for name, part in value.items() if name != key}
        if chance.random() < 0.15:
            return rest
        if chance.random() < 0.1:
            return {**value, chance.choice(["extra", "\x1b[31m", "x" * 300]): chance.choice(VALUES)}
        return {**rest, key: mutated_json(value[key], chance)}
    if isinstance(value, list) and value and chance.random() < 0.8:
        place = chance.randrange(len(value))
        return [*value[:place], mutated_json(value[place], chance), *value[place + 1 :]]
    return chance.choice(VALUES)


class Hostile:
    """A party's own process that says something else at the `at`-th chance. It counts chances in a file."""

    def __init__(self, layer: str, at: int, seed: int, counts: Path) -> None:
        self._layer, self._at, self._chance = layer, at, Random(seed)
        self._counts, self._seen = counts, Counter[str]()

    def install(self) -> None:
        Link.send = self._sending(Link.send)  # type: ignore[method-assign]
        codec.encode_letter = self._framing(codec.encode_letter)
        codec.encode_hello = self._greeting(codec.encode_hello)

    def _due(self, layer: str) -> bool:
        number = self._seen[layer]
        self._seen[layer] += 1
        if self._at < 0:
            self._counts.write_text(json.dumps(self._seen))
        return layer == self._layer and number == self._at

    def _sending(self, plain: Callable[..., None]) -> Callable[..., None]:
        def send(link: Link, receiver: str, kind: str, payload: bytes, **named: Any) -> None:
            if self._due("payload"):
                payload = mutated(payload, self._chance)
            if self._due("envelope"):
                field = self._chance.choice(["kind", "round", "step"])
                if field == "kind":
                    kind = self._chance.choice(sorted(link._kinds))
                else:
                    named[field] = self._chance.choice([0, 1, 7, 2**31 - 1])
            plain(link, receiver, kind, payload, **named)

        return send

    def _framing(self, plain: Callable[..., bytes]) -> Callable[..., bytes]:
        def encode(*arguments: Any) -> bytes:
            data = plain(*arguments)
            return mutated(data, self._chance) if self._due("frame") else data

        return encode

    def _greeting(self, plain: Callable[..., bytes]) -> Callable[..., bytes]:
        def encode(hello: codec.Hello) -> bytes:
            return changed_hello(plain(hello), self._chance) if self._due("hello") else plain(hello)

        return encode


def changed_hello(data: bytes, chance: Random) -> bytes:
    """Return an encoded hello with one field changed, or with changed bytes."""
    hello = json.loads(data[2:])
    fields = ["bytes", "settings", "facts", "facts", "facts", "session", "sessions", "state", "text", "any"]
    field = chance.choice(fields)
    if field == "bytes":
        return mutated(data, chance)
    if field in ("settings", "facts") and hello[field]:
        hello[field] = json.dumps(mutated_json(json.loads(hello[field]), chance))
    elif field == "session":
        hello["session"] = chance.randbytes(chance.choice([0, 15, 16, 17, 1000])).hex()
    elif field == "sessions":
        for number in range(chance.choice([1, 3, 300])):
            hello["sessions"][f"\x1b{number}"] = chance.randbytes(chance.choice([0, 16, 1000])).hex()
    elif field == "state":
        hello["state"] = chance.randrange(5)
        hello["heard"] = chance.randrange(5)
    elif field == "any":
        hello = mutated_json(hello, chance)
    else:
        name = chance.choice(["run", "sender", "receiver", "reason", "refusal"])
        hello[name] = chance.choice(["", "p0", "p1", "\x1b[2J", "x" * 200, "ü" * 100])
    return data[:2] + json.dumps(hello).encode()


# Processes.


def forked(work: Callable[[], None], log: Path) -> int:
    """Run `work` in a process with its output in a file; return the process id."""
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for stream in (1, 2):
            os.dup2(descriptor, stream)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        faulthandler.register(signal.SIGUSR1, file=os.fdopen(descriptor, "w", closefd=False))
        work()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:  # noqa: BLE001 - it is what this looks for
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def securefed(*words: str) -> None:
    sys.argv = ["securefed", *words]
    runpy.run_module("securefed", run_name="__main__")


@dataclass
class Report:
    """Counts of all cases. `failures`: a line for each traceback, hang or growth."""

    mutations: Counter[str] = field(default_factory=Counter)
    exits: Counter[str] = field(default_factory=Counter)
    tracebacks: int = 0
    hangs: int = 0
    growth_mb: float = 0.0
    failures: list[str] = field(default_factory=list)

    def bars(self, asked: int) -> list[dict[str, Any]]:
        values = (
            ("mutations", sum(self.mutations.values()), asked, "more"),
            ("tracebacks", self.tracebacks, 0, "less"),
            ("hangs", self.hangs, 0, "less"),
            ("growth of a party, MB", round(self.growth_mb, 1), 200, "less"),
        )
        note = ", ".join(f"{count} {layer}" for layer, count in sorted(self.mutations.items()))
        return [
            {
                "name": name,
                "value": value,
                "bar": bar,
                "better": better,
                "met": value >= bar if better == "more" else value <= bar,
                "note": note if name == "mutations" else "",
            }
            for name, value, bar, better in values
        ]


class Lane:
    """A folder with two parties, in which one case runs after the other."""

    def __init__(self, scene: Scene, folder: Path, report: Report) -> None:
        self.fleet = Fleet(scene, folder, seed=1, relay=lambda pair, port: port)
        self._report, self._name = report, scene.name
        self._pids: dict[str, int] = {}
        self._case, self._end = "", 0.0
        self._counts = folder / "counts.json"
        self.honest_mb = 0.0
        self.chances: dict[str, Counter[str]] = {}
        self._weaken()
        self._settings = (folder / "p0" / "party.toml").read_text()
        self._originals = {path: path.read_bytes() for path in self._files()}

    def _weaken(self) -> None:
        """Make passphrases cheap, so that a case takes no second to open its keys."""
        phrase = self.fleet.environment["SECUREFED_PASSPHRASE"]
        for path in self.fleet.folder.glob("*/*.skf"):
            key = keyfile.read_key_file(path, phrase)
            keyfile.write_key_file(
                path, key.secret, phrase, label=key.label, overwrite=True, weak_for_tests=True
            )

    def _files(self) -> list[Path]:
        folder = self.fleet.folder / "p0"
        keys = ("checkpoint-key.skf", "tls-key.skf", "signing-key.skf")
        return [
            folder / name for name in ("party.toml", "data.csv", "certificate.pem", "peers/p1.pem", *keys)
        ]

    def log(self, name: str) -> Path:
        return self.fleet.folder / f"{name}.log"

    def measure(self) -> None:
        """Run an honest case of each hostile party, and count its chances to say something else."""
        for name in self.fleet.everybody:
            self._pair("payload", name, -1, 0, f"{self._name}: an honest run")
            self.finish()
            self.chances[name] = Counter(json.loads(self._counts.read_text()))

    @property
    def busy(self) -> bool:
        return bool(self._pids)

    def finish(self) -> None:
        while self.busy:
            self.poll()
            time.sleep(0.02)

    def begin(self, layer: str, seed: int) -> None:
        chance = Random(seed)
        case = f"{self._name}, {layer}, seed {seed}"
        if layer == "file":
            self._file(chance, case)
        elif layer == "greeting":
            self._greetings(seed, case)
        else:
            name = chance.choice(self.fleet.everybody)
            at = chance.randrange(max(1, self.chances[name][layer]))
            self._pair(layer, name, at, seed, case)
        self._report.mutations[layer] += layer != "greeting"

    def _start(self, case: str, work: dict[str, Callable[[], None]]) -> None:
        self.fleet.clean()
        self._case, self._end = case, time.monotonic() + ENDS_WITHIN
        for name, each in work.items():
            self._pids[name] = forked(each, self.log(name))

    def _party(self, name: str, *words: str) -> None:
        securefed("party", str(self.fleet.folder / name / "party.toml"), "--resume", *words)

    def _pair(self, layer: str, hostile: str, at: int, seed: int, case: str) -> None:
        def lie() -> None:
            Hostile(layer, at, seed, self._counts).install()
            self._party(hostile)

        work = {name: lambda name=name: self._party(name) for name in self.fleet.everybody}
        self._start(case, {**work, hostile: lie})

    def _greetings(self, seed: int, case: str) -> None:
        """p1 is a client that sends one frame after the other to p0."""
        folder = self.fleet.folder
        phrase = self.fleet.environment["SECUREFED_PASSPHRASE"]

        def speak() -> None:
            identity = Identity.load(folder / "p1", phrase)
            address = f"127.0.0.1:{self.fleet.ports['p0']}"
            server = Certificate.read(folder / "p0" / "certificate.pem")
            greet(identity, address, server, seed, self._counts)

        self._counts.unlink(missing_ok=True)
        self._start(case, {"p0": lambda: self._party("p0"), "p1": speak})

    def _file(self, chance: Random, case: str) -> None:
        path = chance.choice(self._files())
        command = chance.choice(["check", "party"])
        toml = str(self.fleet.folder / "p0" / "party.toml")
        path.write_bytes(mutated(self._originals[path], chance))
        self._start(f"{case}, {path.name}, {command}", {"p0": lambda: securefed(command, toml)})

    def poll(self) -> None:
        """Look at processes that have ended; kill those that should have."""
        late = time.monotonic() > self._end
        for name, pid in list(self._pids.items()):
            if late:
                os.kill(pid, signal.SIGUSR1)  # its stacks, for the report
                time.sleep(0.5)
                os.kill(pid, signal.SIGKILL)
            ended, status, usage = os.wait4(pid, 0 if late else os.WNOHANG)
            if not ended:
                continue
            del self._pids[name]
            if ", greeting," in self._case and name == "p1" and self._counts.exists():
                self._report.mutations["greeting"] += int(self._counts.read_text())
            self._look(name, os.waitstatus_to_exitcode(status), usage.ru_maxrss / 1024, late=late)
        if not self._pids:
            for path, data in self._originals.items():
                path.write_bytes(data)
                if path.suffix == ".skf":
                    path.chmod(0o600)

    def _look(self, name: str, code: int, peak_mb: float, *, late: bool) -> None:
        report, text = self._report, self.fleet.log(name)
        if "honest" in self._case:
            if code != 0:
                raise OSError(f"{self._case} ends with exit code {code}: {text[-600:]}")
            self.honest_mb = max(self.honest_mb, peak_mb)
            return
        report.exits["late" if late else str(code)] += 1
        report.growth_mb = max(report.growth_mb, peak_mb - self.honest_mb)
        if late:
            report.hangs += 1
            report.failures.append(f"{self._case}: {name} did not end; {text[-3000:]}")
        elif "Traceback" in text or code not in (0, 1, 2):
            report.tracebacks += 1
            report.failures.append(f"{self._case}: {name} ends with exit code {code}; {text[-1500:]}")
        elif peak_mb - self.honest_mb > 200:
            report.failures.append(f"{self._case}: {name} takes {peak_mb:.0f} MB")


def greet(identity: Identity, address: str, server: Certificate, seed: int, counts: Path) -> None:
    """Send mutated frames to a party, as its peer, and write down how many were answered."""
    chance = Random(seed)
    peer = Peer(address, server)
    context = contexts(identity, {server.name: peer})[1][server.name]
    session = secrets.token_bytes(codec.SESSION_BYTES)
    answered = 0
    channel = CallChannel(server.name, partial(dial, server.name, peer, context))
    try:

        def hello(state: int, settings: str, facts: str) -> bytes:
            names = (identity.name, server.name)
            sessions = {identity.name: session}
            made = codec.Hello("chaos", *names, session, state, settings, facts, sessions, time.time())
            return codec.encode_hello(made)

        settings = ""
        deadline = time.monotonic() + 20.0
        while not settings and time.monotonic() < deadline:  # the party may not be in its run yet
            try:
                answer = channel.call(GREET, hello(codec.ABSENT, "", ""), seconds=5)
            except CallFailed:
                time.sleep(0.05)
            else:
                settings = codec.decode_hello(answer).settings
        for _ in range(GREETINGS):
            kind = chance.choice([GREET, POST])
            data = hello(codec.GREETING, settings, FACTS)
            frame = changed_hello(data, chance) if kind == GREET else mutated(data, chance)
            try:
                channel.call(kind, frame, seconds=5)
            except CallFailed:
                break
            except TransportError:
                pass  # it is refused
            answered += 1
            counts.write_text(str(answered))
    finally:
        channel.close()


def run_mutations(asked: int, seed: int, folder: Path, *, tell: Callable[[str], None] = print) -> Report:
    """Run so many mutations, in a lane for each scene at a time."""
    report = Report()
    for module in PRELOADED:
        importlib.import_module(module)
    made = [Lane(scene, folder / scene.name, report) for scene in SCENES]
    environment, cost = os.environ.copy(), keyfile.LOG2_N
    keyfile.LOG2_N = keyfile.LOG2_N_TEST
    number, told = 0, time.monotonic()
    try:
        for lane in made:
            os.environ.update(lane.fleet.environment)
            lane.measure()
        while sum(report.mutations.values()) < asked or any(lane.busy for lane in made):
            for lane in made:
                lane.poll()
                if not lane.busy and sum(report.mutations.values()) < asked:
                    os.environ.update(lane.fleet.environment)
                    lane.begin(_next_layer(report.mutations, asked), seed + number)
                    number += 1
            if time.monotonic() - told > 60:
                told = time.monotonic()
                tell(f"{sum(report.mutations.values())} mutations, {len(report.failures)} failures")
            time.sleep(0.02)
    finally:
        keyfile.LOG2_N = cost
        os.environ.clear()
        os.environ.update(environment)
    return report


SHARES = {"payload": 0.2, "envelope": 0.04, "frame": 0.1, "hello": 0.1, "file": 0.16, "greeting": 0.4}
"""Parts of all mutations. Greetings are cheap: one process takes hundreds."""


def _next_layer(done: Counter[str], asked: int) -> str:
    return min(LAYERS, key=lambda layer: done[layer] / (SHARES[layer] * asked))
