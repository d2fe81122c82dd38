"""Packing: exact for everything that fits its slots, an error for everything else."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.packing import pack
from securefed.crypto.paillier.arrays import slots_for, unpack
from securefed.errors import CapacityError, RangeError


def naive_pack(values: list[int], width: int) -> int:
    return sum(value << (width * place) for place, value in enumerate(values))


def naive_unpack(packed: int, width: int, count: int) -> list[int]:
    """Low to high, centred, with borrows: the definition."""
    values = []
    for _ in range(count):
        digit = packed % (1 << width)
        if digit >= 1 << (width - 1):
            digit -= 1 << width
        values.append(digit)
        packed = (packed - digit) >> width
    assert packed == 0
    return values


@st.composite
def slot_lists(draw: st.DrawFn) -> tuple[int, list[int]]:
    width = draw(st.integers(2, 130))
    largest = (1 << (width - 1)) - 1
    return width, draw(st.lists(st.integers(-largest, largest), min_size=1, max_size=40))


@settings(deadline=None)
@given(slot_lists())
def test_packing_is_the_weighted_sum_and_comes_back(case: tuple[int, list[int]]) -> None:
    width, values = case
    packed = pack(values, width)
    assert packed == naive_pack(values, width)
    assert unpack(packed, width, len(values)) == values == naive_unpack(int(packed), width, len(values))


@settings(deadline=None)
@given(slot_lists(), st.integers(-1000, 1000))
def test_slots_add_and_scale_by_themselves(case: tuple[int, list[int]], factor: int) -> None:
    width, values = case
    wide = width + 12
    total = pack(values, wide) + factor * pack(values[::-1], wide)
    expected = [a + factor * b for a, b in zip(values, values[::-1], strict=True)]
    assert unpack(total, wide, len(values)) == expected


@settings(deadline=None)
@given(slot_lists(), st.integers(1, 1 << 20), st.booleans())
def test_anything_above_the_last_slot_is_an_error(
    case: tuple[int, list[int]], extra: int, negative: bool
) -> None:
    width, values = case
    foreign = pack(values, width) + (-extra if negative else extra) * (1 << (width * len(values)))
    with pytest.raises(RangeError, match="remainder"):
        unpack(foreign, width, len(values))


@pytest.mark.parametrize("value", [8, -8, 100])
def test_a_value_that_does_not_fit_its_slot_is_refused(value: int) -> None:
    with pytest.raises(CapacityError, match="slot of 4 bits"):
        pack([1, value], 4)


@settings(deadline=None)
@given(st.integers(64, 4096), st.integers(1, 1 << 60))
def test_full_slots_stay_in_the_signed_plaintext_space(bits: int, limit: int) -> None:
    width = limit.bit_length() + 2
    slots = slots_for(bits, width)
    full = [limit if place % 2 else -limit for place in range(slots)]
    packed = pack(full, width)
    assert 2 * abs(packed) < 1 << (bits - 1)  # n is at least that
    assert unpack(packed, width, slots) == full


def test_there_is_always_one_slot() -> None:
    assert slots_for(2048, 5000) == 1
    assert slots_for(2048, 60) == 34
