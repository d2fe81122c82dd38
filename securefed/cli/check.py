"""`securefed check party.toml`: everything that can be known to be wrong before anybody is met, in one list.

Nothing leaves the machine, nothing is written that stays, and no peer is called. What only a meeting can show
(do the others run the same settings, do they know this certificate) is not here.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import socket
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from securefed.cli.terminal import Terminal, add_passphrase, read_passphrase
from securefed.data.columns import decided
from securefed.engine import get_engine
from securefed.errors import DataError, SecurefedError
from securefed.files import RunDirectory, check_writable
from securefed.labels.label_model import LabelModel
from securefed.plan.planner import machine_memory
from securefed.process.checkpoints import CheckpointStore
from securefed.process.keys import PartyKeys, load_keys
from securefed.process.model_files import read_shard
from securefed.process.own_data import load_data
from securefed.process.scoring import read_new_rows
from securefed.settings.party import PartyFile, read_what_is_right
from securefed.transport.identity import NOT_LISTENING, check_validity, parse_address
from securefed.transport.network.endpoint import check_distinct

DESCRIPTION = """\
Check everything that this party can check alone: settings, data, columns, ids, labels, keys and their
permissions, certificates, the port, addresses, the disk, limits and the clock. Print all problems in one
list. The command calls no peer and leaves no files."""

EPILOGUE = """\
examples:
  securefed check bank/party.toml
  securefed check bank/party.toml --rows new-clients.csv --out scores.csv   before a prediction

Exit code 0: no problem was found; 2: there are problems."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="party.toml", help="this party's settings, or its folder")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="the new rows of a prediction")
    parser.add_argument("--out", type=Path, metavar="CSV", help="where a prediction is to write")
    add_passphrase(parser)


def run(args: argparse.Namespace, terminal: Terminal) -> int:
    passphrase = partial(read_passphrase, args.passphrase_file)
    findings = check_party(args.file, passphrase, rows=args.rows, out=args.out)
    problems = sum(check.verdict == PROBLEM for check in findings)
    for check in findings:
        word = "PROBLEM" if check.verdict == PROBLEM else check.verdict
        terminal.result(f"{word:<8} {check.about}: {check.text}")
    count = "1 problem" if problems == 1 else f"{problems or 'no'} problems"
    terminal.result(f"{count} in {len(findings)} check{'s' * (len(findings) != 1)}")
    terminal.facts = {"problems": problems, "checks": [asdict(check) for check in findings]}
    return 2 if problems else 0


GOOD, NOTE, PROBLEM = "good", "note", "problem"
LEAST_FREE = 200 << 20
"""Bytes on the disk of the run: checkpoints and transcripts of the largest runs in docs/performance.md."""
BASE_MEMORY = 600 << 20
"""Interpreter, libraries, keys, and blocks of ciphertexts under way."""
TABLE_COPIES = 6
"""How often the numbers of the own table are in memory at the peak: read, scaled, aligned, in blocks."""
LEAST_FILES = 256
LEAST_FILE_BYTES = 64 << 20


@dataclass(frozen=True)
class Finding:
    about: str
    verdict: str
    text: str


Findings = Iterator[Finding]


def _good(about: str, text: str) -> Finding:
    return Finding(about, GOOD, text)


def _problem(about: str, text: object) -> Finding:
    return Finding(about, PROBLEM, " ".join(str(text).split()))


def _tried(about: str, work: Findings) -> Findings:
    """Yield what is found; what the work raises is a problem and not the end."""
    try:
        yield from work
    except DataError as error:
        yield from (_problem(about, text) for text in error.problems)
    except SecurefedError as error:
        yield _problem(about, error)
    except OSError as error:
        yield _problem(about, error.strerror or error)


def check_party(
    path: Path,
    passphrase: Callable[[], str],
    *,
    rows: Path | None = None,
    out: Path | None = None,
    now: datetime | None = None,
) -> list[Finding]:
    """Look at everything. `rows` and `out` are those of a prediction that is planned."""
    party, problems = read_what_is_right(path)
    findings = [_problem("settings", problem) for problem in problems]
    if party is None:
        return findings
    if not problems:
        findings.append(_good("settings", f"{path}: {party.own.name} of {', '.join(party.shared.everybody)}"))
    keys: list[PartyKeys] = []
    findings += _tried("data", _data(party))
    findings += _tried("keys", _keys(party, passphrase, keys))
    findings += _tried("certificates", _certificates(party, keys, now or datetime.now(UTC)))
    findings += [*_network(party), *_tried("engine", _engine(party)), *_tried("disk", _disk(party))]
    findings += _limits()
    if rows is not None:
        findings += _tried("rows", _rows(party, rows))
        out = out or (party.run_folder / "scores.csv" if party.is_label_party else None)
    return findings if out is None else [*findings, *_tried("out", _out(out))]


def _out(path: Path) -> Findings:
    check_writable("out", path)
    yield _good("out", f"{path} can be written")


def _data(party: PartyFile) -> Findings:
    settings = party.data
    if settings is None or party.is_key_holder:
        return
    data = load_data(party)
    columns, name = data.preparation, settings.id
    yield _good("data", f"{party.folder / settings.file}: {data.rows.count:,} rows")
    if data.ids is not None:
        yield _good("ids", f"{name}: {len(data.ids):,}, each once, such as {next(iter(data.ids))!r}")
    if data.labels is not None:
        yield _good("label", f"{settings.label}: {_told(data.targets, data.labels)}")
    yield _good("columns", f"{len(columns.names)} numbers a row from {len(columns.kinds)} columns")
    # What a run takes beside the peers' columns, which nobody knows yet.
    due, there = BASE_MEMORY + TABLE_COPIES * data.features.nbytes, machine_memory()
    text = f"a run on this table takes about {due >> 20:,} MiB, this process may use {there >> 20:,} MiB"
    remedy = "; use fewer rows or columns, or a larger machine" if due > there else ""
    yield Finding("memory", PROBLEM if remedy else GOOD, text + remedy)
    yield from (Finding("columns", NOTE, text) for text in decided(columns, data.rows))


def _told(targets: Any, side: LabelModel) -> str:
    if side.classes is None:
        return f"numbers from {np.nanmin(targets) * side.scale + side.mean:g} to " + (
            f"{np.nanmax(targets) * side.scale + side.mean:g}, mean {side.mean:g}"
        )
    if targets.ndim > 1:
        counts = zip((targets > 0).sum(axis=0), side.classes.tolist(), strict=True)
        return f"{side.outputs} classes, " + ", ".join(f"{count:,} times {each}" for count, each in counts)
    pairs = zip((-1, 1), side.classes.tolist(), strict=True)
    return "two classes, " + " and ".join(f"{(targets == sign).sum():,} times {each}" for sign, each in pairs)


def _keys(party: PartyFile, passphrase: Callable[[], str], rings: list[PartyKeys]) -> Findings:
    """Open the keys, and look with them at what is left of an earlier run."""
    keys, kind = load_keys(party, passphrase()), party.shared.key_kind
    rings.append(keys)
    which = "TLS and checkpoint" if keys.holder is None else f"TLS, checkpoint and {kind}"
    yield _good("keys", f"{which} keys in {party.keys_folder} open, and only their owner can read them")
    if kind is None:
        yield _good("encryption", f"{party.shared.scheme}: the run makes its encryption keys itself")
    yield from _tried("run", _run(party, keys))


def _run(party: PartyFile, keys: PartyKeys) -> Findings:
    directory = RunDirectory(party.run_folder, party.own.name)
    store = CheckpointStore(
        directory.checkpoints, keys.checkpoint_key, party=party.own.name, run=party.shared.name
    )
    if store.aligned:
        store.read_alignment()
        last = max(store.rounds(), default=0)
        if last:
            store.read(last)
        yield Finding("run", NOTE, f"{directory.folder}: unfinished, round {last} is kept; --resume goes on")
    elif directory.finished:
        yield Finding("run", NOTE, f"{directory.folder}: a finished run; another name, or --restart")
    else:
        yield _good("run", f"{directory.folder}: nothing there yet")


def _certificates(party: PartyFile, keys: list[PartyKeys], now: datetime) -> Findings:
    own = keys[0].identity.certificate if keys else None
    for each in check_validity(party.own.name, own, party.peers, now):
        about = "clock" if each.verdict == "yet" else f"certificate of {each.holder}"
        yield Finding(about, NOTE if each.verdict == "soon" else PROBLEM, each.text)
    written = datetime.fromtimestamp(party.path.stat().st_mtime, UTC)
    if written - now > timedelta(days=1):
        yield _problem("clock", f"it says {now:%Y-%m-%d %H:%M} UTC, and {party.path.name} was written later")
    else:
        yield _good("clock", f"{now:%Y-%m-%d %H:%M} UTC")
    if own is not None:
        check_distinct(keys[0].identity, party.peers)
        known = [own, *(pin for peer in party.peers.values() for pin in peer.pins)]
        first = min(certificate.ends for certificate in known)
        yield _good("certificates", f"{len(known)} known, the first to end on {first:%Y-%m-%d}")


def _network(party: PartyFile) -> Findings:
    listen = party.own.listen
    if listen == NOT_LISTENING:
        yield _good("port", "none: this party opens all connections itself")
    else:
        host, port = parse_address(listen)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            with socket.create_server((host, port), family=family):
                yield _good("port", f"{listen} is free")
        except OSError as error:
            yield _problem("port", f"listen: {listen} cannot be used: {error.strerror or error}")
    for name, peer in party.peers.items():
        if not peer.listens:
            yield _good(f"address of {name}", f"none: {name} connects to this party")
            continue
        host, port = parse_address(peer.address)
        try:
            socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            yield _problem(f"address of {name}", f"{host}: {error.strerror or error}")


def _engine(party: PartyFile) -> Findings:
    get_engine(party.own.engine, party.shared.scheme)
    yield _good("engine", f"{party.own.engine or 'as many processes as there are cores'}")


def _disk(party: PartyFile) -> Findings:
    folder = next(each for each in (party.run_folder, *party.run_folder.parents) if each.exists())
    check_writable("folder", folder / "trial")
    free = shutil.disk_usage(folder).free
    needed = f", {LEAST_FREE >> 20} MiB are needed" if free < LEAST_FREE else ""
    yield Finding("disk", PROBLEM if needed else GOOD, f"{free >> 20:,} MiB free at {folder}{needed}")


def _limits() -> Findings:
    for name, number, least in (
        ("open files (ulimit -n)", resource.RLIMIT_NOFILE, LEAST_FILES),
        ("file sizes (ulimit -f)", resource.RLIMIT_FSIZE, LEAST_FILE_BYTES),
    ):
        most = resource.getrlimit(number)[0]
        if most != resource.RLIM_INFINITY and most < least:
            yield _problem("limits", f"{name}: {most:,}, at least {least:,} are needed")
    if os.geteuid() == 0:
        yield Finding("user", NOTE, "this is root; a party needs no rights but to its own folder")


def _rows(party: PartyFile, file: Path) -> Findings:
    directory, shard = RunDirectory(party.run_folder, party.own.name), None
    if directory.shard.exists() and not party.is_key_holder:
        shard = read_shard(directory.shard, directory.preparation, party.shared)
    rows, unknown = read_new_rows(party, file, shard)
    if rows is not None:
        yield _good("rows", f"{file}: {rows.count:,} rows")
    yield from (Finding("rows", NOTE, line) for line in unknown)
