"""The base of the estimators: align, assemble, drive, collect.

    align       whose rows are common, and every party's columns as numbers
    assemble    every party's program, by securefed.assembly, as party processes do
    drive       all programs in this process
    collect     the parts of the model, the run's account, the quality on held-out rows

An estimator for a new objective names its assembly; docs/extending.md has one.
"""

from __future__ import annotations

import inspect
import secrets
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from os import PathLike
from pathlib import Path as FilePath
from typing import Any, ClassVar, Concatenate, ParamSpec, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, clone
from sklearn.exceptions import NotFittedError
from tqdm import tqdm

from securefed.api.keeping import (
    fitted_arrays,
    guard_arrays,
    held_bits,
    make_room,
    read_shards,
    take_fitted,
    take_guards,
)
from securefed.api.party import Fitted, Party, align, label_party, missing_elsewhere
from securefed.api.result import RunResult, by_id
from securefed.assembly import Assembly, Trained, assembly_of
from securefed.assembly.base import Model, Part
from securefed.assembly.build import Measured, PartyData, build, known_rows, label_targets
from securefed.assembly.prediction import prediction_program
from securefed.assembly.shards import shard_file, write_part
from securefed.crypto import KeyHolder, generate, key_kind
from securefed.data.labels import missing_labels
from securefed.engine import Engine, get_engine
from securefed.errors import DataError, SecurefedError, SettingError
from securefed.labels.base_model import LabelOptions
from securefed.labels.classes import ClassModels
from securefed.labels.label_model import LabelModel
from securefed.labels.quality import Holdout, QualityWarning
from securefed.labels.targets import TargetModels
from securefed.protocols.agreement import Agreement
from securefed.protocols.blind.scoring import ModelPart
from securefed.protocols.loop import Outcome, PartyContext, Round
from securefed.protocols.messages import KINDS
from securefed.protocols.objectives import warn_of_trust
from securefed.protocols.schedules import held_out
from securefed.protocols.scoring.blur import ScoreGuard
from securefed.protocols.scoring.scorers import LinearScorer
from securefed.settings.declare import declared
from securefed.settings.describe import parameters_text
from securefed.settings.estimator import Labels, Local, Simulation
from securefed.settings.flat import GROUPS, flat_names, grouped, warn_of_names
from securefed.settings.objectives import ObjectiveSettings
from securefed.settings.protection import Blind, ByGradient, OwnGradient, Protection
from securefed.transport import LocalRun, Program, get_network, run_local

__all__ = ["Federated", "NotFitted", "all_or_nothing", "check_parties"]

Array = NDArray[np.float64]
Places = NDArray[np.intp]
Keys = Mapping[str, KeyHolder]
P = ParamSpec("P")
S = TypeVar("S")


class NotFitted(DataError, NotFittedError):  # type: ignore[misc]  # scikit-learn has no types
    """The model is not fitted yet. scikit-learn's NotFittedError, and so an AttributeError too."""


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


def _constructor(cls: type[Federated]) -> Callable[..., None]:
    """The constructor of an estimator: its parameters are the declared settings."""
    settings = {**declared(cls.assembly.settings_class), **declared(cls.local)}
    names = [*cls.positional, *(name for name in settings if name not in cls.positional)]

    def __init__(self: Federated, *positional: Any, **named: Any) -> None:
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
    __init__.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # what scikit-learn reads
        [
            kind("self", kind.POSITIONAL_OR_KEYWORD),
            *(
                kind(
                    name,
                    kind.POSITIONAL_OR_KEYWORD if name in cls.positional else kind.KEYWORD_ONLY,
                    default=settings[name].default,
                )
                for name in names
            ),
        ]
    )
    return __init__


class Federated(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """An estimator whose parties are all simulated in this process.

    Each party has its own program, keys, clock and transcript. Parameters are the declared settings
    (securefed.settings); `fit` checks them, as in scikit-learn.
    """

    assembly: ClassVar[type[Assembly[Any]]]
    """What a run is assembled from."""
    local: ClassVar[type[Local]] = Local
    """Settings besides those of the objective."""
    positional: ClassVar[tuple[str, ...]] = ("algorithm",)

    score_guards_: dict[str, ScoreGuard]
    """What each party that is scored keeps about that. A fit begins anew; set those of an earlier model to
    go on counting, as parties in processes of their own do over all their runs.
    """
    result_: RunResult
    """The run that `fit` made; where there was one run a class, the first, with the quality of all."""
    parties_: list[str]
    """The parties in the order of their turns, the label party last."""
    shards_: dict[str, Any]
    """Each party's part of the model: its parameters, or shares where nobody knows them."""
    models_: list[Self]
    """One model a class, where the classes could not be trained in one run."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
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

    def __getstate__(self) -> dict[str, Any]:
        """Settings may be pickled and copied; what was learned is in parts that belong to several parties."""
        if hasattr(self, "shards_"):
            raise SettingError(
                f"pickle: a fitted {type(self).__name__} is not pickled; save(folder) writes a file for each "
                "party, load(folder) reads them"
            )
        state: dict[str, Any] = super().__getstate__()
        return state

    # Training

    @all_or_nothing
    def fit(
        self,
        parties: Sequence[Party],
        *,
        validation: Sequence[Party] | None = None,
        keys: Keys | None = None,
    ) -> Self:
        """Train on the common rows.

        Parameters
        ----------
        parties : one of them has labels.
        validation : the same parties with other rows, to measure with in place of held-out ones.
        keys : key-holders of an earlier run; fresh keys are made where none are given.
        """
        listed = check_parties(parties)
        settings, local = self._settings(len(listed)), self._local()
        if (classes := self._apart(settings, local, listed)) is not None:
            return self._fit_each(listed, classes, validation, keys)
        assembly = assembly_of(settings)
        self.__dict__.pop("models_", None)
        # Align
        ordered, rows = self._align(assembly, listed, local)
        names = [party.name for party in ordered]
        data, labelled = self._data(settings, local, ordered, rows)
        seen = None if validation is None else self._validation(settings, data, validation, names)
        division = held_out(len(labelled), 0.0 if seen else settings.holdout, settings.seed)
        # Assemble
        models = {
            name: assembly.model(
                name, assembly.columns(data[name].features.shape[1]), last=name == names[-1], index=index
            )
            for index, name in enumerate(names)
        }
        agreement = self._agreement(assembly, models, len(labelled), len(division[1]), seen)
        warn_of_trust(agreement.scheme, agreement.reveal, agreement.objective)
        holders, guards = self._keys(settings, agreement, keys), self._guards(settings, names, listed)
        looked_at = division[1] if len(division[1]) else division[0]
        self._know([party.take(rows[party.name][looked_at]) for party in ordered], assembly)
        with self._mapper(settings) as mapper, self._bar(agreement) as on_round:
            trained: dict[str, Trained] = {}
            for name in names:
                context = PartyContext(holders.get(name), mapper, None, None, guards.get(name))
                if name == names[-1]:
                    context = replace(context, on_round=on_round)
                trained[name], measured = build(
                    assembly,
                    agreement,
                    name,
                    data[name],
                    rows[name],
                    labelled,
                    division,
                    models[name],
                    context,
                    None if seen is None else seen[name],
                )
            if (third := agreement.key_holder) is not None:
                helper = assembly.key_holder(agreement, PartyContext(holders.get(third), mapper))
                trained[third] = Trained(helper, None)
            self._begin(trained)
            # Drive
            run = self._run({name: each.program.run for name, each in trained.items()}, local.simulation)
        # Collect
        judged = self._judge(run.outcomes[names[-1]], measured)
        self.result_ = RunResult.of(agreement, run, judged)
        self.parties_, self._holders, self._key_holder = names, holders, agreement.key_holder
        self._collect(assembly, agreement, trained)
        return self

    def _align(
        self, assembly: Assembly[Any], parties: Sequence[Party], local: Local
    ) -> tuple[list[Party], dict[str, Places]]:
        """The parties with prepared columns, the label party last, and each one's common rows."""
        last = label_party(parties).name
        ordered = sorted(align(parties, last), key=lambda party: party.name == last)
        prepared = [party.fitted(standardise=local.standardise) for party in ordered]
        self.transforms_: dict[str, Fitted] = {party.name: fitted for party, fitted in prepared}
        return [party for party, _ in prepared], {
            party.name: np.arange(party.rows, dtype=np.intp) for party in ordered
        }

    def _data(
        self, settings: ObjectiveSettings, local: Any, ordered: Sequence[Party], rows: Mapping[str, Places]
    ) -> tuple[dict[str, PartyData], NDArray[np.bool_]]:
        """Every party's data, and which of the common rows have labels."""
        for party in ordered[:-1]:
            if party.weights is not None or party.offset is not None:
                raise DataError(f"{party.name}: weights or an offset given, which the label party alone has")
        last = ordered[-1]
        targets, self._label_model = label_targets(
            settings,
            _labels(last),
            last.name,
            self._wishes(local, last),
            standardise=local.standardise,
        )
        data = {
            party.name: PartyData(
                features=party.features,
                targets=targets if party is last else None,
                labels=self._label_model if party is last else None,
                untransformed=self.transforms_[party.name].columns.untransformed,
                weights=party.weights,
                offset=party.offset,
            )
            for party in ordered
        }
        return data, known_rows(targets)[rows[last.name]]

    def _wishes(self, local: Any, party: Party) -> LabelOptions:
        """What the label party wants of its rows."""
        options = getattr(local, "labels", Labels(class_weight=None))
        return options.options(weighted=party.weights is not None, offset=party.offset is not None)

    def _validation(
        self,
        settings: ObjectiveSettings,
        data: Mapping[str, PartyData],
        validation: Sequence[Party],
        names: Sequence[str],
    ) -> dict[str, PartyData]:
        """Other rows to measure with."""
        matched = self._match(validation, names)
        last, found = matched[-1], {}
        targets = self._label_model.targets(_labels(last), last.name, settings.option("margin_bound"))
        self._seen = matched
        for party in matched:
            _check_columns(party, data[party.name].features.shape[1])
            own = targets if party is last else None
            found[party.name] = PartyData(features=party.features, targets=own, offset=party.offset)
        return found

    def _agreement(
        self,
        assembly: Assembly[Any],
        models: Mapping[str, Model],
        common: int,
        held: int,
        seen: Mapping[str, PartyData] | None,
    ) -> Agreement:
        members = tuple(assembly.member(name, model) for name, model in models.items())
        agreement = assembly.agreement(members, common, self._label_model.outputs, held=held)
        if seen is None:
            return agreement
        return replace(agreement, holdout=len(next(iter(seen.values())).features))

    def _begin(self, trained: Mapping[str, Trained]) -> None:  # nothing to do is allowed
        """Set where programs begin, if not at their start."""

    def _judge(self, outcome: Outcome, measured: Measured | None) -> Holdout | None:
        """What the held-out rows say of the model that is kept."""
        self._judged: tuple[Measured, Array] | None = None
        if measured is None or not measured.held.scores:
            return None
        scores = measured.held.scores[outcome.kept(len(measured.held.scores))]
        self._judged = measured, scores
        quality = self._label_model.learn(measured.held, scores, measured.own, self._threshold())
        if quality.warning:
            warnings.warn(quality.warning, QualityWarning, stacklevel=4)
        return quality

    def _collect(self, assembly: Assembly[Any], agreement: Agreement, trained: Mapping[str, Trained]) -> None:
        """Keep each party's part of the model."""
        self._training = secrets.token_hex(8)  # tells this model from others in a folder
        self._parts: dict[str, Part] = {}
        self._released: dict[str, Model] = {}
        for name, each in trained.items():
            if name == agreement.key_holder and agreement.reveal != "nothing":
                continue
            self._parts[name] = assembly.part(each)
            released = assembly.released(each)
            if released is not None:
                self._released[name] = released
        self._show_shards()

    def _show_shards(self) -> None:
        self.shards_ = {}
        for name, part in self._parts.items():
            if name in self._released:
                self.shards_[name] = self._released[name]
            elif isinstance(part, ModelPart):
                if not self._released:
                    self.shards_[name] = part
            else:
                self.shards_[name] = part.model if isinstance(part, LinearScorer) else part.layer

    # Several classes

    def _apart(
        self, settings: ObjectiveSettings, local: Any, parties: Sequence[Party]
    ) -> NDArray[Any] | None:
        """The classes, where they are more than two and take one run each."""
        party = label_party(parties)
        labels = _labels(party)
        if not settings.loss_function.binary or labels.ndim != 1:
            return None
        classes = np.unique(np.array(labels[~missing_labels(labels)].tolist()))
        if len(classes) <= 2:
            return None
        if getattr(local, "warm_start", False):
            raise SettingError("warm_start: a model of more than two classes begins every fit anew")
        # Numbers and ids are no classes: refused before anything is trained.
        try:
            ClassModels.with_gaps(labels, party.name, settings.loss_function)
        except DataError as error:
            hint = "; numbers take loss = 'linear'" if "loss" in declared(type(settings)) else ""
            raise DataError(f"{error}{hint}") from None
        if settings.many_classes and not self._wishes(local, party).any:
            return None
        return classes

    def _fit_each(
        self,
        parties: Sequence[Party],
        classes: NDArray[Any],
        validation: Sequence[Party] | None,
        keys: Keys | None,
    ) -> Self:
        """One run a class, each against the rest. The runs share keys and held-out rows."""
        labelled = label_party(parties)
        labels = _labels(labelled)
        there = ~missing_labels(labels)
        self.models_ = []
        for each in classes:
            this = (labels == each).astype(int)
            signs = labelled.relabelled(this if there.all() else np.where(there, this, None))
            model = clone(self)
            own = getattr(model, "labels", None)
            if own is not None and own.class_weight == "auto":
                model.labels = replace(own, class_weight=None)
            chosen = None if validation is None else _relabelled(validation, each)
            model.fit(
                [signs if party is labelled else party for party in parties], validation=chosen, keys=keys
            )
            keys = model.holders_
            self.models_.append(model)
        first = self.models_[0]
        sides = [model._label_model for model in self.models_]
        taylor = sides[0].taylor or self.assembly.settings_class.objective == "transfer"
        self._label_model = ClassModels(sides[0].loss, classes, taylor=taylor, sides=sides)
        judged = [model._judged for model in self.models_ if model._judged is not None]
        self.result_ = first.result_
        if len(judged) == len(self.models_):
            columns, _, seen = judged[0][0].own
            trained = np.column_stack([measured.own[1] for measured, _ in judged])
            targets = np.column_stack([measured.held.targets for measured, _ in judged])
            scores = np.column_stack([scores for _, scores in judged])
            quality = self._label_model.compare(targets, scores, (columns, trained, seen))
            self.result_ = replace(first.result_, holdout=quality)
        self.parties_, self._holders, self._key_holder = first.parties_, first._holders, first._key_holder
        self.transforms_, self.score_guards_ = first.transforms_, first.score_guards_
        self.shards_ = first.shards_
        return self

    @property
    def results_(self) -> dict[Any, RunResult]:
        """The run of each class; the same one for all where they were trained together."""
        self._fitted()
        names = self.classes_.tolist()
        names = names if len(names) > 2 else names[1:]
        models = getattr(self, "models_", None)
        return {name: models[k].result_ if models else self.result_ for k, name in enumerate(names)}

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

    # Prediction

    def _match(self, parties: Sequence[Party], names: Sequence[str]) -> list[Party]:
        """The same parties as in training, aligned, in the order of training, with prepared columns."""
        return [party.transformed(self.transforms_.get(party.name)) for party in _in_order(parties, names)]

    def _to_score(self, parties: Any) -> list[Party]:
        """The rows to score, with prepared columns."""
        return self._match(parties, self.parties_)

    def decision_function(self, parties: Any) -> Any:
        """Return the scores of new rows, by an encrypted run. The label party alone learns them.

        There is one score a row, in the label party's order; rows and types are as for `predict`. From three
        classes on there is one column a class. Scores of the linear loss are in the labels' own units.
        """
        rows = self._wanted(parties)
        numbers = self._label_model.numbers(self._scores(rows))
        return by_id(numbers, rows[-1], "score", self._label_model.classes)

    def _wanted(self, parties: Any) -> list[Party]:
        """The rows to score. A warning names those that the others do not have."""
        self._fitted()
        rows = self._to_score(parties)
        text = missing_elsewhere([parties] if isinstance(parties, Party) else parties, rows[-1])
        if text:
            warnings.warn(text, stacklevel=3)
        return rows

    def _scores(self, listed: Sequence[Party]) -> Array:
        """The scores of rows with prepared columns."""
        if hasattr(self, "models_"):
            return np.column_stack([model._scores(listed) for model in self.models_])
        settings = self._settings(len(self.parties_))
        assembly, simulation = assembly_of(settings), self._local().simulation
        features: dict[str, Array] = {}
        last = self.parties_[-1]
        for party in listed:
            part, fitted = self._parts[party.name], self.transforms_.get(party.name)
            untransformed = np.arange(party.features.shape[1])
            if fitted is not None:
                untransformed = fitted.columns.untransformed
            columns = assembly.scored(part, party.features, untransformed, last=party.name == last)
            _check_columns(party.with_features(columns), _columns(part))
            features[party.name] = columns
        outputs = self._label_model.outputs
        agreement = assembly.prediction_agreement(self.parties_, outputs, self._key_holder)
        count = listed[0].rows
        with self._mapper(settings) as mapper:
            guards = self._guards(settings, agreement.names)
            self._know([party.with_features(features[party.name]) for party in listed])
            self._holders = self._keys(settings, agreement, self._fitting_holders(agreement))
            everybody = [*agreement.names, *([] if agreement.key_holder is None else [agreement.key_holder])]
            programs = {
                name: prediction_program(
                    assembly,
                    agreement,
                    name,
                    self._parts.get(name),
                    features.get(name),
                    count,
                    self._holders.get(name),
                    mapper,
                    guards.get(name),
                )
                for name in everybody
            }
            run = self._run(programs, simulation)
        scores: Array = run.outcomes[last]
        rows = next((party for party in listed if party.name == last), None)
        if rows is None:
            return scores
        return self._label_model.total(scores, last, rows.features, rows.offset)

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

    def _to_compare(self, parties: Sequence[Party]) -> Party:
        """The label party, with its rows in the order of the scores."""
        return label_party(_in_order(parties, self.parties_))

    def score(self, parties: Sequence[Party], metric: str | None = None) -> float:
        """Return a metric on rows whose labels are given.

        Parameters
        ----------
        metric : a name of securefed.labels.metrics; None: accuracy, R2, or D2 for a family.
        """
        self._fitted()
        rows, model = self._to_compare(parties), self._label_model
        answers = model.beside(
            _labels(rows), self._scores(self._to_score(parties)), rows.name, rows.offset, self._threshold()
        )
        return model.score(answers, metric)

    def _threshold(self) -> Any:
        local = self._local()
        return local.labels.threshold if hasattr(local, "labels") else "half"

    # Files

    def save(self, folder: str | PathLike[str], *, overwrite: bool = False) -> None:
        """Write one file a party, with its own part of the model only, and what all know.

        How a party prepares its columns is in its file too, but for a transformer of the user's own, which
        goes to `load` again.

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
        make_room(FilePath(folder), self._training, overwrite=overwrite)
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
            arrays |= guard_arrays(getattr(self, "score_guards_", {}).get(name))
            arrays |= fitted_arrays(self.transforms_.get(name))
            arrays |= self._label_model.to_arrays() if name == self.parties_[-1] else {}
            write_part(FilePath(folder) / shard_file(name), public, arrays)

    @classmethod
    def load(
        cls,
        folder: str | PathLike[str],
        *,
        keys: Keys | None = None,
        transforms: Mapping[str, Any] | None = None,
        **parameters: Any,
    ) -> Self:
        """Read the estimator from the shards that `save` wrote.

        Parameters
        ----------
        keys : key-holders for predictions; fresh keys are made without. A blind model takes none.
        transforms : the parties' own transformers, fitted, by party.
        parameters : as for the constructor: `protection`, `simulation`.
        """
        public, shards = read_shards(folder, cls.assembly.estimator)
        if "blind" not in public and parameters.keys() & flat_names(cls.assembly.settings_class):
            parameters = {"reveal": "own-gradient", **parameters}  # what version 0.1 took a scheme for
        parameters = cls._renamed(parameters, stacklevel=3)
        try:
            settings = cls._fixed(public, parameters)
            self = cls(**parameters | settings)
            last = public["parties"][-1]
            self._label_model = _label_model(shards[last], self._settings(), public["classes"])
        except SecurefedError:
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{folder}: not the facts of a model ({error})") from None
        if keys and "blind" in public:
            raise SettingError("keys: a blind model has its own keys; leave them out")
        self.parties_, self._key_holder = public["parties"], public.get("key_holder")
        self._training = str(public.get("training", secrets.token_hex(8)))
        self.transforms_ = take_fitted(shards, transforms)
        self.score_guards_ = take_guards(shards)
        if keys is not None:
            self._holders = dict(keys)
        assembly = assembly_of(self._settings())
        self._parts, self._released = {}, {}
        for name, arrays in shards.items():
            try:
                self._parts[name] = assembly.load(public, arrays)
                if "blind" in public and "model" in arrays:  # released parameters, beside the shares
                    released = assembly.load_scorer(public, arrays)
                    self._released[name] = (
                        released.model if isinstance(released, LinearScorer) else released.layer
                    )
            except DataError as error:
                raise DataError(f"{folder}: the shard of {name}: {error}") from None
        self._show_shards()
        return self

    @classmethod
    def _fixed(cls, public: Mapping[str, Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters that a saved model has; SettingError where others are wanted."""
        default: Protection = (
            Blind(scheme=public.get("scheme", Blind().scheme)) if "blind" in public else OwnGradient()
        )
        protection = parameters.get("protection", default)
        if ("blind" in public) != isinstance(protection, Blind):
            raise SettingError(f"protection: {protection!r} given, the saved model takes {default!r}")
        found: dict[str, Any] = {}
        kind = declared(cls.assembly.settings_class)
        for name in assembly_facts(cls.assembly):
            if name in kind:
                if name in parameters and parameters[name] != public[name]:
                    raise SettingError(
                        f"{name}: {parameters[name]!r} given, the saved model's {public[name]!r} stands"
                    )
                found[name] = public[name]
            elif isinstance(protection, ByGradient):
                wanted, usual = getattr(protection, name), declared(type(protection))[name].default
                if wanted not in (usual, public[name]):
                    raise SettingError(f"{name}: {wanted!r} given, the saved model's {public[name]!r} stands")
                protection = replace(protection, **{name: public[name]})
        if isinstance(protection, Blind) and "helper" in declared(Blind) and len(public["parties"]) == 2:
            protection = replace(protection, helper=public.get("key_holder"))
        return {**found, "protection": protection}

    # The run in this process

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

    @property
    def holders_(self) -> dict[str, KeyHolder]:
        """The key-holders of the run: for another fit, or to save with securefed.crypto.save_key."""
        self._fitted()
        return dict(getattr(self, "_holders", {}))

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

    def _fitted(self) -> None:
        if not hasattr(self, "shards_"):
            raise NotFitted(f"this {type(self).__name__} is not fitted; call fit or load first")


def assembly_facts(assembly: type[Assembly[Any]]) -> Iterable[str]:
    """The names of settings that a saved model has."""
    return assembly(assembly.settings_class()).facts()


def _label_model(arrays: Any, settings: ObjectiveSettings, classes: Any) -> LabelModel:
    """What the label party knew of its labels, from its shard."""
    loss = settings.loss_function
    names = None if classes is None else np.array(classes)
    if "targets.count" in arrays:
        return TargetModels.take(arrays, loss, names)
    if names is not None and len(names) > 2:
        return ClassModels.take(arrays, loss, names)
    return LabelModel.take(arrays, loss, names)


def _labels(party: Party) -> NDArray[Any]:
    if party.labels is None:
        raise DataError(f"{party.name}: no labels")
    return party.labels


def _relabelled(validation: Sequence[Party], each: Any) -> list[Party]:
    return [
        party if party.labels is None else party.relabelled((party.labels == each).astype(int))
        for party in check_parties(validation)
    ]


def _columns(part: Part) -> int | None:
    """Columns that a part of the model takes, where it says so."""
    if isinstance(part, ModelPart):
        return None if part.root is None else len(part.root)
    model = part.model if isinstance(part, LinearScorer) else part.layer
    columns: int | None = getattr(model, "columns", None)
    return columns


def _check_columns(party: Party, columns: int | None) -> None:
    width = party.features.shape[1]
    if columns not in (None, width):
        raise DataError(f"{party.name}: {width} columns given, the model has {columns}")


def _in_order(parties: Sequence[Party], names: Sequence[str]) -> list[Party]:
    """The same parties as in training, aligned, in the order of training."""
    by_name = {party.name: party for party in check_parties(parties)}
    if set(by_name) != set(names):
        raise DataError(f"parties: {', '.join(sorted(by_name))} given, the model has {', '.join(names)}")
    return align([by_name[name] for name in names], names[-1])


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
