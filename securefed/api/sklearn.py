"""One joined table in scikit-learn's manner: for `cross_val_score`, `GridSearchCV` and pipelines.

They simulate all parties in this process, for people who have all columns in one place and choose settings
(docs/choosing.md has an example). Every fit is a whole run. Answers are arrays, as scikit-learn expects.
`model_` is the estimator of the run; its `coef_` has coefficients by party and column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, clone
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, column_or_1d, validate_data

from securefed.api.estimators import GeneralisedLinear
from securefed.api.party import Party
from securefed.errors import DataError, SettingError
from securefed.labels.label_model import LEAST_ROWS


class _Vertical(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    _loss: ClassVar[str]

    def __init__(
        self,
        columns: Mapping[str, Sequence[Any]] | None = None,
        *,
        party_transform: str | None = None,
        estimator: GeneralisedLinear | None = None,
    ) -> None:
        self.columns = columns
        self.party_transform = party_transform
        self.estimator = estimator

    def set_params(self, **parameters: Any) -> Self:
        """Set parameters. Those of the run, `estimator__...`, work without an `estimator` too."""
        nested = any(name.startswith("estimator__") for name in parameters)
        if nested and self.estimator is None and "estimator" not in parameters:
            self.estimator = GeneralisedLinear(self._loss)
        super().set_params(**parameters)
        return self

    def _base(self) -> GeneralisedLinear:
        base: GeneralisedLinear = clone(self.estimator or GeneralisedLinear(self._loss))
        classes = self._loss == "logistic"
        if base._settings().loss_function.binary != classes:
            raise SettingError(
                f"loss: {base.loss!r} given, {type(self).__name__} takes a loss of"
                f" {'classes' if classes else 'numbers'}, such as {self._loss!r}"
            )
        return base

    def _groups(self, X: Any) -> dict[str, list[int]]:
        width = np.shape(X)[1]
        if self.columns is None:
            if width < 2:
                raise DataError(f"columns: n_features = {width} given, two parties need 2 or more")
            return {"first": list(range(width // 2)), "last": list(range(width // 2, width))}
        places: dict[Any, int] = {place: place for place in range(width)}
        places |= {str(name): place for place, name in enumerate(getattr(X, "columns", ()))}
        for party, wanted in self.columns.items():
            for each in wanted:
                if each not in places:
                    raise DataError(f"columns: {party} has {each!r}, which the table does not have")
        groups = {party: [places[each] for each in wanted] for party, wanted in self.columns.items()}
        taken = [place for group in groups.values() for place in group]
        if len(set(taken)) < len(taken):
            raise DataError("columns: a column is given to two parties")
        return groups

    def _table(self, X: Any, *, reset: bool) -> Any:
        """Return the table. scikit-learn checks its shape and names; parties read its columns."""
        least = LEAST_ROWS if reset else 1
        array = validate_data(
            self, X, dtype=None, ensure_all_finite=False, ensure_min_samples=least, reset=reset
        )
        return X if hasattr(X, "iloc") else array

    def _parties(self, table: Any, labels: Any = None, weights: Any = None) -> list[Party]:
        parties, last = [], list(self.groups_)[-1]
        for party, places in self.groups_.items():
            rows = table.iloc[:, places] if hasattr(table, "iloc") else table[:, places]
            own = {"labels": labels, "weights": weights} if party == last else {}
            parties.append(Party(party, rows, transform=self.party_transform, **own))
        return parties

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train on X and the classes or numbers y.

        Parameters
        ----------
        sample_weight : how much each row counts, at the label party (Party(weights=...)). A row of weight 0
            is left out. Equal weights count as none.
        """
        table, labels, weights = self._table(X, reset=True), column_or_1d(y, warn=True), None
        if self._loss == "logistic":
            check_classification_targets(labels)
        if sample_weight is not None:
            weights = _check_sample_weight(sample_weight, table, dtype=np.float64, ensure_non_negative=True)
            counts = weights > 0  # a row that does not count is not there, for standardising and holding out
            table = table.iloc[counts] if hasattr(table, "iloc") else table[counts]
            labels, weights = labels[counts], weights[counts]
            weights = None if np.ptp(weights) == 0.0 else weights
        self.groups_ = self._groups(table)
        self.model_: GeneralisedLinear = self._base().fit(self._parties(table, labels, weights))
        return self

    def _answer(self, method: str, X: Any) -> NDArray[Any]:
        check_is_fitted(self, "model_")
        return np.asarray(getattr(self.model_, method)(self._parties(self._table(X, reset=False))))

    @property
    def result_(self) -> Any:
        """The run that `fit` made."""
        check_is_fitted(self, "model_")
        return self.model_.result_

    def predict(self, X: Any) -> NDArray[Any]:
        """Return an array: the class, or the number, of every row of X."""
        return self._answer("predict", X)


class VerticalClassifier(ClassifierMixin, _Vertical):  # type: ignore[misc]
    """Classes from one table whose columns belong to several parties.

    Parameters
    ----------
    columns : for each party its columns, by name or by place. The last party has the labels. None: two
        parties, called first and last, with half of the columns each.
    party_transform : how every party prepares its columns, see Party(transform=...).
    estimator : the settings of the run, as a GeneralisedLinear. None: a blind run with the
        loss "logistic". A grid reaches them as estimator__l2, estimator__rounds and so on.

    Columns of words become one column for each category, by the same rules as Party.

    Examples
    --------
    >>> from securefed import VerticalClassifier
    >>> X = [[1.0, 5.0], [2.0, 4.0], [3.0, 9.0], [4.0, 1.0], [5.0, 2.0], [6.0, 7.0]]
    >>> model = VerticalClassifier({"shop": [0], "bank": [1]}).set_params(estimator__rounds=2)
    >>> model.fit(X, [0, 0, 0, 1, 1, 1]).predict(X).shape
    (6,)
    """

    _loss = "logistic"

    @property
    def classes_(self) -> NDArray[Any]:
        """The classes, in sorted order."""
        check_is_fitted(self, "model_")
        return self.model_.classes_

    def decision_function(self, X: Any) -> NDArray[Any]:
        """Return an array of scores: one for every row of X, or a column a class from three classes on."""
        return self._answer("decision_function", X)

    def predict_proba(self, X: Any) -> NDArray[Any]:
        """Return an array of probabilities: a row for every row of X, a column for every class."""
        return self._answer("predict_proba", X)


class VerticalRegressor(RegressorMixin, _Vertical):  # type: ignore[misc]
    """Numbers from one table whose columns belong to several parties.

    Parameters are those of VerticalClassifier; without an `estimator` the loss is "linear".

    Examples
    --------
    >>> from securefed import VerticalRegressor
    >>> VerticalRegressor({"shop": [0, 1], "bank": [2]})
    VerticalRegressor(columns={'bank': [2], 'shop': [0, 1]})
    """

    _loss = "linear"
