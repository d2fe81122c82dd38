"""The oblivious store: its keys open their values, whatever the system looks like, and others noise."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from securefed.data import okvs
from securefed.data.okvs import CELL
from securefed.errors import DataError


def words(seed: int, *shape: int) -> okvs.Words:
    return np.random.default_rng(seed).integers(0, 2**64, size=shape, dtype=np.uint64)


@settings(max_examples=40)
@given(st.integers(1, 400), st.integers(0, 2**32))
def test_keys_open_their_values(count: int, seed: int) -> None:
    keys, values = words(seed, count, 4), words(seed + 1, count, 2)
    table = okvs.encode(keys, values, len(values))
    assert table.shape == (okvs.cells(count), 2)
    np.testing.assert_array_equal(okvs.decode(table, keys, count), values)


def test_rows_at_one_place_are_solved_together() -> None:
    """A hundred keys that touch the same cells, among others."""
    seeds = words(3, 200, 4)
    seeds[:100, 0] = seeds[0, 0]
    values = words(4, 200, 2)
    table = okvs.encode(seeds, values, 200)
    np.testing.assert_array_equal(okvs.decode(table, seeds, 200), values)


@pytest.mark.slow
def test_rows_are_lost_less_often_than_once_in_2_to_the_90(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rate falls by at least 0.6 bits a cell of the band, so that 160 cells are far more than enough."""
    rates = {}
    for band in (8, 16):
        monkeypatch.setattr(okvs, "BAND", band)
        lost = 0
        for seed in range(20):
            keys, values = words(seed, 4_000, 4), np.zeros((4_000, 2), dtype=np.uint64)
            cells = okvs.decode(okvs.encode(keys, values, 4_000), keys, 4_000)
            assert not cells.any(), "zeros are always a solution"
            lost += 4_000 - len(pivots_of(keys, 4_000))
        rates[band] = lost / 80_000
    fall = np.log2(rates[8] / rates[16]) / 8
    assert fall > 0.6 and np.log2(rates[16]) - 0.6 * (160 - 16) < -90


def pivots_of(keys: okvs.Words, capacity: int) -> set[int]:
    """The cells that rows fix, by elimination over whole rows."""
    pivots: dict[int, int] = {}
    places, bands = okvs.rows(keys, capacity)
    for place, bits in sorted(zip(places.tolist(), bands.tolist(), strict=True)):
        row = sum(bit << (place + i) for i, bit in enumerate(bits))
        while row and (first := row & -row) in pivots:
            row ^= pivots[first]
        if row:
            pivots[row & -row] = row
    return set(pivots)


def test_a_key_given_twice_with_two_values_has_no_solution() -> None:
    seeds = words(7, 10, 4)
    seeds[1] = seeds[0]
    with pytest.raises(DataError, match="no solution"):
        okvs.encode(seeds, words(8, 10, 2), 10)


def test_other_keys_open_noise() -> None:
    keys, values = words(9, 500, 4), np.zeros((500, 2), dtype=np.uint64)
    table = okvs.encode(keys, values, len(values))
    noise = okvs.decode(table, words(10, 500, 4), 500)
    assert noise.any(axis=1).all()
    bits = np.unpackbits(noise.view(np.uint8))
    assert abs(bits.mean() - 0.5) < 6 * 0.5 / np.sqrt(bits.size)


def test_the_table_shows_nothing_of_its_keys() -> None:
    """With random values, cells that keys fixed and cells that nobody touched look alike: every bit is
    fair.
    """
    tables = [okvs.encode(words(11, 20, 4), words(100 + i, 20, 2), 20) for i in range(300)]
    share = np.stack([np.unpackbits(table.view(np.uint8)) for table in tables]).mean(axis=0)
    # Some 24,000 bits, each beyond 7.5 deviations with a chance of 6e-14.
    assert np.abs(share - 0.5).max() < 7.5 * 0.5 / np.sqrt(300)


def test_the_same_bytes_give_the_same_table() -> None:
    keys, values = words(12, 30, 4), words(13, 30, 2)
    one, other = (okvs.encode(keys, values, 30, Random(1).randbytes) for _ in range(2))
    np.testing.assert_array_equal(one, other)
    assert (one != okvs.encode(keys, values, 30, Random(2).randbytes)).any()


def test_a_table_takes_about_thirteen_cells_for_ten_keys() -> None:
    assert okvs.cells(100_000) < 131_000
    assert CELL == 16
