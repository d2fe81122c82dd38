"""The settings of an estimator, and the run of all parties in this process."""

from __future__ import annotations

import inspect
import secrets
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator
from tqdm import tqdm

from securefed.api.party import Fitted, Party
from securefed.assembly import Assembly
from securefed.crypto import KeyHolder, generate, key_kind
from securefed.data.entropy import column_bits
from securefed.engine import Engine, get_engine
from securefed.errors import SettingError
from securefed.protocols.agreement import Agreement
from securefed.protocols.loop import Round
from securefed.protocols.messages import KINDS
from securefed.protocols.scoring.blur import ScoreGuard
from securefed.settings.declare import declared
from securefed.settings.describe import parameters_text
from securefed.settings.estimator import Local, Simulation
from securefed.settings.flat import GROUPS, flat_names, grouped, warn_of_names
from securefed.settings.objectives import ObjectiveSettings
from securefed.transport import LocalRun, Program, get_network, run_local

__all__ = ["Keys", "Simulated", "held_bits"]

Keys = Mapping[str, KeyHolder]


def _constructor(cls: type[Simulated]) -> Callable[..., None]:
    """The constructor of an estimator: its parameters are the declared settings."""
    settings = {**declared(cls.assembly.settings_class), **declared(cls.local)}
    names = [*cls.positional, *(name for name in settings if name not in cls.positional)]

    def __init__(self: Simulated, *positional: Any, **named: Any) -> None:
        if len(positional) > len(cls.positional):
            raise TypeError(f"{cls.__name__} takes {len(cls.positional)} positional arguments")
        words = {**dict(zip(cls.positional, positional, strict=False)), **named}
        values = cls._renamed(words, stacklevel=4)
        unknown = values.keys() - settings.keys()
        if unknown:
            raise TypeError(f"{cls.__name__}: {min(unknown)!r} is not a parameter")
        for name in names:
            setattr(self, name, values.get(name, settings[name].default))

    kind = inspect.Parameter
    parameters = [kind("self", kind.POSITIONAL_OR_KEYWORD)]
    for name in names:
        place = kind.POSITIONAL_OR_KEYWORD if name in cls.positional else kind.KEYWORD_ONLY
        parameters.append(kind(name, place, default=settings[name].default))
    __init__.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # for scikit-learn
    return __init__


class Simulated(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Parameters are the declared settings (securefed.settings); `fit` checks them, as in scikit-learn."""

    assembly: ClassVar[type[Assembly[Any]]]
    """What a run is assembled from."""
    local: ClassVar[type[Local]] = Local
    """Settings besides those of the objective."""
    positional: ClassVar[tuple[str, ...]] = ("algorithm",)

    score_guards_: dict[str, ScoreGuard]
    """What each party that is scored keeps about that. A fit begins anew; set those of an earlier model to
    go on counting, as parties in processes of their own do over all their runs.
    """
    transforms_: dict[str, Fitted]
    """How each party prepares its columns."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if not hasattr(cls, "assembly"):
            return
        cls.__init__ = _constructor(cls)  # type: ignore[method-assign]
        parameters = parameters_text(cls.assembly.settings_class, cls.local)
        cls.__doc__ = f"{inspect.cleandoc(cls.__doc__ or '')}\n\n{inspect.cleandoc(parameters)}\n"

    # Settings

    @classmethod
    def _renamed(cls, words: Mapping[str, Any], *, stacklevel: int) -> dict[str, Any]:
        """Parameters, from those of version 0.1 too: they keep working for one version."""
        values, old = grouped(cls.assembly.settings_class, cls.local, words)
        if old:
            warn_of_names(cls.__name__, old, values, stacklevel=stacklevel)
        return values

    def set_params(self, **parameters: Any) -> Self:
        """Set parameters. Those of version 0.1 are translated; they change what is set, and no more."""
        old = parameters.keys() & self._flat().keys()
        words = {**self._flat(), **parameters} if old else parameters
        values, names = grouped(self.assembly.settings_class, self.local, words)
        if names:
            warn_of_names(type(self).__name__, set(old) or names, values, stacklevel=3)
        super().set_params(**values)
        return self

    def _flat(self) -> dict[str, Any]:
        """The present parameters by the names of version 0.1."""
        protection, found = self.protection, dict[str, Any]()
        like = getattr(protection, "like", None)
        for group in (protection, self.monitoring):
            found |= {name: getattr(group, name) for name in declared(type(group))}
        for name in GROUPS.keys() & declared(self.local).keys():
            found |= {word: getattr(getattr(self, name), word) for word in declared(GROUPS[name])}
        found.pop("like", None)
        found["reveal"] = "own-gradient" if "own-gradient" in (protection.kind, like) else "nothing"
        if like is not None:
            found["loss_form"] = "taylor"
        known = flat_names(self.assembly.settings_class).union(*map(declared, GROUPS.values()))
        return {name: value for name, value in found.items() if name in known - {"helper"}}

    def _settings(self, parties: int = 2) -> Any:
        """The settings of the run, checked."""
        kind = self.assembly.settings_class
        settings = kind(**{name: getattr(self, name) for name in declared(kind)})
        return settings.for_parties(parties)

    def _local(self) -> Any:
        return self.local(**{name: getattr(self, name) for name in declared(self.local)})

    # The run

    def _keys(
        self, settings: ObjectiveSettings, agreement: Agreement, keys: Keys | None
    ) -> dict[str, KeyHolder]:
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
        bits = settings.option("key_bits")
        return {name: given.get(name) or generate(kind, key_bits=bits) for name in names}

    def _fitting_holders(self, agreement: Agreement) -> dict[str, KeyHolder]:
        """The key-holders of the last run that serve this one."""
        kind = key_kind(agreement.scheme, agreement.reveal)
        holders: dict[str, KeyHolder] = getattr(self, "_holders", None) or {}
        return {name: holder for name, holder in holders.items() if holder.public.scheme.name == kind}

    def _mapper(self, settings: ObjectiveSettings) -> Engine:
        return get_engine(self._local().simulation.engine, settings.scheme)

    def _run(self, programs: Mapping[str, Program], simulation: Simulation) -> LocalRun:
        network = get_network(simulation.network)
        return run_local(programs, run=secrets.token_hex(8), kinds=KINDS, network=network)

    @contextmanager
    def _bar(self, agreement: Agreement) -> Iterator[Callable[[Round], None] | None]:
        """A progress bar at the label party: round, metric, time left."""
        progress = self._local().simulation.progress
        show = sys.stderr.isatty() if progress is None else progress
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

    # Whose scores were told

    def _guards(
        self, settings: ObjectiveSettings, names: Sequence[str], trained_on: Sequence[Party] | None = None
    ) -> dict[str, ScoreGuard]:
        """`score_guards_`, with the ledger as it is set now.

        `trained_on`: in a fit, the parties before their transforms; what their columns hold is counted.
        """
        kept: dict[str, ScoreGuard] = getattr(self, "score_guards_", {}) if trained_on is None else {}
        raw = {party.name: party for party in trained_on or ()}
        for name in names[:-1]:
            guard = kept.setdefault(name, ScoreGuard(party=name))
            guard.ledger.mode = settings.protection.score_ledger
            if trained_on is not None:
                guard.column_bits = held_bits(raw[name])
        self.score_guards_ = kept
        return kept

    def _know(self, parties: Iterable[Party], assembly: Assembly[Any] | None = None) -> None:
        """Tell guards whom rows to score are about, where there are ids."""
        for party in [*parties, *(self.__dict__.pop("_seen", None) or ())]:
            guard = self.score_guards_.get(party.name)
            if guard is None or party.ids is None:
                continue
            columns = party.features
            if assembly is not None:
                columns = assembly.features(columns, self.transforms_[party.name].columns.untransformed)
            guard.know(columns, [str(each).encode() for each in party.ids.tolist()])


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
