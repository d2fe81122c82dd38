"""Columns from scores: a label party that follows the protocol reduces a lattice of what it was given.

Nobody's features are known to it, and no parameters. Against exact, truncated or carelessly blurred scores
it finds the other party's columns; from scores that are blurred as ours, and as many of them as the score
ledger gives, no relation between two rows. What a score of few values shows all the same is the last test.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray

from research.attacks.columns import Found, clusters, columns_from_scores, in_units_of_noise
from securefed.data.columns import column_bits
from securefed.protocols.scoring.blur import blur
from securefed.protocols.scoring.score_ledger import (
    ScoreGuard,
    ScoreRefusal,
    ScoreWarning,
    allowed_scorings,
    score_bits,
)
from tests.audit.naive.scores import blur_by_floats, blur_of_rounding, fresh_blur, no_blur, truncated

Array = NDArray[np.float64]
Whole = NDArray[np.int64]
Blur = Callable[..., list[int]]
FEATURE_BITS, PARAMETER_BITS = 20, 56
FRACTION_BITS = FEATURE_BITS + PARAMETER_BITS
PRECISION = 10
KEY = bytes(range(32))
RNG = partial(np.random.default_rng, 7)


def of_20_bits(people: int, columns: int, seed: int = 0) -> Whole:
    """Standardised numbers as blind training encodes them."""
    normal = np.random.default_rng(seed).normal(size=(people, columns)).clip(-4, 4)
    return np.rint(np.ldexp(normal, FEATURE_BITS)).astype(np.int64)


def of_levels(people: int, columns: int, levels: int = 100, seed: int = 0) -> Whole:
    return np.random.default_rng(seed).integers(0, levels, size=(people, columns))


def correlated(columns: int, correlation: float) -> Whole:
    """4,000 people; about 100 levels in each column, which go together."""
    rng = np.random.default_rng(2)
    common, apart = rng.normal(size=(4000, 1)), rng.normal(size=(4000, columns))
    mixed = correlation * common + (1 - correlation**2) ** 0.5 * apart
    return np.rint(mixed * 16).astype(np.int64)


def features_of(levels: Whole) -> Array:
    return np.asarray((levels - levels.mean(axis=0)) / levels.std(axis=0))


def models(scorings: int, columns: int, seed: int = 1, *, alike: float | None = None) -> Array:
    """Parameters, one row a model; `alike`: how far retrained models are from the first."""
    drawn = np.random.default_rng(seed).normal(size=(scorings, columns))
    return drawn if alike is None else drawn[:1] + alike * drawn


def parameter_integers(model: Array) -> list[int]:
    return [round(float(value) * 2**PARAMETER_BITS) for value in model]


def exact_scores(encoded: Whole, model: Array) -> list[int]:
    theta = parameter_integers(model)
    return [sum(int(x) * t for x, t in zip(row, theta, strict=True)) for row in encoded]


def opened(features: Array, model: Array, blurred: Blur, precision: int = PRECISION) -> list[int]:
    """What the label party has of one scoring by a blind model: whole numbers of 2**-76."""
    encoded = np.rint(np.ldexp(features, FEATURE_BITS)).astype(np.int64)
    noise = blurred(
        features, key=KEY, context=model.tobytes(), precision_bits=precision, fraction_bits=FRACTION_BITS
    )
    return [s + n for s, n in zip(exact_scores(encoded, model), noise, strict=True)]


def rounded(scores: list[list[int]], precision: int) -> list[list[int]]:
    """Opened scores in units of their noise."""
    return in_units_of_noise([np.array(each, float) * 2.0**-FRACTION_BITS for each in scores], precision)


def nothing_found(found: Found, columns: Whole) -> bool:
    """No combination of people that was found holds for their rows. (For one column of few values some do, by
    luck.)
    """
    return found.true_relations(columns) == 0


# Exact scores, columns of 20 bits


@pytest.mark.parametrize(
    ("people", "columns", "scorings"),
    [
        (30, 2, 1),
        pytest.param(40, 3, 1, marks=pytest.mark.slow),
        pytest.param(40, 5, 3, marks=pytest.mark.slow),
        pytest.param(60, 8, 4, marks=pytest.mark.slow),
    ],
)
def test_exact_scores_give_the_columns_to_the_last_bit_and_ours_do_not(
    people: int, columns: int, scorings: int
) -> None:
    """One prediction, or a few evaluations, of some dozens of people."""
    truth = of_20_bits(people, columns)
    features, asked = np.ldexp(truth.astype(float), -FEATURE_BITS), models(scorings, columns)
    naive = columns_from_scores([opened(features, m, no_blur) for m in asked], columns, exact=True)
    assert naive.true_relations(truth) == people - columns
    assert naive.true_columns(truth) == columns
    ours = [opened(features, m, blur) for m in asked]
    assert nothing_found(columns_from_scores(ours, columns, exact=True), truth)
    assert nothing_found(columns_from_scores(rounded(ours, PRECISION), columns), truth)


def test_one_exact_prediction_gives_relations_of_columns_of_100_levels_and_ours_does_not() -> None:
    people, columns = 30, 2
    truth, constant = of_levels(people, columns), [[1] * people]
    features, (model,) = features_of(truth), models(1, columns)
    naive = columns_from_scores([opened(features, model, no_blur)], columns, exact=True, known=constant)
    assert naive.true_relations(truth) >= 0.9 * (people - columns - 1)
    ours = [opened(features, model, blur)]
    assert nothing_found(columns_from_scores(ours, columns, exact=True, known=constant), truth)
    assert nothing_found(columns_from_scores(rounded(ours, PRECISION), columns, known=constant), truth)


@pytest.mark.slow
def test_own_columns_that_the_label_party_has_no_parameters_for_do_not_help() -> None:
    """A blind model: its own part of the scores is unknown to it as well, but not its column and constant."""
    truth, own = of_20_bits(40, 2), of_20_bits(40, 1, seed=5)
    known = [own[:, 0].tolist(), [1] * 40]
    everything = np.hstack([truth, own, np.full((40, 1), 2**FEATURE_BITS)])
    (model,) = models(1, 4)
    exact = exact_scores(everything, model)
    naive = columns_from_scores([exact], 2, exact=True, known=known)
    assert naive.true_columns(truth) == 2
    features = np.ldexp(truth.astype(float), -FEATURE_BITS)
    noise = blur(features, key=KEY, context=b"m", precision_bits=PRECISION, fraction_bits=FRACTION_BITS)
    ours = [[s + n for s, n in zip(exact, noise, strict=True)]]
    assert nothing_found(columns_from_scores(ours, 2, exact=True, known=known), truth)


@pytest.mark.slow
def test_noise_that_does_not_reach_the_last_bit_is_none() -> None:
    """Drawn as floats over a whole step: modulo what it is a multiple of, scores are exact."""
    truth = of_20_bits(40, 2)
    features, asked = np.ldexp(truth.astype(float), -FEATURE_BITS), models(2, 2)
    below = FRACTION_BITS - PRECISION - 24

    def attacked(blurred: Blur) -> Found:
        low = [[score % 2**below for score in opened(features, m, blurred)] for m in asked]
        return columns_from_scores(low, 2, exact=True, modulus=2**below)

    assert attacked(partial(blur_by_floats, RNG())).true_columns(truth) == 2
    assert nothing_found(attacked(blur), truth)


def test_noise_as_wide_as_a_rounding_hides_no_column() -> None:
    truth = of_20_bits(40, 3)
    features, asked = np.ldexp(truth.astype(float), -FEATURE_BITS), models(3, 3)
    careless = partial(blur_of_rounding, RNG())
    naive = rounded([opened(features, m, careless) for m in asked], 31)
    assert columns_from_scores(naive, 3).true_columns(truth) == 3
    ours = rounded([opened(features, m, blur) for m in asked], PRECISION)
    assert nothing_found(columns_from_scores(ours, 3), truth)


# Asking again


ASKED = 256


def by_truncation(features: Array, model: Array) -> list[float]:
    """The label party knows its masks, so that each carry compares their low bits with hidden ones."""
    encoded = np.rint(np.ldexp(features, FEATURE_BITS)).astype(np.int64)
    rng, found = RNG(), []
    for score in exact_scores(encoded, model):
        bounds = [
            truncated(score, int.from_bytes(rng.bytes(15), "little"), PRECISION, FRACTION_BITS)
            for _ in range(ASKED)
        ]
        low, high = max(low for low, _ in bounds), min(high for _, high in bounds)
        assert low <= score < high
        found.append((low + high) / 2 * 2.0**-FRACTION_BITS)
    return found


def by_average(features: Array, model: Array, blurred: Blur) -> Array:
    asked = [opened(features, model, blurred) for _ in range(ASKED)]
    return np.array([float(sum(each)) / ASKED * 2.0**-FRACTION_BITS for each in zip(*asked, strict=True)])


def test_asking_again_gets_past_truncation_and_fresh_noise_and_not_past_ours() -> None:
    """Three columns of 100 levels hold 20 bits: two scorings at 2**-10 are just not enough."""
    truth = of_levels(40, 3)
    features, asked, constant = features_of(truth), models(2, 3), [[1] * 40]
    cut = in_units_of_noise([np.array(by_truncation(features, m)) for m in asked], PRECISION + 7)
    assert columns_from_scores(cut, 3, known=constant).true_columns(truth) == 3
    again = partial(fresh_blur, RNG())
    averaged = in_units_of_noise([by_average(features, m, again) for m in asked], PRECISION + 4)
    assert columns_from_scores(averaged, 3, known=constant).true_columns(truth) == 3
    for precision in (PRECISION, PRECISION + 4, PRECISION + 7):
        ours = in_units_of_noise([by_average(features, m, blur) for m in asked[:1]], precision)
        assert nothing_found(columns_from_scores(ours, 3, known=constant), truth)
    assert [opened(features, m, blur) for m in asked] == [opened(features, m, blur) for m in asked]


# Several evaluations, several retrained models: what the ledger is for


def until_refused(features: Array, asked: Array, held: float) -> list[list[int]]:
    """What a party with its default guard lets out of one model after the other."""
    guard, answers = ScoreGuard(KEY, column_bits=held), []

    def booked(
        rows: Array, *, key: bytes, context: bytes, precision_bits: int, fraction_bits: int
    ) -> list[int]:
        (noise,), _ = guard.noises(rows, context, precision_bits=precision_bits, fraction_bits=fraction_bits)
        return noise

    for model in asked:
        try:
            answers.append(opened(features, model, booked))
        except ScoreRefusal:
            break
    return answers


@pytest.mark.parametrize("alike", [None, 0.3], ids=["evaluations", "retrained models"])
@pytest.mark.parametrize(
    ("people", "columns", "scorings"),
    [(40, 3, 6), (60, 5, 8), pytest.param(60, 15, 20, marks=pytest.mark.slow)],
)
def test_scores_of_many_models_give_columns_of_100_levels_where_nobody_counts(
    people: int, columns: int, scorings: int, alike: float | None
) -> None:
    truth, constant = of_levels(people, columns), [[1] * people]
    features, asked = features_of(truth), models(scorings, columns, alike=alike)
    naive = rounded([opened(features, m, blur) for m in asked], PRECISION)
    found = columns_from_scores(naive, columns, known=constant)
    assert found.true_relations(truth) >= 0.9 * (people - columns - 1)
    if alike is None:
        assert found.true_columns(truth) == columns
    held = column_bits(of_levels(4000, columns, seed=9).astype(float))
    ours = until_refused(features, asked, held)
    assert len(ours) == allowed_scorings(held, PRECISION) < scorings
    left = columns_from_scores(rounded(ours, PRECISION), columns, known=constant)
    if len(ours) * score_bits(PRECISION) <= held:
        assert nothing_found(left, truth)
    else:  # two are always answered, and few columns hold less than that: a limit
        assert left.true_columns(truth) == 0
        assert left.true_relations(truth) < people - columns - 1


@pytest.mark.slow
def test_columns_of_20_bits_take_finer_scores_and_more_of_them() -> None:
    truth = of_20_bits(40, 3)
    features, asked = np.ldexp(truth.astype(float), -FEATURE_BITS), models(4, 3)
    fine = rounded([opened(features, m, blur, 24) for m in asked], 24)
    assert columns_from_scores(fine, 3).true_relations(truth) >= 35
    coarse = rounded([opened(features, m, blur) for m in asked], PRECISION)
    assert nothing_found(columns_from_scores(coarse, 3), truth)
    ours = until_refused(features, asked, column_bits(of_20_bits(400, 3, seed=9).astype(float)))
    assert len(ours) == 2
    assert nothing_found(columns_from_scores(rounded(ours, PRECISION), 3), truth)


@pytest.mark.slow
@pytest.mark.parametrize("correlation", [0.0, 0.9, 0.99])
@pytest.mark.parametrize("people", [60, 150])
def test_at_the_ledgers_line_no_relation_is_found_also_where_columns_go_together(
    people: int, correlation: float
) -> None:
    """Ten columns of about 100 levels, as many scorings as are allowed."""
    levels = correlated(10, correlation)
    allowed = allowed_scorings(column_bits(levels.astype(float)), PRECISION)
    assert allowed >= 2
    truth = levels[:people]
    asked = models(allowed, 10)
    ours = rounded([opened(features_of(truth), m, blur) for m in asked], PRECISION)
    found = columns_from_scores(ours, 10, known=[[1] * people])
    assert nothing_found(found, truth)


@pytest.mark.parametrize(
    ("correlation", "columns", "scorings", "precision", "least", "most"),
    [
        (0.0, 3, 2, 4, 0, 0),
        (0.0, 3, 2, 6, 0, 4),
        (0.0, 3, 2, 8, 0, 12),
        (0.0, 3, 2, 10, 20, 80),
        (0.0, 3, 2, 14, 90, 96),
        (0.99, 5, 1, 10, 0, 0),
        (0.99, 5, 2, 10, 1, 20),
        (0.99, 5, 3, 10, 60, 94),
        (0.99, 5, 4, 10, 90, 94),
    ],
)
def test_where_the_ledgers_line_lies_and_why(
    correlation: float, columns: int, scorings: int, precision: int, least: int, most: int
) -> None:
    """Relations found among 100 people: the table of docs/proofs.md."""
    truth, held = of_levels(100, columns), columns * np.log2(100)
    if correlation:
        together = correlated(columns, correlation)
        truth, held = together[:100], column_bits(together.astype(float))
    asked = models(scorings, columns)
    ours = rounded([opened(features_of(truth), m, blur, precision) for m in asked], precision)
    found = columns_from_scores(ours, columns, known=[[1] * 100]).true_relations(truth)
    assert least <= found <= most
    if scorings * (precision + 2) <= held / 2:
        assert found == 0


# What cannot be prevented


def test_a_score_of_few_values_shows_their_patterns_and_the_ledger_says_so() -> None:
    """Four categories with 48 patterns are 48 clusters of scores: who is like whom is seen in one scoring."""
    rng = np.random.default_rng(3)
    truth = np.column_stack([rng.integers(0, levels, 400) for levels in (2, 2, 3, 4)])
    features = features_of(truth)
    patterns = {tuple(row): number for number, row in enumerate(np.unique(truth, axis=0))}
    numbers = np.array([patterns[tuple(row)] for row in truth])
    assert len(patterns) == 48
    guard = ScoreGuard(KEY, column_bits=column_bits(features))

    def seen(precision: int) -> NDArray[np.intp]:
        model = models(1, 4, seed=8)[0]
        scores = np.array(opened(features, model, blur, precision), float) * 2.0**-FRACTION_BITS
        return clusters(scores, 2.0**-precision)

    found = seen(PRECISION)
    pairs = set(zip(numbers.tolist(), found.tolist(), strict=True))
    assert (
        len(pairs) == len(set(found.tolist())) == 48
    )  # each pattern is one cluster, and the other way round
    with pytest.warns(ScoreWarning, match=r"16 bits, where .* hold \d\. .* patterns"):
        guard.noises(features, b"m", precision_bits=PRECISION, fraction_bits=FRACTION_BITS)
    # Further models, which would tell what the levels are, are not answered; two always are.
    assert len(until_refused(features, models(4, 4, seed=8), column_bits(features))) == 2
    # Coarser scores run clusters together.
    assert len(set(seen(1).tolist())) < 24
