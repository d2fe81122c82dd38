"""One joined table in scikit-learn's manner: for `cross_val_score`, `GridSearchCV` and pipelines.

    model = VerticalClassifier(columns={"shop": [0, 1, 2], "bank": [3, 4]})
    cross_val_score(model, X, y)

A simulation for whoever has all columns in one place, to choose settings with: every fit is a whole run of
all parties in this process. The label party is the last one named. Settings of the run are those of
`estimator` (`estimator__l2` in a grid).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, clone
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from securefed.api.generalised_linear import GeneralisedLinear
from securefed.api.party import Party
from securefed.errors import DataError, SettingError

__all__ = ["VerticalClassifier", "VerticalRegressor"]

Array = NDArray[np.float64]


class _Vertical(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """columns: for each party its columns, by name or place, the label party last; None: two halves.
    party_transform: of every party, see Party(transform=...). estimator: the settings of the run.
    """

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

    def _base(self, loss: str) -> GeneralisedLinear:
        if self.estimator is None:
            return GeneralisedLinear(loss)
        if self.estimator.warm_start:
            raise SettingError(f"warm_start: {type(self).__name__} begins every fit anew")
        return clone(self.estimator)  # type: ignore[no-any-return]

    def _groups(self, X: Any) -> dict[str, list[int]]:
        names = [str(name) for name in X.columns] if hasattr(X, "columns") else None
        width = np.shape(X)[1]
        if self.columns is None:
            if width < 2:
                raise DataError(f"columns: n_features = {width} given, two parties need 2 or more")
            return {"first": list(range(width // 2)), "last": list(range(width // 2, width))}
        groups = {}
        for party, wanted in self.columns.items():
            places = []
            for each in wanted:
                known = names is not None and str(each) in names
                place = names.index(str(each)) if known and names is not None else each
                if (
                    isinstance(place, bool)
                    or not isinstance(place, int | np.integer)
                    or not 0 <= place < width
                ):
                    raise DataError(f"columns: {party} has {each!r}, which the table does not have")
                places.append(int(place))
            groups[party] = places
        taken = [place for places in groups.values() for place in places]
        if len(set(taken)) < len(taken):
            raise DataError("columns: a column is given to two parties")
        return groups

    def _parties(self, X: Any, labels: Any = None, weights: Array | None = None) -> list[Party]:
        made, last = [], list(self.groups_)[-1]
        for party, places in self.groups_.items():
            rows = X.iloc[:, places] if hasattr(X, "iloc") else X[:, places]
            own = {"labels": labels, "weights": weights} if party == last else {}
            made.append(Party(party, rows, transform=self.party_transform, **own))
        return made

    def _checked(self, X: Any, y: Any = None, *, reset: bool) -> Any:
        """The table as it is where a transform takes words, else as numbers; y likewise."""
        foreign = self.party_transform is not None
        how: dict[str, Any] = {"skip_check_array": foreign, "reset": reset}
        if not foreign:
            how |= {"dtype": np.float64}
        if y is None:
            found = validate_data(self, X, **how)
            return X if foreign else found
        table, labels = validate_data(self, X, y, **how, **({} if foreign else {"y_numeric": False}))
        return (X, np.asarray(y)) if foreign else (table, labels)

    def _fit(self, X: Any, y: Any, loss: str, sample_weight: Any) -> Self:
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
        if loss == "logistic" and len(found := np.unique(labels)) < 2:
            raise ValueError(f"y has {len(found)} class, a classifier needs two or more")
        self.groups_ = self._groups(X if hasattr(X, "columns") else table)
        self.model_: GeneralisedLinear = self._base(loss).fit(self._parties(table, labels, weights))
        return self

    @property
    def result_(self) -> Any:
        """The run that `fit` made."""
        check_is_fitted(self, "model_")
        return self.model_.result_

    def predict(self, X: Any) -> NDArray[Any]:
        check_is_fitted(self, "model_")
        return self.model_.predict(self._parties(self._checked(X, reset=False)))


class VerticalClassifier(ClassifierMixin, _Vertical):  # type: ignore[misc]
    """Classes from columns of several parties."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """`sample_weight`: how much each row counts, at the label party (Party(weights=...)): 0 leaves it out
        altogether, and weights that are all alike are none. With three classes or more it is one run a class.
        """
        if y is None:
            raise ValueError("VerticalClassifier requires y to be passed, but the target y is None")
        check_classification_targets(y)
        return self._fit(X, y, "logistic", sample_weight)

    @property
    def classes_(self) -> NDArray[Any]:
        check_is_fitted(self, "model_")
        return self.model_.classes_

    def decision_function(self, X: Any) -> Array:
        check_is_fitted(self, "model_")
        return self.model_.decision_function(self._parties(self._checked(X, reset=False)))

    def predict_proba(self, X: Any) -> Array:
        check_is_fitted(self, "model_")
        return self.model_.predict_proba(self._parties(self._checked(X, reset=False)))


class VerticalRegressor(RegressorMixin, _Vertical):  # type: ignore[misc]
    """Numbers from columns of several parties."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """`sample_weight` as for VerticalClassifier."""
        if y is None:
            raise ValueError("VerticalRegressor requires y to be passed, but the target y is None")
        return self._fit(X, y, "linear", sample_weight)
