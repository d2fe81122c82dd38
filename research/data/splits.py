"""Which rows and which columns go where. Everything random takes a seed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from securefed.declare import check_integer
from securefed.errors import DataError

Rows = NDArray[np.intp]


def stratified_rows(labels: NDArray[np.int64], test: int | float, seed: int) -> tuple[Rows, Rows]:
    """The rows that stay and the `test` rows (a number, or a part of all), with the classes in their
    shares.
    """
    count = len(labels)
    classes, sizes = np.unique(labels, return_counts=True)
    asked = round(test * count) if isinstance(test, float) and 0.0 < test < 1.0 else test
    if isinstance(asked, float) or not len(classes) <= asked <= count - len(classes) or sizes.min() < 2:
        raise DataError(
            f"test: {test} of {count} rows given; both sides need a row of each of the {len(classes)} classes"
        )
    from sklearn.model_selection import train_test_split

    rest, chosen = train_test_split(np.arange(count), test_size=asked, stratify=labels, random_state=seed)
    return np.asarray(rest, dtype=np.intp), np.asarray(chosen, dtype=np.intp)


def balanced_rows(labels: NDArray[np.int64], count: int, seed: int) -> Rows:
    """`count` rows, equally many of each class (the first classes get one more where it does not divide)."""
    classes = np.unique(labels)
    check_integer("count", count, least=len(classes))
    rng = np.random.default_rng(seed)
    chosen: list[Rows] = []
    for value, wanted in zip(classes, equal_counts(len(classes), count), strict=True):
        members = np.flatnonzero(labels == value)
        if len(members) < wanted:
            raise DataError(
                f"{count} class-balanced rows asked for: class {value} has {len(members)} of {wanted}"
            )
        chosen.append(rng.permutation(members)[:wanted])
    return rng.permutation(np.concatenate(chosen))


def equal_counts(classes: int, count: int) -> list[int]:
    """How many of each class: equally many, the first ones one more where it does not divide."""
    return [count // classes + (place < count % classes) for place in range(classes)]


def share_counts(sizes: Sequence[int], count: int) -> list[int]:
    """How many of each class, in the shares that the classes have."""
    total = sum(sizes)
    ends = np.rint(np.cumsum([0, *sizes]) * count / total).astype(int)
    return [int(number) for number in np.diff(ends)]


def column_groups(variables: int, parties: int) -> list[range]:
    """Consecutive variables for each party, nearly equally many: 17 over 2 are 8 and 9."""
    check_integer("parties", parties, least=2, most=variables)
    ends = [place * variables // parties for place in range(parties + 1)]
    return [range(start, end) for start, end in pairwise(ends)]
