"""Differentiation by differences, with a tolerance that comes from the differences themselves."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

Array = NDArray[np.float64]
STEP = 1e-4


def differences(function: Callable[[Array], Array], point: Array) -> tuple[Array, Array]:
    """Central differences of `function` along each coordinate (first axis), and how far off they may be.

    D(h) = f' + h^2/6 f''' + O(h^4), so |D(2h) - D(h)| is 3 times D(h)'s truncation error: a safe bound.
    Rounding adds a few units of 2^-53 times the size of f, divided by h.
    """
    near, far = [], []
    for coordinate in range(point.size):
        unit = np.zeros(point.size)
        unit[coordinate] = 1.0
        near.append((function(point + STEP * unit) - function(point - STEP * unit)) / (2 * STEP))
        far.append((function(point + 2 * STEP * unit) - function(point - 2 * STEP * unit)) / (4 * STEP))
    size = 1.0 + np.abs(function(point)).max()
    tolerance = np.abs(np.array(far) - np.array(near)) + 32 * np.finfo(np.float64).eps * size / STEP
    return np.array(near), tolerance


@pytest.fixture
def assert_derivative() -> Callable[[Array, Callable[[Array], Array], Array], None]:
    """assert_derivative(claimed, function, point): claimed[p] is d function / d point[p]."""

    def check(claimed: Array, function: Callable[[Array], Array], point: Array) -> None:
        estimate, tolerance = differences(function, point)
        assert claimed.shape == estimate.shape
        assert (np.abs(claimed - estimate) <= tolerance).all()
        # The tolerance must not be so wide that anything passes.
        assert tolerance.max() < 1e-6 * (1 + np.abs(estimate).max())

    return check
