"""Real parties for a measurement: folders by `securefed init`, one `securefed party` process each."""

from __future__ import annotations

import csv
import json
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from bench.memory import peak_rss_mib
from bench.ports import free_ports
from securefed.declare import declared
from securefed.settings.describe import toml_lines
from securefed.settings.objectives import OBJECTIVE_SETTINGS
from securefed.settings.protection import DEFAULTS, Blind, Plain, protection_from_words

ROOT = Path(__file__).parent.parent
HOLDER = "notary"
Event = dict[str, Any]
POLLED_EVERY = 0.25


class Source(Protocol):
    """What a party's file is made of."""

    @property
    def id(self) -> str | None: ...

    @property
    def label(self) -> str | None: ...

    @property
    def file(self) -> str: ...

    def write(self, path: Path) -> None: ...


@dataclass(frozen=True)
class Table:
    """A party's file."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    id: str | None = None
    label: str | None = None
    file: str = "data.csv"

    def write(self, path: Path) -> None:
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([self.columns, *self.rows])


def train(
    folder: Path, tables: Mapping[str, Source], run: Mapping[str, Any], key_bits: int
) -> dict[str, list[Event]]:
    """One run of these parties, the label party last; everybody's events, and the peak of its memory as one
    more.
    """
    parties = list(tables)
    everybody = [*parties, *([HOLDER] if len(parties) > 2 else [])]
    environment = os.environ | {
        "SECUREFED_PASSPHRASE": secrets.token_urlsafe(24),
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "securefed"]
    # Blind runs make their encryption keys themselves.
    keys = ["--scheme", run["scheme"], "--key-bits", str(key_bits)] if opens_gradients(run) else []
    for name in everybody:
        words = ["init", name, "--folder", str(folder / name), *keys]
        subprocess.run([*command, *words, "-q"], cwd=ROOT, env=environment, check=True, capture_output=True)
    ports = dict(zip(everybody, free_ports(len(everybody)), strict=True))
    shared = {"name": "bench", "parties": parties, **run}
    if len(parties) > 2:
        shared["key_holder"] = HOLDER
    for name in everybody:
        for peer in everybody:
            if peer != name:
                shutil.copy(folder / peer / "certificate.pem", folder / name / "peers" / f"{peer}.pem")
        if name in tables:
            tables[name].write(folder / name / tables[name].file)
        (folder / name / "party.toml").write_text(_toml(name, tables.get(name), ports, shared))
    started = [
        subprocess.Popen(
            [
                *command,
                "party",
                str(folder / name / "party.toml"),
                "--events",
                str(folder / f"{name}.events"),
            ],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in everybody
    ]
    peaks: dict[str, float] = {}
    try:
        for name, process in zip(everybody, started, strict=True):
            while process.poll() is None:
                for other, each in zip(everybody, started, strict=True):
                    peaks[other] = max(peaks.get(other, 0.0), peak_rss_mib(each.pid))
                try:
                    process.wait(POLLED_EVERY)
                except subprocess.TimeoutExpired:
                    continue
            _, errors = process.communicate()
            if process.returncode:
                raise OSError(f"{name} failed: {errors.strip().splitlines()[-1:] or process.returncode}")
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
                process.communicate()
    return {
        name: [
            *(json.loads(line) for line in (folder / f"{name}.events").read_text().splitlines()),
            {"event": "memory", "peak_mib": round(peaks.get(name, 0.0), 1)},
        ]
        for name in everybody
    }


def run_table(table: Mapping[str, Any]) -> dict[str, Any]:
    """The table [run] of party.toml: flat names of a protection become its table.

    Its kind follows from `scheme` and `reveal`. In the clear a run trains what `reveal` says.
    """
    names = {*DEFAULTS, "reveal"} - declared(OBJECTIVE_SETTINGS[table.get("objective", "linear")]).keys()
    options = {key: value for key, value in table.items() if key in names}
    run = {key: value for key, value in table.items() if key not in names}
    if not options:
        return run
    protection = protection_from_words(options, Blind())
    reveal, options["scheme"] = options.pop("reveal", "nothing"), protection.scheme
    if isinstance(protection, Plain):
        options["like"] = "blind" if reveal == "nothing" else reveal
    return {**run, "protection": {"kind": protection.kind, **options}}


def opens_gradients(run: Mapping[str, Any]) -> bool:
    """Whether a run takes encryption keys that its parties keep."""
    return bool(run.get("reveal", "nothing") == "own-gradient" and run["scheme"] != "plain")


def _toml(name: str, table: Source | None, ports: Mapping[str, int], shared: Mapping[str, Any]) -> str:
    own = {
        "name": name,
        "role": "data" if table is not None else "key-holder",
        "listen": f"127.0.0.1:{ports[name]}",
        "engine": "serial",
    }
    lines = ["[party]", *_pairs(own)]
    if table is not None:
        given = {"file": table.file, "id": table.id, "label": table.label}
        lines += ["[data]", *_pairs({key: value for key, value in given.items() if value is not None})]
    for peer, port in ports.items():
        if peer != name:
            lines += [f"[peers.{peer}]"]
            lines += _pairs({"address": f"127.0.0.1:{port}", "certificate": f"peers/{peer}.pem"})
    return "\n".join([*lines, "[run]", *toml_lines(run_table(shared), "run")]) + "\n"


def _pairs(table: Mapping[str, Any]) -> list[str]:
    return [f"{key} = {json.dumps(value)}" for key, value in table.items()]
