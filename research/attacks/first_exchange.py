"""Labels from the first gradient that is opened to a party of the generalised linear objective.

Linear models start at 0, and everybody knows it: in the first exchange the others' residuals are
label_weight * y with y = -1 or +1, and nothing else. What is opened are d sums T y of S unknown *bits*. Each
sum comes with twenty significant bits and more, so that far fewer than S of them leave one solution. Finding
it is a knapsack problem, and two kinds of those are easy:

    few rows              `labels_by_lattice`, by lattice reduction (Lagarias and Odlyzko 1985, Coster et al.
                          1992): some hundred rows where there is a column for every five to ten of them
    few of one class      `labels_if_rare`, by orthogonal matching pursuit (Tropp and Gilbert 2007): thousands
                          of rows, with about 2 k log S columns for the k rows of the rarer class

The solvability ledger counts equations against unknown numbers and is far below its line in both cases.
Encryption plays no part: this is what an own gradient is. Blind training opens none.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from research.attacks.views import OpenedSums

Array = NDArray[np.float64]
MISFIT = 1e-3
"""What sums may be off by, for columns of size 1: more than CKKS makes of them, less than a wrong row."""


def labels_if_rare(opening: OpenedSums, label_weight: float, tolerance: float = MISFIT) -> Array | None:
    """Labels of the batch, -1 and +1, if one class is so rare that its rows can be picked one by one."""
    columns, sums = opening.multipliers[0], opening.sums / label_weight
    for common in (-1.0, 1.0):
        # T y = common (T 1 - 2 T z) with z the rows of the other class.
        wanted = (columns.sum(axis=1) - common * sums) / 2
        rare = _picked(columns, wanted, tolerance)
        if rare is not None:
            labels: Array = np.where(rare, -common, common)
            return labels
    return None


def _picked(columns: Array, wanted: Array, tolerance: float) -> NDArray[np.bool_] | None:
    """The rows whose columns add up to `wanted`, greedily; None if they do not with half as many as sums."""
    sizes = np.maximum(np.linalg.norm(columns, axis=0), 1e-300)
    chosen: list[int] = []
    weights: Array = np.zeros(0)
    rest = wanted
    while np.abs(rest).max() > tolerance:
        if 2 * len(chosen) >= len(wanted):
            return None
        likeness = columns.T @ rest / sizes
        likeness[chosen] = -np.inf
        chosen.append(int(np.argmax(likeness)))
        weights = np.asarray(np.linalg.lstsq(columns[:, chosen], wanted, rcond=None)[0], dtype=np.float64)
        rest = wanted - columns[:, chosen] @ weights
    if np.abs(weights - 1.0).max(initial=0.0) > 0.01:
        return None  # it adds up, but not of whole rows
    picked = np.zeros(columns.shape[1], dtype=np.bool_)
    picked[chosen] = True
    return picked


def labels_by_lattice(
    opening: OpenedSums, label_weight: float, bits: int = 20, tolerance: float = MISFIT
) -> Array | None:
    """Labels of the batch, -1 and +1, or None if no short vector gives any.

    With T in steps of 2^-bits of its largest entry, the rows of

        2 I   0   2 w T'
        -1    1   -w (T 1 + sums)

    span a lattice in which (y, 1, w * rounding) is short: y = 2 z - 1 takes each row z times and the last
    once. It is the shortest by far where S is less than d times the bits of a sum.
    """
    columns, sums = opening.multipliers[0], opening.sums / label_weight
    rows, scale = columns.shape[1], 2.0**bits / float(np.abs(columns).max())
    steps, totals = np.rint(columns * scale), np.rint(sums * scale)
    weight = float(np.sqrt(48.0 / rows))  # the rounding of a sum, times this, is as long as two entries of y
    basis = np.zeros((rows + 1, rows + 1 + len(sums)))
    basis[:rows, :rows] = 2.0 * np.eye(rows)
    basis[:rows, rows + 1 :] = 2.0 * weight * steps.T
    basis[rows, :rows], basis[rows, rows] = -1.0, 1.0
    basis[rows, rows + 1 :] = -weight * (steps.sum(axis=1) + totals)
    for vector in reduced(basis):
        labels: Array = np.rint(vector[:rows] * vector[rows])
        if (np.abs(labels) == 1.0).all() and np.abs(columns @ labels - sums).max() <= tolerance * rows**0.5:
            return labels
    return None


def reduced(basis: Array, delta: float = 0.99) -> Array:
    """An LLL-reduced basis of the lattice that the rows span (Lenstra, Lenstra and Lovasz 1982).

    In float64: for a hundred rows and entries of some twenty bits, which is what is needed here.
    """
    rows = basis.astype(np.float64)
    orthogonal, squares = np.zeros_like(rows), np.zeros(len(rows))
    shares = np.zeros((len(rows), len(rows)))

    def project(k: int) -> None:
        shares[k, :k] = orthogonal[:k] @ rows[k] / squares[:k]
        orthogonal[k] = rows[k] - shares[k, :k] @ orthogonal[:k]
        squares[k] = orthogonal[k] @ orthogonal[k]

    project(0)
    k = 1
    while k < len(rows):
        project(k)
        while np.abs(shares[k, :k]).max() > 0.51:
            for j in range(k - 1, -1, -1):
                if times := np.rint(shares[k, j]):
                    rows[k] -= times * rows[j]
                    shares[k, :j] -= times * shares[j, :j]
                    shares[k, j] -= times
            project(k)
        if squares[k] >= (delta - shares[k, k - 1] ** 2) * squares[k - 1]:
            k += 1
        else:
            rows[[k - 1, k]] = rows[[k, k - 1]]
            project(k - 1)
            k = max(1, k - 1)
    return rows
