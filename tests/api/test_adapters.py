"""One joined table in scikit-learn's manner, and the manners of the estimators themselves."""

from __future__ import annotations

import copy
import pickle
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from securefed import (
    Blind,
    DataError,
    GeneralisedLinear,
    Party,
    Plain,
    SettingError,
    VerticalClassifier,
    VerticalRegressor,
)

pytestmark = pytest.mark.filterwarnings("ignore::securefed.protocols.own_gradient.ledger.LedgerWarning")
TABLE, LABELS = load_breast_cancer(return_X_y=True)
COLUMNS = {"lab": list(range(10, 30)), "clinic": list(range(10))}


def plain(loss: str = "logistic", **settings: Any) -> GeneralisedLinear:
    return GeneralisedLinear(loss, protection=Plain(like="blind", allow_determined=True), **settings)


def test_cross_validation_and_pipelines_work_on_a_joined_table() -> None:
    model = VerticalClassifier(COLUMNS, estimator=plain())
    found = cross_val_score(model, TABLE, LABELS, scoring="roc_auc", cv=3)
    joined = make_pipeline(StandardScaler(), LogisticRegression())
    expected = cross_val_score(joined, TABLE, LABELS, scoring="roc_auc", cv=3)
    assert found.mean() > expected.mean() - 0.01
    fitted = make_pipeline(StandardScaler(), model).fit(TABLE, LABELS)
    assert fitted.score(TABLE, LABELS) > 0.94
    assert list(fitted[-1].model_.parties_) == ["lab", "clinic"]


def test_a_grid_reaches_the_settings_of_the_run() -> None:
    grid = GridSearchCV(
        VerticalClassifier(COLUMNS, estimator=plain(rounds=5)), {"estimator__l2": [1e-2, 1e3]}, cv=2
    )
    grid.fit(TABLE[:200], LABELS[:200])
    assert grid.best_params_ == {"estimator__l2": 1e-2}


def test_regression() -> None:
    table, target = load_diabetes(return_X_y=True)
    model = VerticalRegressor({"a": range(5), "b": range(5, 10)}, estimator=plain("linear"))
    assert cross_val_score(model, table, target, cv=3).mean() > 0.43


def test_a_grid_needs_no_estimator() -> None:
    search = GridSearchCV(
        VerticalClassifier(COLUMNS), {"estimator__rounds": [1], "estimator__l2": [0.1]}, cv=2
    ).fit(TABLE[:60], LABELS[:60])
    assert search.best_estimator_.estimator.loss == "logistic"
    assert search.predict(TABLE[:3]).shape == (3,)
    assert VerticalRegressor().set_params(estimator__l2=0.2).estimator.loss == "linear"


def test_a_loss_of_the_other_kind_is_refused() -> None:
    with pytest.raises(
        SettingError, match="loss: 'linear' given, VerticalClassifier takes a loss of classes"
    ):
        VerticalClassifier(COLUMNS, estimator=plain("linear")).fit(TABLE, LABELS)
    with pytest.raises(
        SettingError, match="loss: 'logistic' given, VerticalRegressor takes a loss of numbers"
    ):
        VerticalRegressor(COLUMNS, estimator=plain()).fit(TABLE, LABELS)


class TestWords:
    """Tables with words are read by the rules of Party."""

    frame = pd.DataFrame(
        {
            "age": np.arange(60.0),
            "town": ["north", "south", "east"] * 20,
            "visits": np.arange(60) % 7,
            "paid": [True, False] * 30,
        }
    )
    labels = np.where(np.arange(60) % 3 == 1, "ill", "well")
    columns: ClassVar = {"shop": ["age", "town"], "bank": ["visits", "paid"]}

    def test_they_become_what_a_party_makes_of_them(self) -> None:
        model = VerticalClassifier(self.columns, estimator=plain(rounds=20))
        model.fit(self.frame, self.labels)
        parties = [
            Party("shop", self.frame[["age", "town"]]),
            Party("bank", self.frame[["visits", "paid"]], self.labels),
        ]
        by_hand = plain(rounds=20).fit(parties)
        assert np.array_equal(model.decision_function(self.frame), by_hand.decision_function(parties))
        assert model.score(self.frame, self.labels) == 1.0
        assert list(model.model_.coef_["shop"]) == list(by_hand.coef_["shop"])

    def test_arrays_of_objects_and_cross_validation(self) -> None:
        places = {"shop": [0, 1], "bank": [2, 3]}
        model = VerticalClassifier(places, estimator=plain(rounds=20))
        assert cross_val_score(model, self.frame.to_numpy(dtype=object), self.labels, cv=2).min() == 1.0

    def test_a_bad_number_among_numbers_is_refused_as_by_a_party(self) -> None:
        spoilt = self.frame.astype({"age": object})
        spoilt.loc[3, "age"] = "<4.0"
        with pytest.raises(DataError, match=r"shop: .*age.*<4\.0"):
            VerticalClassifier(self.columns, estimator=plain()).fit(spoilt, self.labels)


class TestSampleWeights:
    """They arrive at the label party; 0 is as good as absent, and all alike as good as none."""

    some = np.random.default_rng(0).integers(0, 2, len(LABELS)).astype(float)

    def scores(self, weights: Any, rows: Any = slice(None)) -> NDArray[np.float64]:
        model = VerticalClassifier(COLUMNS, estimator=plain(rounds=4))
        return model.fit(TABLE[rows], LABELS[rows], sample_weight=weights).decision_function(TABLE)

    def test_rows_count_as_the_label_partys_weights_say(self) -> None:
        weights = 1.0 + 9.0 * self.some
        by_hand = plain(rounds=4).fit(
            [Party("lab", TABLE[:, 10:]), Party("clinic", TABLE[:, :10], LABELS, weights=weights)]
        )
        new = [Party("lab", TABLE[:, 10:]), Party("clinic", TABLE[:, :10])]
        found = self.scores(weights)
        assert np.array_equal(found, by_hand.decision_function(new))
        assert not np.allclose(found, self.scores(None))

    def test_nothing_and_everything_alike(self) -> None:
        kept = self.some > 0
        assert np.array_equal(self.scores(3.0 * self.some), self.scores(None, kept))

    def test_three_classes_and_numbers_take_them_too(self) -> None:
        table, target = load_diabetes(return_X_y=True)
        weights = np.where(target > 150, 5.0, 1.0)
        groups = {"a": range(5), "b": range(5, 10)}
        number = VerticalRegressor(groups, estimator=plain("linear", rounds=4))
        alike = number.fit(table, target).predict(table).mean()
        assert number.fit(table, target, sample_weight=weights).predict(table).mean() > alike + 10
        thirds = np.digitize(target, [100, 170])
        several = VerticalClassifier(groups, estimator=plain(rounds=4))
        several.fit(table, thirds, sample_weight=weights)
        made = [Party("a", table[:, :5]), Party("b", table[:, 5:], thirds, weights=weights)]
        by_hand = plain(rounds=4).fit(made)
        assert np.array_equal(several.decision_function(table), by_hand.decision_function(made))

    def test_a_search_and_a_pipeline_pass_them_on(self) -> None:
        model = VerticalClassifier(COLUMNS, estimator=plain(rounds=2))
        weights = 1.0 + 9.0 * self.some
        grid = GridSearchCV(model, {"estimator__rounds": [2]}, cv=2).fit(TABLE, LABELS, sample_weight=weights)
        piped = make_pipeline("passthrough", model).fit(
            TABLE, LABELS, verticalclassifier__sample_weight=weights
        )
        expected = model.fit(TABLE, LABELS, sample_weight=weights).decision_function(TABLE)
        for other in (grid, piped):
            assert np.array_equal(other.decision_function(TABLE), expected)

    @pytest.mark.parametrize(
        ("weights", "said"),
        [
            (np.full(len(LABELS), -1.0), "Negative values in data passed to `sample_weight`"),
            (LABELS.astype(float), "labels have 1 classes"),
            (np.ones(3), "sample_weight.shape"),
        ],
    )
    def test_weights_that_do_not_fit_are_named(self, weights: Any, said: str) -> None:
        with pytest.raises(ValueError, match=said):
            self.scores(weights)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"a": [0], "b": [99]}, "b has 99, which the table does not have"),
        ({"a": [0, 1], "b": [1]}, "given to two parties"),
        ({"a": ["age"], "b": [1]}, "a has 'age'"),
    ],
)
def test_columns_that_do_not_fit_are_named(columns: dict[str, list[Any]], said: str) -> None:
    with pytest.raises(DataError, match=said):
        VerticalClassifier(columns, estimator=plain()).fit(TABLE, LABELS)


EXCEPTIONS = {
    "check_dtype_object": "what is no number is a DataError of the party, not a TypeError",
    "check_estimators_pickle": "a fitted model belongs to several parties; save and load are the way",
    "check_classifiers_train": "predict goes by calibrated probabilities, not by the sign of the score",
    "check_sample_weight_equivalence_on_dense_data": "copies of a row are held out apart",
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "model", [VerticalClassifier(estimator=plain()), VerticalRegressor(estimator=plain("linear"))]
)
def test_scikit_learns_own_checks(model: Any) -> None:
    checks = check_estimator(model, on_fail=None)
    failed = {check["check_name"] for check in checks if check["status"] == "failed"}
    assert failed <= set(EXCEPTIONS) and len(checks) > 40


class TestManners:
    def parties(self, rows: slice = slice(None), known: bool = True) -> list[Party]:
        return [
            Party("lab", TABLE[rows, 10:]),
            Party("clinic", TABLE[rows, :10], labels=LABELS[rows] if known else None),
        ]

    def test_a_fitted_model_is_not_pickled_and_an_unfitted_one_is(self) -> None:
        model = plain(rounds=1)
        assert pickle.loads(pickle.dumps(model)).rounds == 1  # noqa: S301
        assert copy.deepcopy(model).rounds == 1
        model.fit(self.parties())
        with pytest.raises(SettingError, match=r"pickle: .*save\(folder\).*load\(folder\)"):
            pickle.dumps(model)

    def test_coefficients_are_by_column_and_in_the_columns_units(self) -> None:
        model = plain(rounds=3).fit(self.parties())
        new = self.parties(slice(0, 50), known=False)
        by_hand: NDArray[np.float64] = np.full(50, model.intercept_)
        for party, table in (("lab", TABLE[:50, 10:]), ("clinic", TABLE[:50, :10])):
            weights = model.coef_[party]
            assert list(weights) == [str(i) for i in range(table.shape[1])]
            by_hand += table @ np.array(list(weights.values()))
        # Values far from all others are cut before they are weighed.
        assert np.mean(np.abs(by_hand - model.decision_function(new)) < 1e-6) > 0.9

    def test_released_parameters_become_coefficients_and_others_do_not(self) -> None:
        hidden = GeneralisedLinear(rounds=1, holdout=0.0).fit(self.parties(slice(0, 40)))
        for name in ("coef_", "intercept_", "log_odds_"):
            assert not hasattr(hidden, name)
            with pytest.raises(AttributeError, match=rf"^{name}: lab does not know .*Blind\(release=True\)"):
                getattr(hidden, name)
        shown = GeneralisedLinear(rounds=1, holdout=0.0, protection=Blind(release=True)).fit(
            self.parties(slice(0, 40))
        )
        assert set(shown.coef_) == {"lab", "clinic"} and any(shown.coef_["lab"].values())
        new = self.parties(slice(40, 44))
        by_hand = shown.intercept_ + sum(
            party.features @ np.array(list(shown.coef_[party.name].values())) for party in new
        )
        step = 2.0**-shown.protection.score_precision
        assert np.abs(by_hand - shown.decision_function(new)).max() < step
