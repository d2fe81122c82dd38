"""Plots: well-formed and to scale."""

from __future__ import annotations

import re

import pytest

from securefed.report.page import curve
from tests.report.drawings import parsed


def numbers(drawing: str, tag: str, name: str) -> list[float]:
    return [float(node.getAttribute(name)) for node in parsed(drawing).getElementsByTagName(tag)]


def test_a_curve_rises_where_its_numbers_do_and_points_grow_with_their_people() -> None:
    drawing = curve([(0.2, 0.1), (0.5, 0.4), (0.8, 0.9)], "t", "x", "y", "d", [50, 100, 100])
    across, down = numbers(drawing, "circle", "cx"), numbers(drawing, "circle", "cy")
    assert across == sorted(across) and down == sorted(down, reverse=True)
    assert across[1] - across[0] == pytest.approx(across[2] - across[1])
    assert numbers(drawing, "circle", "r") == [4.5, 6.0, 6.0]
    assert not numbers(curve([(0, 0), (1, 1)], "t", "x", "y", "d"), "circle", "r")


def test_words_are_escaped() -> None:
    drawing = curve([(1, 0.5)], "<t>", '<b>&"', "<i>", "<u>", [1])
    parsed(drawing)
    assert not {"<b>", "<i>", "<u>"} & set(re.findall("<.>", drawing))
