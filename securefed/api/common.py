"""What both estimators share: settings, keys, the run in this process, progress, and shards on disk."""

from __future__ import annotations

import json
import secrets
import sys
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from os import PathLike
from pathlib import Path as FilePath
from typing import Any, Concatenate, ParamSpec, TypeVar
from zipfile import BadZipFile

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from tqdm import tqdm

from securefed.api.party import Fitted, Party
from securefed.api.result import RunResult
from securefed.checks import check_choice, check_flag, check_integer
from securefed.crypto import KeyHolder, generate, key_kind
from securefed.data.columns import Columns
from securefed.data.entropy import column_bits
from securefed.data.labels import accuracy, auc, binary_labels
from securefed.engine import Engine, get_engine
from securefed.errors import DataError, SecurefedError, SettingError
from securefed.protocols.agreement import Agreement
from securefed.protocols.loop import Round
from securefed.protocols.messages import KINDS
from securefed.protocols.scoring.blur import ScoreGuard
from securefed.protocols.scoring.score_ledger import MODES
from securefed.transport import LocalRun, Program, get_network, run_local

__all__ = [
    "Federated",
    "accuracy",
    "all_or_nothing",
    "auc",
    "binary_labels",
    "check_columns",
    "check_free",
    "check_parties",
    "fitted_arrays",
    "guard_arrays",
    "read_shards",
    "take_fitted",
    "take_guards",
    "write_shard",
]

Array = NDArray[np.float64]
Keys = Mapping[str, KeyHolder]
Shard = dict[str, NDArray[np.generic]]

P = ParamSpec("P")
S = TypeVar("S")


class Federated(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """The base of the estimators. Parameters are checked by `fit`, as in scikit-learn."""

    scheme: str
    key_bits: int
    network: Any
    engine: Any
    standardise: bool
    progress: bool | None
    score_ledger: str
    score_guards_: dict[str, ScoreGuard]
    """What each party that is scored keeps about that. A fit begins anew; set those of an earlier model to
    go on counting, as parties in processes of their own do over all their runs.
    """

    result_: RunResult
    """The run that `fit` made."""
    parties_: list[str]
    """The parties in the order of their turns, the label party last."""

    def __getstate__(self) -> dict[str, Any]:
        """Settings may be pickled and copied; what was learned is in parts that belong to several parties."""
        if hasattr(self, "shards_"):
            raise SettingError(
                f"pickle: a fitted {type(self).__name__} is not pickled; save(folder) writes a file for each "
                "party, load(folder) reads them"
            )
        state: dict[str, Any] = super().__getstate__()
        return state

    def _keys(self, agreement: Agreement, keys: Keys | None) -> dict[str, KeyHolder]:
        """A key-holder for whoever holds keys in this run: as given, or fresh."""
        names = list(agreement.names) if agreement.mutual else [str(agreement.key_holder)]
        given, kind = dict(keys or {}), key_kind(agreement.scheme, agreement.reveal)
        if kind is None:
            if given:
                raise SettingError("keys: none are taken where nothing is revealed; such a run makes its own")
            return {}
        for name, holder in given.items():
            if name not in names:
                raise SettingError(f"keys: {name!r} given, only {', '.join(names)} hold keys in this run")
            if not isinstance(holder, KeyHolder) or holder.public.scheme.name != kind:
                raise SettingError(f"keys: {name} has {holder!r}, a {kind} key-holder is allowed")
        return {name: given.get(name) or generate(kind, key_bits=self.key_bits) for name in names}

    def _fitting_holders(self, agreement: Agreement) -> dict[str, KeyHolder]:
        """Those of the last run that serve this one: released parameters are scored under keys that open."""
        kind = key_kind(agreement.scheme, agreement.reveal)
        held: dict[str, KeyHolder] = getattr(self, "_holders", None) or {}
        return {name: holder for name, holder in held.items() if holder.public.scheme.name == kind}

    def _check_simulation(self) -> None:
        """The settings of the run in this process; the recipe has checked those of the training."""
        check_integer("key_bits", self.key_bits, least=2048, most=8192)
        get_network(self.network)
        check_choice("score_ledger", self.score_ledger, MODES)
        check_flag("standardise", self.standardise)
        if self.progress is not None:
            check_flag("progress", self.progress)

    def _mapper(self) -> Engine:
        return get_engine(self.engine, self.scheme)

    def _run(self, programs: Mapping[str, Program]) -> LocalRun:
        return run_local(programs, run=secrets.token_hex(8), kinds=KINDS, network=get_network(self.network))

    @contextmanager
    def _bar(self, agreement: Agreement) -> Iterator[Callable[[Round], None] | None]:
        """A progress bar at the label party: round, metric, time left; at a terminal unless told
        otherwise.
        """
        show = self.progress if self.progress is not None else sys.stderr.isatty()
        if not show:
            yield None
            return
        with tqdm(total=agreement.stopping.rounds, unit="round", desc=agreement.algorithm.name) as bar:

            def on_round(state: Round) -> None:
                facts = {} if state.metric is None else {"metric": f"{state.metric:.4f}"}
                path = state.link.path
                bar.set_postfix(**facts, comp=f"{path.computation:.1f}s", comm=f"{path.communication:.1f}s")
                bar.update()

            yield on_round

    def _guards(
        self, names: Sequence[str], trained_on: Mapping[str, Party] | None = None
    ) -> dict[str, ScoreGuard]:
        """`score_guards_`, with the ledger as it is set now.

        `trained_on`: in a fit, the parties before their transforms; what their columns hold is counted.
        """
        kept: dict[str, ScoreGuard] = getattr(self, "score_guards_", {}) if trained_on is None else {}
        for name in names[:-1]:
            guard = kept.setdefault(name, ScoreGuard(party=name))
            guard.ledger.mode = check_choice("score_ledger", self.score_ledger, MODES)
            if trained_on is not None:
                guard.column_bits = held_bits(trained_on[name])
        self.score_guards_ = kept
        return kept

    def _know(self, parties: Iterable[Party]) -> None:
        """Whom a party's rows to score are about, where it has ids."""
        for party in parties:
            guard = self.score_guards_.get(party.name)
            if guard is not None and party.ids is not None:
                guard.know(party.features, [str(each).encode() for each in party.ids.tolist()])

    def _fitted(self) -> None:
        if not hasattr(self, "shards_"):
            raise DataError(f"this {type(self).__name__} is not fitted; call fit or load first")

    def _transformed(self, party: Party) -> Party:
        """A party's rows by what it fitted on its columns in training."""
        return party.transformed(getattr(self, "transforms_", {}).get(party.name))


def all_or_nothing(fit: Callable[Concatenate[S, P], S]) -> Callable[Concatenate[S, P], S]:
    """A fit that fails leaves the model that was there, whole; what its ledgers counted stays counted."""

    @wraps(fit)
    def fitting(self: S, /, *arguments: P.args, **named: P.kwargs) -> S:
        before = dict(vars(self))
        try:
            return fit(self, *arguments, **named)
        except BaseException:
            vars(self).clear()
            vars(self).update(before)
            raise

    return fitting


def write_shard(folder: FilePath, party: str, arrays: Shard) -> None:
    """One party's parameters, in a file of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"shard-{party}.npz").open("wb") as stream:
        np.savez(stream, allow_pickle=False, **arrays)


def read_shard(path: FilePath) -> Shard:
    try:
        with path.open("rb") as stream:
            arrays = np.load(stream, allow_pickle=False)
            if not isinstance(arrays, NpzFile):
                raise ValueError("it holds one array without a name")
            with arrays:
                return {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError, KeyError, EOFError, AttributeError, BadZipFile, zlib.error) as error:
        line = str(error).strip().split("\n", 1)[0]
        raise DataError(f"{path}: not a model shard ({line})") from None


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


def check_free(parameters: Mapping[str, Any], fixed: Mapping[str, Any]) -> None:
    """Refuse to load a model with other values of what it was trained with."""
    for name in sorted(parameters.keys() & fixed.keys()):
        raise SettingError(f"{name}: {parameters[name]!r} given, the saved model's {fixed[name]!r} stands")


def read_shards(
    folder: str | PathLike[str], estimator: str, facts: Collection[str]
) -> tuple[dict[str, Any], dict[str, Shard]]:
    """What all know of a saved model (at least `facts`), and every party's arrays."""
    shards: dict[str, Shard] = {}
    public: dict[str, Any] = {}
    for path in sorted(FilePath(folder).glob("shard-*.npz")):
        arrays = read_shard(path)
        found = _public(arrays.pop("public", np.array("")))
        ours = found.get("estimator") == estimator and found.keys() >= {"parties", *facts}
        if not ours or (public and found != public):
            raise DataError(f"{path}: not a shard of the same {estimator} model")
        public = found
        shards[path.name[len("shard-") : -len(".npz")]] = arrays
    if not shards:
        raise DataError(f"{folder}: no model shards there")
    due = {*map(str, public["parties"]), *([helper] if (helper := _helper(public)) else [])}
    if set(shards) != due:
        raise DataError(f"{folder}: shards of {', '.join(shards)} there, {', '.join(sorted(due))} expected")
    return public, shards


def _helper(public: Mapping[str, Any]) -> str:
    """The party without data that has a part of a blind model, if there is one."""
    blind = public.get("blind")
    return str(blind.get("helper") or "") if isinstance(blind, dict) else ""


def _public(note: NDArray[np.generic]) -> dict[str, Any]:
    """What a shard says about its model; nothing if it is not that."""
    try:
        found = json.loads(str(note))
    except ValueError:
        return {}
    return found if isinstance(found, dict) and isinstance(found.get("parties"), list) else {}


def check_columns(party: Party, columns: int | None) -> None:
    """DataError unless the party has as many columns as the model (None: any number)."""
    given = party.features.shape[1]
    if columns not in (None, given):
        raise DataError(f"{party.name}: {given} columns given, the model has {columns}")


def check_parties(parties: Iterable[Party]) -> list[Party]:
    """The parties in a list; DataError unless they are parties, each with a name of its own."""
    if isinstance(parties, Party) or not isinstance(parties, Iterable):
        raise DataError(f"parties: a {type(parties).__name__} given, a list of Party(...) is allowed")
    listed = list(parties)
    for party in listed:
        if not isinstance(party, Party):
            raise DataError(f"parties: a {type(party).__name__} given, Party(...) is allowed")
    names = [party.name for party in listed]
    if len(set(names)) != len(names):
        raise DataError(f"parties: names have to differ, {', '.join(names)} given")
    return listed
