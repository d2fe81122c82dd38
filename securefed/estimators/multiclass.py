"""Three classes and more: one blind run a class, that class against the rest.

With a quadratic loss this is also the softmax form. The second-order Taylor polynomial of softmax's loss
around 0 has the residual -(y_k - 1/c) + (H_k - mean(H))/c for class k of c; the residuals of a row add up to
0, so from 0 the mean of H stays 0, and each class is the least squares fit of c y_k - 1. One against the rest
fits 2 (2 y_k - 1): with an intercept both order the classes of a row alike. The label party then learns from
the held-out scores of all classes how likely each class is.

The runs share nothing but the parties' keys and the rows that are held out. What they reveal together is
what c binary models reveal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, clone
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, confusion_matrix

from securefed.crypto import KeyHolder
from securefed.data.labels import accuracy
from securefed.errors import DataError
from securefed.estimators.common import check_parties
from securefed.estimators.generalised_linear import GeneralisedLinear
from securefed.measure.discriminant import Discriminant, unseen
from securefed.measure.quality import Holdout
from securefed.party import Party, label_party
from securefed.protocols.losses import get_loss
from securefed.result import RunResult

__all__ = ["MultiClass"]

Array = NDArray[np.float64]
ROWS_A_CLASS = 15


class MultiClass(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Labels of any kind with two classes or more. `estimator`: the settings of every run."""

    def __init__(self, estimator: GeneralisedLinear | None = None) -> None:
        self.estimator = estimator

    def fit(self, parties: Sequence[Party], *, keys: Mapping[str, KeyHolder] | None = None) -> Self:
        """One run a class. Fresh keys are made once, for all of them."""
        listed = check_parties(parties)
        labelled = label_party(listed)
        labels = np.asarray(labelled.labels)
        self.classes_ = np.unique(labels)
        if len(self.classes_) < 2:
            raise DataError(f"{labelled.name}: labels have {len(self.classes_)} class, two are needed")
        self.models_: list[GeneralisedLinear] = []
        for each in self.classes_ if len(self.classes_) > 2 else self.classes_[1:]:
            model = clone(self.estimator) if self.estimator is not None else GeneralisedLinear()
            signs = labelled.relabelled((labels == each).astype(int))
            model.fit([signs if party is labelled else party for party in listed], keys=keys)
            keys = model.holders_
            self.models_.append(model)
        self._curve: Discriminant | None = None
        self.holdout_, self.confusion_ = self._measured()
        return self

    @property
    def results_(self) -> dict[Any, RunResult]:
        """The run of each class."""
        return {each: model.result_ for each, model in zip(self._own_classes(), self.models_, strict=True)}

    def _own_classes(self) -> list[Any]:
        return list(self.classes_ if len(self.classes_) > 2 else self.classes_[1:])

    def _measured(self) -> tuple[Holdout | None, NDArray[np.intp] | None]:
        """Accuracy on the held-out rows, the same in all runs, and which class was taken for which."""
        judged = [model.judged_ for model in self.models_]
        if len(self.models_) == 1 or any(each is None for each in judged):
            return self.models_[0].result_.holdout if len(self.models_) == 1 else None, None
        known = [each for each in judged if each is not None]
        truth = np.argmax(np.column_stack([held.targets for held, _, _ in known]), axis=1)
        scores = np.column_stack([scores for _, scores, _ in known])
        chances = np.column_stack(
            [m._label_side.probabilities(s) for m, (_, s, _) in zip(self.models_, known, strict=True)]
        )
        own = np.argmax(np.column_stack([targets for _, _, (_, targets, _) in known]), axis=1)
        if len(truth) >= ROWS_A_CLASS * len(self.classes_):
            # One calibration for all classes: a score for another class says something about this one.
            shares = np.bincount(own, minlength=len(self.classes_)) / len(own)
            loss = get_loss(self.models_[0].loss)
            reach = abs(loss.label_weight) / loss.margin_weight
            chances = unseen(scores, truth, shares, reach)
            self._curve = Discriminant.of(scores, truth, shares, reach)
        columns, _, seen = known[0][2]
        alone = LogisticRegression(max_iter=300).fit(columns, own).predict(seen)
        found = np.argmax(chances, axis=1)
        chance = float(np.max(np.bincount(own)) / len(own))
        value, single = float(accuracy_score(truth, found)), float(accuracy_score(truth, alone))
        places = list(range(len(self.classes_)))
        return (
            Holdout("accuracy", value, single, chance, len(truth)),
            confusion_matrix(truth, found, labels=places),
        )

    def decision_function(self, parties: Sequence[Party]) -> Array:
        """A score for each class; one column a class (a vector where there are two)."""
        self._fitted()
        scores = [model.decision_function(parties) for model in self.models_]
        return scores[0] if len(scores) == 1 else np.column_stack(scores)

    def predict_proba(self, parties: Sequence[Party]) -> Array:
        self._fitted()
        if len(self.models_) == 1:
            return self.models_[0].predict_proba(parties)
        if self._curve is not None:
            return self._curve.probabilities(self.decision_function(parties))
        found = np.column_stack([model.predict_proba(parties)[:, 1] for model in self.models_])
        shares: Array = found / found.sum(axis=1, keepdims=True)
        return shares

    def predict(self, parties: Sequence[Party]) -> NDArray[Any]:
        found: NDArray[Any] = self.classes_[np.argmax(self.predict_proba(parties), axis=1)]
        return found

    def score(self, parties: Sequence[Party]) -> float:
        """Accuracy on rows whose labels are given."""
        labelled = label_party(check_parties(parties))
        return accuracy(np.asarray(labelled.labels), self.predict(parties), labelled.name)

    def _fitted(self) -> None:
        if not hasattr(self, "models_"):
            raise DataError("this MultiClass is not fitted; call fit first")
