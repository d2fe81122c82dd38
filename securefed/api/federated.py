"""The base of the estimators: align, assemble, drive, collect.

    align       whose rows are common, and every party's columns as numbers
    assemble    every party's program, by securefed.assembly, as party processes do
    drive       all programs in this process (securefed.api.predictor)
    collect     the parts of the model, the run's account, the quality on held-out rows

An estimator for a new objective names its assembly; docs/extending.md has one.
"""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path as FilePath
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from securefed.api.party import Party, align, check_parties, common_rows, label_party
from securefed.api.predictor import Keys, Predictor
from securefed.api.result import RunResult
from securefed.assembly import assembly_of
from securefed.assembly.base import (
    Arrays,
    PartyData,
    known_rows,
    read_part,
    shard_file,
    write_part,
)
from securefed.assembly.build import Measured, build, label_targets
from securefed.data.columns import FittedColumns
from securefed.declare import declared
from securefed.engine import get_engine
from securefed.errors import DataError, SecurefedError, SettingError
from securefed.labels.base_model import LabelOptions
from securefed.labels.label_model import missing_labels
from securefed.labels.quality import Holdout, QualityWarning
from securefed.labels.several import ClassModels, label_model_of
from securefed.protocols.agreement import get_objective, warn_of_trust
from securefed.protocols.loop import Outcome, PartyContext, PartyLoop
from securefed.protocols.scoring.score_ledger import ScoreGuard
from securefed.settings.objectives import Labels, ObjectiveSettings
from securefed.settings.protection import Blind, OwnGradient, Protection

Array = NDArray[np.float64]
Places = NDArray[np.intp]
FITTED = "fitted."


class Federated(Predictor):
    """An estimator whose parties are all simulated in this process.

    Each party has its own program, keys, clock and transcript.
    """

    _training: str
    """Tells this model from others in a folder."""

    _one_of_many = False
    """The labels are one class of several against the rest: targets as they are, as in a run of all."""

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
        members = [assembly.member(name, model) for name, model in models.items()]
        agreement = assembly.agree(members, len(labelled), self._label_model.outputs)
        warn_of_trust(agreement.scheme, agreement.reveal, agreement.objective)
        holders = self._keys(settings, agreement, keys)
        self.score_guards_ = {}
        for name in names[:-1]:
            bits = self.transforms_[name].row_bits(data[name].features)
            self.score_guards_[name] = ScoreGuard(party=name, column_bits=bits)
        guards = self._guards(settings)
        workers = get_engine(settings.simulation.engine, settings.scheme)
        with workers as mapper, self._bar(agreement) as on_round:
            programs: dict[str, PartyLoop] = {}
            for name in names:
                told = on_round if name == names[-1] else None
                context = PartyContext(holders.get(name), mapper, on_round=told, guard=guards.get(name))
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
        """What the label party wants of its rows."""
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
            hint = "; numbers take loss = 'linear'" if "loss" in declared(type(settings)) else ""
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
            targets = np.column_stack([measured.quality.targets for measured, _ in judged])
            scores = np.column_stack([scores for _, scores in judged])
            quality = self._label_model.compare(targets, scores, replace(judged[0][0].own, targets=trained))
            self.result_ = replace(self.result_, holdout=quality)
        return self

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
            }
            arrays |= _guard_arrays(self.score_guards_.get(name))
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
        public, shards = _read_shards(folder, cls.assembly.estimator)
        blind = "blind" in public
        saved = Blind(scheme=public.get("scheme", Blind().scheme)) if blind else OwnGradient()
        parameters = cls._renamed(parameters, saved, stacklevel=4)
        try:
            self = cls(**parameters | cls._fixed(public, parameters, saved))
            labels, loss = shards[public["parties"][-1]], self._settings().loss_function
            self._label_model = label_model_of(labels, loss, public["classes"])
        except SecurefedError:
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{folder}: not the facts of a model ({error})") from None
        if keys and blind:
            raise SettingError("keys: a blind model has its own keys; leave them out")
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
                    self.score_guards_[name] = _take_guard(name, arrays)
                self._parts[name] = assembly.load(public, arrays)
                if blind and "model" in arrays:  # released parameters, beside the shares
                    self._released[name] = assembly.load_scorer(public, arrays).model
            except DataError as error:
                raise DataError(f"{folder}: the shard of {name}: {error}") from None
        return self

    @classmethod
    def _fixed(
        cls, public: Mapping[str, Any], parameters: Mapping[str, Any], saved: Protection
    ) -> dict[str, Any]:
        """The parameters that a saved model has; SettingError where others are wanted."""
        protection = parameters.get("protection", saved)
        if isinstance(saved, Blind) != isinstance(protection, Blind):
            raise SettingError(f"protection: {protection!r} given, the saved model takes {saved!r}")
        kind = cls.assembly.settings_class
        own, of_protection, wanted = declared(kind), declared(type(protection)), dict(parameters)
        for name, each in of_protection.items():
            if getattr(protection, name) != each.default:
                wanted[name] = getattr(protection, name)
        settings = {}
        for name in cls.assembly(kind()).facts():
            if wanted.get(name, public[name]) != public[name]:
                raise SettingError(
                    f"{name}: {wanted[name]!r} given, the saved model's {public[name]!r} stands"
                )
            if name in own:
                settings[name] = public[name]
            elif name in of_protection:
                protection = replace(protection, **{name: public[name]})
        return {**settings, "protection": protection}


def _against_rest(parties: Sequence[Party], each: Any) -> list[Party]:
    """The parties, with labels 1 for this class and 0 for others. Missing labels stay missing."""
    party = label_party(parties)
    this, gone = (party.known_labels() == each).astype(int), missing_labels(party.known_labels())
    one = party.relabelled(np.where(gone, None, this) if gone.any() else this)
    return [one if other is party else other for other in parties]


def _guard_arrays(guard: ScoreGuard | None) -> Arrays:
    """What a party that is scored keeps with its shard: its secret, its ledger, what its columns hold."""
    if guard is None:
        return {}
    return {
        "score_key": np.frombuffer(guard.key, np.uint8),
        "score_ledger": np.frombuffer(guard.to_bytes(), np.uint8),
        "score_bits": np.array(guard.column_bits, dtype=np.float64),
    }


def _take_guard(name: str, arrays: Arrays) -> ScoreGuard:
    """The same from a shard that was read; it is taken out of it."""
    try:
        bits = float(arrays.pop("score_bits"))
        key, ledger = arrays.pop("score_key").tobytes(), arrays.pop("score_ledger").tobytes()
        guard = ScoreGuard(key, party=name, column_bits=None if np.isnan(bits) else bits)
        guard.restore(ledger)
    except (KeyError, TypeError, ValueError, SecurefedError) as error:
        raise DataError(f"its score ledger cannot be read ({error})") from None
    return guard


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
