"""Large tables of numbers: in memory up to a size, in a file beyond it, so that rows are bounded by disk.

The file is in the folder for temporary files (TMPDIR), readable by its owner alone, and goes with the array.
It holds a party's own columns, as its data file does.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["BLOCK_ROWS", "MOST_IN_MEMORY", "new_table", "row_blocks", "take_rows"]

Array = NDArray[np.float64]
MOST_IN_MEMORY = 1 << 30
"""Bytes of one table; a larger one is a file."""
BLOCK_ROWS = 1 << 16
"""Rows that are worked on at once."""


def new_table(rows: int, columns: int) -> Array:
    """Not filled yet."""
    if rows * columns * 8 <= MOST_IN_MEMORY:
        return np.empty((rows, columns))
    handle, path = tempfile.mkstemp(prefix="securefed-columns-")
    os.close(handle)
    made: Array = np.memmap(path, np.float64, "w+", shape=(rows, columns))
    weakref.finalize(made, _remove, path, os.getpid())
    return made


def row_blocks(rows: int) -> Iterator[slice]:
    for start in range(0, rows, BLOCK_ROWS):
        yield slice(start, min(start + BLOCK_ROWS, rows))


def take_rows(table: NDArray[Any], rows: NDArray[np.intp]) -> NDArray[Any]:
    """These rows, in this order; the table itself where they are all of it."""
    if len(rows) == len(table) and (rows == np.arange(len(rows))).all():
        return table
    if table.dtype != np.float64 or table.ndim != 2:
        return table[rows]
    made = new_table(len(rows), table.shape[1])
    for block in row_blocks(len(rows)):
        made[block] = table[rows[block]]
    return made


def _remove(path: str, owner: int) -> None:
    if os.getpid() == owner:
        with suppress(FileNotFoundError):
            os.unlink(path)
