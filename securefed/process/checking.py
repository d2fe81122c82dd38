"""Everything that can be known about a party before it meets anybody, in one list: all problems at once.

Nothing leaves the machine, nothing is written that stays, and no peer is called. What only a meeting can show
(do the others run the same settings, do they know this certificate) is not here.
"""

from __future__ import annotations

import os
import resource
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from securefed.data.columns import decided
from securefed.data.ids import id_shape, normalise_ids
from securefed.data.rows import read_rows
from securefed.engine import get_engine
from securefed.errors import DataError, SecurefedError
from securefed.files import RunDirectory, check_writable
from securefed.labels.label_model import LabelModel
from securefed.plan.planner import machine_memory
from securefed.process.checkpoints import CheckpointStore
from securefed.process.keys import PartyKeys, load_keys
from securefed.process.model_files import read_shard
from securefed.process.own_data import check_labels, prepare_columns, row_numbers
from securefed.process.scoring import read_new_rows
from securefed.settings.party import PartyFile, read_what_is_right
from securefed.transport.identity import NOT_LISTENING, Certificate, check_validity, parse_address

GOOD, NOTE, PROBLEM = "good", "note", "problem"
LEAST_FREE = 200 << 20
"""Bytes on the disk of the run: checkpoints and transcripts of the largest runs in docs/performance.md."""
BASE_MEMORY = 600 << 20
"""Interpreter, libraries, keys, and blocks of ciphertexts under way."""
TABLE_COPIES = 6
"""How often the numbers of the own table are in memory at the peak: read, scaled, aligned, in blocks."""
LEAST_FILES = 256
LEAST_FILE_BYTES = 64 << 20

T = TypeVar("T")


@dataclass(frozen=True)
class Check:
    """One thing that was looked at: what it is about, how it is, and in words."""

    about: str
    verdict: str
    text: str


class _List:
    """Findings as they come; a block that raises what users get wrong is a problem and not the end."""

    def __init__(self) -> None:
        self.checks: list[Check] = []

    def add(self, about: str, verdict: str, text: object) -> None:
        self.checks.append(Check(about, verdict, " ".join(str(text).split())))

    def good(self, about: str, text: str) -> None:
        self.add(about, GOOD, text)

    def problem(self, about: str, text: object) -> None:
        self.add(about, PROBLEM, text)

    @contextmanager
    def of(self, about: str) -> Iterator[None]:
        try:
            yield
        except DataError as error:
            for text in error.problems:
                self.problem(about, text)
        except SecurefedError as error:
            self.problem(about, error)
        except OSError as error:
            self.problem(about, error.strerror or error)

    def tried(self, about: str, work: Callable[[], T]) -> T | None:
        result: T | None = None
        with self.of(about):
            result = work()
        return result


def check_party(
    path: Path,
    passphrase: Callable[[], str],
    *,
    rows: Path | None = None,
    out: Path | None = None,
    now: datetime | None = None,
) -> list[Check]:
    """Look at everything. `rows` and `out` are those of a prediction that is planned."""
    findings, moment = _List(), now or datetime.now(UTC)
    party, problems = read_what_is_right(path)
    for problem in problems:
        findings.problem("settings", problem)
    if party is None:
        return findings.checks
    if not problems:
        findings.good("settings", f"{path}: {party.own.name} of {', '.join(party.shared.everybody)}")
    if not party.is_key_holder:
        _check_data(findings, party)
    keys = findings.tried("keys", lambda: load_keys(party, passphrase()))
    if keys is not None:
        kind = party.shared.key_kind if keys.holder is not None else None
        which = "TLS and checkpoint" if kind is None else f"TLS, checkpoint and {kind}"
        findings.good("keys", f"{which} keys in {party.keys_folder} open, and only their owner can read them")
        if party.shared.key_kind is None:
            findings.good("encryption", f"{party.shared.scheme}: the run makes its encryption keys itself")
        _check_run(findings, party, keys)
    _check_certificates(findings, party, keys, moment)
    _check_network(findings, party)
    _check_machine(findings, party)
    if rows is not None:
        _check_rows(findings, party, rows)
        out = out or (party.run_folder / "scores.csv" if party.is_label_party else None)
    if out is not None:
        with findings.of("out"):
            check_writable("out", out)
            findings.good("out", f"{out} can be written")
    return findings.checks


def _check_data(findings: _List, party: PartyFile) -> None:
    settings = party.data
    if settings is None:
        return
    file = party.folder / settings.file
    rows = findings.tried("data", lambda: read_rows(file, settings.policy))
    if rows is None:
        return
    findings.good("data", f"{file}: {rows.count:,} rows")
    name = settings.id
    with findings.of("ids"):
        if name is not None:
            ids = normalise_ids(rows.ids(name), party.own.name, party.shared.id_form)
            findings.good("ids", f"{name}: {len(ids):,}, each once; {id_shape(ids)}, such as {ids[0]!r}")
    with findings.of("label"):
        if settings.label is not None:
            labels = rows.column(settings.label, "label")
            targets, side = check_labels(labels, party.own.name, party.shared, settings.wishes)
            findings.good("label", f"{settings.label}: {_told(targets, side)}")
    with findings.of("data"):
        row_numbers(rows, settings.weight, "weight", least=0.0)
        row_numbers(rows, settings.offset, "offset")
    with findings.of("columns"):
        preparation, features = prepare_columns(rows, settings)
        findings.good("columns", f"{preparation.count} numbers a row from {len(preparation.given)} columns")
        _check_memory(findings, features.nbytes)
        for text in decided(preparation, rows):
            findings.add("columns", NOTE, text)


def _check_memory(findings: _List, table: int) -> None:
    """Compare what a run takes beside the peers' columns, which nobody knows yet, with what there is."""
    due, there = BASE_MEMORY + TABLE_COPIES * table, machine_memory()
    text = f"a run on this table takes about {due >> 20:,} MiB, this process may use {there >> 20:,} MiB"
    hint = "; use fewer rows or columns, or a larger machine"
    findings.add("memory", PROBLEM if due > there else GOOD, text + (hint if due > there else ""))


def _told(targets: Any, side: LabelModel) -> str:
    """Labels in words."""
    if side.classes is None:
        return f"numbers from {np.nanmin(targets) * side.scale + side.mean:g} to " + (
            f"{np.nanmax(targets) * side.scale + side.mean:g}, mean {side.mean:g}"
        )
    if targets.ndim > 1:
        counts = zip((targets > 0).sum(axis=0), side.classes.tolist(), strict=True)
        return f"{side.outputs} classes, " + ", ".join(f"{count:,} times {each}" for count, each in counts)
    pairs = zip((-1, 1), side.classes.tolist(), strict=True)
    return "two classes, " + " and ".join(f"{(targets == sign).sum():,} times {each}" for sign, each in pairs)


def _check_run(findings: _List, party: PartyFile, keys: PartyKeys) -> None:
    directory = RunDirectory(party.run_folder, party.own.name)
    store = CheckpointStore(
        directory.checkpoints, keys.checkpoint_key, party=party.own.name, run=party.shared.name
    )
    with findings.of("run"):
        if store.aligned:
            store.read_alignment()
            rounds = store.rounds()
            if rounds:
                store.read(rounds[-1])
            last = max(rounds, default=0)
            findings.add(
                "run", NOTE, f"{directory.folder}: unfinished, round {last} is kept; --resume goes on"
            )
        elif directory.finished:
            findings.add("run", NOTE, f"{directory.folder}: a finished run; another name, or --restart")
        else:
            findings.good("run", f"{directory.folder}: nothing there yet")


def _check_certificates(findings: _List, party: PartyFile, keys: PartyKeys | None, now: datetime) -> None:
    own = None if keys is None else keys.identity.certificate
    for each in check_validity(party.own.name, own, party.peers, now):
        about = "clock" if each.verdict == "yet" else f"certificate of {each.holder}"
        findings.add(about, NOTE if each.verdict == "soon" else PROBLEM, each.text)
    holders: dict[Certificate, list[str]] = {}
    for name, peer in party.peers.items():
        for pin in peer.pins:
            holders.setdefault(pin, []).append(name)
    if own is not None:
        holders.setdefault(own, []).append(party.own.name)
    for sharing in holders.values():
        if len(sharing) > 1:
            findings.problem(
                "certificates",
                f"{' and '.join(sharing)} have the same one; ask each of them for its own certificate.pem",
            )
    if holders and all(len(sharing) == 1 for sharing in holders.values()):
        first = min(certificate.ends for certificate in holders)
        findings.good("certificates", f"{len(holders)} known, the first to end on {first:%Y-%m-%d}")
    written = datetime.fromtimestamp(party.path.stat().st_mtime, UTC)
    if (written - now).total_seconds() > 86400:
        findings.problem(
            "clock", f"it says {now:%Y-%m-%d %H:%M} UTC, and {party.path.name} was written later"
        )
    else:
        findings.good("clock", f"{now:%Y-%m-%d %H:%M} UTC")


def _check_network(findings: _List, party: PartyFile) -> None:
    listen = party.own.listen
    if listen == NOT_LISTENING:
        findings.good("port", "none: this party opens all connections itself")
    else:
        host, port = parse_address(listen)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            with socket.create_server((host, port), family=family):
                findings.good("port", f"{listen} is free")
        except OSError as error:
            findings.problem("port", f"listen: {listen} cannot be used: {error.strerror or error}")
    for name, peer in party.peers.items():
        if not peer.listens:
            findings.good(f"address of {name}", f"none: {name} connects to this party")
            continue
        host, port = parse_address(peer.address)
        try:
            socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            findings.problem(f"address of {name}", f"{host}: {error.strerror or error}")


def _check_machine(findings: _List, party: PartyFile) -> None:
    with findings.of("engine"):
        get_engine(party.own.engine, party.shared.scheme)
        findings.good("engine", f"{party.own.engine or 'as many processes as there are cores'}")
    folder = party.run_folder
    while not folder.exists():
        folder = folder.parent
    with findings.of("disk"):
        check_writable("folder", folder / "trial")
        free = shutil.disk_usage(folder).free
        needed = f", {LEAST_FREE >> 20} MiB are needed" if free < LEAST_FREE else ""
        findings.add("disk", PROBLEM if needed else GOOD, f"{free >> 20:,} MiB free at {folder}{needed}")
    for name, number, least in (
        ("open files (ulimit -n)", resource.RLIMIT_NOFILE, LEAST_FILES),
        ("file sizes (ulimit -f)", resource.RLIMIT_FSIZE, LEAST_FILE_BYTES),
    ):
        most = resource.getrlimit(number)[0]
        if most != resource.RLIM_INFINITY and most < least:
            findings.problem("limits", f"{name}: {most:,}, at least {least:,} are needed")
    if os.geteuid() == 0:
        findings.add("user", NOTE, "this is root; a party needs no rights but to its own folder")


def _check_rows(findings: _List, party: PartyFile, file: Path) -> None:
    directory, shard = RunDirectory(party.run_folder, party.own.name), None
    if directory.shard.exists() and not party.is_key_holder:
        shard = findings.tried(
            "rows", lambda: read_shard(directory.shard, directory.preparation, party.shared)
        )
    with findings.of("rows"):
        rows, unknown = read_new_rows(party, file, shard)
        if rows is not None:
            findings.good("rows", f"{file}: {rows.count:,} rows")
        for line in unknown:
            findings.add("rows", NOTE, line)
