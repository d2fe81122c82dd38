"""Few rows, rare classes, wild values: what used to mislead."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.datasets import load_iris, make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split

from securefed import GeneralisedLinear, Labels, Party, Plain
from securefed.data.columns import FittedColumns, OutlierWarning
from securefed.errors import DataError, SettingError
from securefed.labels.calibration import FREE_VARIANCE, ClassCurve, least_rows
from securefed.labels.quality import QualityWarning
from tests.data.fitting import apply, fit

Array = NDArray[np.float64]


def emulated(loss: str = "logistic", **settings: Any) -> GeneralisedLinear:
    """Blind training's arithmetic, unencrypted."""
    usual = Plain(like="blind", allow_determined=True)
    return GeneralisedLinear(loss, **{"protection": usual, **settings})


def two(table: Array, labels: NDArray[Any] | None = None, **more: Any) -> list[Party]:
    half = table.shape[1] // 2
    return [Party("shop", table[:, :half]), Party("bank", table[:, half:], labels=labels, **more)]


def test_counts_without_held_out_rows_are_refused() -> None:
    """Nothing else says how far to go from the label party's own fit: D2 was -4 that way."""
    rng = np.random.default_rng(0)
    table, counts = rng.normal(size=(200, 4)), rng.poisson(1.0, 200)
    for holdout, rows in ((0.0, 200), (0.2, 40)):
        with pytest.raises(SettingError, match=r"family: bank has no held-out rows; .* holdout=0.2"):
            emulated("linear", holdout=holdout, labels=Labels(family="poisson")).fit(
                two(table[:rows], counts[:rows])
            )
    assert (
        emulated("linear", labels=Labels(family="poisson")).fit(two(table, counts)).result_.holdout
        is not None
    )


@pytest.mark.parametrize("weight", [None, "balanced"])
def test_without_held_out_rows_a_rare_class_is_not_predicted_too_often(weight: str | None) -> None:
    table, labels = make_classification(
        3000, 8, n_informative=4, weights=[0.93], class_sep=0.6, flip_y=0.05, random_state=1
    )
    model = emulated(holdout=0.0, labels=Labels(class_weight=weight)).fit(two(table[:2000], labels[:2000]))
    new = two(table[2000:])
    share = float(labels[:2000].mean())
    assert np.mean(model.predict(new) == labels[2000:]) > 1.0 - share - 0.02
    assert abs(model.predict_proba(new)[:, 1].mean() - share) < 0.03


@pytest.mark.slow
def test_a_class_between_two_others_is_found_with_few_held_out_rows() -> None:
    """The largest least squares score never is its own, of iris."""
    table, labels = load_iris(return_X_y=True)
    right = []
    for seed in range(3):
        train, test = train_test_split(np.arange(150), test_size=0.3, stratify=labels, random_state=seed)
        model = emulated(seed=seed).fit(two(table[train], labels[train]))
        assert model.result_.holdout is not None and model.result_.holdout.rows == 105
        right.append(np.mean(model.predict(two(table[test])) == labels[test]))
    assert np.median(right) > 0.9


class TestClassCurve:
    def scores(self, rows: int, classes: int = 6) -> tuple[Array, NDArray[np.intp]]:
        rng = np.random.default_rng(rows)
        truth = rng.integers(0, classes, rows)
        centres = np.random.default_rng(0).normal(size=(classes, 4))
        table = np.column_stack([centres[truth] + 0.7 * rng.normal(size=(rows, 4)), np.ones(rows)])
        half = rows // 2
        weights = np.linalg.lstsq(table[:half], 2 * (2 * np.eye(classes)[truth[:half]] - 1), rcond=None)[0]
        return table[half:] @ weights, truth[half:]

    def test_sixty_rows_are_better_than_no_calibration(self) -> None:
        scores, truth = self.scores(2000)
        few = ClassCurve.of(scores[:60], truth[:60]).probabilities(scores[60:])
        raw = np.exp(2 * scores[60:])
        raw /= raw.sum(axis=1, keepdims=True)
        assert log_loss(truth[60:], few) < log_loss(truth[60:], raw) - 0.05

    def test_a_free_curve_is_scikit_learns_and_the_mean_of_three_helps_few_rows(self) -> None:
        scores, truth = self.scores(2000)
        free = ClassCurve.of_kind(scores, truth, "free")
        known = LogisticRegression(C=FREE_VARIANCE, tol=1e-8, max_iter=1000).fit(scores / scores.std(), truth)
        expected = np.maximum(known.predict_proba(scores / scores.std()), free.edge)
        expected /= expected.sum(axis=1, keepdims=True)
        assert np.allclose(free.probabilities(scores), expected, atol=1e-3)

        def loss(learn: Callable[[Array, NDArray[np.intp]], ClassCurve]) -> float:
            parts = np.arange(1000).reshape(20, 50)
            made = [learn(scores[few], truth[few]).probabilities(scores) for few in parts]
            return float(np.mean([log_loss(truth, each) for each in made]))

        near, other = (loss(partial(ClassCurve.of_kind, kind=kind)) for kind in ("near", "free"))
        assert near < other and loss(ClassCurve.of) < other

    def test_one_slope_keeps_the_order_of_scores(self) -> None:
        scores, truth = self.scores(120)
        made = ClassCurve.of_kind(scores, truth, "slope")
        assert np.array_equal(made.probabilities(scores).argmax(axis=1), scores.argmax(axis=1))

    def test_rows_are_judged_by_the_others_and_arrays_keep_it(self) -> None:
        scores, truth = self.scores(120)
        likely = ClassCurve.out_of_fold(scores, truth)
        assert likely.shape == (60, 6) and np.allclose(likely.sum(axis=1), 1.0) and least_rows(6) == 12
        made = ClassCurve.of(scores, truth)
        again = ClassCurve.from_array(made.to_array(), 6)
        assert np.allclose(again.probabilities(scores), made.probabilities(scores))
        for table in (np.zeros((7, 6)), np.full((8, 6), np.nan)):
            with pytest.raises(DataError, match="malformed"):
                ClassCurve.from_array(table, 6)

    @pytest.mark.parametrize("known", [1, 2, 5])
    def test_a_class_that_no_row_has_is_hardly_ever_expected(self, known: int) -> None:
        scores, truth = self.scores(400)
        some = truth < known
        likely = ClassCurve.of(scores[some], truth[some]).probabilities(scores)
        assert np.allclose(likely.sum(axis=1), 1.0) and likely[:, known:].max() < 0.05


def test_one_absurd_value_is_told_and_decides_nothing() -> None:
    rng = np.random.default_rng(4)
    table = rng.normal(size=(400, 4))
    labels = (table @ [2.0, 1.0, 1.0, 1.0] + 0.5 * rng.normal(size=400) > 0).astype(int)
    wild = table.copy()
    wild[7, 0] = 1e12
    with pytest.warns(OutlierWarning, match="shop: column '0' has 1 values far from all others, such as 1e"):
        model = emulated().fit(two(wild, labels))
    clean = emulated().fit(two(table, labels))
    assert model.score(two(table, labels), "AUC") > clean.score(two(table, labels), "AUC") - 0.005


def test_limits_are_kept_and_malformed_ones_refused() -> None:
    rng = np.random.default_rng(5)
    fitted, numbers = fit({"x": rng.normal(size=100), "rare": (np.arange(100) < 1).astype(float)})
    again = FittedColumns.from_arrays(fitted.to_arrays())
    other = {"x": np.array([1e9, 0.0]), "rare": np.array([1.0, 0.0])}
    assert np.array_equal(apply(again, other)[0], apply(fitted, other)[0])
    assert apply(again, other)[0][0, 0] < 8.0 and apply(again, other)[0][0, 1] == numbers[0, 1]
    with pytest.raises(DataError, match="limits"):
        FittedColumns.from_arrays({**fitted.to_arrays(), "limits": np.zeros((2, 1))})


def test_tables_that_cannot_be_learnt_from_are_refused_by_name() -> None:
    rng = np.random.default_rng(6)
    table, labels = rng.normal(size=(100, 4)), np.arange(100) % 2
    with pytest.raises(DataError, match="bank: all labels are 7; there is nothing to learn"):
        emulated("linear").fit(two(table, np.full(100, 7.0)))
    with pytest.raises(DataError, match="bank: 2 rows in common, at least 3 are needed"):
        emulated().fit(two(table[:2], labels[:2]))
    with pytest.raises(SettingError, match="holdout"):
        emulated(holdout=0.99).fit(two(table, labels))
    dates = np.full((100, 1), np.datetime64("2026-01-01"))
    with pytest.raises(DataError, match="shop: data is an array of dates; give a pandas frame"):
        Party("shop", dates)


def test_a_sparse_matrix_is_filled_up() -> None:
    class Sparse:
        """As scipy's: it has toarray, and numpy takes it for one object."""

        def toarray(self) -> Array:
            return np.eye(4)

    assert np.array_equal(Party("shop", Sparse()).features, np.eye(4))


def test_rows_in_another_order_at_one_party_are_announced() -> None:
    rng = np.random.default_rng(7)
    table = rng.normal(size=(600, 4))
    labels = (table @ [2.0, 1.0, 1.0, 1.0] + 0.5 * rng.normal(size=600) > 0).astype(int)
    held = emulated().fit(two(table, labels)).result_.holdout
    assert held is not None and held.warning is None and held.interval is not None
    assert held.interval[0] < held.value < held.interval[1]
    table[:, :2] = table[rng.permutation(600), :2]
    with pytest.warns(QualityWarning, match="rows of another party in another order") as told:
        emulated().fit(two(table, labels))
    assert len([each for each in told if each.category is QualityWarning]) == 1


def test_coefficients_of_log_odds_are_those_of_a_logistic_regression() -> None:
    rng = np.random.default_rng(8)
    table = rng.normal(size=(4000, 4))
    truth = np.array([0.8, -0.5, 0.4, 0.0])
    labels = (rng.random(4000) < 1 / (1 + np.exp(0.7 - table @ truth))).astype(int)
    model = emulated(holdout=0.5).fit(two(table, labels))
    intercept, weights = model.log_odds_
    found = np.array([weight for each in weights.values() for weight in each.values()])
    assert np.abs(found - truth).max() < 0.12 and abs(intercept + 0.7) < 0.12
    assert np.abs(np.array(list(model.coef_["shop"].values())) - truth[:2]).max() > 0.02
    with pytest.raises(SettingError, match="log odds: two classes have them"):
        _ = emulated("linear").fit(two(table, table[:, 0])).log_odds_


@pytest.mark.slow
@pytest.mark.parametrize("holdout", [0.2, 0.0])
def test_coefficients_of_log_odds_of_three_classes_give_their_probabilities(holdout: float) -> None:
    table, labels = load_iris(return_X_y=True)
    model = emulated(holdout=holdout, rounds=60).fit(two(table, labels))
    pairs = model.log_odds_
    assert list(pairs) == list(model.coef_) == list(model.intercept_) == [0, 1, 2]
    odds = np.column_stack(
        [
            start
            + sum(table[:, half * 2 : half * 2 + 2] @ list(own.values()) for half, own in enumerate(weights))
            for start, weights in ((start, weights.values()) for start, weights in pairs.values())
        ]
    )
    expected = np.exp(odds - odds.max(axis=1, keepdims=True))
    expected /= expected.sum(axis=1, keepdims=True)
    assert np.abs(model.predict_proba(two(table)) - expected).max() < 0.02
