"""The first gradient that is opened gives labels away, far below the ledger's line; later ones do not so."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest

from bench.scenes import LinearScene, linear_scene
from research.attacks.first_exchange import labels_by_lattice, labels_if_rare, reduced
from research.attacks.views import OpenedSums
from securefed.protocols.own_gradient.ledger import LedgerEntry
from tests.protocols.federation import FULL_KEYS

WEIGHT = -0.5


@lru_cache(maxsize=8)
def scene(scheme: str, rows: int, columns: int, rounds: int = 1, positive: float = 0.25) -> LinearScene:
    return linear_scene(
        scheme, FULL_KEYS, rows=rows, batch=None, rounds=rounds, columns=(columns, 4), positive=positive
    )


def entry(found: LinearScene) -> LedgerEntry:
    return next(e for e in found.ledger if e.party == "p0" and not e.advisory)


@pytest.mark.parametrize(
    ("scheme", "rows", "columns", "ratio"),
    [
        pytest.param("paillier", 48, 6, 0.125, marks=pytest.mark.slow),
        ("ckks", 48, 6, 0.125),
        pytest.param("ckks", 100, 20, 0.2, marks=pytest.mark.slow),
    ],
)
def test_few_columns_tell_the_labels_of_many_rows(scheme: str, rows: int, columns: int, ratio: float) -> None:
    found = scene(scheme, rows, columns)
    assert (entry(found).verdict, entry(found).ratio) == ("below the line", ratio)
    (opening,) = found.views["p0"].opened
    labels = labels_by_lattice(opening, WEIGHT)
    assert labels is not None
    assert np.array_equal(labels, found.labels[opening.batch])


@pytest.mark.parametrize("scheme", [pytest.param("paillier", marks=pytest.mark.slow), "ckks"])
def test_rare_labels_are_found_among_many_rows(scheme: str) -> None:
    rows = 400 if scheme == "ckks" else 160
    found = scene(scheme, rows, 40 if rows < 400 else 60, positive=0.01)
    assert entry(found).verdict == "below the line" and entry(found).ratio <= 0.25
    (opening,) = found.views["p0"].opened
    labels = labels_if_rare(opening, WEIGHT)
    assert labels is not None
    assert np.array_equal(labels, found.labels[opening.batch])
    # The rarer class may be either.
    turned = OpenedSums(0, 0, opening.batch, opening.multipliers, -opening.sums, *[np.zeros(0)] * 2)
    other = labels_if_rare(turned, WEIGHT)
    assert other is not None and np.array_equal(other, -found.labels[opening.batch])


@pytest.mark.slow
def test_later_gradients_are_no_such_knapsack() -> None:
    """H is not 0 any more, and the others' part of it is nobody's to know."""
    found = scene("ckks", 48, 6, rounds=4)
    for opening in found.views["p0"].opened[1:]:
        assert labels_by_lattice(opening, WEIGHT) is None
        assert labels_if_rare(opening, WEIGHT) is None


def test_one_column_for_48_rows_does_not_tell() -> None:
    """Some 25 bits for 48: many labels fit, and none of them is taken for the truth by the sums alone."""
    (opening,) = scene("ckks", 48, 1).views["p0"].opened
    labels = labels_by_lattice(opening, WEIGHT)
    assert labels is None or not np.array_equal(labels, scene("ckks", 48, 1).labels[opening.batch])
    assert labels_if_rare(opening, WEIGHT) is None


def test_a_reduced_basis_spans_the_same_lattice_and_is_short() -> None:
    generator = np.random.default_rng(0)
    small = generator.integers(-3, 4, size=(8, 8)).astype(float) + 12 * np.eye(8)
    mixed = np.rint(np.linalg.multi_dot([np.tril(generator.integers(-4, 5, (8, 8)), -1) + np.eye(8), small]))
    found = reduced(mixed)
    change = found @ np.linalg.inv(mixed)
    assert np.abs(change - np.rint(change)).max() < 1e-6
    assert abs(abs(np.linalg.det(np.rint(change))) - 1) < 1e-6
    assert np.linalg.norm(found, axis=1).max() <= 1.5 * np.linalg.norm(small, axis=1).max()
