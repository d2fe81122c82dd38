"""What there is to tell of columns: at most log2 of their values; what is said twice counts once."""

from __future__ import annotations

from math import log2

import numpy as np
import pytest

from securefed.api.party import Party
from securefed.data.columns import MOST_ROWS, column_bits, prepare
from securefed.data.rows import rows_of

RNG = np.random.default_rng(0)


def test_different_values_are_worth_log2_of_their_number() -> None:
    assert column_bits(np.arange(64.0)[:, None]) == pytest.approx(6)
    independent = np.column_stack([RNG.permutation(64), RNG.permutation(64), RNG.permutation(64)]) * 1.0
    assert column_bits(independent) == pytest.approx(18)
    assert column_bits(np.zeros((9, 2))) == 0.0
    assert column_bits(np.ones((1, 3))) == 0.0


def test_frequent_values_are_worth_less() -> None:
    column = np.r_[np.zeros(950), np.arange(1.0, 51.0)]
    share = np.r_[0.95, np.full(50, 0.001)]
    assert column_bits(column[:, None]) == pytest.approx(-(share * np.log2(share)).sum())
    assert column_bits(column[:, None]) < 1 < log2(51)


def test_another_name_for_the_same_values_adds_nothing() -> None:
    column = RNG.permutation(64) * 1.0
    assert column_bits(np.column_stack([column, 3 - 2 * column, np.exp(column / 9)])) == pytest.approx(6)


def test_a_category_in_columns_of_its_own_counts_as_one() -> None:
    category = np.tile(np.arange(4), 8)
    one_hot = np.eye(4)[category]
    assert column_bits(one_hot) == pytest.approx(2)
    assert column_bits((one_hot - one_hot.mean(axis=0)) / one_hot.std(axis=0)) == pytest.approx(2)
    bits = (np.arange(32)[:, None] >> np.arange(5) & 1) * 1.0  # five independent answers
    assert column_bits(bits) == pytest.approx(5)


def test_minus_zero_is_zero() -> None:
    assert column_bits(np.array([[0.0], [-0.0], [0.0], [-0.0]])) == 0.0


def test_of_very_many_rows_a_part_is_looked_at() -> None:
    many = np.arange(3.0 * MOST_ROWS)[:, None]
    assert log2(MOST_ROWS) - 1 < column_bits(many) <= log2(MOST_ROWS)


def test_columns_of_words_and_dates_are_counted_as_they_are_given() -> None:
    """A party with a policy on gaps and dates holds its table as it came, not numbers."""
    since = [f"2020-01-{day:02d}" for day in range(1, 17)]
    table = np.array([since, ["a", "b"] * 8], dtype=object).T
    party = Party("shop", table, impute="indicator", dates={"0": "age"})
    ready, columns = party.fitted()
    assert columns.row_bits(ready.features) == pytest.approx(4 + 1)


def test_what_a_process_counts_is_its_file_and_not_what_it_made_of_it() -> None:
    """With "auto" a number becomes splines beside itself, and a category as many columns as it has words."""
    rng = np.random.default_rng(3)
    table = np.column_stack(
        [rng.normal(size=900), rng.integers(0, 40, size=900), rng.integers(0, 3, size=900)]
    )
    words, names = np.array(["north", "south", "coast"], dtype=object)[table[:, 2].astype(int)], list("abc")
    given = np.column_stack([table[:, :2].astype(object), words])
    for transform in ("none", "auto"):
        preparation, features = prepare(rows_of("shop", given, names), names, transform=transform)
        assert preparation.row_bits(features) == pytest.approx(column_bits(table))
    assert column_bits(features) > 2 * column_bits(table)
