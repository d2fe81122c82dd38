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
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from pathlib import Path as FilePath
from typing import Any, ClassVar, Concatenate, ParamSpec, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, clone
from sklearn.exceptions import NotFittedError
from tqdm import tqdm

from securefed.api.party import Party, align, check_parties, common_rows, label_party, missing_elsewhere
from securefed.api.result import RunResult, by_id
from securefed.api.saving import FITTED, fixed_parameters, guard_arrays, make_room, read_shards, take_guard
from securefed.assembly import Assembly, assembly_of
from securefed.assembly.base import (
    AnyPart,
    Array,
    Model,
    PartyData,
    Places,
    known_rows,
    shard_file,
    write_part,
)
from securefed.assembly.build import Measured, build, label_targets
from securefed.crypto import KeyHolder, generate, key_kind
from securefed.data.columns import FittedColumns
from securefed.declare import check_keys, declared
from securefed.engine import get_engine
from securefed.errors import DataError, SecurefedError, SettingError
from securefed.labels.base_model import LabelOptions
from securefed.labels.label_model import LabelModel, missing_labels
from securefed.labels.quality import HeldOut, Holdout, QualityWarning
from securefed.labels.several import ClassModels, label_model_of
from securefed.protocols.agreement import Agreement, TrustWarning, get_objective, trust_lines
from securefed.protocols.blind.scoring import ModelPart
from securefed.protocols.loop import Outcome, PartyContext, PartyLoop, Round
from securefed.protocols.messages import KINDS
from securefed.protocols.scoring.score_ledger import ScoreGuard
from securefed.settings.describe import parameters_text
from securefed.settings.objectives import Labels, ObjectiveSettings, Simulation
from securefed.settings.protection import (
    OLD_WORDS,
    Blind,
    OwnGradient,
    Protection,
    protection_from_words,
    warn_of_words,
)
from securefed.transport.link import LocalRun, Program, run_local
from securefed.transport.message import get_network

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


class Federated(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """An estimator whose parties are all simulated in this process.

    Each party has its own program, keys, clock and transcript. Parameters are the declared settings
    (securefed.settings); `fit` checks them, as in scikit-learn.
    """

    assembly: ClassVar[type[Assembly[Any]]]
    """What a run is assembled from. The parameters are its settings."""
    score_guards_: dict[str, ScoreGuard]
    """The score guard of each party that is scored. A fit begins anew; to go on counting, as party
    processes do, set the guards of an earlier model."""
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
    _parts: dict[str, AnyPart]
    _released: dict[str, Model]
    """The parameters that a blind run opened to their owners."""
    _key_holder: str | None
    _training: str
    """Tells this model from others in a folder."""
    _one_of_many = False
    """The labels are one class of several against the rest: targets as they are, as in a run of all."""

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
        check_keys(type(self).__name__, named, settings)
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
        kind = self.assembly.settings_class
        settings = kind(**{name: getattr(self, name) for name in declared(kind)})
        return settings.for_parties(parties)

    # Training

    def fit(self, parties: Sequence[Party], *, keys: Keys | None = None) -> Self:
        """Train on the common rows. A fit that fails leaves the model that was there.

        Parameters
        ----------
        parties : one of them has labels.
        keys : key-holders of an earlier run; fresh keys are made where none are given.
        """
        before = self.__dict__.copy()
        try:
            return self._fit(parties, keys)
        except BaseException:
            self.__dict__ = before
            raise

    def _fit(self, parties: Sequence[Party], keys: Keys | None) -> Self:
        listed = check_parties(parties)
        settings = self._settings(len(listed))
        if (classes := self._apart(settings, listed)) is not None:
            return self._fit_each(listed, classes, keys)
        assembly = assembly_of(settings)
        self.__dict__.pop("models_", None)
        # Align
        data, rows, labelled = self._prepare(settings, listed)
        names = self.parties_ = list(data)
        # Assemble
        models = {name: assembly.party_model(name, names, data[name].features.shape[1]) for name in names}
        weights = {name: self.transforms_[name].weight for name in names}
        members = [assembly.member(name, model, weights[name]) for name, model in models.items()]
        agreement = assembly.agree(members, len(labelled), self._label_model.outputs)
        for line in trust_lines(agreement.scheme, agreement.reveal, agreement.objective):
            warnings.warn(line, TrustWarning, stacklevel=2)
        holders = self._keys(settings, agreement, keys)
        guards = self.score_guards_ = {}
        for name in names[:-1]:
            bits = self.transforms_[name].row_bits(data[name].features)
            guards[name] = ScoreGuard(party=name, mode=settings.protection.score_ledger, column_bits=bits)
        workers = get_engine(settings.simulation.engine, settings.scheme)
        with workers as mapper, self._bar(agreement) as on_round:
            programs: dict[str, PartyLoop] = {}
            for name in names:
                watcher = on_round if name == names[-1] else None
                context = PartyContext(holders.get(name), mapper, on_round=watcher, guard=guards.get(name))
                own = data[name], rows[name], labelled, models[name]
                programs[name], measured = build(assembly, agreement, name, *own, context)
            if (third := agreement.key_holder) is not None:
                programs[third] = assembly.key_holder(agreement, PartyContext(holders.get(third), mapper))
            # Drive
            run = self._run({name: each.run for name, each in programs.items()}, settings.simulation)
        # Collect
        judged = self._judge(run.outcomes[names[-1]], measured)
        self.result_ = RunResult.of(agreement, run, judged)
        self._holders, self._key_holder = holders, agreement.key_holder
        owners = list(programs) if agreement.reveal == "nothing" else names  # a helper has a part, too
        opened = {name: assembly.released(programs[name], last=name == names[-1]) for name in owners}
        self._parts = {name: assembly.part(programs[name]) for name in owners}
        self._released = {name: model for name, model in opened.items() if model is not None}
        self._training = secrets.token_hex(8)
        return self

    def _prepare(
        self, settings: ObjectiveSettings, parties: Sequence[Party]
    ) -> tuple[dict[str, PartyData], dict[str, Places], NDArray[np.bool_]]:
        """Every party's data, the label party's last; its common rows; and which of these have labels.

        Where all have the same people, the parties have no other rows.
        """
        objective, last = get_objective(settings.objective), label_party(parties).name
        if objective.parties not in (None, len(parties)):
            raise DataError(
                f"parties: {len(parties)} given, {settings.objective} learning takes {objective.parties}"
            )
        ordered = sorted(parties, key=lambda party: party.name == last)
        if objective.same_people:
            ordered = align(ordered, last)
            rows = {each.name: np.arange(each.rows, dtype=np.intp) for each in ordered}
        else:
            rows = common_rows(ordered, last)
        usual = settings.blind_transform if settings.blind else "none"
        self.transforms_, data = {}, dict[str, PartyData]()
        for each in ordered:
            if each.name != last and (each.weights is not None or each.offset is not None):
                raise DataError(f"{each.name}: weights or an offset given, which the label party alone has")
            fitted = each.fitted(standardise=settings.standardise, usual=usual)
            data[each.name], self.transforms_[each.name] = fitted
        owner, others = ordered[-1], ", ".join(each.name for each in ordered[:-1])
        wishes, standardise = self._wishes(settings, owner), settings.standardise
        targets, labels = label_targets(settings, owner.known_labels(), last, wishes, standardise=standardise)
        data[last], self._label_model = replace(data[last], targets=targets, labels=labels), labels
        common = targets[rows[last]]
        labelled = known_rows(common)
        if not labelled.any():
            raise DataError(f"{last}: none of the {len(common)} people shared with {others} has a label")
        if missing := labels.unseen(common[labelled]):
            names = ", ".join(map(str, missing))
            warnings.warn(
                f"{last}: nobody shared with {others} to learn from has the label {names}", stacklevel=4
            )
        return data, rows, labelled

    def _wishes(self, settings: ObjectiveSettings, party: Party) -> LabelOptions:
        options = getattr(settings, "labels", Labels())
        wishes: LabelOptions = options.options(
            weighted=party.weights is not None, offset=party.offset is not None
        )
        return replace(wishes, start=not self._one_of_many)

    def _judge(self, outcome: Outcome, measured: Measured | None) -> Holdout | None:
        """What the held-out rows say of the model that is kept."""
        self._judged: tuple[Measured, Array] | None = None
        if measured is None or not measured.quality.scores:
            return None
        scores = measured.quality.scores[outcome.kept(len(measured.quality.scores))]
        self._judged = measured, scores
        quality = self._label_model.learn(measured.quality, scores, measured.own, self._threshold())
        if quality.warning:
            warnings.warn(quality.warning, QualityWarning, stacklevel=4)
        return quality

    # Several classes

    def _apart(self, settings: ObjectiveSettings, parties: Sequence[Party]) -> NDArray[Any] | None:
        """The classes, where they are more than two and take one run each."""
        party = label_party(parties)
        labels = party.known_labels()
        if not settings.loss_function.binary or labels.ndim != 1:
            return None
        classes = np.unique(np.array(labels[~missing_labels(labels)].tolist()))
        if len(classes) <= 2:
            return None
        # Numbers and ids are no classes: refused before anything is trained.
        try:
            ClassModels.with_gaps(labels, party.name, settings.loss_function)
        except DataError as error:
            hint = "; for numbers use loss='linear'" if "loss" in declared(type(settings)) else ""
            raise DataError(f"{error}{hint}") from None
        if settings.many_classes and not self._wishes(settings, party).any:
            return None
        return classes

    def _fit_each(self, parties: Sequence[Party], classes: NDArray[Any], keys: Keys | None) -> Self:
        """One run a class, each against the rest. The runs share keys and held-out rows."""
        self.models_ = []
        for each in classes:
            model = clone(self)
            model._one_of_many = True
            model.fit(_against_rest(parties, each), keys=keys)
            keys = model.holders_
            self.models_.append(model)
        models, first = self.models_, vars(self.models_[0])
        self.__dict__ = {**first, **self.get_params(deep=False), "models_": models, "_one_of_many": False}
        sides = [model._label_model for model in models]
        taylor = sides[0].taylor or self.assembly.settings_class.objective == "transfer"
        self._label_model = ClassModels(sides[0].loss, classes, taylor=taylor, sides=sides)
        judged = [model._judged for model in models if model._judged is not None]
        if len(judged) == len(models):
            trained = np.column_stack([measured.own.targets for measured, _ in judged])
            aside = HeldOut(np.column_stack([each.quality.targets for each, _ in judged]), binary=True)
            scores = np.column_stack([scores for _, scores in judged])
            quality = self._label_model.learn(aside, scores, replace(judged[0][0].own, targets=trained))
            self.result_ = replace(self.result_, holdout=quality)
        return self

    # A run

    def _keys(
        self, settings: ObjectiveSettings, agreement: Agreement, keys: Keys | None
    ) -> dict[str, KeyHolder]:
        """A key-holder for whoever holds keys in this run: as given, or fresh."""
        names = list(agreement.names) if agreement.mutual else [str(agreement.key_holder)]
        holders, kind = dict(keys or {}), key_kind(agreement.scheme, agreement.reveal)
        if kind is None:
            if holders:
                raise SettingError("keys: a blind run makes its own; leave keys out")
            return {}
        for name, holder in holders.items():
            if name not in names:
                raise SettingError(f"keys: {name!r} given, only {', '.join(names)} hold keys in this run")
            if not isinstance(holder, KeyHolder) or holder.public.scheme != kind:
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
        """Counts of held-out rows by true class (row) and predicted class (column); from three classes on."""
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
            guards = self.score_guards_
            for name in self.parties_[:-1]:  # with the ledger as it is set now
                guards.setdefault(name, ScoreGuard(party=name)).mode = settings.protection.score_ledger
            kind, before = key_kind(agreement.scheme, agreement.reveal), self._holders.items()
            fitting = {name: holder for name, holder in before if holder.public.scheme == kind}
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

    def score(self, parties: Sequence[Party], metric: str | None = None) -> float:
        """Return a metric on rows whose labels are given.

        Parameters
        ----------
        metric : a name of securefed.labels.metrics; None: accuracy, R2, or D2 for a family.
        """
        self._fitted()
        names, model = self.parties_, self._label_model
        if not get_objective(self.assembly.settings_class.objective).same_people:
            names = names[::-1]  # in B's order, as for `predict`: the score ledger counts a question once
        aligned = in_order(parties, names)
        rows = label_party(aligned)
        labels, scores = rows.known_labels(), self._scores(self._to_score(aligned))
        answers = model.beside(labels, scores, rows.name, rows.offset, self._threshold())
        return model.score(answers, metric)

    def _threshold(self) -> Any:
        settings = self._settings()
        return settings.labels.threshold if hasattr(settings, "labels") else "half"

    # Files: each party's part of the model, its score guard, and how it prepares its columns

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
            raise SettingError("save: this model has one model per class; call models_[k].save(...) for each")
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
            }
            arrays |= guard_arrays(self.score_guards_.get(name))
            columns = self.transforms_[name].to_arrays() if name in self.transforms_ else {}
            arrays |= {f"{FITTED}{key}": array for key, array in columns.items()}
            arrays |= self._label_model.to_arrays() if name == self.parties_[-1] else {}
            write_part(FilePath(folder) / shard_file(name), public | facts, arrays)

    @classmethod
    def load(cls, folder: str | PathLike[str], *, keys: Keys | None = None, **parameters: Any) -> Self:
        """Read the estimator from the shards that `save` wrote.

        Parameters
        ----------
        keys : key-holders for predictions; fresh keys are made without. A blind model takes none.
        parameters : as for the constructor: `protection`, `simulation`.
        """
        public, shards = read_shards(folder, cls.assembly.estimator)
        blind = "blind" in public
        saved = Blind(scheme=public.get("scheme", Blind().scheme)) if blind else OwnGradient()
        parameters = cls._renamed(parameters, saved, stacklevel=4)
        try:
            self = cls(**parameters | fixed_parameters(cls.assembly, public, parameters, saved))
            labels, loss = shards[public["parties"][-1]], self._settings().loss_function
            self._label_model = label_model_of(labels, loss, public["classes"])
        except SecurefedError:
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{folder}: not the facts of a model ({error})") from None
        if keys and blind:
            raise SettingError("keys: leave keys out; the saved model contains its keys")
        self.parties_, self._key_holder = public["parties"], public.get("key_holder")
        self._training = str(public.get("training", secrets.token_hex(8)))
        self.transforms_, self.score_guards_ = {}, {}
        self._holders, self._parts, self._released = dict(keys or {}), {}, {}
        assembly = assembly_of(self._settings())
        for name, arrays in shards.items():
            columns = {key[len(FITTED) :]: arrays.pop(key) for key in list(arrays) if key.startswith(FITTED)}
            try:
                if columns:  # a helper has none
                    self.transforms_[name] = FittedColumns.from_arrays(columns)
                if "score_key" in arrays:
                    self.score_guards_[name] = take_guard(name, arrays)
                self._parts[name] = assembly.load(public, arrays)
                if blind and "model" in arrays:  # released parameters, beside the shares
                    self._released[name] = assembly.load_scorer(public, arrays).model
            except DataError as error:
                raise DataError(f"{folder}: the shard of {name}: {error}") from None
        return self


def in_order(parties: Sequence[Party], names: Sequence[str]) -> list[Party]:
    """The same parties as in training, aligned, in the order of training."""
    by_name = {party.name: party for party in check_parties(parties)}
    wrong = [f"{name} is missing" for name in names if name not in by_name]
    if wrong := [*wrong, *(f"{name} is not in the model" for name in by_name if name not in names)]:
        raise DataError(f"parties: {', '.join(wrong)}")
    return align([by_name[name] for name in names], names[-1])


def _against_rest(parties: Sequence[Party], each: Any) -> list[Party]:
    """The parties, with labels 1 for this class and 0 for others. Missing labels stay missing."""
    party = label_party(parties)
    this, gone = (party.known_labels() == each).astype(int), missing_labels(party.known_labels())
    one = party.relabelled(np.where(gone, None, this) if gone.any() else this)
    return [one if other is party else other for other in parties]
