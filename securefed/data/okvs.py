"""An oblivious key-value store: a table that gives each of its keys its value, and any other key noise.

The table is a vector over GF(2)^128 and each key a row of a linear system: three cells, one in each third
of the sparse part, and a random subset of 64 dense cells (Pinkas, Rosulek, Trieu and Yanai 2020, with three
cells a key). As long as the values look random to whoever gets the table, the whole table is uniform to him,
whatever the keys are: free cells are filled from the operating system's generator.

Peeling (a cell that only one remaining key touches fixes that key last) takes care of nearly all rows. The
few that remain are solved by elimination together with the dense cells. With 1.3 cells a key that fails with
a chance of less than 2^-60; so it says nothing about the keys that `encode` has succeeded.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from securefed.errors import DataError

CELL = 16
"""Bytes of a value and of a cell."""
DENSE = 64

Words = NDArray[np.uint64]


def cells(count: int) -> int:
    """Cells of a table for so many keys."""
    return 3 * _third(count) + DENSE


def _third(count: int) -> int:
    return -(-13 * count // 30) + 8


@dataclass(frozen=True, eq=False)
class Keys:
    """The rows of keys in a table for `capacity` keys: `places` (n, 3) cells, `dense` (n,) 64 bits each."""

    places: NDArray[np.int64]
    dense: Words

    @classmethod
    def of(cls, seeds: Words, capacity: int) -> Keys:
        """From four pseudorandom words a key, (n, 4)."""
        third = _third(capacity)
        places = (seeds[:, :3] % np.uint64(third)).astype(np.int64) + third * np.arange(3)
        return cls(places, seeds[:, 3])


def encode(keys: Keys, values: Words, capacity: int, source: Callable[[int], bytes] = os.urandom) -> Words:
    """Return the table, (cells, 2) words, in which these keys have these values, (n, 2) words."""
    if len(values) > capacity:
        raise DataError(f"{len(values)} keys for a table of {capacity}: a chance below 2^-60; start again")
    size = cells(capacity)
    table = np.frombuffer(source(CELL * size), dtype="<u8").astype(np.uint64).reshape(size, 2)
    order, core = _peel(keys.places, size - DENSE)
    kept = Keys(keys.places[core], keys.dense[core])
    for cell, change in _solve(kept, values[core] ^ decode(table, kept), size).items():
        table[cell] ^= np.array([change % 2**64, change >> 64], dtype=np.uint64)
    rest = values ^ _dense_part(keys.dense, table)
    # One row after the other: each fixes a cell that no later row touches.
    flat = [_join(pair) for pair in table.tolist()]
    wanted = [_join(pair) for pair in rest.tolist()]
    places = keys.places.tolist()
    for row, cell in reversed(order):
        a, b, c = places[row]
        flat[cell] ^= wanted[row] ^ flat[a] ^ flat[b] ^ flat[c]
    blob = b"".join(cell.to_bytes(CELL, "little") for cell in flat)
    return np.frombuffer(blob, dtype="<u8").astype(np.uint64).reshape(size, 2)


def decode(table: Words, keys: Keys) -> Words:
    """The values, (n, 2) words, that a table has at these keys."""
    a, b, c = keys.places.T
    values: Words = table[a] ^ table[b] ^ table[c] ^ _dense_part(keys.dense, table)
    return values


def _dense_part(bits: Words, table: Words) -> Words:
    sums = np.zeros((len(bits), 2), dtype=np.uint64)
    for place, cell in enumerate(table[-DENSE:]):
        sums ^= cell * (bits >> np.uint64(place) & np.uint64(1))[:, None]
    return sums


def _peel(places: NDArray[np.int64], size: int) -> tuple[list[tuple[int, int]], list[int]]:
    """Rows with the cell that each fixes, in the order of removal; and the rows that no cell fixes."""
    degree = np.bincount(places.ravel(), minlength=size).tolist()
    rows = places.tolist()
    members = [0] * size  # the exclusive or of the rows at a cell: of one row, the row itself
    for row, three in enumerate(rows):
        for cell in three:
            members[cell] ^= row
    single = [cell for cell in range(size) if degree[cell] == 1]
    order: list[tuple[int, int]] = []
    gone = bytearray(len(rows))
    while single:
        cell = single.pop()
        if degree[cell] != 1:
            continue
        row = members[cell]
        order.append((row, cell))
        gone[row] = 1
        for other in rows[row]:
            degree[other] -= 1
            members[other] ^= row
            if degree[other] == 1:
                single.append(other)
    return order, [row for row in range(len(rows)) if not gone[row]]


def _solve(keys: Keys, missing: Words, size: int) -> dict[int, int]:
    """Changes of cells that give these rows what is missing, by elimination; free cells stay."""
    columns = [*np.unique(keys.places).tolist(), *range(size - DENSE, size)]
    bit = {cell: 1 << place for place, cell in enumerate(columns)}
    pivots: dict[int, tuple[int, int]] = {}  # a bit that no other row has: the row, and what it lacks
    for three, dense, pair in zip(keys.places.tolist(), keys.dense.tolist(), missing.tolist(), strict=True):
        mask, value = dense << len(columns) - DENSE, _join(pair)
        for cell in three:
            mask ^= bit[cell]
        for lowest, (other, other_value) in pivots.items():
            if mask & lowest:
                mask, value = mask ^ other, value ^ other_value
        if not mask and value:
            raise DataError("the table has no solution for these keys: a chance below 2^-60; start again")
        if not mask:
            continue
        new = mask & -mask
        for lowest, (other, other_value) in pivots.items():
            if other & new:
                pivots[lowest] = other ^ mask, other_value ^ value
        pivots[new] = mask, value
    return {columns[lowest.bit_length() - 1]: value for lowest, (_, value) in pivots.items()}


def _join(pair: list[int]) -> int:
    low, high = pair
    return low | high << 64
