"""Plots: well-formed, to scale, and with round numbers at their axes."""

from __future__ import annotations

import re
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


def test_a_line_rises_where_its_numbers_do() -> None:
    drawing = svg.line([(1, 0.5), (2, 0.7), (3, 0.9)], "t", "round", "AUC")
    across, down = numbers(drawing, "circle", "cx"), numbers(drawing, "circle", "cy")
    assert across == sorted(across) and down == sorted(down, reverse=True)
    assert across[1] - across[0] == pytest.approx(across[2] - across[1])


def test_one_point_is_a_plot_too() -> None:
    parsed(svg.line([(1, 0.5)], "t", "round", "AUC"))
    parsed(svg.columns({"a": [0.0], "b": [0.0]}, ["1"], "t", "x", "y"))


def test_columns_are_stacked_to_scale() -> None:
    drawing = svg.columns({"a": [1.0, 2.0], "b": [3.0, 4.0]}, ["1", "2"], "t", "round", "s")
    heights = [h for h in numbers(drawing, "rect", "height") if h != 10]  # 10 is the legend's
    assert heights[1] / heights[0] == pytest.approx(3.0, rel=0.01)
    assert heights[3] / heights[0] == pytest.approx(4.0, rel=0.01)


def test_bars_are_to_scale_and_say_their_total() -> None:
    drawing = svg.bars([("x", (1.0, 1.0)), ("y", (4.0, 0.0))], ("a", "b"), "t", "{:g} MB".format)
    widths = [w for w in numbers(drawing, "rect", "width") if w != 10]
    assert widths[2] / widths[0] == pytest.approx(4.0, rel=0.01) and widths[3] == 0.0
    assert re.findall(r">([\d.]+) MB<", drawing) == ["2", "4"]


def test_words_are_escaped() -> None:
    drawing = svg.bars([('<b>&"', (1.0,))], ("a",), "<t>")
    parsed(drawing)
    assert "<b>" not in drawing
