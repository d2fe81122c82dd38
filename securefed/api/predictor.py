"""An estimator's settings, runs of all parties in this process, and what a fitted model says of new rows."""

from __future__ import annotations

import inspect
import secrets
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar, Concatenate, ParamSpec, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from tqdm import tqdm

from securefed.api.party import Party, align, check_parties, label_party, missing_elsewhere
from securefed.api.result import RunResult, by_id
from securefed.assembly import Assembly, assembly_of
from securefed.assembly.base import Model, Part, PartyData
from securefed.crypto import KeyHolder, generate, key_kind
from securefed.data.columns import FittedColumns
from securefed.declare import declared
from securefed.engine import get_engine
from securefed.errors import DataError, SettingError
from securefed.labels.label_model import LabelModel
from securefed.labels.several import ClassModels
from securefed.protocols.agreement import Agreement
from securefed.protocols.blind.scoring import ModelPart
from securefed.protocols.loop import PartyContext, Round
from securefed.protocols.messages import KINDS
from securefed.protocols.scoring.score_ledger import ScoreGuard
from securefed.settings.describe import parameters_text
from securefed.settings.objectives import ObjectiveSettings, Simulation
from securefed.settings.protection import (
    OLD_WORDS,
    Protection,
    protection_from_words,
    warn_of_words,
)
from securefed.transport import LocalRun, Program, get_network, run_local

Array = NDArray[np.float64]
Keys = Mapping[str, KeyHolder]
P = ParamSpec("P")


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


class NotFitted(DataError, NotFittedError):  # type: ignore[misc]  # scikit-learn has no types
    """The model is not fitted yet. scikit-learn's NotFittedError, and so an AttributeError too."""


class Predictor(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """The settings of an estimator, and the model that it has once it is fitted.

    Parameters are the declared settings (securefed.settings); `fit` checks them, as in scikit-learn.
    """

    assembly: ClassVar[type[Assembly[Any]]]
    """What a run is assembled from. The parameters are its settings."""
    score_guards_: dict[str, ScoreGuard]
    """What each party that is scored keeps about that. A fit begins anew; set those of an earlier model to
    go on counting, as parties in processes of their own do over all their runs.
    """
    transforms_: dict[str, FittedColumns]
    """How each party prepares its columns."""
    result_: RunResult
    """The run that `fit` made; where there was one run a class, the first, with the quality of all."""
    parties_: list[str]
    """The parties in the order of their turns, the label party last."""
    models_: list[Self]
    """One model a class, where the classes could not be trained in one run."""
    _label_model: LabelModel
    _holders: dict[str, KeyHolder]
    _parts: dict[str, Part]
    _released: dict[str, Model]
    """The parameters that a blind run opened to their owners."""
    _key_holder: str | None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if not hasattr(cls, "assembly"):
            return
        text = parameters_text(cls.assembly.settings_class)
        cls.__doc__ = f"{inspect.cleandoc(cls.__doc__ or '')}\n\n{text}\n"

    def __init__(self, *first: Any, **named: Any) -> None:
        kind = self.assembly.settings_class
        settings = declared(kind)
        named = self._renamed(named, settings["protection"].default, stacklevel=5)
        values = inspect.signature(kind).bind_partial(*first, **named).arguments
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

    def _run(self, programs: Mapping[str, Program], simulation: Simulation) -> LocalRun:
        network = get_network(simulation.network)
        return run_local(programs, run=secrets.token_hex(8), kinds=KINDS, network=network)

    @contextmanager
    def _bar(self, agreement: Agreement) -> Iterator[Callable[[Round], None]]:
        """A progress bar at the label party: round, metric, time left."""
        show = self.simulation.progress
        hidden = None if show is None else not show  # None: hidden unless there is a terminal
        rounds, name = agreement.stopping.rounds, agreement.algorithm.name
        with tqdm(total=rounds, unit="round", desc=name, disable=hidden) as bar:

            def on_round(state: Round) -> None:
                facts = {} if state.metric is None else {"metric": f"{state.metric:.4f}"}
                path = state.link.path
                bar.set_postfix(**facts, comp=f"{path.computation:.1f}s", comm=f"{path.communication:.1f}s")
                bar.update()

            yield on_round

    # Whose scores were told

    def _guards(self, settings: ObjectiveSettings) -> dict[str, ScoreGuard]:
        """`score_guards_`, with the ledger as it is set now."""
        for name in self.parties_[:-1]:
            guard = self.score_guards_.setdefault(name, ScoreGuard(party=name))
            guard.mode = settings.protection.score_ledger
        return self.score_guards_

    # A fitted model

    def _fitted(self) -> None:
        if not hasattr(self, "_parts"):
            raise NotFitted(f"this {type(self).__name__} is not fitted; call fit or load first")

    def __getstate__(self) -> dict[str, Any]:
        """Settings may be pickled and copied; what was learned is in parts that belong to several parties."""
        if hasattr(self, "_parts"):
            raise SettingError(
                f"pickle: a fitted {type(self).__name__} is not pickled; save(folder) writes a file for each "
                "party, load(folder) reads them"
            )
        state: dict[str, Any] = super().__getstate__()
        return state

    @property
    def shards_(self) -> dict[str, Any]:
        """Each party's part of the model: its parameters, or shares where nobody knows them."""
        self._fitted()
        parts = self._parts.items()
        own = {name: each if isinstance(each, ModelPart) else each.model for name, each in parts}
        return dict(self._released) or own

    @property
    def holders_(self) -> dict[str, KeyHolder]:
        """The key-holders of the run: for another fit, or to save with securefed.crypto.save_key."""
        self._fitted()
        return dict(self._holders)

    @property
    def confusion_(self) -> NDArray[np.intp] | None:
        """Of the held-out rows, which class (row) was taken for which (column); from three classes on."""
        self._fitted()
        return self._label_model.confusion if isinstance(self._label_model, ClassModels) else None

    @property
    def classes_(self) -> NDArray[Any]:
        """The classes, in sorted order."""
        self._fitted()
        classes = self._label_model.classes
        if classes is None:
            raise AttributeError("classes_: a model of numbers has no classes")
        return classes

    # Scores

    def _to_score(self, parties: Any) -> list[Party]:
        """The rows to score: aligned, in the order of training."""
        return in_order(parties, self.parties_)

    def decision_function(self, parties: Any) -> Any:
        """Return the scores of new rows, by an encrypted run. The label party alone learns them.

        There is one score a row, in the label party's order; rows and types are as for `predict`. From three
        classes on there is one column a class. Scores of the linear loss are in the labels' own units.
        """
        rows = self._wanted(parties)
        numbers = self._label_model.numbers(self._scores(rows))
        return by_id(numbers, rows[-1], "score", self._label_model.classes)

    def _wanted(self, parties: Any) -> list[Party]:
        """The rows to score. One warning is about those that the others do not have."""
        self._fitted()
        rows = self._to_score(parties)
        text = missing_elsewhere([parties] if isinstance(parties, Party) else parties, rows[-1])
        if text:
            warnings.warn(text, stacklevel=3)
        return rows

    def _scores(self, rows: Sequence[Party]) -> Array:
        """The scores of aligned rows."""
        return self._scored({party.name: party.transformed(self.transforms_[party.name]) for party in rows})

    def _scored(self, data: dict[str, PartyData]) -> Array:
        """The scores of rows with prepared columns."""
        if hasattr(self, "models_"):
            return np.column_stack([model._scored(dict(data)) for model in self.models_])
        settings = self._settings(len(self.parties_))
        assembly, last = assembly_of(settings), self.parties_[-1]
        if last in data:
            data[last] = replace(data[last], labels=self._label_model)
        outputs = self._label_model.outputs
        agreement = assembly.prediction_agreement(self.parties_, outputs, self._key_holder)
        count, programs = len(next(iter(data.values())).features), dict[str, Program]()
        with get_engine(settings.simulation.engine, settings.scheme) as mapper:
            guards = self._guards(settings)
            kind, before = key_kind(agreement.scheme, agreement.reveal), self._holders.items()
            fitting = {name: holder for name, holder in before if holder.public.scheme.name == kind}
            self._holders = self._keys(settings, agreement, fitting)
            for name in (*agreement.names, *([] if agreement.key_holder is None else [agreement.key_holder])):
                context = PartyContext(self._holders.get(name), mapper, guard=guards.get(name))
                part, own = self._parts.get(name), data.get(name)
                programs[name] = assembly.prediction_program(agreement, name, part, own, count, context)
            run = self._run(programs, settings.simulation)
        scores: Array = run.outcomes[last]
        return scores

    def predict_proba(self, parties: Any) -> Any:
        """Return the probabilities of the classes: one column a class, in the order of `classes_`.

        There is one row for each of the label party's rows, in its order. Where parties have ids, it is a
        pandas DataFrame with the ids as index and the classes as columns, else an array. See `predict` for
        rows that other parties do not have.
        """
        self._fitted()
        if not self._label_model.loss.binary:
            raise SettingError(
                f"predict_proba: a loss of classes has probabilities, {self._label_model.loss.name!r} given"
            )
        rows = self._wanted(parties)
        likely = self._label_model.probabilities(self._scores(rows))
        likely = likely if likely.ndim == 2 else np.column_stack([1.0 - likely, likely])
        return by_id(likely, rows[-1], "probability", self.classes_)

    def predict(self, parties: Any) -> Any:
        """Return the class of each row, or its number for the linear loss.

        Answers are for the label party's rows, in its order. Transfer learning answers for the rows of the
        party without labels. Where parties have ids, answers are a pandas Series with the ids as index (a
        DataFrame for several numbers a row). They are a numpy array where there are no ids, or where pandas
        is not installed. A row that another party does not have gets no answer; one warning counts such
        rows and names the first ones.
        """
        rows = self._wanted(parties)
        return by_id(self._label_model.answers(self._scores(rows), self._threshold()), rows[-1], "prediction")

    @property
    def _answered(self) -> list[str]:
        """The parties, last the one in whose order answers are."""
        return self.parties_

    def score(self, parties: Sequence[Party], metric: str | None = None) -> float:
        """Return a metric on rows whose labels are given.

        Parameters
        ----------
        metric : a name of securefed.labels.metrics; None: accuracy, R2, or D2 for a family.
        """
        self._fitted()
        aligned, model = in_order(parties, self._answered), self._label_model
        rows = label_party(aligned)
        labels, scores = rows.known_labels(), self._scores(self._to_score(aligned))
        answers = model.beside(labels, scores, rows.name, rows.offset, self._threshold())
        return model.score(answers, metric)

    def _threshold(self) -> Any:
        settings = self._settings()
        return settings.labels.threshold if hasattr(settings, "labels") else "half"


def in_order(parties: Sequence[Party], names: Sequence[str]) -> list[Party]:
    """The same parties as in training, aligned, in the order of training."""
    by_name = {party.name: party for party in check_parties(parties)}
    if set(by_name) != set(names):
        raise DataError(f"parties: {', '.join(sorted(by_name))} given, the model has {', '.join(names)}")
    return align([by_name[name] for name in names], names[-1])
