"""A party's columns from scores that it took part in: the orthogonal lattice attack (Nguyen and Stern 1999).

Scores of n people by a linear model are s = X theta, X the other party's columns in whole numbers (n x c,
small), theta unknown. Every combination u of people with u X = 0 has u s = 0 as well, and the other way
round: a *short* u with u s = 0 has u X = 0, since u X are small numbers and theta hardly ever has small
relations. So the short vectors of the lattice of all u with u s = 0 are the relations between the people's
rows, n - c of them, and the lattice that is orthogonal to those again holds the columns, as its shortest
vectors. Nobody's features are known to the attacker, and neither is theta.

Exact scores are enough for columns of 20 bits. Scores under noise are too, if there are more bits in them
than in the columns: then the lattice is spanned by the rows of (I | s), with s in units of the noise, and the
short vectors are those with u s *small*. Several scorings of the same people (evaluations, retrained models)
are several columns s. Where only the last bits of scores are exact, the same is done modulo a power of two.

`tests/audit/test_attack_scores.py` runs it against exact, truncated and carelessly blurred scores, and ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from research.attacks.first_exchange import reduced

Array = NDArray[np.float64]
Whole = NDArray[np.int64]
STEP = 14
"""Bits of the scores that are taken in at a time: what is reduced so far stays short, and floats suffice."""
TINY = 2.0**-12
EXACT = 64.0
"""Weight of a sum that has to be 0, against a vector's length."""


@dataclass(frozen=True)
class Found:
    """What came out: combinations of people, shortest first, and the columns that all of them annul."""

    relations: Whole
    columns: Whole | None
    """(n, c), in some order, each up to its sign and to what is known; None where there are no c of them."""
    known: Array

    def true_relations(self, columns: NDArray[Any]) -> int:
        """How many hold for the columns as they are."""
        annulled = self.relations.astype(object) @ columns.astype(object)
        return int(np.sum([not row.any() for row in annulled]))

    def true_columns(self, columns: NDArray[Any]) -> int:
        """How many of the columns were found, up to sign and to multiples of what is known."""
        if self.columns is None:
            return 0
        nearest = {
            tuple(_nearest(sign * column, self.known)) for column in self.columns.T for sign in (1, -1)
        }
        return sum(tuple(_nearest(column, self.known)) in nearest for column in columns.T)


def in_units_of_noise(scores: Sequence[Array], precision_bits: int) -> list[list[int]]:
    """Scores that are known to 2**-precision_bits, as whole numbers of that."""
    return [[int(value) for value in np.rint(np.ldexp(each, precision_bits))] for each in scores]


def columns_from_scores(
    scores: Sequence[Sequence[int]],
    columns: int,
    *,
    exact: bool = False,
    known: Sequence[Sequence[int]] = (),
    modulus: int | None = None,
) -> Found:
    """Relations between people's rows, and the columns.

    `scores`: one list for each scoring, of whole numbers: exact ones, or in units of the noise. `known`: what
    the attacker knows to be part of them (its own columns, a constant), so that relations annul it too.
    `modulus`: scores are exact modulo this.
    """
    people = len(scores[0])
    basis = _short(np.array([*scores, *known], dtype=object), len(scores), exact, modulus)
    basis = basis[np.argsort((basis**2).sum(axis=1), kind="stable")]
    relations = basis[: people - columns - len(known)].astype(np.int64)
    rows = np.array(known, dtype=np.float64).reshape(-1, people)
    return Found(relations, _annulled(relations, columns + len(known), rows), rows)


def _short(sums: NDArray[Any], count: int, exact: bool, modulus: int | None) -> Array:
    """Short combinations of people with small sums, the leading bits of the sums first."""
    people = sums.shape[1]
    turns = 0 if modulus is None else count
    combinations: Array = np.eye(people + turns)[:, :people]
    wraps = np.zeros((people + turns, turns), dtype=object)
    for place in range(turns):
        wraps[people + place, place] = modulus
    largest = max(int(abs(value)).bit_length() for value in [*sums.ravel(), modulus or 0])
    shift = max(0, largest - STEP)
    weights = np.array([EXACT if exact or i >= count else 1.0 for i in range(len(sums))])
    while True:
        values = combinations.astype(np.int64).astype(object) @ sums.T
        values[:, :turns] += wraps
        cut = np.array([[float(int(value) >> shift) for value in row] for row in values])
        basis_and_sums = reduced(np.hstack([combinations, cut * (weights if shift == 0 else 1.0)]))
        combinations = np.rint(basis_and_sums[:, :people])
        if turns:  # what the reduction took of the modulus follows from what it took of people
            values = combinations.astype(np.int64).astype(object) @ sums.T[:, :turns]
            wraps = -((values + modulus // 2) // modulus) * modulus  # type: ignore[operator]  # has turns
        if shift == 0:
            lengths = (basis_and_sums**2).sum(axis=1)
            order = np.argsort(lengths, kind="stable")
            nonzero = [place for place in order if combinations[place].any()]
            return np.asarray(combinations[nonzero])
        shift = max(0, shift - STEP)


def _annulled(relations: Whole, dimension: int, known: Array) -> Whole | None:
    """A short basis of the whole vectors that all relations annul, without what is known."""
    people = relations.shape[1]
    basis: Array = np.eye(people)
    for relation in relations.astype(np.float64):
        sums = basis @ relation
        weight = 16.0 * float(np.linalg.norm(basis, axis=1).max())
        for _ in range(8):
            if np.count_nonzero(sums) <= 1:
                break
            basis_and_sums = reduced(np.hstack([basis, (weight * sums)[:, None]]))
            basis = np.rint(basis_and_sums[:, :people])
            sums, weight = basis @ relation, weight * 64.0
        if np.count_nonzero(sums) > 1 or len(basis) <= dimension - 1:
            return None
        basis = basis[sums == 0]
    if len(basis) != dimension:
        return None
    return _without(reduced(basis), known)


def _without(basis: Array, known: Array) -> Whole:
    """The columns of a lattice that holds the known rows too."""
    if not len(known):
        return basis.T.astype(np.int64)
    inside, _ = np.linalg.qr(known.T)
    along = inside @ inside.T
    # In this geometry known rows are short and come first; the others are short where they count.
    turned = reduced(basis @ (np.eye(len(along)) - (1.0 - TINY) * along))
    rows = np.rint(turned @ (np.eye(len(along)) + (1.0 / TINY - 1.0) * along))[len(known) :]
    columns: Whole = rows.T.astype(np.int64)
    return columns


def _nearest(column: NDArray[Any], known: Array) -> Whole:
    """The shortest that a column becomes by whole multiples of what is known."""
    values = column.astype(np.float64)
    if len(known):
        values = values - known.T @ np.rint(np.linalg.lstsq(known.T, values, rcond=None)[0])
    rounded: Whole = np.rint(values).astype(np.int64)
    return rounded


def clusters(scores: Array, gap: float) -> NDArray[np.intp]:
    """Numbers scores by the cluster that they lie in: neighbours closer than `gap` are in one.

    Rows of few values have few exact scores, and noise below the gaps between them hides none.
    """
    order = np.argsort(scores, kind="stable")
    steps = np.concatenate([[0], np.cumsum(np.diff(scores[order]) > gap)])
    numbers = np.empty(len(scores), dtype=np.intp)
    numbers[order] = steps
    return numbers
