"""Files of the estimators: each party's part of the model, its score guard, and how it prepares columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path as FilePath
from typing import Any

import numpy as np

from securefed.assembly import Assembly
from securefed.assembly.base import Arrays, read_part, shard_file
from securefed.declare import declared
from securefed.errors import DataError, SecurefedError, SettingError
from securefed.protocols.scoring.score_ledger import ScoreGuard
from securefed.settings.protection import Blind, Protection

FITTED = "fitted."


def fixed_parameters(
    assembly: type[Assembly[Any]], public: Mapping[str, Any], parameters: Mapping[str, Any], saved: Protection
) -> dict[str, Any]:
    """The parameters that a saved model has; SettingError where others are wanted."""
    protection = parameters.get("protection", saved)
    if isinstance(saved, Blind) != isinstance(protection, Blind):
        raise SettingError(f"protection: {protection!r} given, the saved model takes {saved!r}")
    kind = assembly.settings_class
    own, of_protection, wanted = declared(kind), declared(type(protection)), dict(parameters)
    for name, each in of_protection.items():
        if getattr(protection, name) != each.default:
            wanted[name] = getattr(protection, name)
    settings = {}
    for name in assembly(kind()).facts():
        if wanted.get(name, public[name]) != public[name]:
            raise SettingError(f"{name}: {wanted[name]!r} given, the saved model's {public[name]!r} stands")
        if name in own:
            settings[name] = public[name]
        elif name in of_protection:
            protection = replace(protection, **{name: public[name]})
    return {**settings, "protection": protection}


def guard_arrays(guard: ScoreGuard | None) -> Arrays:
    """What a party that is scored keeps with its shard: its secret, its ledger, what its columns hold."""
    if guard is None:
        return {}
    return {
        "score_key": np.frombuffer(guard.key, np.uint8),
        "score_ledger": np.frombuffer(guard.to_bytes(), np.uint8),
        "score_bits": np.array(guard.column_bits, dtype=np.float64),
    }


def take_guard(name: str, arrays: Arrays) -> ScoreGuard:
    """Return the score guard of a shard that was read, and remove it from the arrays."""
    try:
        bits = float(arrays.pop("score_bits"))
        key, ledger = arrays.pop("score_key").tobytes(), arrays.pop("score_ledger").tobytes()
        guard = ScoreGuard(key, party=name, column_bits=None if np.isnan(bits) else bits)
        guard.restore(ledger)
    except (KeyError, TypeError, ValueError, SecurefedError) as error:
        raise DataError(f"its score ledger cannot be read ({error})") from None
    return guard


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


def read_shards(folder: str | PathLike[str], estimator: str) -> tuple[dict[str, Any], dict[str, Arrays]]:
    """Return what all know of a saved model, and every party's arrays."""
    shards: dict[str, Arrays] = {}
    public: dict[str, Any] = {}
    for path in sorted(FilePath(folder).glob(shard_file("*"))):
        note, arrays = read_part(path)
        if note["estimator"] != estimator:
            raise DataError(
                f"{path}: a shard of a {note['estimator']} model, which this estimator does not load"
                f" ({estimator} is expected)"
            )
        if public and note != public:
            differing = sorted(name for name in {*note, *public} if note.get(name) != public.get(name))
            raise DataError(
                f"{folder}: shards of different models: {path.name} and {shard_file(next(iter(shards)))}"
                f" differ in {', '.join(differing)}; load needs the shards of one model"
            )
        public, (start, end) = note, shard_file("*").split("*")
        shards[path.name.removeprefix(start).removesuffix(end)] = arrays
    if not shards:
        raise DataError(f"{folder}: no model shards there")
    blind = public.get("blind")
    helper = blind.get("helper") if isinstance(blind, dict) else None
    due = {*map(str, public["parties"]), *([] if helper is None else [str(helper)])}
    if due != set(shards):
        raise DataError(f"{folder}: a model of {', '.join(sorted(due))} with shards of {', '.join(shards)}")
    return public, shards
