"""A progress bar for operations of more than two seconds, only at a terminal."""

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
    """Yield the items and show a bar on stderr. A file or a pipe gets no output."""
    if not sys.stderr.isatty():
        yield from items
        return
    with tqdm(items, desc=what, total=total, unit=unit, delay=PATIENCE, leave=False, file=sys.stderr) as bar:
        yield from bar
