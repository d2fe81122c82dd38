"""party.toml: what one operator says about the own party, its data and peers, and what all have agreed on.

    [party]     name, role, listen, folder, ...        this party's own business
    [data]      file, id, label, columns, ...          likewise
    [peers.X]   address and certificate                one table for each other party
    [run]       name, parties, objective, rounds, ...  the same at all parties, compared when they meet
    [run.protection]   kind, scheme, ...               likewise

Everything is checked when the file is read: an unknown key, a wrong type or a value that is not allowed is
one line that names the file, the key, what was given and what is allowed. Paths are relative to the file.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from securefed.data.columns import TRANSFORMS
from securefed.data.psi import check_peer_ids
from securefed.data.readings import Policy
from securefed.declare import (
    Declared,
    accepted,
    again,
    check_keys,
    check_names,
    check_text,
    choice,
    declared,
    flag,
    integer,
    number,
    optional,
    setting,
)
from securefed.errors import SecurefedError, SettingError
from securefed.labels.base_model import LabelOptions
from securefed.settings.objectives import Labels, Simulation
from securefed.settings.protection import Protection
from securefed.settings.run import RunSettings
from securefed.transport.identity import (
    Certificate,
    Peer,
    check_listen,
    check_party_name,
    check_reachable,
    parse_address,
)

Table = Mapping[str, Any]
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, repr=False)
class OwnSettings(Declared):
    """[party]: this party's own business."""

    name: str = setting(
        MISSING,
        lambda name, value: check_party_name(value),
        "As in the certificate; the peers know this party by it.",
    )
    role: str = setting("data", choice(("data", "key-holder")), '"data" or "key-holder".')
    listen: str = setting(
        "0.0.0.0:7001",
        lambda name, value: check_listen(value),
        'Where this party waits for the others: one TCP port, mutual TLS. "none": it opens all connections.',
    )
    metrics: str | None = setting(
        None,
        optional(accepted(parse_address)),
        "Where to serve figures and state of a run over HTTP: /metrics (Prometheus), /health, /ready.",
        example="127.0.0.1:9464",
    )
    folder: str = setting("runs", check_text, "Run directories: runs/<run name>/.")
    keys: str = setting(".", check_text, "Where the keys are.")
    engine: Any = again(Simulation, "engine", example="processes")
    start_seed: int | None = setting(
        None,
        optional(integer(least=0)),
        "Start of a network or hidden layer; left out: random. It is a secret of this party.",
        example=1,
    )
    wait: float = setting(600.0, number(above=0.0), "Seconds that a missing peer is waited for.")
    patience: float = setting(
        120.0, number(above=0.0), "Seconds without an answer until a peer counts as missing."
    )
    score_ledger: str = again(Protection, "score_ledger", in_file=True)


@dataclass(frozen=True, kw_only=True, repr=False)
class DataSettings(Labels, Policy):
    """[data]: this party's file, and what is done with it. It never leaves this machine."""

    file: str = setting(MISSING, check_text, "A CSV or Parquet file.")
    id: str | None = setting(
        None, optional(check_text), "Column that says who a row is about; aligned privately.", example="id"
    )
    label: str | None = setting(
        None, optional(check_text), "Label party: the column that is to be predicted.", example="label"
    )
    columns: tuple[str, ...] | None = setting(
        None, optional(check_names), "Features. Left out: all but id and label.", example=["age", "income"]
    )
    drop: tuple[str, ...] = setting((), check_names, "Or: all columns but these.", example=["comment"])
    standardise: bool = setting(True, flag, "Mean 0 and variance 1 on this party's rows.")
    transform: str = setting(
        "none", choice(TRANSFORMS), '"auto": splines for numbers, rare categories together, gaps marked.'
    )
    weight: str | None = setting(
        None, optional(check_text), "Label party: a column that says how much a row counts.", example="weight"
    )
    offset: str | None = setting(
        None,
        optional(check_text),
        "Label party: a column that is added to what the other columns say.",
        example="log_exposure",
    )
    peer_ids: int | None = setting(
        None,
        optional(lambda name, value: check_peer_ids(value)),
        "Ids that a peer may put in. Left out: ten times this party's, 100000 at least.",
        example=100000,
    )

    def check(self) -> None:
        if self.wishes.any and self.label is None:
            raise SettingError(
                "weight, offset, class_weight and family are the label party's, and no label is named"
            )
        if self.columns is not None and not self.columns:
            raise SettingError("columns must name at least one column, or be left out for all")
        if self.columns is not None and self.drop:
            raise SettingError("columns and drop exclude each other: name what to take, or what to leave")

    @property
    def wishes(self) -> LabelOptions:
        return self.options(weighted=self.weight is not None, offset=self.offset is not None)

    @property
    def policy(self) -> Policy:
        return Policy(**{name: getattr(self, name) for name in declared(Policy)})


@dataclass(frozen=True)
class PartyFile:
    path: Path
    own: OwnSettings
    shared: RunSettings
    data: DataSettings | None
    peers: Mapping[str, Peer] = field(repr=False)

    @property
    def folder(self) -> Path:
        return self.path.parent

    @property
    def is_key_holder(self) -> bool:
        return self.own.role == "key-holder"

    @property
    def is_label_party(self) -> bool:
        return self.own.name == self.shared.label_party

    @property
    def run_folder(self) -> Path:
        return self.folder / self.own.folder / self.shared.name

    @property
    def keys_folder(self) -> Path:
        return self.folder / self.own.keys

    def check(self, peers: bool) -> None:
        """Refuse tables that disagree; `peers`: also those of the peers."""
        name, shared = self.own.name, self.shared
        due = [each for each in shared.everybody if each != name]
        if peers and set(self.peers) != set(due):
            names = ", ".join(self.peers) or "none"
            raise SettingError(f"peers: {names} given, {', '.join(due)} are in this run")
        check_reachable(name, self.own.listen, self.peers)
        if self.is_key_holder:
            if shared.key_holder != name:
                raise SettingError(
                    f"role: {name} is a key-holder here, and run.key_holder is {shared.key_holder!r}"
                )
            if self.data is not None:
                raise SettingError("data: a key-holder has none; leave the table [data] out")
            return
        if name not in shared.parties:
            raise SettingError(f"parties: {', '.join(shared.parties)} given, this party is {name!r}")
        if self.data is None:
            raise SettingError("data: missing; a party needs the table [data] with its file")
        if (self.data.label is not None) != self.is_label_party:
            label = "missing" if self.data.label is None else f"{self.data.label!r} given"
            raise SettingError(
                f"label: {label}; the label party is {shared.label_party} (the last of run.parties)"
            )
        if self.data.id is None and shared.alignment == "psi":
            raise SettingError('id: missing; alignment "psi" needs the column that says who a row is about')


def _table(path: Path, table: Table, name: str) -> dict[str, Any]:
    inner = table.get(name)
    if not isinstance(inner, dict):
        raise SettingError(f"{path}: the table [{name}] is missing")
    return inner


def _section(path: Path, table: Table, name: str, kind: type[T]) -> T:
    values, settings = _table(path, table, name), declared(kind)
    check_keys(f"{path} [{name}]", values, settings)
    for each in settings.values():
        if each.default is MISSING and each.name not in values:
            raise SettingError(f"{path} [{name}]: {each.name} is missing")
    return kind(**values)


def _peer(path: Path, name: str, table: Any) -> Peer:
    where = f"{path} [peers.{name}]"
    if not isinstance(table, dict):
        raise SettingError(f"{where}: a table with address and certificate is expected")
    check_keys(where, table, ("address", "certificate"))
    pinned = table.get("certificate", [])
    paths = pinned if isinstance(pinned, list) else [pinned]
    if "address" not in table:
        raise SettingError(f'{where}: address is missing ("none" if {name} listens on nothing)')
    address = check_text(f"{where}: address", table["address"])
    try:
        pins = tuple(Certificate.read(path.parent / check_text("certificate", each)) for each in paths)
        return Peer(address, pins)
    except SecurefedError as error:
        raise SettingError(f"{where}: {error}") from None


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingError(f"cannot read {path}: {error.strerror}; securefed init makes one") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingError(f"{path}: not TOML: {error}") from None


def read_what_is_right(path: Path, *, peers: bool = True) -> tuple[PartyFile | None, list[str]]:
    """Return the right parts of a party.toml, and one line for each table that is wrong.

    A wrong [data] is left out, and so are peers without a usable certificate. Without a right [party] and
    [run] there is no file. A party's folder stands for the party.toml in it. Without `peers`, the tables of
    peers are not read.
    """
    problems: list[str] = []

    def tried(work: Callable[..., T], *arguments: Any) -> T | None:
        try:
            return work(*arguments)
        except SettingError as error:
            problems.append(str(error))
            return None

    path = path / "party.toml" if path.is_dir() else path
    table = tried(_read, path)
    if table is None:
        return None, problems
    tried(check_keys, str(path), table, ("party", "data", "peers", "run"))
    own = tried(_section, path, table, "party", OwnSettings)
    shared = tried(lambda: RunSettings.of(_table(path, table, "run")))
    data = tried(_section, path, table, "data", DataSettings) if "data" in table else None
    tables = table.get("peers", {})
    entries = tables.items() if peers and isinstance(tables, dict) else ()
    each = {name: tried(_peer, path, name, entry) for name, entry in entries}
    pinned = {name: peer for name, peer in each.items() if peer is not None}
    if own is None or shared is None:
        return None, problems
    party = PartyFile(path, own, shared, data, pinned)
    if not problems:
        tried(party.check, peers)
    return party, problems


def read_party_file(path: Path, *, peers: bool = True) -> PartyFile:
    """Return the settings of a party.toml, or of the one in a party's folder, checked."""
    party, problems = read_what_is_right(path, peers=peers)
    if party is None or problems:
        text, file = problems[0], path / "party.toml" if path.is_dir() else path
        raise SettingError(text if str(file) in text else f"{file}: {text}")
    return party
