"""The demonstration's parties: their folders, their processes, and one line that follows all of them."""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from shutil import copyfile
from typing import IO, Any, Self

from securefed.cli.demo_data import DemoData
from securefed.cli.init import make_party_folder
from securefed.cli.party import Display
from securefed.cli.terminal import VARIABLE, Terminal
from securefed.crypto import protects
from securefed.engine.processes import cores
from securefed.errors import SecurefedError
from securefed.files import write_atomically
from securefed.settings.describe import toml_lines
from securefed.settings.party import read_party_file
from securefed.settings.run import RunSettings

HELPER = "notary"
"""The party without data."""
POLL = 0.05
LAST_WORD_SECONDS = 20


class DemoFailed(SecurefedError):
    """A party of the demonstration failed; the message is its own last word."""


class DemoRun:
    """All parties of one demonstration. Use it in a with statement: no process outlives it."""

    def __init__(
        self, folder: Path, data: DemoData, table: dict[str, Any], key_bits: int, terminal: Terminal
    ) -> None:
        self.folder, self._data, self._table, self._terminal = folder, data, table, terminal
        self._key_bits, self._passphrase = key_bits, secrets.token_urlsafe(24)
        self._run = RunSettings.of(table)
        self.everybody = list(self._run.everybody)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._open = ExitStack()
        self._began = time.monotonic()
        self.wall = 0.0

    def run_folder(self, name: str) -> Path:
        return self.folder / name / "runs" / "demo"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        """End what still runs. A Ctrl-C at a terminal has reached the parties too: they end by themselves."""
        try:
            if error is KeyboardInterrupt:
                self._let_end()
            for process in self._processes.values():
                process.terminate()
            self._let_end()
        finally:
            for process in self._processes.values():
                process.kill()
                process.wait()
            self._open.close()
            self.wall = time.monotonic() - self._began

    def _let_end(self) -> None:
        """Give the parties time to say their last word."""
        deadline = time.monotonic() + LAST_WORD_SECONDS
        for process in self._processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))

    def prepare(self) -> None:
        """Keys, certificates handed over, data files and settings."""
        self._terminal.say(f"making keys for {', '.join(self.everybody)}")
        ports = dict(zip(self.everybody, _free_ports(len(self.everybody)), strict=True))
        holders = self._data.parties if len(self.everybody) == 2 else [HELPER]

        def make(name: str) -> None:
            kind = self._run.key_kind
            schemes = (kind,) if kind is not None and name in holders and protects(kind) else ()
            make_party_folder(
                self.folder / name,
                name,
                self._passphrase,
                key_holder=name == HELPER,
                schemes=schemes,
                key_bits=self._key_bits,
            )

        # Deriving keys from a passphrase takes a third of a second each, on one core.
        with ThreadPoolExecutor(cores()) as pool:
            list(pool.map(make, self.everybody))
        for name in self.everybody:
            for peer in self.everybody:
                if peer != name:
                    source = self.folder / peer / "certificate.pem"
                    copyfile(source, self.folder / name / "peers" / f"{peer}.pem")
            if name != HELPER:
                self._data.write(self.folder / name, name)
            write_atomically(self.folder / name / "party.toml", self._toml(name, ports).encode())

    def _toml(self, name: str, ports: dict[str, int]) -> str:
        engine = "serial" if len(self.everybody) >= cores() else max(1, cores() // len(self.everybody))
        tables: dict[str, dict[str, Any]] = {
            "party": {
                "name": name,
                "role": "key-holder" if name == HELPER else "data",
                "listen": f"127.0.0.1:{ports[name]}",
                "engine": engine,
                "wait": 120,
                "patience": 60,
            },
            "peers": {
                peer: {"address": f"127.0.0.1:{ports[peer]}", "certificate": f"peers/{peer}.pem"}
                for peer in self.everybody
                if peer != name
            },
            "run": self._table,
        }
        if name != HELPER:
            label = {"label": self._data.label} if name == self._data.label_party else {}
            tables["data"] = {"file": "train.csv", "id": "id", "transform": self._data.transform, **label}
        lines = [line for key, table in tables.items() for line in (f"[{key}]", *toml_lines(table, key))]
        return "\n".join(lines) + "\n"

    def train(self) -> None:
        self._terminal.say(
            f"starting {len(self.everybody)} processes on this machine, joined by mutual TLS 1.3"
        )
        for name in self.everybody:
            self._start(name, "party", "--events", str(self._events(name)))
        label_party = self._data.label_party
        display = Display(self._terminal, read_party_file(self.folder / label_party / "party.toml"))
        read, running = 0, True
        while running:
            running = self._running()
            for facts in self._news(read):
                read += 1
                event = facts.pop("event")
                if event == "aligned":
                    most = max(len(rows) for rows in self._data.train.values())
                    people = f"{facts['rows']} people in common; no party knows more than {most}"
                    self._terminal.say(f"private set intersection: {people}")
                elif event in ("training", "round"):
                    display.on_event(event, facts)
            time.sleep(POLL)
        display.close()

    def predict(self) -> None:
        self._terminal.say(f"predicting for {len(self._data.new)} new people")
        for name in self.everybody:
            rows = [] if name == HELPER else ["--rows", str(self.folder / name / "new.csv")]
            self._start(name, "predict", *rows, "--json", str(self.folder / name / "predict.json"))
        while self._running():
            time.sleep(POLL)

    # Processes

    def _events(self, name: str) -> Path:
        return self.folder / name / "events.jsonl"

    def _news(self, read: int) -> list[dict[str, Any]]:
        """Of the label party, past those that were read; a line that is still being written waits."""
        path = self._events(self._data.label_party)
        if not path.exists():
            return []
        whole = path.read_text(encoding="utf-8").split("\n")[:-1]
        return [json.loads(line) for line in whole[read:]]

    def _start(self, name: str, command: str, *more: str) -> None:
        log: IO[bytes] = self._open.enter_context((self.folder / name / f"{command}.log").open("wb"))
        settings = str(self.folder / name / "party.toml")
        words = [sys.executable, "-m", "securefed", command, settings, *more]
        # One thread of BLAS in each, so that the parties do not fight over the cores.
        environment = os.environ | {VARIABLE: self._passphrase, "OMP_NUM_THREADS": "1"}
        environment["OPENBLAS_NUM_THREADS"] = "1"
        self._processes[name] = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
        )

    def _running(self) -> bool:
        """Whether any process runs; the first that failed ends the demonstration."""
        for name, process in self._processes.items():
            if process.poll() not in (None, 0):
                word = self._last_word(name)
                # Whoever was left says who left, and that one says why.
                left = re.search(r"(\S+) left the run", word)
                if left is not None and left[1] in self._processes:
                    name = left[1]
                    with suppress(subprocess.TimeoutExpired):
                        self._processes[name].wait(LAST_WORD_SECONDS)
                    word = self._last_word(name)
                raise DemoFailed(f"{name} failed: {word}")
        return any(process.poll() is None for process in self._processes.values())

    def _last_word(self, name: str) -> str:
        words = self._processes[name].args
        command = words[3] if isinstance(words, list) else "party"
        lines = (self.folder / name / f"{command}.log").read_text(errors="replace").splitlines()
        return lines[-1] if lines else "without a word"


def _free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago."""
    with ExitStack() as sockets_open:
        sockets = [sockets_open.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
