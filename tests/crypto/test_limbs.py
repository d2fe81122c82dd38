"""Limbs are Python's integers, faster: every operation against them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from securefed.crypto.errors import ShapeError
from securefed.crypto.limbs import LIMB_BITS, Limbs
from securefed.crypto.rlwe.ring import HIDDEN, PRODUCTS

EDGES = [
    sign * (1 << bits) + off
    for bits in (0, 53, 54, 55, 107, 108, 150)
    for sign in (1, -1)
    for off in (-1, 0, 1)
]
numbers = st.one_of(st.sampled_from(EDGES), st.integers(-(1 << 158), 1 << 158))


def wide(values: list[int]) -> Any:
    return np.array(values, dtype=object).reshape(-1, 1)


@given(st.lists(numbers, min_size=1, max_size=5), st.data())
def test_they_add_shift_and_compare_as_integers_do(values: list[int], data: st.DataObject) -> None:
    others = wide(data.draw(st.lists(numbers, min_size=len(values), max_size=len(values))))
    number, shift = data.draw(numbers), data.draw(st.integers(0, 170))
    whole = wide(values)
    limbs = Limbs.of(whole)
    assert (limbs.wide() == whole).all()
    for found, due in (
        (limbs + Limbs.of(others), whole + others),
        (limbs - others, whole - others),
        (others - limbs, others - whole),
        (limbs + number, whole + number),
        (-limbs, -whole),
        (limbs >> shift, whole >> shift),
        (limbs << shift, whole << shift),
        (limbs * 3, whole * 3),
        (limbs & 255, whole & 255),
    ):
        assert (np.asarray(found, dtype=object) == due).all()
    assert ((limbs < number) == (whole < number)).all() and ((limbs > number) == (whole > number)).all()


@given(st.lists(numbers, min_size=1, max_size=5))
def test_residues_of_them_are_those_of_integers(values: list[int]) -> None:
    whole = np.array(values, dtype=object)
    for ring in (HIDDEN, PRODUCTS):
        residues = ring.from_wide(whole)
        assert (ring.from_wide(Limbs.of(whole)) == residues).all()
        assert (ring.to_limbs(residues).wide() == whole).all()


def test_the_representative_is_the_one_nearest_to_zero() -> None:
    half = HIDDEN.modulus // 2
    whole = np.array([half, half + 1, -half, HIDDEN.modulus - 1], dtype=object)
    found = HIDDEN.to_limbs(HIDDEN.from_wide(whole)).wide()
    assert found.tolist() == [half, -half, -half, -1]


def test_numbers_are_set_filled_ordered_and_written() -> None:
    limbs = Limbs.of(wide([5, 1 << 120, -7]))
    limbs[np.array([[False], [True], [False]])] = 0
    assert limbs.wide().ravel().tolist() == [5, 0, -7]
    assert limbs.ordered(np.array([2, 0, 1])).wide().tolist() == [-7, 5, 0]
    assert len(limbs.to_bytes()) == 3 * 3 * 8 and limbs.to_bytes() != (-limbs).to_bytes()
    kept = limbs >> 0
    limbs.fill(0)
    assert not limbs.any() and kept.any()
    with pytest.raises(ShapeError):
        kept + np.zeros((2, 1), dtype=object)


@pytest.mark.parametrize("bits", [1, 53, 54, 55, 96, 150])
def test_masks_are_sums_of_three_numbers_from_the_source(bits: int) -> None:
    """A known answer: three numbers of so many bits each, a limb from the low bits of each word."""
    limbs = -(-bits // LIMB_BITS)
    words = np.random.default_rng(bits).integers(0, 1 << 63, (3, limbs, 7), dtype=np.int64)

    def number(term: int, entry: int) -> int:
        low = sum(
            (int(word) % (1 << LIMB_BITS)) << (LIMB_BITS * at)
            for at, word in enumerate(words[term, :, entry])
        )
        return low % (1 << bits)

    due = [sum(number(term, entry) for term in range(3)) for entry in range(7)]
    assert Limbs.sums(lambda count: words.tobytes()[:count], 3, 7, bits).wide().tolist() == due
    full = Limbs.sums(lambda count: b"\xff" * count, 3, 1, bits)
    assert full.wide().tolist() == [3 * (2**bits - 1)]
