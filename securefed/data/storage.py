"""Large tables of numbers: in memory up to a size, in a file beyond it, so that rows are bounded by disk.

The file is in the folder for temporary files (TMPDIR). It has no name, so nobody else can open it, and it
goes with the process.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

Array = NDArray[np.float64]
MOST_IN_MEMORY = 1 << 30
"""Bytes of one table; a larger one is a file."""
MOST_RAW = 1 << 26
"""Bytes of columns as they were read."""
BLOCK_ROWS = 1 << 16
"""Rows that are worked on at once."""


def new_table(rows: int, columns: int, kind: DTypeLike = np.float64, most: int | None = None) -> NDArray[Any]:
    """Return a table that is not filled yet. Beyond `most` bytes it is a file."""
    size = rows * columns * np.dtype(kind).itemsize
    if size <= (MOST_IN_MEMORY if most is None else most):
        return np.empty((rows, columns), kind)
    with tempfile.TemporaryFile(prefix="securefed-") as file:  # the map of it stays
        os.posix_fallocate(file.fileno(), 0, size)  # a full disk is an error here, and kills a writer later
        return np.memmap(file, kind, "r+", shape=(rows, columns))


def row_blocks(rows: int) -> Iterator[slice]:
    for start in range(0, rows, BLOCK_ROWS):
        yield slice(start, min(start + BLOCK_ROWS, rows))


def take_rows(table: NDArray[Any], rows: NDArray[np.intp]) -> NDArray[Any]:
    """Return these rows in this order; no copy if all are asked for as they are."""
    if len(rows) == len(table) and (rows == np.arange(len(rows))).all():
        return table
    if table.dtype != np.float64 or table.ndim != 2:
        return table[rows]
    chosen = new_table(len(rows), table.shape[1])
    for block in row_blocks(len(rows)):
        chosen[block] = table[rows[block]]
    return chosen


class ColumnStore:
    """Columns of numbers, of which one at a time is in memory where they are large."""

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(MOST_RAW, prefix="securefed-")  # noqa: SIM115  (as long as self)
        weakref.finalize(self, self._file.close)
        self._places: dict[str, list[tuple[int, int]]] = {}
        """The start and the bytes of each part of a column."""

    def append(self, key: str, numbers: Array) -> None:
        place = self._file.seek(0, os.SEEK_END), self._file.write(numbers.astype(np.float64).tobytes())
        self._places.setdefault(key, []).append(place)

    def read(self, key: str) -> Array:
        parts = []
        for start, size in self._places[key]:
            self._file.seek(start)
            parts.append(self._file.read(size))
        return np.frombuffer(bytearray().join(parts), np.float64)

    def drop(self, key: str) -> None:
        self._places.pop(key, None)

    def __contains__(self, key: str) -> bool:
        return key in self._places
