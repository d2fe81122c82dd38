"""A progress bar for long operations: only at a terminal, and only for what takes longer than two seconds."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

from tqdm import tqdm

__all__ = ["PATIENCE", "progress"]

PATIENCE = 2.0
"""Seconds before a bar appears."""

T = TypeVar("T")


def progress(items: Iterable[T], what: str, total: int, unit: str = "block") -> Iterator[T]:
    """The items, with a bar on stderr meanwhile. Into a file or a pipe nothing is written."""
    if not sys.stderr.isatty():
        yield from items
        return
    with tqdm(items, desc=what, total=total, unit=unit, delay=PATIENCE, leave=False, file=sys.stderr) as bar:
        yield from bar
