"""A model's files: each party's part of the model, its score guard, and how it prepares its columns."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path as FilePath
from typing import Any, Self

import numpy as np

from securefed.api.predictor import Keys, Predictor
from securefed.assembly import assembly_of
from securefed.assembly.base import Arrays, own_model, read_part, shard_file, write_part
from securefed.data.columns import FittedColumns
from securefed.declare import declared
from securefed.errors import DataError, SecurefedError, SettingError
from securefed.labels.several import label_model_of
from securefed.protocols.scoring.score_ledger import ScoreGuard
from securefed.settings.protection import Blind, ByGradient, OwnGradient, Protection

FITTED = "fitted."


class Saved(Predictor):
    """What an estimator writes to a folder and reads from it."""

    _training: str
    """Tells this model from others in a folder."""

    def save(self, folder: str | PathLike[str], *, overwrite: bool = False) -> None:
        """Write one file a party, with its own part of the model only, and what all know.

        How a party prepares its columns is in its file too.

        Parameters
        ----------
        overwrite : replace another model in the folder. The same model may always be saved again.

        Raises
        ------
        SettingError
            The folder has another model.
        """
        self._fitted()
        if hasattr(self, "models_"):
            raise SettingError("save: there is one run a class; models_[k].save writes each of these")
        assembly, classes = assembly_of(self._settings(len(self.parties_))), self._label_model.classes
        _make_room(FilePath(folder), self._training, overwrite=overwrite)
        for name, part in self._parts.items():
            facts, arrays = assembly.save(part, self._released.get(name))
            public = {
                "estimator": assembly.estimator,
                "parties": self.parties_,
                "key_holder": self._key_holder,
                "classes": None if classes is None else classes.tolist(),
                "training": self._training,
                **facts,
            }
            arrays |= _guard_arrays(getattr(self, "score_guards_", {}).get(name))
            columns = self.transforms_[name].to_arrays() if name in self.transforms_ else {}
            arrays |= {f"{FITTED}{key}": array for key, array in columns.items()}
            arrays |= self._label_model.to_arrays() if name == self.parties_[-1] else {}
            write_part(FilePath(folder) / shard_file(name), public, arrays)

    @classmethod
    def load(cls, folder: str | PathLike[str], *, keys: Keys | None = None, **parameters: Any) -> Self:
        """Read the estimator from the shards that `save` wrote.

        Parameters
        ----------
        keys : key-holders for predictions; fresh keys are made without. A blind model takes none.
        parameters : as for the constructor: `protection`, `simulation`.
        """
        public, shards = _read_shards(folder, cls.assembly.estimator)
        saved: Protection = OwnGradient()
        if "blind" in public:
            saved = Blind(scheme=public.get("scheme", Blind().scheme))
        parameters = cls._renamed(parameters, saved, stacklevel=4)
        try:
            settings = cls._fixed(public, parameters, saved)
            self = cls(**parameters | settings)
            last = public["parties"][-1]
            loss = self._settings().loss_function
            self._label_model = label_model_of(shards[last], loss, public["classes"])
        except SecurefedError:
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{folder}: not the facts of a model ({error})") from None
        if keys and "blind" in public:
            raise SettingError("keys: a blind model has its own keys; leave them out")
        self.parties_, self._key_holder = public["parties"], public.get("key_holder")
        self._training = str(public.get("training", secrets.token_hex(8)))
        self.transforms_ = _take_fitted(shards)
        self.score_guards_ = _take_guards(shards)
        if keys is not None:
            self._holders = dict(keys)
        assembly = assembly_of(self._settings())
        self._parts, self._released = {}, {}
        for name, arrays in shards.items():
            try:
                self._parts[name] = assembly.load(public, arrays)
                if "blind" in public and "model" in arrays:  # released parameters, beside the shares
                    self._released[name] = own_model(assembly.load_scorer(public, arrays))
            except DataError as error:
                raise DataError(f"{folder}: the shard of {name}: {error}") from None
        self._show_shards()
        return self

    @classmethod
    def _fixed(
        cls, public: Mapping[str, Any], parameters: Mapping[str, Any], saved: Protection
    ) -> dict[str, Any]:
        """The parameters that a saved model has; SettingError where others are wanted."""
        protection = parameters.get("protection", saved)
        if isinstance(saved, Blind) != isinstance(protection, Blind):
            raise SettingError(f"protection: {protection!r} given, the saved model takes {saved!r}")
        settings: dict[str, Any] = {}
        kind = declared(cls.assembly.settings_class)
        for name in cls.assembly(cls.assembly.settings_class()).facts():
            if name in kind:
                if name in parameters and parameters[name] != public[name]:
                    raise SettingError(
                        f"{name}: {parameters[name]!r} given, the saved model's {public[name]!r} stands"
                    )
                settings[name] = public[name]
            elif isinstance(protection, ByGradient):
                wanted, usual = getattr(protection, name), declared(type(protection))[name].default
                if wanted not in (usual, public[name]):
                    raise SettingError(f"{name}: {wanted!r} given, the saved model's {public[name]!r} stands")
                protection = replace(protection, **{name: public[name]})
        return {**settings, "protection": protection}


def _guard_arrays(guard: ScoreGuard | None) -> Arrays:
    """What a party that is scored keeps with its shard: its secret, its ledger, what its columns hold."""
    if guard is None:
        return {}
    return {
        "score_key": np.frombuffer(guard.key, np.uint8),
        "score_ledger": np.frombuffer(guard.to_bytes(), np.uint8),
        "score_bits": np.array(guard.column_bits, dtype=np.float64),
    }


def _take_guards(shards: Mapping[str, Arrays]) -> dict[str, ScoreGuard]:
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
            guards[name].restore(arrays.pop("score_ledger").tobytes())
        except (KeyError, TypeError, ValueError, SecurefedError) as error:
            raise DataError(f"shard of {name}: its score ledger cannot be read ({error})") from None
    return guards


def _take_fitted(shards: Mapping[str, Arrays]) -> dict[str, FittedColumns]:
    """How each party prepares its columns, taken out of the shards that were read; a helper has none."""
    fitted = {}
    for name, arrays in shards.items():
        taken = {key[len(FITTED) :]: arrays.pop(key) for key in list(arrays) if key.startswith(FITTED)}
        if taken:
            fitted[name] = FittedColumns.from_arrays(taken)
    return fitted


def _make_room(folder: FilePath, training: str, *, overwrite: bool) -> None:
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


def _read_shards(folder: str | PathLike[str], estimator: str) -> tuple[dict[str, Any], dict[str, Arrays]]:
    """Return what all know of a saved model, and every party's arrays."""
    shards: dict[str, Arrays] = {}
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
            raise DataError(
                f"{folder}: shards of different models: {path.name} and {shard_file(next(iter(shards)))}"
                f" differ in {', '.join(differing)}; load needs the shards of one model"
            )
        public = note
        shards[path.name[len(start) : -len(end)]] = arrays
    if not shards:
        raise DataError(f"{folder}: no model shards there")
    blind = public.get("blind")
    helper = blind.get("helper") if isinstance(blind, dict) else None
    due = {*map(str, public["parties"]), *([] if helper is None else [str(helper)])}
    if due != set(shards):
        raise DataError(f"{folder}: a model of {', '.join(sorted(due))} with shards of {', '.join(shards)}")
    return public, shards
