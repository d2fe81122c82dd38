"""Large tables of numbers: in memory up to a size, in a file beyond it, so that rows are bounded by disk.

The file is in the folder for temporary files (TMPDIR), readable by its owner alone, and goes with the array.
It holds a party's own columns, as its data file does. `ColumnStore` has columns as they were read, of which
one at a time is in memory.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import suppress
from typing import IO, Any

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
    """Not filled yet."""
    if rows * columns * 8 <= MOST_IN_MEMORY:
        return np.empty((rows, columns))
    handle, path = tempfile.mkstemp(prefix="securefed-columns-")
    os.close(handle)
    table: Array = np.memmap(path, np.float64, "w+", shape=(rows, columns))
    weakref.finalize(table, _remove, path, os.getpid())
    return table


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


class ColumnStore:
    """Columns of numbers by name, a block of rows after the other: a file where they are large."""

    def __init__(self) -> None:
        self._bytes = 0
        self._held: list[tuple[str, Array]] = []
        self._file: IO[bytes] | None = None
        self._extents: dict[str, list[tuple[int, int]]] = {}

    def append(self, column: str, numbers: Array) -> None:
        self._extents.setdefault(column, [])
        self._held.append((column, numbers))
        self._bytes += numbers.nbytes
        if self._bytes > MOST_RAW and self._file is None:
            self._file = tempfile.TemporaryFile(prefix="securefed-")  # noqa: SIM115  (as long as this lives)
            weakref.finalize(self, self._file.close)
        if self._file is not None:
            for name, part in self._held:
                self._extents[name].append((self._file.seek(0, os.SEEK_END), len(part)))
                self._file.write(part.tobytes())
            self._held = []

    def drop(self, column: str) -> None:
        self._held = [(name, part) for name, part in self._held if name != column]
        self._extents.pop(column, None)

    def __contains__(self, column: str) -> bool:
        return column in self._extents

    def read(self, column: str) -> Array:
        if self._file is None:
            return np.concatenate([part for name, part in self._held if name == column])
        values, first = np.empty(sum(count for _, count in self._extents[column])), 0
        for start, count in self._extents[column]:
            self._file.seek(start)
            values[first : first + count] = np.frombuffer(self._file.read(8 * count))
            first += count
        return values


def _remove(path: str, owner: int) -> None:
    if os.getpid() == owner:
        with suppress(FileNotFoundError):
            os.unlink(path)
