"""Large tables of numbers: in memory up to a size, in a file beyond it, so that rows are bounded by disk.

The file is in the folder for temporary files (TMPDIR). It has no name, so nobody else can open it, and it
goes with the process. It holds a party's own numbers, as its data file does.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
MOST_IN_MEMORY = 1 << 30
"""Bytes of one table; a larger one is a file."""
MOST_RAW = 1 << 26
"""Bytes of columns as they were read."""
BLOCK_ROWS = 1 << 16
"""Rows that are worked on at once."""


def new_table(rows: int, columns: int) -> Array:
    """Return a table that is not filled yet."""
    if rows * columns * 8 <= MOST_IN_MEMORY:
        return np.empty((rows, columns))
    with tempfile.TemporaryFile(prefix="securefed-") as file:  # the map of it stays
        return np.memmap(file, np.float64, "w+", shape=(rows, columns))


def row_blocks(rows: int) -> Iterator[slice]:
    for start in range(0, rows, BLOCK_ROWS):
        yield slice(start, min(start + BLOCK_ROWS, rows))


def take_rows(table: NDArray[Any], rows: NDArray[np.intp]) -> NDArray[Any]:
    """These rows, in this order; the table itself where they are all of it."""
    if len(rows) == len(table) and (rows == np.arange(len(rows))).all():
        return table
    if table.dtype != np.float64 or table.ndim != 2:
        return table[rows]
    chosen = new_table(len(rows), table.shape[1])
    for block in row_blocks(len(rows)):
        chosen[block] = table[rows[block]]
    return chosen


class Spool:
    """Rows of so many numbers of 8 bytes, appended and read again by number. Beyond `most` bytes: a file."""

    def __init__(self, columns: int, kind: type[np.generic], most: int) -> None:
        self._shape, self._kind, self._count = (-1, columns), kind, 0
        self._file = tempfile.SpooledTemporaryFile(most, prefix="securefed-")  # noqa: SIM115  (as long as self)
        weakref.finalize(self, self._file.close)

    def __len__(self) -> int:
        return self._count

    def append(self, rows: NDArray[Any]) -> None:
        self._count += len(rows)
        self._file.seek(0, os.SEEK_END)
        self._file.write(rows.astype(self._kind).tobytes())

    def read(self, start: int, stop: int) -> NDArray[Any]:
        width = 8 * self._shape[1]
        self._file.seek(width * start)
        return np.frombuffer(self._file.read(width * (stop - start)), self._kind).reshape(self._shape)

    def blocks(self, size: int) -> Iterator[NDArray[Any]]:
        for start in range(0, self._count, size):
            yield self.read(start, start + size)


class KeyedSpool:
    """Rows under keys, a block of rows of one key after the other."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._places: dict[object, list[tuple[int, int]]] = {}

    def append(self, key: object, rows: NDArray[Any]) -> None:
        start = len(self._spool)
        self._spool.append(rows)
        self._places.setdefault(key, []).append((start, start + len(rows)))

    def read(self, key: object) -> NDArray[Any]:
        parts = [self._spool.read(*place) for place in self._places.get(key, ())]
        return np.concatenate([self._spool.read(0, 0), *parts])

    def drop(self, key: object) -> None:
        self._places.pop(key, None)

    def __contains__(self, key: object) -> bool:
        return key in self._places


class ColumnStore(KeyedSpool):
    """Columns of numbers, of which one at a time is in memory where they are large."""

    def __init__(self) -> None:
        super().__init__(Spool(1, np.float64, MOST_RAW))

    def read(self, key: object) -> Array:
        return super().read(key)[:, 0]

    def add(self, table: Array) -> None:
        """Keep the columns of a table, after those that are there."""
        for column in table.T:
            self.append(len(self._places), column)

    def table(self) -> Array:
        """All columns side by side; they are equally long."""
        table = new_table(len(self._spool) // len(self._places), len(self._places))
        for place, key in enumerate(self._places):
            table[:, place] = self.read(key)
        return table
