"""Parties as real processes on loopback, for tests: folders with keys, data files, settings, processes."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.fleet import run_table
from bench.ports import free_ports
from securefed.cli.init import make_party_folder
from securefed.crypto import key_kind
from securefed.settings.describe import toml_lines

ROOT = Path(__file__).parents[2]
PASSPHRASE = "open sesame 1234"
NOTARY = "notary"
PATIENT = 600.0
"""Seconds that a test waits for processes on a busy machine before it calls them stuck."""


MORTAL = """
import importlib, json, os, signal, sys
from pathlib import Path

from securefed.cli import main

deaths, mark = json.loads(sys.argv[1]), Path(sys.argv[2])
died = int(mark.read_text()) if mark.exists() else 0
if died < len(deaths):
    (place, when), calls = deaths[died], []
    module, _, words = place.partition(":")
    owner = importlib.import_module(module)
    *path, last = words.split(".")
    for word in path:
        owner = getattr(owner, word)
    plain = getattr(owner, last)

    def dying(*arguments, **named):
        calls.append(1)
        if len(calls) == when:
            mark.write_text(str(died + 1))
            os.kill(os.getpid(), signal.SIGKILL)
        return plain(*arguments, **named)

    setattr(owner, last, dying)
sys.exit(main(sys.argv[3:]))
"""


class People:
    """Numbers about people, some of whom each party lacks."""

    def __init__(self, columns: Mapping[str, int], rows: int = 60, seed: int = 0, absent: int = 4) -> None:
        rng = np.random.default_rng(seed)
        self.columns = dict(columns)
        width = sum(columns.values())
        self.table = rng.normal(size=(rows, width)).round(3)
        weights = rng.normal(size=width)
        self.labels = (self.table @ weights + 0.5 * rng.normal(size=rows) > 0).astype(int)
        self.ids = [f"p{number:04d}" for number in rng.permutation(rows)]
        self.known = {name: np.sort(rng.permutation(rows)[: rows - absent]) for name in columns}

    @property
    def label_party(self) -> str:
        return list(self.columns)[-1]

    @property
    def common(self) -> set[str]:
        rows = set.intersection(*(set(known.tolist()) for known in self.known.values()))
        return {self.ids[row] for row in rows}

    def part(self, name: str) -> NDArray[np.float64]:
        start = 0
        for party, width in self.columns.items():
            if party == name:
                return self.table[:, start : start + width]
            start += width
        raise KeyError(name)

    def write(self, path: Path, name: str, *, labels: bool, words: bool = False) -> None:
        part, rows = self.part(name), self.known[name]
        with path.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            head = ["id", *(f"{name}{place}" for place in range(part.shape[1]))]
            writer.writerow([*head, *(["colour"] if words else []), *(["label"] if labels else [])])
            for row in rows.tolist():
                fields: list[object] = [self.ids[row], *part[row].tolist()]
                fields += [["red", "green", "blue"][row % 3]] if words else []
                writer.writerow([*fields, self.labels[row]] if labels else fields)


class Fleet:
    """All parties of one run."""

    def __init__(self, folder: Path, keys: Path, people: People, run: Mapping[str, Any]) -> None:
        self.folder, self.people = folder, people
        self.parties = list(people.columns)
        self.mutual = len(self.parties) == 2
        self.everybody = [*self.parties, *([] if self.mutual else [NOTARY])]
        self.ports = dict(zip(self.everybody, free_ports(len(self.everybody)), strict=True))
        self.hosts = dict.fromkeys(self.everybody, "127.0.0.1")
        self.ways: dict[tuple[str, str], str] = {}
        """Where a party reaches a peer, if not at the peer's own address."""
        self.within: dict[str, list[str]] = {}
        """What a party's command is started with, if not by itself."""
        self.run = dict(run)
        self.processes: dict[str, subprocess.Popen[str]] = {}
        for place, name in enumerate(self.everybody):
            self._folder(keys, place, name)
        for name in self.everybody:
            for peer in self.everybody:
                if peer != name:
                    source = folder / peer / "certificate.pem"
                    shutil.copy(source, folder / name / "peers" / f"{peer}.pem")
            if name != NOTARY:
                people.write(folder / name / "data.csv", name, labels=name == people.label_party)
            self.settings(name)

    def _folder(self, keys: Path, place: int, name: str) -> None:
        """A party's folder; keys that take long to make are taken from the session's."""
        made = keys / f"party-{name}"
        if not made.exists():
            make_party_folder(made, name, PASSPHRASE, key_holder=name == NOTARY, schemes=())
        shutil.copytree(made, self.folder / name)
        scheme = key_kind(self.run.get("scheme", "ckks"), self.run.get("reveal", "nothing"))
        if scheme not in (None, "plain") and (self.mutual or name == NOTARY):
            shutil.copy(he_key(keys, scheme, place if self.mutual else 0), self.folder / name)
            (self.folder / name / f"{scheme}-{place if self.mutual else 0}.skf").rename(
                self.folder / name / f"he-{scheme}.skf"
            )

    def settings(self, name: str, own: Mapping[str, Any] | None = None, **run: Any) -> Path:
        """Write party.toml; `run` changes the shared settings at this party alone."""
        mine = {"wait": 300, "patience": 120, "engine": "serial", "start_seed": 7, **(own or {})}
        role = "key-holder" if name == NOTARY else "data"
        address = self.address(name)
        lines = ["[party]", f'name = "{name}"', f'role = "{role}"', f'listen = "{address}"']
        if "score_ledger" not in mine:  # few columns, scored in training and then by the finished model
            lines += ['score_ledger = "off"']
        lines += [f"{key} = {json.dumps(value)}" for key, value in mine.items()]
        if name != NOTARY:
            lines += ["[data]", 'file = "data.csv"', 'id = "id"']
            lines += ['label = "label"'] if name == self.people.label_party else []
        for peer in self.everybody:
            if peer != name:
                way = self.ways.get((name, peer), self.address(peer))
                lines += [f"[peers.{peer}]", f'address = "{way}"']
                lines += [f'certificate = "peers/{peer}.pem"']
        shared: dict[str, Any] = {"name": "trial", "parties": self.parties}
        if not self.mutual:
            shared["key_holder"] = NOTARY
        lines += ["[run]"]
        lines += toml_lines(run_table({**shared, **self.run, **run}), "run")
        path = self.folder / name / "party.toml"
        path.write_text("\n".join(lines) + "\n")
        return path

    def address(self, name: str) -> str:
        return f"{self.hosts[name]}:{self.ports[name]}"

    # Processes

    def start(self, name: str, command: str = "party", *more: str) -> subprocess.Popen[str]:
        events = ["--events", str(self.events_file(name))] if command == "party" else []
        words = [*self.within.get(name, [sys.executable, "-m", "securefed"]), command]
        words.append(str(self.folder / name / "party.toml"))
        environment = os.environ | {
            "SECUREFED_PASSPHRASE": PASSPHRASE,
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        log = (self.folder / f"{name}.log").open("a")
        self.processes[name] = subprocess.Popen(
            [*words, *events, *more],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            text=True,
        )
        log.close()
        return self.processes[name]

    def start_all(self, command: str = "party", *more: str) -> None:
        for name in self.everybody:
            self.start(name, command, *more)

    def finish(self) -> dict[str, int]:
        """Exit codes, once all have ended."""
        deadline = time.monotonic() + PATIENT
        codes = {}
        for name, process in self.processes.items():
            try:
                codes[name] = process.wait(max(1.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise AssertionError(f"{name} is stuck:\n{self.log(name)}") from None
        return codes

    def all_good(self) -> None:
        codes = self.finish()
        assert set(codes.values()) == {0}, "\n".join(f"{name}:\n{self.log(name)}" for name in codes)

    def kill(self, name: str) -> None:
        self.processes[name].send_signal(signal.SIGKILL)
        self.processes[name].wait()

    def mortal(self, name: str, *deaths: tuple[str, int]) -> None:
        """Let a party be killed when it calls a function ("module:name") for the n-th time, once for each of
        `deaths`, in their order, one in each process.
        """
        script = self.folder / "mortal.py"
        script.write_text(MORTAL)
        words = json.dumps(deaths)
        mark = str(self.folder / f"{name}.deaths")
        self.within[name] = [sys.executable, str(script), words, mark]

    def deaths(self, name: str) -> int:
        mark = self.folder / f"{name}.deaths"
        return int(mark.read_text()) if mark.exists() else 0

    def revive(self) -> None:
        """Start whoever was killed again, until all have ended well."""
        deadline = time.monotonic() + PATIENT
        while any(process.poll() in (None, -signal.SIGKILL) for process in self.processes.values()):
            for name, process in list(self.processes.items()):
                if process.poll() == -signal.SIGKILL:
                    self.start(name, "party", "--resume")
            assert time.monotonic() < deadline, {name: self.log(name) for name in self.processes}
            time.sleep(0.02)
        self.all_good()

    def end(self) -> None:
        """Nothing outlives a test."""
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()

    def log(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text() if path.exists() else ""

    def events_file(self, name: str) -> Path:
        return self.folder / f"{name}.events"

    def events(self, name: str) -> list[dict[str, Any]]:
        path = self.events_file(name)
        return [json.loads(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []

    def until(self, name: str, condition: Callable[[list[dict[str, Any]]], bool]) -> None:
        """Wait until the party's events fulfil a condition."""
        deadline = time.monotonic() + PATIENT
        while not condition(self.events(name)):
            if self.processes[name].poll() is not None:
                raise AssertionError(f"{name} has ended:\n{self.log(name)}")
            if time.monotonic() > deadline:
                raise AssertionError(f"{name} does not get there:\n{self.log(name)}")
            time.sleep(0.02)

    # What they leave

    def run_folder(self, name: str) -> Path:
        return self.folder / name / "runs" / "trial"

    def result(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.run_folder(name) / "result.json").read_text())
        return found

    def shard(self, name: str) -> dict[str, NDArray[Any]]:
        with np.load(self.run_folder(name) / f"shard-{name}.npz", allow_pickle=False) as arrays:
            return {key: arrays[key] for key in arrays.files if key != "public"}


def he_key(folder: Path, scheme: str, place: int) -> Path:
    """A key of the session, made when first asked for."""
    from securefed.crypto import generate, save_key

    path = folder / f"{scheme}-{place}.skf"
    if not path.exists():
        save_key(path, generate(scheme, key_bits=2048), PASSPHRASE)
    return path


def reached(round_: int) -> Callable[[list[dict[str, Any]]], bool]:
    """That round is over."""
    return lambda events: any(e["event"] == "round" and e["round"] >= round_ for e in events)
