"""Small data for the estimators, and parties made of it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefed import GeneralisedLinear, Party, Plain
from tests.protocols.federation import blobs, split

Array = NDArray[np.float64]
ROWS, COLUMNS = 30, 6


def columns(parties: int = 2, rows: int = ROWS, seed: int = 0) -> tuple[list[Array], NDArray[Any]]:
    """Blocks of columns, and labels 0 and 1."""
    features, labels = blobs(rows, COLUMNS, seed)
    return split(features, parties), (labels > 0).astype(int)


def parties(count: int = 2, rows: int = ROWS, seed: int = 0, *, labels: bool = True) -> list[Party]:
    """p0, p1, ...; the last one has the labels, if anybody."""
    blocks, found = columns(count, rows, seed)
    return [
        Party(f"p{k}", block, labels=found if labels and k == count - 1 else None)
        for k, block in enumerate(blocks)
    ]


def plain(**settings: Any) -> GeneralisedLinear:
    """Without protection, on the columns as they are."""
    return raw(**{"protection": Plain(), "rounds": 4, **settings})


def raw(**settings: Any) -> GeneralisedLinear:
    """On the columns as they are, and on all rows."""
    return GeneralisedLinear(**{"standardise": False, "holdout": 0.0, **settings})
