"""Attacks by linear algebra on what a party of the generalised linear objective sees.

All of them take arrays, and use what a view holds and nothing else (research.attacks.views). Where an
attack has published ancestors they are named. Encryption plays no part here: these attacks work on what
the protocol reveals by design, or on what a plain run shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from research.attacks.views import OpenedSums

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Solved:
    """A least-squares solution, and which of its entries the equations determine."""

    values: Array
    determined: NDArray[np.bool_]


def solve(matrix: Array, right: Array, tolerance: float = 1e-9) -> Solved:
    """Unknowns x with matrix @ x = right: the shortest of all solutions.

    Entry i is determined if the unit vector e_i lies in the row space: then every solution has the same x_i.
    """
    _, sizes, rows = np.linalg.svd(matrix, full_matrices=False)
    kept = rows[sizes > tolerance * sizes[0]] if len(sizes) and sizes[0] > 0 else rows[:0]
    values = np.asarray(np.linalg.lstsq(matrix, right, rcond=tolerance)[0], dtype=np.float64)
    leverage = (kept**2).sum(axis=0)
    return Solved(values, leverage > 1.0 - 1e-6)


def solve_residuals(opening: OpenedSums) -> Solved:
    """The others' residuals of one batch, from the gradient that was opened to a party of the linear
    objective.

    d equations in S unknowns: determined when the ledger says so (d >= S, columns in general position).
    """
    return solve(opening.multipliers[0], opening.sums)


def exposed_rows(features: Array) -> NDArray[np.intp]:
    """Rows of a batch whose residual an opened gradient gives away however large the batch is.

    Row i is exposed if some combination of the columns is 1 there and 0 elsewhere (leverage 1): the only
    row in a category, for example. The ledger counts equations and does not see that; who holds the
    columns can.
    """
    return np.flatnonzero(solve(features.T, np.zeros(features.shape[1])).determined)


def labels_over_rounds(
    openings: Sequence[OpenedSums], rows: int, label_weight: float, tolerance: float = 1e-3
) -> Array:
    """Labels as numbers, from all gradients that were opened to a party of the linear objective.

    The others' residuals are label_weight * y + margin_weight * H. Labels never change, H is small at
    first: so all openings together are equations in y, off by H. With new batches in every round their
    number grows with the rounds; with one batch they are always the same d combinations.
    """
    blocks, right = [], []
    for opening in openings:
        block = np.zeros((opening.sums.size, rows))
        block[:, opening.batch] = opening.multipliers[0]
        blocks.append(block)
        right.append(opening.sums)
    stacked = label_weight * np.vstack(blocks)
    solution = np.linalg.lstsq(stacked, np.concatenate(right), rcond=tolerance)[0]
    return np.asarray(solution, dtype=np.float64)


def norm_scores(gradients: Array) -> Array:
    """Label inference from the norms of gradients by row (Li et al. 2022, norm attack)."""
    result: Array = np.linalg.norm(gradients.reshape(len(gradients), -1), axis=1)
    return result


def direction_scores(gradients: Array, known: int) -> Array:
    """Label inference from their directions, with the label of one row known (Li et al. 2022, direction
    attack).

    The cosine with the gradient of that row: rows of one class point one way, the others the other way.
    """
    table = gradients.reshape(len(gradients), -1)
    table = table - table.mean(axis=0)
    sizes = np.linalg.norm(table, axis=1)
    result: Array = table @ table[known] / np.maximum(sizes * sizes[known], 1e-300)
    return result


def features_from_span(messages: Array, known: Array, places: NDArray[np.intp], columns: int) -> Array:
    """All rows' features from what their owner sent over the rounds and the features of a few known rows.

    H of round t is X theta_t, so the messages (rows x rounds) span the columns of X as soon as there are
    as many rounds as columns. Which columns they are (an invertible matrix) stays open: that is the
    paper's Theorem 1. A handful of known rows fixes it.
    """
    left, sizes, _ = np.linalg.svd(messages, full_matrices=False)
    rank = int(min(columns, (sizes > 1e-12 * max(sizes[0], 1e-300)).sum()))
    basis = np.column_stack([left[:, :rank], np.ones(len(left))])
    link = np.linalg.lstsq(basis[places], known, rcond=1e-8)[0]
    result: Array = basis @ link
    return result


def membership_scores(candidates: Array, gradients: Sequence[Array]) -> Array:
    """How much people with these features look like part of the sums that were opened.

    A gradient is sum_i g_i x_i: it leans towards the rows that are in it. For one who sees gradients and
    knows features (Nasr et al. 2019, gradient attacks); `gradients` of one batch, candidates as rows.
    """
    scores = np.zeros(len(candidates))
    sizes = np.linalg.norm(candidates, axis=1)
    for gradient in gradients:
        scores += np.abs(candidates @ gradient) / np.maximum(sizes * np.linalg.norm(gradient), 1e-300)
    return scores / max(1, len(gradients))
