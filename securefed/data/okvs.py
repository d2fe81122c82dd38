"""An oblivious key-value store: a table that gives each of its keys its value, and any other key noise.

The table is a vector over GF(2)^128 and each key a row of a linear system: a random subset of 160 cells that
stand side by side, at a random place (Bienstock, Patel, Seo and Yeo 2023; Dietzfelbinger and Walzer 2019). As
long as the values look random to whoever gets the table, the whole table is uniform to him, whatever the keys
are: free cells are filled from the operating system's generator.

Rows are eliminated in the order of their places, so that few of them meet. With 1.3 cells a key a row is lost
with a chance that falls by two thirds of a bit for each cell of the band (tests/data/test_okvs.py): below
2^-90 a row. So it says nothing about the keys that `encode` has succeeded.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import reduce
from itertools import compress
from operator import xor

import numpy as np
from numpy.typing import NDArray

from securefed.errors import DataError

CELL = 16
"""Bytes of a value and of a cell."""
BAND = 160
"""Cells that a row may touch."""
DIGITS = bytes.maketrans(b"01", b"\0\1")

Words = NDArray[np.uint64]


def cells(count: int) -> int:
    return -(-13 * count // 10) + BAND


def rows(keys: Words, capacity: int) -> tuple[NDArray[np.intp], NDArray[np.uint8]]:
    """Return where each key's row begins, (n,), and the bits of the 160 cells from there, (n, 160).

    A key is four pseudorandom words, (n, 4).
    """
    places = (keys[:, 0] % np.uint64(cells(capacity) - BAND + 1)).astype(np.intp)
    spread = np.ascontiguousarray(keys[:, 1:], dtype="<u8").view(np.uint8)
    return places, np.unpackbits(spread, axis=1, count=BAND, bitorder="little")


def encode(keys: Words, values: Words, capacity: int, source: Callable[[int], bytes] = os.urandom) -> Words:
    """Return the table, (cells, 2) words, in which these keys have these values, (n, 2) words."""
    if len(values) > capacity:
        raise DataError(f"{len(values)} keys for a table of {capacity}: a chance below 2^-60; start again")
    pivots: dict[int, tuple[int, int]] = {}
    """The row whose first cell is this one: its band from there, and what the cells of the row add up to."""
    places, bits = rows(keys, capacity)
    bands = np.packbits(bits, axis=1, bitorder="little")
    for row in np.argsort(places).tolist():
        cell, band, value = int(places[row]), _number(bands[row]), _number(values[row])
        while band:
            first = (band & -band).bit_length() - 1
            cell, band = cell + first, band >> first
            if cell not in pivots:
                pivots[cell] = band, value
                break
            other, other_value = pivots[cell]
            band, value = band ^ other, value ^ other_value
        if not band and value:
            raise DataError("the table has no solution for these keys: a chance below 2^-60; start again")
    size = cells(capacity)
    table = list(map(_number, np.frombuffer(source(CELL * size), np.uint8).reshape(size, CELL)))
    for cell in sorted(pivots, reverse=True):
        band, value = pivots[cell]
        chosen = f"{band >> 1:b}".encode().translate(DIGITS)[::-1]
        table[cell] = reduce(xor, compress(table[cell + 1 : cell + BAND], chosen), value)
    blob = b"".join(cell.to_bytes(CELL, "little") for cell in table)
    return np.frombuffer(blob, "<u8").reshape(size, 2)


def decode(table: Words, keys: Words, capacity: int) -> Words:
    """The values, (n, 2) words, that a table has at these keys."""
    places, bits = rows(keys, capacity)
    sums = np.zeros((len(keys), 2), dtype=np.uint64)
    for cell in range(BAND):
        sums ^= table[places + cell] * bits[:, cell, None]
    return sums


def _number(octets: NDArray[np.generic]) -> int:
    return int.from_bytes(octets.tobytes(), "little")
