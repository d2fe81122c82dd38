"""How much there is to tell of a table's columns: what a score ledger sets scores against."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["column_bits"]

MOST_ROWS = 20_000
"""Rows that are looked at: entropies of more bits than this has are not told apart."""
Members = NDArray[np.bool_]


def column_bits(features: NDArray[np.float64]) -> float:
    """The entropy of a row in bits, as if the columns had nothing to do with each other.

    Columns that only rename each other's values count once, and columns of two values that exclude each
    other (a category, one-hot) count as the one category that they are.
    """
    rows = np.ascontiguousarray(features[:: -(-len(features) // MOST_ROWS) or 1] + 0.0)
    seen: set[bytes] = set()
    groups: list[list[Members]] = []
    total = 0.0
    for column in rows.T:
        _, first, places, counts = np.unique(
            column, return_index=True, return_inverse=True, return_counts=True
        )
        # The same for every renaming of the values: numbered by where they first occur, or, where most occur
        # only once and so any column would be a renaming of any other, by their order.
        numbers = np.argsort(np.argsort(first)) if 4 * len(counts) <= len(rows) else np.arange(len(counts))
        if len(counts) > 2 and numbers[places[0]] > numbers[places[-1]]:
            numbers = len(counts) - 1 - numbers  # nor does it matter which end is which
        pattern = numbers[places].astype(np.uint32).tobytes()
        if len(counts) < 2 or pattern in seen:
            continue
        seen.add(pattern)
        if len(counts) == 2:
            _into_group(groups, places == int(np.argmin(counts)))
        else:
            total += _entropy(counts)
    for group in groups:
        ones = [int(member.sum()) for member in group]
        total += _entropy(np.array([*ones, len(rows) - sum(ones)]))
    return total


def _into_group(groups: list[list[Members]], member: Members) -> None:
    for group in groups:
        if not any((member & other).any() for other in group):
            group.append(member)
            return
    groups.append([member])


def _entropy(counts: NDArray[np.integer[Any]]) -> float:
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log2(shares)).sum())
