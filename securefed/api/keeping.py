"""What an estimator keeps with each party's shard: its score guard, and how it prepares its columns."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path as FilePath
from typing import Any

import numpy as np

from securefed.api.party import Fitted, Party
from securefed.assembly.shards import Arrays, read_part, shard_file
from securefed.data.columns import Columns
from securefed.data.entropy import column_bits
from securefed.errors import DataError, SecurefedError, SettingError
from securefed.protocols.scoring.blur import ScoreGuard

__all__ = [
    "fitted_arrays",
    "guard_arrays",
    "held_bits",
    "make_room",
    "read_shards",
    "take_fitted",
    "take_guards",
]

Shard = Arrays


def held_bits(party: Party) -> float:
    """What there is to tell of a row: of a party's columns as they are given where it transforms them or has
    a policy on gaps and dates, since that makes many columns of one and tells nothing more.
    """
    raw = party.features
    if party.transform is None and isinstance(raw, np.ndarray) and raw.dtype.kind == "f":
        return column_bits(raw)
    columns = [raw[name] for name in raw] if hasattr(raw, "iloc") else list(np.asarray(raw).T)
    codes = [np.unique(np.asarray(column).astype(str), return_inverse=True)[1] for column in columns]
    return column_bits(np.column_stack(codes).astype(np.float64))


def guard_arrays(guard: ScoreGuard | None) -> Shard:
    """What a party that is scored keeps with its shard: its secret, its ledger, what its columns hold."""
    if guard is None:
        return {}
    return {
        "score_key": np.frombuffer(guard.key, np.uint8),
        "score_ledger": np.frombuffer(guard.ledger.to_bytes(), np.uint8),
        "score_bits": np.array(np.nan if guard.column_bits is None else guard.column_bits),
    }


def take_guards(shards: Mapping[str, Shard]) -> dict[str, ScoreGuard]:
    """The same from the shards that were read; it is taken out of them."""
    guards = {}
    for name, arrays in shards.items():
        if "score_key" not in arrays:
            continue
        try:
            bits = float(arrays.pop("score_bits"))
            guards[name] = ScoreGuard(
                arrays.pop("score_key").tobytes(), party=name, column_bits=None if np.isnan(bits) else bits
            )
            guards[name].ledger.restore(arrays.pop("score_ledger").tobytes())
        except (KeyError, TypeError, ValueError, SecurefedError) as error:
            raise DataError(f"shard of {name}: its score ledger cannot be read ({error})") from None
    return guards


FITTED = "fitted."


def fitted_arrays(fitted: Fitted | None) -> Shard:
    """How a party prepares its columns, but for a transformer of the user's own."""
    if fitted is None:
        return {}
    made = {f"{FITTED}{name}": array for name, array in fitted.columns.to_arrays().items()}
    own = np.array([fitted.named, fitted.transform is not None])
    return {**made, f"{FITTED}kind": own}


def take_fitted(shards: Mapping[str, Shard], transforms: Mapping[str, Any] | None) -> dict[str, Fitted]:
    """The same from the shards that were read (it is taken out of them), with the transformers given."""
    given = {
        name: each.transform if isinstance(each, Fitted) else each
        for name, each in (transforms or {}).items()
    }
    found = {}
    for name, arrays in shards.items():
        taken = {key: arrays.pop(key) for key in list(arrays) if key.startswith(FITTED)}
        if not taken:
            continue
        named, foreign = (bool(flag) for flag in np.asarray(taken.pop(f"{FITTED}kind")).reshape(2))
        if foreign and given.get(name) is None:
            raise SettingError(f"transforms: {name} prepared its columns with one; load(..., transforms=...)")
        plain = {key[len(FITTED) :]: array for key, array in taken.items()}
        mine = given.pop(name, None) if foreign else None
        found[name] = Fitted(mine, Columns.from_arrays(plain), named)
    idle = [name for name, each in given.items() if each is not None]
    if idle:
        raise SettingError(f"transforms: {', '.join(idle)} given, which had none of its own in training")
    return found


def make_room(folder: FilePath, training: str, *, overwrite: bool) -> None:
    """Make the folder for a model. SettingError where it has another one, unless that may be replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    others = []
    for path in sorted(folder.glob(shard_file("*"))):
        try:
            same = read_part(path)[0].get("training") == training
        except DataError:
            same = False
        if not same:
            others.append(path)
    if others and not overwrite:
        raise SettingError(
            f"save: {folder} has another model ({', '.join(path.name for path in others)}); choose another"
            " folder, or save(folder, overwrite=True) replaces it"
        )
    for path in others:
        path.unlink()


def read_shards(folder: str | PathLike[str], estimator: str) -> tuple[dict[str, Any], dict[str, Shard]]:
    """Return what all know of a saved model, and every party's arrays."""
    shards: dict[str, Shard] = {}
    public: dict[str, Any] = {}
    start, end = shard_file("*").split("*")
    for path in sorted(FilePath(folder).glob(shard_file("*"))):
        note, arrays = read_part(path)
        if note["estimator"] != estimator:
            raise DataError(
                f"{path}: a shard of a {note['estimator']} model, which this estimator does not load"
                f" ({estimator} is expected)"
            )
        if public and note != public:
            differing = sorted(name for name in {*note, *public} if note.get(name) != public.get(name))
            why = (
                "of another training" if differing == ["training"] else f"differing in {', '.join(differing)}"
            )
            raise DataError(
                f"{folder}: shards of different models: {path.name} is not of the model of"
                f" {shard_file(next(iter(shards)))} ({why}); load needs the shards of one model"
            )
        public = note
        shards[path.name[len(start) : -len(end)]] = arrays
    if not shards:
        raise DataError(f"{folder}: no model shards there")
    blind = public.get("blind")
    helper = blind.get("helper") if isinstance(blind, dict) else None
    due = {*map(str, public["parties"]), *([] if helper is None else [str(helper)])}
    faults = [
        f"{what} {', '.join(map(shard_file, sorted(names)))}"
        for what, names in (("without", due - set(shards)), ("with the foreign", set(shards) - due))
        if names
    ]
    if faults:
        raise DataError(f"{folder}: a model of {', '.join(sorted(due))}, {' and '.join(faults)}")
    return public, shards
