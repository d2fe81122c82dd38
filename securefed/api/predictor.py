"""A fitted model: its parts at the parties, and what it says of new rows."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import NotFittedError

from securefed.api.party import Party, align, check_parties, label_party, missing_elsewhere
from securefed.api.result import RunResult, by_id
from securefed.api.simulated import Simulated
from securefed.assembly import assembly_of
from securefed.assembly.base import Model, Part
from securefed.crypto import KeyHolder
from securefed.engine import get_engine
from securefed.errors import DataError, SettingError
from securefed.labels.label_model import LabelModel
from securefed.labels.several import ClassModels
from securefed.protocols.blind.scoring import ModelPart
from securefed.protocols.own_gradient.sides import LinearScorer, Scorer

Array = NDArray[np.float64]


class NotFitted(DataError, NotFittedError):  # type: ignore[misc]  # scikit-learn has no types
    """The model is not fitted yet. scikit-learn's NotFittedError, and so an AttributeError too."""


class Predictor(Simulated):
    """What an estimator has once it is fitted."""

    result_: RunResult
    """The run that `fit` made; where there was one run a class, the first, with the quality of all."""
    parties_: list[str]
    """The parties in the order of their turns, the label party last."""
    shards_: dict[str, Any]
    """Each party's part of the model: its parameters, or shares where nobody knows them."""
    models_: list[Self]
    """One model a class, where the classes could not be trained in one run."""
    _label_model: LabelModel
    _parts: dict[str, Part]
    _released: dict[str, Model]
    _key_holder: str | None

    def _fitted(self) -> None:
        if not hasattr(self, "shards_"):
            raise NotFitted(f"this {type(self).__name__} is not fitted; call fit or load first")

    def __getstate__(self) -> dict[str, Any]:
        """Settings may be pickled and copied; what was learned is in parts that belong to several parties."""
        if hasattr(self, "shards_"):
            raise SettingError(
                f"pickle: a fitted {type(self).__name__} is not pickled; save(folder) writes a file for each "
                "party, load(folder) reads them"
            )
        state: dict[str, Any] = super().__getstate__()
        return state

    def _show_shards(self) -> None:
        self.shards_ = {}
        for name, part in self._parts.items():
            if name in self._released:
                self.shards_[name] = self._released[name]
            elif not isinstance(part, ModelPart):
                self.shards_[name] = own_model(part)
            elif not self._released:
                self.shards_[name] = part

    @property
    def holders_(self) -> dict[str, KeyHolder]:
        """The key-holders of the run: for another fit, or to save with securefed.crypto.save_key."""
        self._fitted()
        return dict(getattr(self, "_holders", {}))

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

    # Scores

    def _to_score(self, parties: Any) -> list[Party]:
        """The rows to score: aligned, in the order of training, with prepared columns."""
        aligned = in_order(parties, self.parties_)
        return [party.transformed(self.transforms_.get(party.name)) for party in aligned]

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
        assembly = assembly_of(settings)
        features: dict[str, Array] = {}
        last = self.parties_[-1]
        for party in listed:
            part, fitted = self._parts[party.name], self.transforms_.get(party.name)
            untransformed = np.arange(party.features.shape[1])
            if fitted is not None:
                untransformed = fitted.columns.untransformed
            columns = assembly.scored(part, party.features, untransformed, last=party.name == last)
            check_columns(party.with_features(columns), _columns(part))
            features[party.name] = columns
        outputs = self._label_model.outputs
        agreement = assembly.prediction_agreement(self.parties_, outputs, self._key_holder)
        count = listed[0].rows
        with get_engine(settings.simulation.engine, settings.scheme) as mapper:
            guards = self._guards(settings, agreement.names)
            self._know([party.with_features(features[party.name]) for party in listed])
            self._holders = self._keys(settings, agreement, self._fitting_holders(agreement))
            everybody = [*agreement.names, *([] if agreement.key_holder is None else [agreement.key_holder])]
            programs = {
                name: assembly.prediction_program(
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
            run = self._run(programs, settings.simulation)
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


def own_model(scorer: Scorer) -> Model:
    """A party's model, where it knows the parameters."""
    return scorer.model if isinstance(scorer, LinearScorer) else scorer.layer


def _columns(part: Part) -> int | None:
    """Columns that a part of the model takes, where it says so."""
    if isinstance(part, ModelPart):
        return None if part.root is None else len(part.root)
    return getattr(own_model(part), "columns", None)


def check_columns(party: Party, columns: int | None) -> None:
    width = party.features.shape[1]
    if columns not in (None, width):
        raise DataError(f"{party.name}: {width} columns given, the model has {columns}")


def in_order(parties: Sequence[Party], names: Sequence[str]) -> list[Party]:
    """The same parties as in training, aligned, in the order of training."""
    by_name = {party.name: party for party in check_parties(parties)}
    if set(by_name) != set(names):
        raise DataError(f"parties: {', '.join(sorted(by_name))} given, the model has {', '.join(names)}")
    return align([by_name[name] for name in names], names[-1])
