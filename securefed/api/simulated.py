"""The settings of an estimator, and the run of all parties in this process."""

from __future__ import annotations

import inspect
import secrets
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Concatenate, ParamSpec, Self

import numpy as np
from sklearn.base import BaseEstimator
from tqdm import tqdm

from securefed.api.party import Fitted, Party
from securefed.assembly import Assembly
from securefed.crypto import KeyHolder, generate, key_kind
from securefed.data.columns import column_bits
from securefed.declare import declared
from securefed.errors import SettingError
from securefed.protocols.agreement import Agreement
from securefed.protocols.loop import Round
from securefed.protocols.messages import KINDS
from securefed.protocols.scoring.blur import ScoreGuard
from securefed.settings.describe import parameters_text
from securefed.settings.objectives import Labels, Monitoring, ObjectiveSettings, Simulation
from securefed.settings.protection import (
    OLD_WORDS,
    PROTECTIONS,
    Protection,
    protection_from_words,
    warn_of_words,
)
from securefed.transport import LocalRun, Program, get_network, run_local

Keys = Mapping[str, KeyHolder]
P = ParamSpec("P")
GROUPS = (Monitoring, Labels, Simulation)
"""Settings that are parameters as a group."""


def parameters(
    settings: Callable[P, ObjectiveSettings],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, P], None]]:
    """Give a constructor the declared settings as parameters; type checkers and scikit-learn see them."""

    def decorate(init: Callable[..., None]) -> Callable[Concatenate[Any, P], None]:
        own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        declared_ones = inspect.signature(settings).parameters.values()
        init.__signature__ = inspect.Signature([own, *declared_ones])  # type: ignore[attr-defined]
        return init

    return decorate


class Simulated(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Parameters are the declared settings (securefed.settings); `fit` checks them, as in scikit-learn."""

    assembly: ClassVar[type[Assembly[Any]]]
    """What a run is assembled from. The parameters are its settings."""
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
        text = parameters_text(cls.assembly.settings_class)
        cls.__doc__ = f"{inspect.cleandoc(cls.__doc__ or '')}\n\n{text}\n"

    def __init__(self, *first: Any, **named: Any) -> None:
        kind = self.assembly.settings_class
        settings, signature = declared(kind), inspect.signature(kind)
        signature.bind_partial(*first)
        named |= dict(zip(signature.parameters, first, strict=False))
        values = self._renamed(named, settings["protection"].default, stacklevel=5)
        for name in values.keys() - settings.keys():
            homes = [each for each in (*PROTECTIONS.values(), *GROUPS) if name in declared(each)]
            hint = " or ".join(f"{each.__name__}({name}=...)" for each in homes)
            raise TypeError(
                f"{type(self).__name__}: {name!r} is not a parameter{hint and f'; {hint} takes it'}"
            )
        for name, each in settings.items():
            setattr(self, name, values.get(name, each.default))

    # Settings

    @classmethod
    def _renamed(cls, values: Mapping[str, Any], now: Protection, *, stacklevel: int) -> dict[str, Any]:
        """Parameters, with `scheme` and `reveal` of version 0.1 as a protection."""
        named = dict(values)
        words = {word: named.pop(word) for word in OLD_WORDS if word in named}
        if words:
            named["protection"] = protection_from_words(words, named.get("protection", now))
            warn_of_words(cls.__name__, words, named["protection"], stacklevel=stacklevel)
        return named

    def set_params(self, **parameters: Any) -> Self:
        """Set parameters; `scheme` and `reveal` change the protection."""
        super().set_params(**self._renamed(parameters, self.protection, stacklevel=4))
        return self

    def _settings(self, parties: int = 2) -> Any:
        """The settings of the run, checked."""
        kind = self.assembly.settings_class
        settings = kind(**{name: getattr(self, name) for name in declared(kind)})
        return settings.for_parties(parties)

    # The run

    def _keys(
        self, settings: ObjectiveSettings, agreement: Agreement, keys: Keys | None
    ) -> dict[str, KeyHolder]:
        """A key-holder for whoever holds keys in this run: as given, or fresh."""
        names = list(agreement.names) if agreement.mutual else [str(agreement.key_holder)]
        holders, kind = dict(keys or {}), key_kind(agreement.scheme, agreement.reveal)
        if kind is None:
            if holders:
                raise SettingError("keys: none are taken where nothing is revealed; such a run makes its own")
            return {}
        for name, holder in holders.items():
            if name not in names:
                raise SettingError(f"keys: {name!r} given, only {', '.join(names)} hold keys in this run")
            if not isinstance(holder, KeyHolder) or holder.public.scheme.name != kind:
                raise SettingError(f"keys: {name} has {holder!r}, a {kind} key-holder is allowed")
        bits = settings.option("key_bits")
        return {name: holders.get(name) or generate(kind, key_bits=bits) for name in names}

    def _fitting_holders(self, agreement: Agreement) -> dict[str, KeyHolder]:
        """The key-holders of the last run that serve this one."""
        kind = key_kind(agreement.scheme, agreement.reveal)
        holders: dict[str, KeyHolder] = getattr(self, "_holders", None) or {}
        return {name: holder for name, holder in holders.items() if holder.public.scheme.name == kind}

    def _run(self, programs: Mapping[str, Program], simulation: Simulation) -> LocalRun:
        network = get_network(simulation.network)
        return run_local(programs, run=secrets.token_hex(8), kinds=KINDS, network=network)

    @contextmanager
    def _bar(self, agreement: Agreement) -> Iterator[Callable[[Round], None] | None]:
        """A progress bar at the label party: round, metric, time left."""
        progress = self._settings().simulation.progress
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

    def _know(self, parties: Iterable[Party]) -> None:
        """Tell guards whom rows to score are about, where there are ids."""
        for party in parties:
            guard, ids = self.score_guards_.get(party.name), party.agreed_ids()
            if guard is not None and ids is not None:
                guard.know(party.features, [each.encode() for each in ids])


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
