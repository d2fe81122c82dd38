"""Targets of a second fit: least squares on them is near to logistic regression."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score

from securefed import GeneralisedLinear, Party, Plain
from securefed.labels.base_model import (
    LARGEST_SCORE,
    SIZE,
    LabelOptions,
    scaled,
    softmax,
    working_targets,
)
from securefed.labels.label_model import LabelModel
from securefed.labels.several import ClassModels
from securefed.models.local import sigmoid
from securefed.protocols.losses import get_loss

Array = NDArray[np.float64]
RNG = np.random.default_rng(4)
COLUMNS = np.column_stack([RNG.lognormal(0.0, 1.0, (600, 3)), np.ones(600)])


def least_squares(targets: Array) -> Array:
    fitted: Array = COLUMNS @ np.linalg.lstsq(COLUMNS, targets, rcond=None)[0]
    return fitted


def loss_of(scores: Array, labels: NDArray[np.intp]) -> float:
    """With the best slope and offset."""
    curve = LogisticRegression(C=1e6).fit(scores.reshape(len(labels), -1), labels)
    return float(log_loss(labels, curve.predict_proba(scores.reshape(len(labels), -1))))


def test_a_step_closes_most_of_the_gap_to_logistic_regression() -> None:
    """Columns with long tails, where least squares is far from it."""
    odds = COLUMNS @ [2.0, -2.0, 1.0, -1.0]
    labels = (RNG.random(600) < sigmoid(odds)).astype(np.intp)
    best = LogisticRegression(C=1e6, max_iter=1000).fit(COLUMNS[:, :3], labels)
    best_loss = log_loss(labels, best.predict_proba(COLUMNS[:, :3]))
    first = least_squares(2.0 * labels - 1.0)
    curve = LogisticRegression(C=1e6).fit(first[:, None], labels)
    targets = working_targets(curve.decision_function(first[:, None]), labels > 0)
    before, after = (loss_of(scores, labels) - best_loss for scores in (first, least_squares(targets)))
    assert before > 0.01 and after < 0.5 * before


def test_logistic_regression_itself_stays_where_it_is() -> None:
    """Residuals of the exact fit are orthogonal to all columns, so the fit of the targets is the same."""
    labels = (RNG.random(600) < sigmoid(COLUMNS @ [1.0, -1.0, 0.0, 0.0])).astype(np.intp)
    best = LogisticRegression(C=1e8, max_iter=10_000, tol=1e-10).fit(COLUMNS[:, :3], labels)
    odds = best.decision_function(COLUMNS[:, :3])
    again = least_squares(working_targets(odds, labels > 0))
    assert np.corrcoef(again, odds)[0, 1] > 1 - 1e-6


@pytest.mark.parametrize("classes", [2, 4])
def test_targets_have_a_size_that_shares_bear_and_a_bound(classes: int) -> None:
    truth, loss = RNG.integers(0, classes, 300), get_loss("logistic")
    odds = RNG.normal(size=(300, classes)) * 5 if classes > 2 else RNG.normal(size=300) * 5
    positive = np.eye(classes)[truth] > 0 if classes > 2 else truth > 0
    z = working_targets(odds, positive)
    targets, step = scaled(z, loss, 64.0)
    assert targets.shape == odds.shape and np.sqrt(np.mean(targets**2)) == pytest.approx(SIZE)
    # The least squares fit of labels y is that of 2 y under the Taylor loss.
    np.testing.assert_allclose(2.0 * targets * step, z)
    assert np.abs(scaled(z, loss, 1.0)[0]).max() == pytest.approx(1.0)
    shifted = working_targets(odds + 7.0, positive) if classes > 2 else z
    np.testing.assert_allclose(shifted, z, atol=1e-9)  # what classes share says nothing


def test_no_target_asks_for_a_score_that_wraps() -> None:
    """A rare class that another party's column tells apart has scores as large as its targets."""
    rng = np.random.default_rng(0)
    labels = np.zeros(400, dtype=np.intp)
    labels[[30, 151, 288]] = 1
    z = working_targets(np.full(400, -5.0) + 0.1 * rng.normal(size=400), labels > 0)
    aims, step = scaled(z, get_loss("logistic"), 64.0)
    assert np.abs(z / step).max() <= LARGEST_SCORE + 1e-9 and np.abs(aims).max() <= LARGEST_SCORE / 2 + 1e-9
    parties = [
        Party("shop", np.column_stack([rng.normal(size=400), labels])),
        Party("bank", rng.normal(size=(400, 2)), labels=labels),
    ]
    for model in (GeneralisedLinear(), GeneralisedLinear(protection=Plain(like="blind"))):
        measured = model.fit(parties).result_.holdout
        assert measured is not None and measured.value > 0.99


@pytest.mark.parametrize("far", [0.0, 50.0])
def test_odds_without_spread_and_classes_without_overlap_give_numbers(far: float) -> None:
    positive = np.arange(100) % 2 > 0
    targets = working_targets(np.where(positive, far, -far), positive)
    assert np.isfinite(targets).all() and (np.sign(targets) == np.where(positive, 1.0, -1.0)).all()


def test_rows_weigh_in_both_stages_and_an_offset_stays() -> None:
    labels = (COLUMNS[:, 0] + RNG.normal(size=600) > 2.5).astype(int)
    signs, offset, places = 2.0 * labels - 1.0, RNG.normal(size=600), np.arange(600)

    def aimed(weights: Array | None, known: Array | None) -> tuple[Array, Array]:
        wishes = LabelOptions(weighted=weights is not None, offset=known is not None, start=True)
        model, _ = LabelModel.of(labels, "bank", get_loss("logistic"), 64.0, wishes=wishes)
        columns = COLUMNS[:, :3]
        found = []
        first = model.aim("bank", 64.0, columns, signs, weights, known, places)
        for stage in (first, model.aim_again(least_squares(2.0 * first), signs, places, 64.0)):
            assert stage is not None and model.link is not None
            found.append(2.0 * stage * model.link.step)
        return found[0], found[1]

    alike, heavy = aimed(None, None), aimed(np.where(labels, 9.0, 1.0), None)
    for one, other in zip(alike, heavy, strict=True):
        assert np.corrcoef(one, other)[0, 1] < 0.999
    for one, other in zip(alike, aimed(np.full(600, 3.0), None), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-9)  # equal weights are none
    for one, other in zip(alike, aimed(None, 0.0 * offset), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-9)
    assert np.corrcoef(aimed(None, 5.0 * offset)[1], offset)[0, 1] < -0.5


def test_several_classes_are_aimed_at_together() -> None:
    truth = RNG.integers(0, 3, 300)
    (model, _), places = ClassModels.with_gaps(truth, "bank", get_loss("logistic")), np.arange(300)
    scores, signs = np.eye(3)[truth] + RNG.normal(size=(300, 3)), 2.0 * np.eye(3)[truth] - 1.0
    targets = model.aim_again(scores, signs, places, 64.0)
    assert targets is not None
    np.testing.assert_allclose(targets.sum(axis=1).mean(), 0.0, atol=0.2)
    assert (np.argmax(softmax(targets), axis=1) == truth).mean() > 0.9
    assert model.aim_again(scores[:5], signs[:5], places[:5], 64.0) is None, "too few to learn from"


@pytest.mark.slow
def test_a_rare_class_is_ranked_better_than_by_least_squares(monkeypatch: pytest.MonkeyPatch) -> None:
    table, labels = make_classification(
        2000, 20, n_informative=6, n_redundant=6, weights=[0.95], class_sep=1.2, random_state=1
    )
    found = []
    for stages in (2, 1):
        monkeypatch.setattr("securefed.assembly.linear.STAGES", stages)
        gaps = []
        for seed in range(2):
            order = np.random.default_rng(seed).permutation(2000)
            parties, new = (
                [
                    Party("shop", table[rows, :10]),
                    Party("bank", table[rows, 10:], labels=labels[rows] if known else None),
                ]
                for rows, known in ((order[:1400], True), (order[1400:], False))
            )
            model = GeneralisedLinear(protection=Plain(like="blind")).fit(parties)
            gaps.append(roc_auc_score(labels[order[1400:]], model.decision_function(new)))
        found.append(float(np.mean(gaps)))
    assert found[0] > found[1] + 0.001
