"""The exact discrete Gaussian: its distribution, and that it has all its bits."""

from __future__ import annotations

from math import exp

import numpy as np
import pytest

from securefed.crypto.randomness import discrete_gaussian
from securefed.errors import SettingError

DRAWS = 4000


def test_small_deviations_have_the_right_frequencies() -> None:
    drawn = np.array([discrete_gaussian(2) for _ in range(DRAWS)])
    weights = {x: exp(-x * x / 8) for x in range(-30, 31)}
    total = sum(weights.values())
    for x in range(-4, 5):
        expected = DRAWS * weights[x] / total
        # Outside with a chance of 2e-9: the exact binomial tails, for all nine values.
        assert abs(np.sum(drawn == x) - expected) < 6 * expected**0.5 + 5


def test_large_deviations_have_the_right_moments() -> None:
    scale = 1 << 60
    drawn = np.array([discrete_gaussian(3 * scale) / scale for _ in range(DRAWS)])
    # Outside with a chance below 1e-9. Fourth powers have a heavy tail.
    assert abs(drawn.mean()) < 7 * 3 / DRAWS**0.5
    assert abs(drawn.var() - 9) < 7 * 9 * (2 / DRAWS) ** 0.5
    assert abs((drawn**4).mean() - 3 * 81) < 10 * 81 * (96 / DRAWS) ** 0.5


def test_every_last_bit_is_noise() -> None:
    """Noise from floats ends in zeros, and leaves the last bits of what it is added to in the clear."""
    floats = np.random.default_rng(0).normal(size=DRAWS)
    naive = [int(value * 2.0**60) for value in floats]
    assert sum(value % 32 == 0 for value in naive) > 0.9 * DRAWS
    ours = [discrete_gaussian(1 << 60) for _ in range(DRAWS)]
    # The binomial tail beyond eight deviations is below 1e-13.
    assert abs(sum(value % 32 == 0 for value in ours) - DRAWS / 32) < 8 * (DRAWS / 32) ** 0.5


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True])
def test_deviations_are_whole_numbers(wrong: int) -> None:
    with pytest.raises(SettingError, match="deviation"):
        discrete_gaussian(wrong)
