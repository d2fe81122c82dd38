"""Metrics beside scikit-learn's, their intervals beside what happens, and gain tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn import metrics as reference

from securefed.errors import DataError, SettingError
from securefed.labels.metrics import METRICS, Answers, Metric, better_by, get_metric, main_metric, measure
from securefed.labels.metrics import register as register_metric
from securefed.labels.quality import gains, stability

Array = NDArray[np.float64]
RNG = np.random.default_rng(0)
TRUTH = (RNG.random(300) < 0.3).astype(float)
SCORES = np.round(TRUTH + RNG.normal(size=300), 1)  # with ties
LIKELY = 1 / (1 + np.exp(1 - SCORES))
TWO = Answers("two classes", TRUTH, SCORES, LIKELY, (LIKELY > 0.5).astype(float))


def test_two_classes_are_scikit_learns() -> None:
    false, true, _ = reference.roc_curve(TRUTH, SCORES, drop_intermediate=False)
    expected = {
        "AUC": reference.roc_auc_score(TRUTH, SCORES),
        "Gini": 2 * reference.roc_auc_score(TRUTH, SCORES) - 1,
        "KS": np.max(true - false),
        "accuracy": reference.accuracy_score(TRUTH, LIKELY > 0.5),
        "log loss": reference.log_loss(TRUTH, LIKELY),
        "Brier": reference.brier_score_loss(TRUTH, LIKELY),
    }
    found = measure(TWO)
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    assert main_metric(TWO).name == "AUC" and next(iter(found)) == "AUC"
    assert found["lift"] > 1.5 and 0.0 < found["calibration error"] < 0.3


def test_classes_numbers_and_counts_are_scikit_learns() -> None:
    truth, likely = RNG.integers(0, 3, 200).astype(float), RNG.dirichlet(np.ones(3), 200)
    many = measure(Answers("classes", truth, probabilities=likely, predictions=np.argmax(likely, axis=1)))
    assert many["log loss"] == pytest.approx(reference.log_loss(truth, likely))
    assert many["accuracy"] == reference.accuracy_score(truth, np.argmax(likely, axis=1))
    values = RNG.normal(size=200)
    told = values + RNG.normal(size=200)
    numbers = measure(Answers("numbers", values, predictions=told))
    assert numbers["R2"] == pytest.approx(reference.r2_score(values, told))
    assert numbers["RMSE"] == pytest.approx(reference.root_mean_squared_error(values, told))
    for power in (1.0, 1.5, 2.0):
        counts, means = RNG.poisson(2.0, 200) + (power == 2.0), RNG.uniform(0.5, 4.0, 200)
        found = measure(Answers("counts", counts.astype(float), predictions=means, power=power))
        assert found["D2"] == pytest.approx(reference.d2_tweedie_score(counts, means, power=power))


def test_the_null_model_of_counts_is_one_rate_for_all_exposure() -> None:
    exposure = RNG.uniform(0.01, 10.0, 500)
    counts = RNG.poisson(0.7 * exposure).astype(float)
    rate = counts.sum() / exposure.sum()
    answers = Answers("counts", counts, predictions=rate * exposure, exposure=exposure)
    assert METRICS["D2"].function(answers) == pytest.approx(0.0, abs=1e-12)
    ignored = Answers("counts", counts, predictions=rate * exposure)
    assert METRICS["D2"].function(ignored) > 0.5  # what it was taken for


@pytest.mark.parametrize("events", [1, 2])
def test_few_counts_have_an_interval_that_is_wide_and_no_wider(events: int) -> None:
    counts, means = np.zeros(200), np.full(200, events / 200)
    counts[:events], means[:events] = 1.0, 2.0 * events / 200
    low, high = METRICS["D2"].between(Answers("counts", counts, predictions=means))
    assert -1.0 < low < 0.0 < high < 1.5


def test_rows_of_one_class_are_measured_by_accuracy() -> None:
    assert main_metric(TWO.take(np.flatnonzero(TRUTH))).name == "accuracy"


@pytest.mark.parametrize("name", ["AUC", "accuracy", "log loss"])
def test_intervals_of_95_percent_hold_the_truth_so_often(name: str) -> None:
    rng, inside, metric = np.random.default_rng(5), 0, get_metric(name)

    def drawn(rows: int) -> Answers:
        truth = (rng.random(rows) < 0.4).astype(float)
        scores = 1.2 * truth + rng.normal(size=rows)
        likely = 1 / (1 + np.exp(1 - scores))
        return Answers("two classes", truth, scores, likely, (likely > 0.5).astype(float))

    whole = metric.function(drawn(200_000))
    for _ in range(100):
        low, high = metric.between(drawn(120))
        inside += low <= whole <= high
    assert 88 <= inside <= 100


def test_separated_classes_do_not_promise_perfection() -> None:
    truth = np.repeat([0.0, 1.0], 10)
    low, high = METRICS["AUC"].between(Answers("two classes", truth, truth))
    assert 0.6 < low < 0.8 and high == 1.0


def test_a_gain_on_the_same_rows_is_surer_than_two_intervals() -> None:
    rng = np.random.default_rng(1)
    truth = (rng.random(400) < 0.5).astype(float)
    own = truth + rng.normal(size=400)
    better = own + 0.3 * truth
    gain, error = better_by(
        METRICS["AUC"], Answers("two classes", truth, better), Answers("two classes", truth, own)
    )
    low, high = METRICS["AUC"].between(Answers("two classes", truth, better))
    assert gain > 2 * error and 4 * error < high - low
    worse = better_by(METRICS["RMSE"], *(Answers("numbers", truth, predictions=p) for p in (own, truth)))
    assert worse[0] < 0  # less is better there


@pytest.mark.parametrize(
    ("change", "message"),
    [({"name": "AUC"}, "registered already"), ({"better": "up"}, "better"), ({"kinds": ("words",)}, "kinds")],
)
def test_a_metric_that_cannot_be_is_refused(change: dict[str, Any], message: str) -> None:
    facts: dict[str, Any] = {"name": "new", "kinds": ("numbers",), "needs": (), "function": float, **change}
    with pytest.raises(SettingError, match=message):
        register_metric(Metric(**facts))
    with pytest.raises(SettingError, match="metric must be one of"):
        get_metric("MCC")


class TestGains:
    def test_gains_add_up_and_ties_do_not_depend_on_the_order(self) -> None:
        table = gains(TRUTH, SCORES)
        assert [row.people for row in table] == list(range(30, 301, 30))
        assert table[-1].found == pytest.approx(1.0) and table[-1].lift == pytest.approx(1.0)
        assert table[0].lift == pytest.approx(METRICS["lift"].function(TWO), rel=0.05)
        assert (np.diff([row.found for row in table]) > -1e-12).all()
        shuffled = RNG.permutation(300)
        again = gains(TRUTH[shuffled], SCORES[shuffled])
        assert [row.found for row in again] == pytest.approx([row.found for row in table])
        with pytest.raises(DataError, match="both classes"):
            gains(np.ones(4), np.ones(4))

    def test_people_who_changed_are_seen(self) -> None:
        before, same, other = RNG.normal(size=2000), RNG.normal(size=2000), RNG.normal(1.0, 1.0, size=2000)
        assert stability(before, same) < 0.1 < 0.25 < stability(before, other)
        assert stability(before, before) == pytest.approx(0.0)
        with pytest.raises(DataError, match="both groups"):
            stability(before, np.zeros(0))
