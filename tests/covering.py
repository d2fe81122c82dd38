"""Fewer cells than a full table, with every pair of values of any two parameters in one of them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, product
from typing import Any

__all__ = ["all_pairs"]


def all_pairs(*values: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Choose cells of the table of `values` greedily, in its order, until every pair has been seen."""

    def pairs(cell: tuple[int, ...]) -> set[tuple[int, int, int, int]]:
        return {(i, cell[i], j, cell[j]) for i, j in combinations(range(len(cell)), 2)}

    table = list(product(*(range(len(each)) for each in values)))
    due = set().union(*map(pairs, table))
    chosen: list[tuple[int, ...]] = []
    while due:
        best = max(table, key=lambda cell: len(pairs(cell) & due))
        chosen.append(best)
        due -= pairs(best)
    return [tuple(each[place] for each, place in zip(values, cell, strict=True)) for cell in sorted(chosen)]
