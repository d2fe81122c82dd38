"""Parties for the chaos. Their folders are made once for a scene.

Their processes are killed, and started again with --resume, as a supervisor does it.
"""

from __future__ import annotations

import json
import os
import resource
import secrets
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.chaos_wires import Wire
from bench.fleet import HOLDER, ROOT, Table, opens_gradients, run_table
from bench.ports import free_ports
from securefed.errors import plain_text
from securefed.process.model_files import SCORE_LEDGER
from securefed.settings.describe import toml_lines

__all__ = ["Fleet", "Scene"]

COMMAND = [sys.executable, "-m", "securefed"]
VERDICT = "securefed party: "
TAIL_LINES, TAIL_WIDTH = 15, 300
LAUNCH = [sys.executable, "-m", "bench.chaos_launch"]


@dataclass(frozen=True)
class Scene:
    """Who trains what.

    `tolerance`: how far a weight may be from an unbroken run's. None: the result has fresh randomness, and
    only the end of the run is looked at.
    """

    name: str
    parties: int
    run: Mapping[str, Any]
    tolerance: float | None = 0.0
    engine: str | int = "serial"
    rows: int = 60
    columns: int = 2
    """Of each party."""
    patience: int = 10
    wait: int = 150

    @property
    def names(self) -> list[str]:
        return [f"p{number}" for number in range(self.parties)]


@dataclass
class Fleet:
    """The processes of one scene."""

    scene: Scene
    folder: Path
    seed: int
    relay: Callable[[tuple[str, str], int], int] | None = None
    """Other lines than wires: who asks whom, the port there, and the port to ask at instead."""
    trapped: bool = False
    """Start parties with the traps of bench.chaos_launch."""
    wires: dict[tuple[str, str], Wire] = field(default_factory=dict)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = self.scene.names
        self._ways: dict[tuple[str, str], int] = {}
        self._begun: dict[str, int] = {}
        """Where the log of each party's current process begins."""
        self._events_begun: dict[str, int] = {}
        self.everybody = [*names, *([HOLDER] if len(names) > 2 else [])]
        self.environment = os.environ | {
            "SECUREFED_PASSPHRASE": secrets.token_urlsafe(24),
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        keys = ["--key-bits", "2048", "--scheme", str(self.scene.run["scheme"])]
        for name in self.everybody:
            words = ["init", name, "--folder", str(self.folder / name), "-q"]
            words += keys if opens_gradients(self.scene.run) else []
            words += ["--key-holder"] if name == HOLDER else []
            done = subprocess.run(
                [*COMMAND, *words], cwd=ROOT, env=self.environment, capture_output=True, text=True
            )
            if done.returncode:
                raise OSError(f"securefed init {name} failed: {done.stderr.strip()}")
            self.traps(name).mkdir()
        self.ports = ports = dict(zip(self.everybody, free_ports(len(self.everybody)), strict=True))
        for one in self.everybody:
            for other in self.everybody:
                if one != other:
                    self._connect(one, other, ports[other])
        self.exchange()
        for name, table in self._tables().items():
            table.write(self.folder / name / "data.csv")
        for name in self.everybody:
            (self.folder / name / "party.toml").write_text(self._settings(name, ports[name]))

    def exchange(self) -> None:
        """Give everybody the current certificates of the others."""
        for one in self.everybody:
            for other in self.everybody:
                if one != other:
                    pem = self.folder / other / "certificate.pem"
                    shutil.copy(pem, self.folder / one / "peers" / f"{other}.pem")

    def _tables(self) -> dict[str, Table]:
        rng = np.random.default_rng(self.seed)
        each = self.scene.columns
        values = rng.normal(size=(self.scene.rows, each * self.scene.parties)).round(6)
        labels = (values @ rng.normal(size=values.shape[1]) > 0).astype(int)
        tables = {}
        for place, name in enumerate(self.scene.names):
            rows: list[list[object]] = [list(row) for row in values[:, each * place : each * (place + 1)]]
            last = place == self.scene.parties - 1
            if last:
                rows = [[*row, int(label)] for row, label in zip(rows, labels, strict=True)]
            rows = [[f"person {number}", *row] for number, row in enumerate(rows)]
            tables[name] = Table(["id", *self._columns, *(["label"] if last else [])], rows)
        return tables

    @property
    def _columns(self) -> list[str]:
        return [f"x{number}" for number in range(self.scene.columns)]

    def _connect(self, one: str, other: str, port: int) -> None:
        if self.relay is None:
            self.wires[one, other] = Wire(port)
            self._ways[one, other] = self.wires[one, other].port
        else:
            self._ways[one, other] = self.relay((one, other), port)

    def new_rows(self, name: str, count: int) -> Path:
        """A file of people that nobody has seen, the same ones at every party."""
        rng = np.random.default_rng([self.seed, self.scene.names.index(name)])
        values = rng.normal(size=(count, self.scene.columns)).round(6)
        rows: list[list[object]] = [[f"new {number}", *row] for number, row in enumerate(values)]
        path = self.folder / name / "new.csv"
        Table(["id", *self._columns], rows).write(path)
        return path

    def _settings(self, name: str, port: int) -> str:
        def pairs(table: Mapping[str, Any]) -> list[str]:
            return [f"{key} = {json.dumps(value)}" for key, value in table.items()]

        own = {
            "name": name,
            "role": "key-holder" if name == HOLDER else "data",
            "listen": f"127.0.0.1:{port}",
            "wait": self.scene.wait,
            "patience": self.scene.patience,
            "start_seed": self.seed,
            "engine": self.scene.engine,
        }
        if name != HOLDER:
            own["score_ledger"] = "off"  # few columns, evaluated several times
        lines = ["[party]", *pairs(own)]
        if name != HOLDER:
            label = {"label": "label"} if name == self.scene.names[-1] else {}
            lines += ["[data]", *pairs({"file": "data.csv", "id": "id", **label})]
        for peer in self.everybody:
            if peer != name:
                way = {"address": f"127.0.0.1:{self._ways[name, peer]}"}
                lines += [f"[peers.{peer}]", *pairs({**way, "certificate": f"peers/{peer}.pem"})]
        shared: dict[str, Any] = {"name": "chaos", "parties": self.scene.names, "alignment": "rows"}
        if HOLDER in self.everybody:
            shared["key_holder"] = HOLDER
        return (
            "\n".join([*lines, "[run]", *toml_lines(run_table({**shared, **self.scene.run}), "run")]) + "\n"
        )

    # Processes.

    def clean(self) -> None:
        """Remove what the run before left, and mend the lines."""
        for name in self.everybody:
            shutil.rmtree(self.folder / name / "runs", ignore_errors=True)
            for suffix in ("log", "events"):
                (self.folder / f"{name}.{suffix}").unlink(missing_ok=True)
            for path in self.traps(name).iterdir():
                path.unlink()
            # Every run is the first that these people are scored in; over its restarts the count goes on.
            ledger = self.ledger(name)
            for path in (ledger, ledger.with_suffix(".mark"), ledger.with_name(f"{SCORE_LEDGER}-journal")):
                path.unlink(missing_ok=True)
        for wire in self.wires.values():
            wire.mend()

    def command(self, name: str, *options: str) -> list[str]:
        """The command line of a party."""
        begin = [*LAUNCH, str(self.traps(name))] if self.trapped else COMMAND
        return [*begin, "party", str(self.folder / name / "party.toml"), *options]

    def start(self, name: str, *, head: bool = False) -> None:
        """Start a party. `head`: its results go to a reader that closes the pipe at once."""
        events = self.folder / f"{name}.events"
        self._begun[name] = len(self.log(name))
        self._events_begun[name] = events.stat().st_size if events.exists() else 0
        with (self.folder / f"{name}.log").open("ab") as log:
            reader, writer = os.pipe() if head else (None, log.fileno())
            self.processes[name] = subprocess.Popen(
                self.command(name, "--resume", "--events", str(events)),
                cwd=ROOT,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=writer,
                stderr=log,
            )
            if reader is not None:
                os.close(reader)
                os.close(writer)

    def signal(self, name: str, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.processes[name].pid, number)

    def fill_disk(self, name: str, *, full: bool) -> None:
        """Files of this process may not grow any more, or may again; a write fails as on a full disk."""
        most = 0 if full else resource.RLIM_INFINITY
        with suppress(ProcessLookupError):
            resource.prlimit(self.processes[name].pid, resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))

    def workers(self, name: str) -> list[int]:
        found = Path(f"/proc/{self.processes[name].pid}/task").glob("*/children")
        with suppress(OSError):
            return [int(word) for path in found for word in path.read_text().split()]
        return []

    def end(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()

    def close(self) -> None:
        self.end()
        for wire in self.wires.values():
            wire.close()

    # What they leave.

    def traps(self, name: str) -> Path:
        return self.folder / f"{name}.traps"

    def lock(self, name: str) -> Path:
        return self.folder / name / "runs" / "chaos" / f".lock-{name}"

    def ledger(self, name: str) -> Path:
        return self.folder / name / SCORE_LEDGER

    def bookings(self, name: str) -> list[tuple[bytes, int]]:
        """The question of each record of a party's score ledger, and how many people it names."""
        if not self.ledger(name).exists():
            return []
        with closing(sqlite3.connect(self.ledger(name), timeout=60.0)) as database:
            try:
                counts = database.execute("SELECT question, COUNT(*) FROM told GROUP BY question")
                return [(question, count) for question, count in counts]
            except sqlite3.OperationalError:  # its first booking is under way
                return []

    def checkpoints(self, name: str) -> Path:
        """The file of a party's checkpoints, the newest last."""
        return self.folder / name / "runs" / "chaos" / f"checkpoints-{name}.sfc"

    def round(self, name: str) -> int:
        """The last round that a party's current process reported, 0 before the first."""
        path = self.folder / f"{name}.events"
        written = path.read_bytes()[self._events_begun[name] :] if path.exists() else b""
        for line in reversed(written.splitlines()[-3:]):
            with suppress(ValueError):
                event = json.loads(line)
                if event["event"] == "round":
                    return int(event["round"])
        return 0

    def progress(self) -> int:
        """Bytes of events that all parties have reported."""
        paths = [self.folder / f"{name}.events" for name in self.everybody]
        return sum(path.stat().st_size for path in paths if path.exists())

    def log(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def lines(self, name: str) -> list[str]:
        """What a party's current process has said."""
        return self.log(name)[self._begun[name] :].splitlines()

    def tails(self) -> dict[str, list[str]]:
        """The last lines of all parties, each shortened."""
        return {
            name: [plain_text(line, TAIL_WIDTH) for line in self.log(name).splitlines()[-TAIL_LINES:]]
            for name in self.everybody
        }

    def verdict(self, name: str) -> str:
        """The line in which a party's process said how it ended, or "" if there is none."""
        return next((line for line in reversed(self.lines(name)) if line.startswith(VERDICT)), "")

    def result(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(
            (self.folder / name / "runs" / "chaos" / "result.json").read_text()
        )
        return found

    def model(self) -> list[NDArray[np.float64]]:
        """All numbers of all shards that are not under somebody's key."""
        found = []
        for name in self.scene.names:
            with np.load(self.folder / name / "runs" / "chaos" / f"shard-{name}.npz") as held:
                kept = [held[key] for key in sorted(held.files) if held[key].dtype == np.float64]
            found.append(np.concatenate([np.ravel(array) for array in kept] or [np.zeros(0)]))
        return found


def distance(one: Sequence[NDArray[np.float64]], other: Sequence[NDArray[np.float64]]) -> float:
    """The largest difference of two numbers."""
    return max(float(np.max(np.abs(a - b), initial=0.0)) for a, b in zip(one, other, strict=True))
