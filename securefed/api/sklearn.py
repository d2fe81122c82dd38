"""One joined table in scikit-learn's manner: for `cross_val_score`, `GridSearchCV` and pipelines.

    model = VerticalClassifier(columns={"shop": ["visits", "basket"], "bank": ["income", "age"]})
    search = GridSearchCV(model, {"estimator__l2": [0.01, 0.1]}).fit(X, y)

They simulate all parties in this process, for people who have all columns in one place and choose settings.
Every fit is a whole run. Answers are arrays, as scikit-learn expects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, clone
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_sample_weight,
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
    validate_data,
)

from securefed.api.estimators import GeneralisedLinear
from securefed.api.party import Party
from securefed.errors import DataError, SettingError
from securefed.labels.label_model import LEAST_ROWS

Array = NDArray[np.float64]


class _Vertical(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """The fits and answers of both adapters."""

    _loss: ClassVar[str]

    def __init__(
        self,
        columns: Mapping[str, Sequence[Any]] | None = None,
        *,
        party_transform: Any = None,
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
        if self.estimator is None:
            return GeneralisedLinear(self._loss)
        classes = self._loss == "logistic"
        if self.estimator._settings().loss_function.binary != classes:
            raise SettingError(
                f"loss: {self.estimator.loss!r} given, {type(self).__name__} takes a loss of"
                f" {'classes' if classes else 'numbers'}, such as {self._loss!r}"
            )
        return clone(self.estimator)  # type: ignore[no-any-return]

    def _groups(self, X: Any) -> dict[str, list[int]]:
        names = [str(name) for name in X.columns] if hasattr(X, "columns") else None
        width = np.shape(X)[1]
        if self.columns is None:
            if width < 2:
                raise DataError(f"columns: n_features = {width} given, two parties need 2 or more")
            return {"first": list(range(width // 2)), "last": list(range(width // 2, width))}
        known = {name: place for place, name in reversed(list(enumerate(names or ())))}
        groups = {}
        for party, wanted in self.columns.items():
            groups[party] = [known.get(str(each), each) for each in wanted]
            for place, each in zip(groups[party], wanted, strict=True):
                if (
                    isinstance(place, bool)
                    or not isinstance(place, int | np.integer)
                    or not 0 <= place < width
                ):
                    raise DataError(f"columns: {party} has {each!r}, which the table does not have")
        taken = [place for places in groups.values() for place in places]
        if len(set(taken)) < len(taken):
            raise DataError("columns: a column is given to two parties")
        return groups

    def _parties(self, X: Any, labels: Any = None, weights: Array | None = None) -> list[Party]:
        parties, last = [], list(self.groups_)[-1]
        for party, places in self.groups_.items():
            rows = X.iloc[:, places] if hasattr(X, "iloc") else X[:, places]
            own = {"labels": labels, "weights": weights} if party == last else {}
            parties.append(Party(party, rows, transform=self.party_transform, **own))
        return parties

    def _checked(self, X: Any, y: Any = None, *, reset: bool) -> Any:
        """Return the table, and y, checked as scikit-learn does. The parties read tables with words."""
        frame = hasattr(X, "iloc")
        if self.party_transform is not None or _has_words(X):
            table = X if frame else np.asarray(X, dtype=object)
            validate_data(self, table, skip_check_array=True, reset=reset)
            if y is None:
                return table
            check_consistent_length(table, y)
            return table, column_or_1d(y, warn=True)
        if y is None:
            numbers = validate_data(self, X, dtype=np.float64, reset=reset)
            return X if frame else numbers
        numbers, labels = validate_data(
            self, X, y, dtype=np.float64, ensure_min_samples=LEAST_ROWS, reset=reset
        )
        return (X if frame else numbers), labels

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train on X and the classes or numbers y.

        Parameters
        ----------
        sample_weight : how much each row counts, at the label party (Party(weights=...)). A row of weight 0
            is left out. Equal weights count as none.
        """
        classes = self._loss == "logistic"
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        if classes:
            check_classification_targets(y)
        table, labels = self._checked(X, y, reset=True)
        weights = None
        if sample_weight is not None:
            weights = _check_sample_weight(sample_weight, table, dtype=np.float64)
            if weights.min() < 0 or not weights.any():
                raise DataError("sample_weight: finite numbers of at least 0, not all 0, are allowed")
            # A row that does not count is not there, for standardising and holding out too.
            if not (counts := weights > 0).all():
                table = table.iloc[counts] if hasattr(table, "iloc") else np.asarray(table)[counts]
                labels, weights = labels[counts], weights[counts]
            weights = None if np.ptp(weights) == 0.0 else weights
        if classes and len(np.unique(labels)) < 2:
            raise ValueError("y has 1 class, a classifier needs two or more")
        self.groups_ = self._groups(table)
        self.model_: GeneralisedLinear = self._base().fit(self._parties(table, labels, weights))
        return self

    def _fitted(self) -> GeneralisedLinear:
        check_is_fitted(self, "model_")
        return self.model_

    @property
    def result_(self) -> Any:
        """The run that `fit` made."""
        return self._fitted().result_

    @property
    def coef_(self) -> Array:
        """Coefficients in the order of the table's columns, where the parties know their own.

        They are in the columns' own units, on the scale of `decision_function` and `predict`. A classifier
        has one row of them, or one for each of three classes or more; a regressor has an array of one
        dimension. `protection=Blind(release=True)` opens them. AttributeError says why there are none.
        """
        values, several = self._fitted().coef_, hasattr(self.model_, "models_")
        rows = np.array([self._row(each) for each in (values.values() if several else [values])])
        return rows if self._loss == "logistic" else rows[0]

    def _row(self, parties: Mapping[str, Mapping[str, float]]) -> Array:
        weights: Array = np.zeros(self.n_features_in_)  # 0 for a column that no party has
        for party, own in parties.items():
            places = self.groups_[party]
            if len(own) != len(places):
                raise AttributeError(
                    f"coef_: {party} made {len(own)} columns of {len(places)}; model_.coef_ has them by name"
                )
            weights[places] = list(own.values())
        return weights

    @property
    def intercept_(self) -> Any:
        """What coefficients are added to: an array, a number a row of `coef_`; of a regressor a number."""
        values = self._fitted().intercept_
        if self._loss != "logistic":
            return values
        return np.array(list(values.values()) if isinstance(values, dict) else [values])

    def predict(self, X: Any) -> NDArray[Any]:
        """Return an array: the class, or the number, of every row of X."""
        return np.asarray(self._fitted().predict(self._parties(self._checked(X, reset=False))))


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
        return self._fitted().classes_

    def decision_function(self, X: Any) -> Array:
        """Return an array of scores: one for every row of X, or a column a class from three classes on."""
        return np.asarray(self._fitted().decision_function(self._parties(self._checked(X, reset=False))))

    def predict_proba(self, X: Any) -> Array:
        """Return an array of probabilities: a row for every row of X, a column for every class."""
        return np.asarray(self._fitted().predict_proba(self._parties(self._checked(X, reset=False))))


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


def _has_words(X: Any) -> bool:
    """Whether a table has values that are no numbers: words, dates, categories."""
    if hasattr(X, "iloc"):
        return any(dtype.kind not in "biufc" for dtype in getattr(X, "dtypes", ()))
    if hasattr(X, "toarray") or (table := np.asarray(X)).dtype.kind not in "OUS" or table.ndim != 2:
        return False
    try:
        table.astype(np.float64)
    except ValueError:
        return True
    except TypeError:
        return False
    return False
