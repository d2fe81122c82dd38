"""The demonstration's parties: their data, their folders and their processes.

569 patients (scikit-learn's bundled Wisconsin data): a clinic has the diagnosis and four measurements that
say little alone, one or more laboratories have the rest. Every party has some people that another one lacks,
so that there is something to align.
"""

from __future__ import annotations

import csv
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from shutil import copyfile
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from securefed.cli.init import make_party_folder
from securefed.cli.terminal import VARIABLE, Terminal
from securefed.crypto import protects
from securefed.engine.processes import cores
from securefed.errors import SecurefedError, SettingError
from securefed.files import Closing, write_atomically
from securefed.settings.describe import toml_lines
from securefed.settings.run import RunSettings

TITLE = "breast cancer (Wisconsin, 569 patients)"
LABEL_PARTY = "clinic"
ABSENT = 0.06
"""Part of the people that each party does not know."""
CLINIC = (1, 4, 8, 9)
"""Mean texture, smoothness, symmetry and fractal dimension. Measures of size say most; without
them the clinic alone gains visibly from the other party."""
HELPER = "notary"
"""The party without data."""
POLL = 0.05
LAST_WORD_SECONDS = 20


@dataclass(frozen=True, eq=False)
class DemoData:
    """Who has what. `columns` of each party, the label party last."""

    ids: list[str]
    table: NDArray[np.float64]
    names: Sequence[str]
    columns: Mapping[str, list[int]]
    labels: NDArray[np.int64]
    train: Mapping[str, NDArray[np.intp]]
    """Row numbers that each party has for the training."""
    new: NDArray[np.intp]

    def write(self, folder: Path, party: str) -> None:
        """Write the party's two files: training rows and new rows, both with labels where it has them."""
        columns, known = self.columns[party], party == LABEL_PARTY
        for name, rows in (("train.csv", self.train[party]), ("new.csv", self.new)):
            with (folder / name).open("w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file, lineterminator="\n")
                writer.writerow(["id", *(self.names[c] for c in columns), *["label"] * known])
                for row in rows.tolist():
                    numbers = [repr(float(self.table[row, c])) for c in columns]
                    writer.writerow([self.ids[row], *numbers, *[int(self.labels[row])] * known])

    def baselines(self, objective: str) -> tuple[float, float | None]:
        """Return the AUC on new people of two models without protection: all data, the label party alone."""
        common = sorted(set.intersection(*(set(rows.tolist()) for rows in self.train.values())))
        if objective == "transfer":
            # New people are known to the other party alone; nothing of the label party's columns helps.
            return self._fit(common, next(iter(self.columns.values()))), None
        everything = [column for columns in self.columns.values() for column in columns]
        own = self.train[LABEL_PARTY].tolist()
        return self._fit(common, everything), self._fit(own, self.columns[LABEL_PARTY])

    def _fit(self, rows: list[int], columns: list[int]) -> float:
        model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
        model.fit(self.table[rows][:, columns], self.labels[rows])
        scores = model.decision_function(self.table[self.new][:, columns])
        return float(roc_auc_score(self.labels[self.new], scores))


def demo_data(parties: int, seed: int) -> DemoData:
    bunch = load_breast_cancer()
    labels = bunch.target.astype(np.int64)
    rest = [column for column in range(bunch.data.shape[1]) if column not in CLINIC]
    if parties - 1 > len(rest):
        raise SettingError(f"parties: {parties} given, the data have columns for at most {len(rest) + 1}")
    groups = np.array_split(np.array(rest), parties - 1)
    others = ["lab"] if parties == 2 else [f"lab-{place + 1}" for place in range(parties - 1)]
    columns = {name: group.tolist() for name, group in zip(others, groups, strict=True)}
    columns[LABEL_PARTY] = list(CLINIC)
    rng = np.random.default_rng(seed)
    known, new = train_test_split(np.arange(len(labels)), test_size=0.3, stratify=labels, random_state=seed)
    train = {
        party: rng.permutation(known)[: round(len(known) * (1 - ABSENT))].astype(np.intp) for party in columns
    }
    ids = [f"P{number:05d}" for number in rng.permutation(100_000)[: len(labels)]]
    names = [word.replace(" ", "_") for word in bunch.feature_names]
    return DemoData(ids, bunch.data, names, columns, labels, train, new.astype(np.intp))


class DemoFailed(SecurefedError):
    """A party of the demonstration failed; the message is its own last word."""


class DemoRun(Closing):
    """All parties of one demonstration. Use it in a with statement: no process outlives it."""

    def __init__(
        self, folder: Path, data: DemoData, table: dict[str, Any], terminal: Terminal, options: Sequence[str]
    ) -> None:
        """`table`: [run]. `options`: output options of the label party."""
        self.folder, self.data, self._table, self._terminal = folder, data, table, terminal
        self._options, self._passphrase = options, secrets.token_urlsafe(24)
        self._run = RunSettings.of(table)
        self.everybody = list(self._run.everybody)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._began = time.monotonic()
        self.wall = 0.0

    def run_folder(self, name: str) -> Path:
        return self.folder / name / "runs" / "demo"

    def close(self) -> None:
        for process in self._processes.values():
            process.terminate()
        try:
            self._let_end()
        finally:
            for process in self._processes.values():
                process.kill()
                process.wait()
            self.wall = time.monotonic() - self._began

    def _let_end(self) -> None:
        """Give the parties time to say their last word."""
        deadline = time.monotonic() + LAST_WORD_SECONDS
        for process in self._processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))

    def prepare(self) -> None:
        """Make keys, data files and settings, and hand over certificates."""
        self._terminal.say(f"making keys for {', '.join(self.everybody)}")
        kind = self._run.key_kind
        kinds = (kind,) if kind is not None and protects(kind) else ()

        def make(name: str) -> None:
            helper, folder = name == HELPER, self.folder / name
            schemes = kinds if helper or len(self.everybody) == 2 else ()
            make_party_folder(folder, name, self._passphrase, key_holder=helper, schemes=schemes)

        # Deriving keys from a passphrase takes a third of a second each, on one core.
        with ThreadPoolExecutor(cores()) as pool:
            list(pool.map(make, self.everybody))
        addresses = dict(zip(self.everybody, _free_addresses(len(self.everybody)), strict=True))
        engine = "serial" if len(self.everybody) >= cores() else max(1, cores() // len(self.everybody))
        for name in self.everybody:
            peers = [peer for peer in self.everybody if peer != name]
            for peer in peers:
                own = self.folder / peer / "certificate.pem"
                copyfile(own, self.folder / name / "peers" / f"{peer}.pem")
            tables: dict[str, dict[str, Any]] = {
                "party": {"name": name, "listen": addresses[name], "engine": engine, "patience": 60},
                "peers": {
                    peer: {"address": addresses[peer], "certificate": f"peers/{peer}.pem"} for peer in peers
                },
                "run": self._table,
            }
            if name == HELPER:
                tables["party"]["role"] = "key-holder"
            else:
                self.data.write(self.folder / name, name)
                label = {"label": "label"} if name == LABEL_PARTY else {}
                tables["data"] = {"file": "train.csv", "id": "id", **label}
            lines = [line for key, table in tables.items() for line in (f"[{key}]", *toml_lines(table, key))]
            write_atomically(self.folder / name / "party.toml", ("\n".join(lines) + "\n").encode())

    def together(self, command: str) -> None:
        """Run a command at all parties; what the label party says is said here."""
        for name in self.everybody:
            self._start(name, command)
        processes = self._processes.values()
        while any(process.poll() is None for process in processes):
            if any(process.poll() for process in processes):
                self._let_end()
                break
            time.sleep(POLL)
        failed = {
            name: self._last_word(name, command) for name, each in self._processes.items() if each.poll()
        }
        # Whoever was left says who left, and that one says why.
        for name, word in sorted(failed.items(), key=lambda item: " left the run" in item[1]):
            raise DemoFailed(f"{name} failed: {word}")

    def _start(self, name: str, command: str) -> None:
        folder = self.folder / name
        words = [sys.executable, "-m", "securefed", command, str(folder / "party.toml")]
        words += ["--json", str(folder / f"{command}.json")]
        if command == "predict" and name != HELPER:
            words += ["--rows", str(folder / "new.csv")]
        # One thread of BLAS in each, so that the parties do not fight over the cores.
        environment = os.environ | dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        environment[VARIABLE] = self._passphrase
        with (folder / f"{command}.log").open("wb") as log:
            here = name == LABEL_PARTY and command == "party"
            words += self._options if here else []
            # A group of its own: a Ctrl-C at the terminal reaches this process alone, which ends the others.
            self._processes[name] = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=None if here else log,
                env=environment,
                process_group=0,
            )

    def _last_word(self, name: str, command: str) -> str:
        lines = (self.folder / name / f"{command}.log").read_text(errors="replace").splitlines()
        return lines[-1] if lines else "its last line is above"


def _free_addresses(count: int) -> list[str]:
    """Return addresses of this machine that were free a moment ago."""
    with ExitStack() as sockets_open:
        sockets = [sockets_open.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
