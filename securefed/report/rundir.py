"""A run's directory at one party: what it keeps, and nothing of anybody else's.

    result.json               settings, result, bytes, what this party saw
    timing.json               computation and communication, round by round and by activity
    report.html               both, with plots, for people
    transcript-<party>.jsonl  everything this party sent, received and opened (securefed.transport.transcript)
    signatures-<party>.json   the party's signature of that, and countersignatures (securefed.audit.verify)
    alignment-<party>.jsonl   the same for the set intersection before the training
    prediction-<party>.jsonl  the same for the last prediction; prediction-signatures-<party>.json signs it
    shard-<party>.npz         this party's part of the model
    preparation-<party>.npz   how its columns were encoded and scaled
    openings-<party>.log      what this party's key has opened in this run (securefed.crypto.memory)
    checkpoints/              to go on after an interruption; encrypted
    .lock-<party>             held by the one process that works on this party's files

A directory may hold several parties' files where they share a machine, as in a demonstration.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from securefed.files import make_folder, read_json, write_atomically, write_json


class RunDirectory:
    """The paths of one party's files in one run."""

    def __init__(self, folder: str | os.PathLike[str], party: str) -> None:
        self.folder = Path(folder)
        self.party = party
        self.result = self.folder / "result.json"
        self.timing = self.folder / "timing.json"
        self.report = self.folder / "report.html"
        self.transcript = self.folder / f"transcript-{party}.jsonl"
        self.signatures = self.folder / f"signatures-{party}.json"
        self.alignment = self.folder / f"alignment-{party}.jsonl"
        self.prediction = self.folder / f"prediction-{party}.jsonl"
        self.prediction_signatures = self.folder / f"prediction-signatures-{party}.json"
        self.shard = self.folder / f"shard-{party}.npz"
        self.preparation = self.folder / f"preparation-{party}.npz"
        self.checkpoints = self.folder / "checkpoints"
        self.openings = self.folder / f"openings-{party}.log"
        self.lock = self.folder / f".lock-{party}"

    def make(self) -> None:
        make_folder(self.folder, private=True)

    @property
    def finished(self) -> bool:
        """Whether a whole run lies here."""
        return self.result.exists()

    def write(self, result: dict[str, Any], timing: dict[str, Any], report: str) -> None:
        """The report first: whoever finds result.json finds the rest."""
        self.make()
        write_json(self.timing, timing)
        write_atomically(self.report, report.encode(), mode=0o644)
        write_json(self.result, result)

    def read(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The result and the timing of a finished run."""
        return read_json(self.result, "run's result"), read_json(self.timing, "run's timing")

    def __repr__(self) -> str:
        return f"<run directory {self.folder} of {self.party}>"
