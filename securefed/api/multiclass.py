"""Three classes and more, each against the rest.

With a quadratic loss this is also the softmax form. The second-order Taylor polynomial of softmax's loss
around 0 has the residual -(y_k - 1/c) + (H_k - mean(H))/c for class k of c; the residuals of a row add up to
0, so from 0 the mean of H stays 0, and each class is the least squares fit of c y_k - 1. One against the rest
fits 2 (2 y_k - 1): with an intercept both order the classes of a row alike. The label party then learns from
the held-out scores of all classes how likely each class is.

Where nothing is revealed (reveal="nothing") all classes are one run whose parameters and scores have a column
for each: as many messages as for two classes, and the label party learns, as from c binary models, c scores
of a row, which the score ledger counts as so many. Where gradients are opened, in plain, and with weights,
there is one run a class; the runs share nothing but the parties' keys and the rows that are held out, and
each model has a score ledger of its own. A TransferLearner that reveals nothing has all classes by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from os import PathLike
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, clone

from securefed.api.common import all_or_nothing, check_parties
from securefed.api.generalised_linear import GeneralisedLinear
from securefed.api.party import Party, align, label_party
from securefed.api.result import RunResult
from securefed.api.transfer_learner import TransferLearner
from securefed.crypto import KeyHolder
from securefed.data.labels import check_known, missing_labels
from securefed.errors import DataError, SettingError
from securefed.labels.classes import ClassModels
from securefed.labels.label_model import LabelModel
from securefed.labels.quality import Holdout
from securefed.models import LocalModel
from securefed.protocols.blind.linear import BlindParty
from securefed.protocols.blind.scoring import ModelPart

__all__ = ["MultiClass"]

Array = NDArray[np.float64]


class _AllClasses(GeneralisedLinear):
    """A blind run whose outputs are the classes."""

    _kind: ClassVar[str] = "multi-class"
    _side: ClassVar[type[LabelModel]] = ClassModels

    @property
    def sides(self) -> ClassModels:
        if not isinstance(self._label_side, ClassModels):
            raise DataError("a model of several classes without them")
        return self._label_side

    def fit(
        self,
        parties: Sequence[Party],
        *,
        validation: Sequence[Party] | None = None,
        keys: Mapping[str, KeyHolder] | None = None,
    ) -> Self:
        self._released: list[list[LocalModel]] = []
        return super().fit(parties, validation=validation, keys=keys)

    def _blind_shard(self, party: BlindParty, model: LocalModel) -> LocalModel | ModelPart:
        if party.parameters is None:
            return super()._blind_shard(party, model)
        self._released.append([_with(model, column) for column in party.parameters.T])
        return model

    def predict_proba(self, parties: Sequence[Party]) -> Array:
        self._fitted()
        return self._label_side.probabilities(self._scores(parties))

    def apart(self) -> list[GeneralisedLinear]:
        """Where parameters were released, a model for each class. They count in one score ledger."""
        made = []
        for parts, side in zip(zip(*self._released, strict=True), self.sides.sides, strict=True):
            model = GeneralisedLinear(**self.get_params(deep=False))
            model.parties_, model.transforms_, model._label_side = self.parties_, self.transforms_, side
            model.shards_ = dict(zip(self.parties_, parts, strict=True))
            model.result_, model.score_guards_, model._holders = (
                self.result_,
                self.score_guards_,
                self._holders,
            )
            made.append(model)
        return made


def _with(model: LocalModel, parameters: Array) -> LocalModel:
    made = deepcopy(model)
    made.parameters = parameters
    return made


class MultiClass(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Labels of any kind with two classes or more. `estimator`: the settings of the run.

    `models_`: one model where a blind run has all classes or there are two, else one for each.
    """

    def __init__(self, estimator: GeneralisedLinear | TransferLearner | None = None) -> None:
        self.estimator = estimator

    @all_or_nothing
    def fit(self, parties: Sequence[Party], *, keys: Mapping[str, KeyHolder] | None = None) -> Self:
        """One run where nothing is revealed, else one a class. Fresh keys are made once, for all of them."""
        listed = check_parties(parties)
        labelled = label_party(listed)
        labels = np.asarray(labelled.labels)
        if labels.ndim != 1:
            raise DataError(f"{labelled.name}: labels of {labels.shape[1]} columns given, one is allowed")
        base = clone(self.estimator) if self.estimator is not None else GeneralisedLinear()
        there = ~missing_labels(labels)
        if isinstance(base, GeneralisedLinear):
            check_known(labels, labelled.name)
        self.classes_ = np.unique(np.array(labels[there].tolist()))
        if len(self.classes_) < 2:
            raise DataError(f"{labelled.name}: labels have {len(self.classes_)} class, two are needed")
        self.models_: list[GeneralisedLinear] | list[TransferLearner] = []
        self._sides: ClassModels | None = None
        self.holdout_: Holdout | None = None
        self.confusion_: NDArray[np.intp] | None = None
        if isinstance(base, TransferLearner):
            together = base._recipe().blind
        else:
            together = self._one_run(base, labelled)
        if together and len(self.classes_) > 2:
            self._fit_together(base, listed, keys)
            return self
        for each in self.classes_ if len(self.classes_) > 2 else self.classes_[1:]:
            this = (labels == each).astype(int)
            signs = labelled.relabelled(this if there.all() else np.where(there, this, None))
            model = clone(base).fit([signs if party is labelled else party for party in listed], keys=keys)
            keys = model.holders_
            self.models_.append(model)
        if len(self.models_) == 1:
            self.holdout_ = self.models_[0].result_.holdout
        else:
            self._compare()
        return self

    def _one_run(self, base: GeneralisedLinear, labelled: Party) -> bool:
        """Whether all classes can be outputs of one run."""
        if base.warm_start:
            raise SettingError("warm_start: MultiClass begins every fit anew")
        if len(self.classes_) > 2 and base.class_weight == "auto":
            base.class_weight = None
        plain = base.base == "zero" and base.class_weight is None
        return plain and labelled.weights is None and labelled.offset is None and base._recipe().blind

    def _fit_together(
        self,
        base: GeneralisedLinear | TransferLearner,
        parties: Sequence[Party],
        keys: Mapping[str, KeyHolder] | None,
    ) -> None:
        if isinstance(base, TransferLearner):
            self.models_ = [base.fit(parties, keys=keys)]
            sides = base._label_side
        else:
            joint = _AllClasses(**base.get_params(deep=False)).fit(parties, keys=keys)
            self.models_ = joint.apart() if joint._released else [joint]
            sides = joint.sides
        self.holdout_ = self.models_[0].result_.holdout
        if isinstance(sides, ClassModels):
            self._sides, self.confusion_ = sides, sides.confusion

    def _compare(self) -> None:
        """One run a class: what the held-out rows, the same in all, say of them together."""
        sides = [model._label_side for model in self.models_]
        taylor = sides[0].taylor or isinstance(self.models_[0], TransferLearner)
        self._sides = ClassModels(sides[0].loss, self.classes_, taylor=taylor, sides=sides)
        judged = [model.judged_ for model in self.models_ if model.judged_ is not None]
        if len(judged) == len(self.models_):
            columns, _, seen = judged[0][2]
            own = (columns, np.column_stack([trained for _, _, (_, trained, _) in judged]), seen)
            targets = np.column_stack([held.targets for held, _, _ in judged])
            scores = np.column_stack([found for _, found, _ in judged])
            self.holdout_ = self._sides.compare(targets, scores, own)
            self.confusion_ = self._sides.confusion

    @property
    def results_(self) -> dict[Any, RunResult]:
        """The run that made each class: one for all (`runs_` has it once), or one for each."""
        names = list(self.classes_ if len(self.classes_) > 2 else self.classes_[1:])
        results = [model.result_ for model in self.models_]
        return dict(zip(names, results * (len(names) // len(results)), strict=True))

    @property
    def runs_(self) -> list[RunResult]:
        """The runs that `fit` made."""
        return list({id(model.result_): model.result_ for model in self.models_}.values())

    @property
    def holders_(self) -> dict[str, KeyHolder]:
        """The key-holders of the run, to save with securefed.crypto.save_key."""
        self._fitted()
        return self.models_[-1].holders_

    def _scores(self, parties: Sequence[Party]) -> Array:
        scores = [model._scores(parties) for model in self.models_]
        return scores[0] if len(scores) == 1 else np.column_stack(scores)

    def decision_function(self, parties: Sequence[Party]) -> Array:
        """A score for each class; one column a class (a vector where there are two)."""
        self._fitted()
        sides = self.models_[0]._label_side if self._sides is None else self._sides
        return sides.numbers(self._scores(parties))

    def predict_proba(self, parties: Sequence[Party]) -> Array:
        self._fitted()
        if self._sides is None:
            return self.models_[0].predict_proba(parties)
        return self._sides.probabilities(self._scores(parties))

    def predict(self, parties: Sequence[Party]) -> NDArray[Any]:
        found: NDArray[Any] = self.classes_[np.argmax(self.predict_proba(parties), axis=1)]
        return found

    def score(self, parties: Sequence[Party], metric: str | None = None) -> float:
        """Return a metric (accuracy if None) on rows whose labels are given."""
        self._fitted()
        parties = check_parties(parties)
        if isinstance(self.models_[0], TransferLearner):
            parties = align(parties, label_party(parties).name)
        labelled, side = label_party(parties), self._sides
        if side is None:
            return self.models_[0].score(parties, metric)
        labels = np.asarray(labelled.labels)
        answers = side.beside(labels, self._scores(parties), labelled.name, None, "half")
        return side.score(answers, metric)

    def save(self, folder: str | PathLike[str]) -> None:
        """One file a party, with its part of the encrypted model of all classes; as GeneralisedLinear's."""
        self._fitted()
        if not isinstance(self.models_[0], _AllClasses):
            raise SettingError(
                "save: for one blind run of a linear model; models_[k].save writes each of these"
            )
        self.models_[0].save(folder)

    @classmethod
    def load(
        cls,
        folder: str | PathLike[str],
        *,
        transforms: Mapping[str, Any] | None = None,
        **parameters: Any,
    ) -> Self:
        """What `save` wrote; as GeneralisedLinear's."""
        joint = _AllClasses.load(folder, transforms=transforms, **parameters)
        self = cls(GeneralisedLinear(**joint.get_params(deep=False)))
        self.models_, self._sides, self.classes_ = [joint], joint.sides, joint.classes_
        self.holdout_, self.confusion_ = None, None
        return self

    def _fitted(self) -> None:
        if not hasattr(self, "models_"):
            raise DataError("this MultiClass is not fitted; call fit first")
