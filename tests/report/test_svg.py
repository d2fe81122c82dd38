"""Plots: well-formed, to scale, and with round numbers at their axes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from securefed.report import svg
from tests.report.drawings import parsed

finite = st.floats(-1e6, 1e6)


@given(finite, finite)
@example(0.0, 5e-324)
@example(1e6, 1e6 + 2e-10)
def test_ticks_are_round_and_cover_the_range(a: float, b: float) -> None:
    low, high = min(a, b), max(a, b)
    found = svg.ticks(low, high)
    assert 2 <= len(found) <= 12
    step = found[1] - found[0]
    assert found[0] <= low + 1e-6 * step and found[-1] >= high - 1e-6 * step
    assert all(y - x == pytest.approx(step) for x, y in pairwise(found))


def numbers(drawing: str, tag: str, name: str) -> list[float]:
    return [float(node.getAttribute(name)) for node in parsed(drawing).getElementsByTagName(tag)]


def test_a_curve_rises_where_its_numbers_do() -> None:
    drawing = svg.curve([(1, 0.5), (2, 0.7), (3, 0.9)], "t", "round", "AUC")
    across, down = numbers(drawing, "circle", "cx"), numbers(drawing, "circle", "cy")
    assert across == sorted(across) and down == sorted(down, reverse=True)
    assert across[1] - across[0] == pytest.approx(across[2] - across[1])


def test_one_point_is_a_plot_too() -> None:
    parsed(svg.curve([(1, 0.5)], "t", "round", "AUC"))


def test_points_in_the_unit_square_grow_with_their_people() -> None:
    drawing = svg.curve([(0.2, 0.1), (0.8, 0.9)], "t", "x", "y", diagonal="d", sizes=[50, 100])
    assert numbers(drawing, "circle", "r") == [4.5, 6.0]
    assert not numbers(svg.curve([(0, 0), (1, 1)], "t", "x", "y", diagonal="d", sizes=()), "circle", "r")


def test_words_are_escaped() -> None:
    drawing = svg.curve([(1, 0.5)], "<t>", '<b>&"', "<i>")
    parsed(drawing)
    assert "<b>" not in drawing and "<i>" not in drawing
