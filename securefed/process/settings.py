"""party.toml: what one operator says about the own party, its data and peers, and what all have agreed on.

    [party]     name, role, listen, folder, ...        this party's own business
    [data]      file, id, label, columns, ...          likewise
    [peers.X]   address, certificate or authority      one table for each other party
    [run]       name, parties, objective, scheme, ...  the same at all parties, compared when they meet

Everything is checked when the file is read: an unknown key, a wrong type or a value that is not allowed is
one line that names the file, the key, what was given and what is allowed. Paths are relative to the file.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self, TypeVar

from securefed.checks import check_choice, check_flag, check_integer, check_number
from securefed.data.columns import TRANSFORMS
from securefed.data.policy import Policy
from securefed.data.psi import check_peer_ids
from securefed.errors import SecurefedError, SettingError
from securefed.labels.base_model import LabelOptions, check_class_weight, check_family
from securefed.labels.calibration import check_threshold
from securefed.process.fields import check_keys, check_names, check_text
from securefed.process.run_settings import RunSettings
from securefed.protocols.scoring.score_ledger import MODES
from securefed.transport.identity import Certificate, Peer, check_party_name, parse_address

__all__ = ["DataSettings", "OwnSettings", "PartyFile", "read_party_file", "settings_problems"]

Table = Mapping[str, Any]
T = TypeVar("T")


@dataclass(frozen=True)
class OwnSettings:
    """[party]"""

    name: str
    role: str = "data"
    listen: str = "0.0.0.0:7001"  # mutual TLS decides who gets in
    folder: str = "runs"
    keys: str = "."
    engine: str | int | None = None
    start_seed: int | None = None
    wait: float = 600.0
    patience: float = 120.0
    score_ledger: str = "refuse"

    def __post_init__(self) -> None:
        check_party_name(self.name)
        check_choice("role", self.role, ("data", "key-holder"))
        parse_address(self.listen)
        check_text("folder", self.folder)
        check_text("keys", self.keys)
        if self.start_seed is not None:
            check_integer("start_seed", self.start_seed, least=0)
        check_number("wait", self.wait, above=0.0)
        check_number("patience", self.patience, above=0.0)
        check_choice("score_ledger", self.score_ledger, MODES)


@dataclass(frozen=True)
class DataSettings:
    """[data]"""

    file: str
    id: str | None = None
    label: str | None = None
    columns: tuple[str, ...] | None = None
    drop: tuple[str, ...] = ()
    one_hot: tuple[str, ...] | None = None
    standardise: bool = True
    transform: str = "none"
    impute: str | Mapping[str, str] | None = None
    dates: Mapping[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    rare: int | None = None
    unknown: str = "ignore"
    decimal: str | None = None
    dayfirst: bool | None = None
    separator: str | None = None
    threshold: str | float = "half"
    weight: str | None = None
    offset: str | None = None
    class_weight: str | Mapping[str, float] | None = "auto"
    family: str | float | None = None
    base: str = "zero"
    peer_ids: int | None = None
    """How many ids a peer may put into the private intersection (securefed.data.psi has the default)."""

    def __post_init__(self) -> None:
        check_text("file", self.file)
        for name in ("id", "label", "weight", "offset"):
            if getattr(self, name) is not None:
                check_text(name, getattr(self, name))
        for name in ("columns", "drop", "one_hot", "missing"):
            value = getattr(self, name)
            if isinstance(value, list):
                object.__setattr__(self, name, check_names(name, value))
            elif value is not None and not isinstance(value, tuple):
                raise SettingError(f"{name} must be a list of names, not {value!r}")
        check_flag("standardise", self.standardise)
        check_choice("transform", self.transform, TRANSFORMS)
        check_threshold(self.threshold)
        _ = self.policy
        check_choice("base", self.base, ("zero", "own"))
        check_class_weight(self.class_weight)
        if self.wishes.any and self.label is None:
            raise SettingError(
                "weight, offset, class_weight, family and base are the label party's, and no label is named"
            )
        if self.peer_ids is not None:
            check_peer_ids(self.peer_ids)
        if self.columns is not None and not self.columns:
            raise SettingError("columns must name at least one column, or be left out for all")
        if self.columns is not None and self.drop:
            raise SettingError("columns and drop exclude each other: name what to take, or what to leave")

    @property
    def wishes(self) -> LabelOptions:
        """What the label party wants of its rows."""
        return LabelOptions(
            self.base == "own",
            self.class_weight,
            check_family(self.family),
            self.weight is not None,
            self.offset is not None,
        )

    @property
    def policy(self) -> Policy:
        """What was decided about how values are written, gaps, dates and categories."""
        return Policy(**{each.name: getattr(self, each.name) for each in fields(Policy)})


@dataclass(frozen=True)
class PartyFile:
    """A whole party.toml."""

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

    @classmethod
    def of(cls, path: Path, table: Table) -> Self:
        check_keys(str(path), table, ("party", "data", "peers", "run"))
        own = OwnSettings(**_section(path, table, "party", OwnSettings))
        shared = RunSettings.of(_table(path, table, "run"))
        data = None
        if "data" in table:
            data = DataSettings(**_section(path, table, "data", DataSettings))
        peers = _peers(path, table.get("peers", {}), own, shared)
        made = cls(path, own, shared, data, peers)
        made._check()
        return made

    def _check(self) -> None:
        name, shared = self.own.name, self.shared
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
        if self.data.label is not None and not self.is_label_party:
            raise SettingError(
                f"label: {self.data.label!r} given, and the label party is {shared.label_party} "
                "(the last of run.parties)"
            )
        if self.data.label is None and self.is_label_party:
            raise SettingError(f"label: missing; {name} is the label party (the last of run.parties)")
        if self.data.id is None and shared.alignment == "psi":
            raise SettingError('id: missing; alignment "psi" needs the column that says who a row is about')


def _table(path: Path, table: Table, name: str) -> dict[str, Any]:
    found = table.get(name)
    if not isinstance(found, dict):
        raise SettingError(f"{path}: the table [{name}] is missing")
    return found


def _section(path: Path, table: Table, name: str, kind: type[Any]) -> dict[str, Any]:
    found = _table(path, table, name)
    check_keys(f"{path} [{name}]", found, tuple(each.name for each in fields(kind)))
    required = "name" if kind is OwnSettings else "file"
    if required not in found:
        raise SettingError(f"{path} [{name}]: {required} is missing")
    return found


def _peers(path: Path, table: Any, own: OwnSettings, shared: RunSettings) -> dict[str, Peer]:
    due = [name for name in shared.everybody if name != own.name]
    if not isinstance(table, dict) or set(table) != set(due):
        given = ", ".join(table) if isinstance(table, dict) and table else "none"
        raise SettingError(f"{path}: peers: {given} given, {', '.join(due)} are in this run")
    return {name: _peer(path, name, table[name]) for name in due}


def _peer(path: Path, name: str, table: Any) -> Peer:
    where = f"{path} [peers.{name}]"
    if not isinstance(table, dict):
        raise SettingError(f"{where}: a table with address and certificate is expected")
    check_keys(where, table, ("address", "certificate", "authority"))
    given = {key: check_text(f"{where}: {key}", value) for key, value in table.items()}
    if "address" not in given:
        raise SettingError(f"{where}: address is missing")
    try:
        pinned = {
            key: Certificate.read(path.parent / given[key])
            for key in ("certificate", "authority")
            if key in given
        }
        return Peer(given["address"], **pinned)
    except SecurefedError as error:
        raise SettingError(f"{where}: {error}") from None


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingError(f"cannot read {path}: {error.strerror}; securefed init makes one") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingError(f"{path}: not TOML: {error}") from None


def settings_problems(path: Path) -> list[str]:
    """What is wrong with a party.toml, one line for each table: none of them hides another's."""
    found: list[str] = []

    def tried(work: Callable[[], T]) -> T | None:
        try:
            return work()
        except SettingError as error:
            found.append(str(error))
            return None

    table = tried(lambda: _read(path))
    if table is None:
        return found
    tried(lambda: check_keys(str(path), table, ("party", "data", "peers", "run")))
    own = tried(lambda: OwnSettings(**_section(path, table, "party", OwnSettings)))
    shared = tried(lambda: RunSettings.of(_table(path, table, "run")))
    if "data" in table:
        tried(lambda: DataSettings(**_section(path, table, "data", DataSettings)))
    peers = table.get("peers", {})
    if isinstance(peers, dict):
        for name, given in peers.items():
            tried(lambda name=name, given=given: _peer(path, name, given))  # type: ignore[misc]
    if own is not None and shared is not None and not found:
        tried(lambda: PartyFile.of(path, table))
    return found


def read_party_file(path: Path) -> PartyFile:
    """A party.toml, checked."""
    table = _read(path)
    try:
        return PartyFile.of(path, table)
    except SettingError as error:
        text = str(error)
        raise SettingError(text if text.startswith(str(path)) else f"{path}: {text}") from None
