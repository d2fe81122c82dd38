"""Attacks on recorded views of the generalised linear objective: where they succeed and where they must fail.

What an opened gradient gives away is the same under every scheme, so the encrypted runs are small; the scheme
matters for the rest.
"""

from __future__ import annotations

from functools import lru_cache, partial

import numpy as np
import pytest

from bench.attack_variants import BLIND, PLAIN
from bench.linear_attacks import blind_columns, blind_labels, unmasked
from bench.scenes import LinearScene, blind_scene, generated, linear_scene
from research.attacks.blind import numbers_of
from research.attacks.clear import CLEAR
from research.attacks.linear import (
    direction_scores,
    exposed_rows,
    features_from_span,
    labels_over_rounds,
    membership_scores,
    norm_scores,
    solve,
    solve_residuals,
)
from research.attacks.scores import Score, area, area_under_curve, proportion, r_squared
from research.attacks.transcripts import matching_data_sets, without_rerandomisation
from research.attacks.views import plain_values
from tests.protocols.federation import FULL_KEYS

ENCRYPTED = [pytest.param("paillier", marks=pytest.mark.slow), "ckks"]


@lru_cache(maxsize=16)
def scene(scheme: str, rows: int, batch: int | None, rounds: int, columns: int = 6) -> LinearScene:
    return linear_scene(scheme, FULL_KEYS, rows=rows, batch=batch, rounds=rounds, columns=(columns, 4))


MANY = 96
"""Rows on which luck is told from success."""


def others_residuals(scene: LinearScene, place: int) -> np.ndarray:
    """The truth: what p1 sent in that round."""
    return scene.views["p1"].opened[place].contribution


# One exchange, on both sides of the ledger's line


@pytest.mark.parametrize("scheme", ENCRYPTED)
def test_past_the_line_every_residual_is_found(scheme: str) -> None:
    found = scene(scheme, 24, 6, 3)
    assert next(e for e in found.ledger if e.party == "p0").verdict == "determined"
    for place, opening in enumerate(found.views["p0"].opened):
        answer = solve_residuals(opening)
        assert answer.determined.all()
        assert np.abs(answer.values - others_residuals(found, place)).max() < 1e-3
        assert (np.sign(-answer.values) == found.labels[opening.batch]).all()


@pytest.mark.parametrize("scheme", ENCRYPTED)
def test_below_the_line_no_residual_is_found(scheme: str) -> None:
    """Not one is determined. But d of S dimensions are known, and with them a part of the variance: d/S of
    what has nothing to do with the columns, more of what has.
    """
    found = scene(scheme, 48, 24, 3)
    entry = next(e for e in found.ledger if e.party == "p0" and not e.advisory)
    assert entry.verdict == "below the line"
    shares = []
    for place, opening in enumerate(found.views["p0"].opened):
        answer = solve_residuals(opening)
        assert not answer.determined.any()
        truth = others_residuals(found, place)
        assert np.abs(answer.values - truth).max() > 0.1
        # Another solution fits as well: what the party has does not tell them apart.
        other = answer.values + _null_vector(opening.multipliers[0])
        assert np.allclose(opening.multipliers[0] @ other, opening.sums, atol=1e-3)
        shares.append(float((answer.values**2).sum() / (truth**2).sum()))
    assert entry.ratio - 0.1 < np.mean(shares) < 0.8


def _null_vector(matrix: np.ndarray) -> np.ndarray:
    return np.linalg.svd(matrix)[2][-1]


def test_one_row_more_is_the_line() -> None:
    """S = d is determined, S = d + 1 is not."""
    for batch, determined in ((6, True), (7, False)):
        answer = solve_residuals(scene("plain", 28, batch, 1).views["p0"].opened[0])
        assert answer.determined.all() == determined
        assert answer.determined.any() == determined


# Over the rounds


@pytest.mark.slow
def test_new_batches_give_the_labels_away_over_the_rounds() -> None:
    """Each exchange is below the line; together they are not, and the ledger's estimate says so."""
    found = scene("ckks", 72, 18, 24)
    exact, estimate = (
        next(e for e in found.ledger if e.party == "p0" and e.advisory is a) for a in (False, True)
    )
    assert exact.verdict == "below the line"
    assert estimate.verdict == "possibly determined"
    labels = labels_over_rounds(found.views["p0"].opened, 72, -0.5)
    own = area(found.features["p0"] @ found.parameters["p0"], found.labels > 0)
    assert area_under_curve(labels, found.labels > 0).low > max(own, 0.9)


def test_the_same_batch_again_gives_nothing_more() -> None:
    """The full batch in every round: always the same d combinations of labels."""
    found = scene("ckks", 72, None, 16)
    labels = labels_over_rounds(found.views["p0"].opened, 72, -0.5)
    own = area(found.features["p0"] @ found.parameters["p0"], found.labels > 0)
    assert area(labels, found.labels > 0) < own + 0.1
    stacked = np.vstack([o.multipliers[0][:, np.argsort(o.batch)] for o in found.views["p0"].opened])
    assert np.linalg.matrix_rank(stacked) == 6


@pytest.mark.slow
def test_batches_that_are_cut_once_give_little_more() -> None:
    """The same four batches in turn: 4 x 6 combinations for 72 labels, however many rounds. What helps."""
    found = linear_scene("ckks", FULL_KEYS, rows=72, batch=18, rounds=24, columns=(6, 4), fixed=True)
    labels = labels_over_rounds(found.views["p0"].opened, 72, -0.5)
    fresh = labels_over_rounds(scene("ckks", 72, 18, 24).views["p0"].opened, 72, -0.5)
    assert area(labels, found.labels > 0) < area(fresh, found.labels > 0) - 0.1
    stacked = np.zeros((0, 72))
    for opening in found.views["p0"].opened:
        block = np.zeros((6, 72))
        block[:, opening.batch] = opening.multipliers[0]
        stacked = np.vstack([stacked, block])
    assert np.linalg.matrix_rank(stacked) == 24


def test_a_person_alone_in_a_category_is_exposed_however_large_the_batch() -> None:
    """What the ledger does not see: it counts equations, and this one is about a single row."""

    def with_rare(features: np.ndarray) -> np.ndarray:
        rare = np.zeros((len(features), 2))
        rare[5, 0] = rare[9, 1] = 1.0
        return np.column_stack([features[:, :2], rare])

    found = linear_scene("ckks", FULL_KEYS, rows=60, batch=None, rounds=1, columns=(4, 4), shape=with_rare)
    (opening,) = found.views["p0"].opened
    assert next(e for e in found.ledger if e.party == "p0").ratio < 0.1
    rows = exposed_rows(found.features["p0"][opening.batch])
    assert set(opening.batch[rows]) == {5, 9}
    residuals = solve(opening.multipliers[0], opening.sums).values[rows]
    assert (np.sign(-residuals) == found.labels[opening.batch][rows]).all()
    # Standardising hides the zeros, not the person: columns and intercept together are the same span.
    scaled = found.features["p0"] - found.features["p0"].mean(axis=0)
    with_intercept = np.column_stack([scaled, np.ones(60)])
    assert set(exposed_rows(with_intercept)) == {5, 9}
    assert len(exposed_rows(generated(60, 4, 0)[0])) == 0


# Features, membership, data sets


def test_plain_messages_and_a_few_known_rows_give_all_features() -> None:
    """Theorem 1 leaves an invertible matrix open; six rows more than nothing close it."""
    found = scene("plain", 48, None, 16)
    truth = found.features["p0"]
    sent = np.column_stack([plain_values(m) for m in found.views["p1"].of("contribution")])
    known = np.arange(10)
    built = features_from_span(sent, truth[known], known, 6)
    assert r_squared(built[10:], truth[10:]).score > 0.999
    # Fewer known rows than columns do not.
    few = np.arange(4)
    assert r_squared(features_from_span(sent, truth[few], few, 6)[10:], truth[10:]).score < 0.9


@pytest.mark.parametrize("scheme", ENCRYPTED)
def test_encrypted_messages_give_no_features(scheme: str) -> None:
    found = scene(scheme, 48, None, 16)
    truth = found.features["p0"]
    sent = np.column_stack([plain_values(m).ravel() for m in found.views["p1"].of("contribution")])
    known = np.arange(10)
    assert r_squared(features_from_span(sent, truth[known], known, 6)[10:], truth[10:]).score < 0.1


@pytest.mark.parametrize(
    ("scheme", "succeeds"),
    [("plain", True), ("ckks", False), pytest.param("paillier", False, marks=pytest.mark.slow)],
)
def test_membership_from_what_the_key_holder_opens(scheme: str, succeeds: bool) -> None:
    rows, columns, scores = 16, 200, []
    for seed in range(2):
        found = linear_scene(
            scheme, FULL_KEYS, rows=rows, batch=None, rounds=3, columns=(columns, 2), seed=seed
        )
        outsiders = np.random.default_rng(seed + 77).normal(size=(rows, columns))
        gradients = [plain_values(m).ravel()[:columns] for m in found.views["p1"].of("opening-request")]
        scores.append(membership_scores(np.vstack([found.features["p0"], outsiders]), gradients))
    inside = np.tile(np.arange(2 * rows) < rows, len(scores))
    interval = area_under_curve(np.concatenate(scores), inside)
    score = Score.of("membership", "key-holder", scheme, "AUC", interval, 0.5)
    assert score.succeeded == succeeds


@pytest.mark.parametrize("scheme", ["plain", "paillier", "ckks"])
def test_the_key_holder_cannot_tell_data_sets_apart(scheme: str) -> None:
    """From the ciphertexts themselves: without re-randomisation always, with it never."""
    for naive in (True, False):
        if naive:
            with without_rerandomisation():
                found = linear_scene(scheme, FULL_KEYS, rows=40, batch=10, rounds=6, columns=(3, 3))
        else:
            found = linear_scene(scheme, FULL_KEYS, rows=40, batch=10, rounds=6, columns=(3, 3))
        holder, generator = FULL_KEYS.holder(scheme, 1), np.random.default_rng(3)
        sent = [m for m in found.views["p1"].sent if m.kind == "contribution"]
        asked = found.views["p1"].of("opening-request")
        for opening, before, after in zip(found.views["p0"].opened, sent, asked, strict=True):
            guesses = [
                opening.multipliers,
                *(generator.normal(size=opening.multipliers.shape) for _ in range(3)),
            ]
            fitting = matching_data_sets(holder, before, after, guesses)
            assert fitting == ([0] if naive or scheme == "plain" else [])


# Blind training


@lru_cache(maxsize=4)
def blind(naive: bool, rows: int = 24) -> LinearScene:
    """Recorded once: ours, and the product in the clear without masks."""
    make = partial(blind_scene, rows=rows, rounds=3, columns=(6, 20))
    if not naive:
        return make()
    with unmasked():
        return make(scheme=CLEAR)


def test_blind_training_opens_nothing_to_solve() -> None:
    found = blind(False)
    assert found.ledger == []
    assert all(view.opened == [] for view in found.views.values())
    kinds = {message.kind for view in found.views.values() for message in view.received}
    assert kinds == {"nonce", "cross-key", "operand", "reply", "difference"}


@pytest.mark.parametrize("naive", [True, False])
def test_the_pass_shows_neither_labels_nor_columns(naive: bool) -> None:
    variant = PLAIN if naive else BLIND
    assert blind_labels(blind(naive, MANY), variant, "labels").succeeded == naive
    # As many of p1's columns as rows: else even the product in the clear does not determine p0's.
    assert blind_columns(blind(naive), variant, "columns").succeeded == naive


def test_nothing_that_arrives_goes_with_labels_or_columns() -> None:
    """Regression of labels and of each column on all that the other party received, as numbers by row."""
    found, rows = blind(False, MANY), MANY
    truths = {"p0": found.labels[:, None], "p1": found.features["p0"]}
    for name, truth in truths.items():
        seen = [numbers_of(m.payload, rows) for m in found.views[name].received if len(m.payload) > 14 * rows]
        assert len(seen) >= 3
        table = np.column_stack(seen[:6])
        table = (table - table.mean(axis=0)) / table.std(axis=0)
        half = rows // 2
        link = np.linalg.lstsq(table[:half], truth[:half], rcond=None)[0]
        # At most the squared correlation, which exceeds 0.5 on 48 independent rows with a chance of 2e-8.
        assert r_squared(table[half:] @ link, truth[half:]).score < 0.5


def test_differences_of_rounds_have_nothing_in_common() -> None:
    """The same run twice: the same parameters, and other numbers."""
    first = blind(False)
    second = blind_scene(rows=24, rounds=3, columns=(6, 20))
    for name in first.views:
        pairs = zip(first.views[name].of("difference"), second.views[name].of("difference"), strict=True)
        for one, other in pairs:
            a, b = (numbers_of(m.payload, 26, 105) for m in (one, other))
            assert np.abs(a - b).min() > 2.0**-30


# The attacks themselves, on made-up numbers


def test_norms_and_directions_find_labels_in_gradients_of_rows() -> None:
    generator = np.random.default_rng(0)
    labels = np.where(generator.random(200) < 0.2, 1.0, -1.0)
    gradients = np.outer(-0.5 * labels - 0.3, generator.normal(size=6)) + 0.02 * generator.normal(
        size=(200, 6)
    )
    assert area(norm_scores(gradients), labels > 0) > 0.99
    known = int(np.flatnonzero(labels > 0)[0])
    assert area(direction_scores(gradients, known), labels > 0) > 0.99
    noise = generator.normal(size=(200, 6))
    assert abs(area(norm_scores(noise), labels > 0) - 0.5) < 0.15


def test_areas_and_intervals() -> None:
    generator = np.random.default_rng(1)
    positive = generator.random(300) < 0.4
    scores = positive + generator.normal(size=300)
    pairs = scores[positive][:, None] - scores[~positive]
    assert area(scores, positive) == pytest.approx(float((pairs > 0).mean()))
    tied = np.round(scores)
    pairs = tied[positive][:, None] - tied[~positive]
    assert area(tied, positive) == pytest.approx(float((pairs > 0).mean() + 0.5 * (pairs == 0).mean()))
    interval = area_under_curve(scores, positive)
    assert interval.low < interval.score < interval.high
    assert area(scores, np.ones(300, dtype=bool)) == 0.5
    share = proportion(8, 10)
    # Wilson 1927, for 8 of 10.
    assert (round(share.low, 4), round(share.high, 4)) == (0.4902, 0.9433)
    truth = generator.normal(size=(50, 2))
    assert r_squared(truth, truth).score == 1.0
    assert r_squared(np.tile(truth.mean(axis=0), (50, 1)), truth).score == pytest.approx(0.0)
    assert r_squared(-truth, truth).score == 0.0


def test_a_score_succeeds_only_above_chance_and_design() -> None:
    def made(score: float, half: float, design: float | None) -> Score:
        return Score("a", "b", "c", "AUC", score, score - half, score + half, 0.5, design)

    error = 0.04 / 1.959964
    assert made(0.9, 0.04, None).errors == pytest.approx(0.4 / error)
    assert made(0.9, 0.04, 0.85).errors == pytest.approx(0.05 / error)
    assert made(0.5 + 5.01 * error, 0.04, None).succeeded
    assert not made(0.5 + 4.99 * error, 0.04, None).succeeded
    assert not made(0.5 + 5.01 * error, 0.04, 0.55).succeeded
    assert made(0.5 + 5.01 * error, 0.04, 0.3).succeeded
    assert made(1.0, 0.0, None).succeeded and not made(0.5, 0.0, None).succeeded
    # All of 24 rows right, six of them positive: luck would do that once in 130,000 times.
    positive = np.arange(24) < 6
    lucky = area_under_curve(positive.astype(float), positive)
    assert lucky.score == 1.0 and not Score.of("a", "b", "c", "AUC", lucky, 0.5).succeeded


def test_what_is_determined() -> None:
    matrix = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]])
    answer = solve(matrix, np.array([2.0, 6.0]))
    assert answer.determined.tolist() == [True, False, False]
    assert answer.values == pytest.approx([2.0, 3.0, 3.0])
