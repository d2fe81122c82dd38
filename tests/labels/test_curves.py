"""ROC and calibration curves beside their definitions, and no more digits than an interval supports."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import auc

from securefed.labels.metrics import Answers, get_metric, shown
from securefed.labels.quality import MOST_POINTS, calibration_curve, curves, roc_curve


def test_the_area_under_the_curve_is_the_metric() -> None:
    rng = np.random.default_rng(0)
    truth = (rng.random(80) < 0.4).astype(float)
    scores = np.round(truth + rng.normal(size=80), 1)  # with ties
    points = np.array(roc_curve(truth, scores))
    assert points[0].tolist() == [0, 0] and points[-1].tolist() == [1, 1]
    expected = get_metric("AUC").function(Answers("two classes", truth, scores))
    assert auc(points[:, 0], points[:, 1]) == pytest.approx(expected)


def test_a_long_curve_is_thinned_and_keeps_its_ends() -> None:
    rng = np.random.default_rng(1)
    truth = (rng.random(5000) < 0.5).astype(float)
    points = roc_curve(truth, truth + rng.normal(size=5000))
    assert len(points) <= MOST_POINTS and points[0] == (0.0, 0.0) and points[-1] == (1.0, 1.0)


def test_groups_of_a_calibration_have_equal_size_and_their_own_share() -> None:
    likely, truth = np.repeat([0.1, 0.9], 10), np.array([1.0] + [0.0] * 9 + [1.0] * 9 + [0.0])
    groups = calibration_curve(truth, likely)
    assert sum(count for *_, count in groups) == 20 and {count for *_, count in groups} == {5}
    assert np.mean([share for mean, share, _ in groups if mean < 0.5]) == pytest.approx(0.1)
    assert np.mean([share for mean, share, _ in groups if mean > 0.5]) == pytest.approx(0.9)


def test_only_two_classes_have_curves() -> None:
    truth = np.array([0.0, 1.0])
    assert curves(Answers("numbers", truth, predictions=truth)) == {}
    assert set(curves(Answers("two classes", truth, truth))) == {"roc", "gain"}
    assert set(curves(Answers("two classes", truth, truth, truth))) == {"roc", "gain", "calibration"}


@pytest.mark.parametrize(
    ("value", "interval", "text"),
    [
        (0.98765, (0.87, 1.0), "0.99 (95%: 0.87 to 1.00)"),
        (0.78123, (0.777, 0.785), "0.781 (95%: 0.777 to 0.785)"),
        (0.78123, (0.7808, 0.7816), "0.7812 (95%: 0.7808 to 0.7816)"),
        (0.5, None, "0.5000"),
    ],
)
def test_digits_are_those_that_the_interval_supports(
    value: float, interval: tuple[float, float] | None, text: str
) -> None:
    assert shown(value, interval) == text
