"""The checks of settings: what passes, and that a refusal names the setting, the value and the rule."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from securefed.declare import check_choice, check_flag, check_integer, check_number
from securefed.errors import SettingError


def test_what_passes_comes_back_as_plain_python() -> None:
    for value in (check_integer("n", np.int64(3), least=1), check_integer("n", 3, least=3, most=3)):
        assert value == 3 and type(value) is int
    for number in (check_number("x", np.float32(0.5)), check_number("x", 0.5, least=0.5, below=1.0)):
        assert number == 0.5 and type(number) is float
    assert type(check_number("x", 2)) is float
    assert check_choice("word", "b", ("a", "b")) == "b"
    assert check_flag("flag", False) is False


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: check_integer("n", 0, least=1), "n must be an integer of at least 1, not 0"),
        (lambda: check_integer("n", 9, least=1, most=8), "n must be an integer from 1 to 8, not 9"),
        (lambda: check_integer("n", True, least=0), "n must be an integer of at least 0, not True"),
        (lambda: check_integer("n", 1.0, least=0), "n must be an integer of at least 0, not 1.0"),
        (lambda: check_integer("n", "1", least=0), "n must be an integer of at least 0, not '1'"),
        (lambda: check_number("x", math.nan), "x must be a finite number, not nan"),
        (lambda: check_number("x", math.inf, above=0), "x must be a finite number greater than 0, not inf"),
        (lambda: check_number("x", 0.0, above=0), "x must be a finite number greater than 0, not 0.0"),
        (lambda: check_number("x", 1.0, below=1), "x must be a finite number less than 1, not 1.0"),
        (
            lambda: check_number("x", -1, least=0, below=1),
            "x must be a finite number of at least 0 and less than 1, not -1",
        ),
        (lambda: check_number("x", None), "x must be a finite number, not None"),
        (lambda: check_number("x", True), "x must be a finite number, not True"),
        (lambda: check_choice("word", "c", ("a", "b")), "word must be one of 'a', 'b', not 'c'"),
        (lambda: check_choice("word", 1, ("a", "b")), "word must be one of 'a', 'b', not 1"),
        (lambda: check_flag("flag", 1), "flag must be True or False, not 1"),
    ],
)
def test_refusals(call: Callable[[], object], message: str) -> None:
    with pytest.raises(SettingError) as caught:
        call()
    assert str(caught.value) == message
