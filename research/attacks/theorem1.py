"""The paper's Theorem 1, shown: other data that give the same messages.

In a plain run of the generalised linear objective party k sends H^k = X theta_k, round after round. For
an orthogonal U with U theta_0 = theta_0, the data X U with the same start give the same H in every round,
because gradients turn along: theta_t becomes U' theta_t. So nobody can tell X from X U by the messages
alone. The Lemma builds U by a Householder reflection P that takes theta_0 to the first axis: U = P
diag(1, V) P with V any orthogonal matrix.

    d_k = 1    V does not exist: U = 1 is all there is, unless theta_0 = 0, when U = -1 works too
    d_k = 2    V is 1 x 1: V = -1, a single alternative (a reflection), unless theta_0 = 0: then any rotation
    d_k >= 3   infinitely many

(The theorem says "larger than 2, i.e. d_k >= 2"; infinitely many take three columns, or a start at 0, or
a start that is not known.) What it promises is that columns are not *determined*, and no more:
docs/proofs.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from securefed.errors import DataError

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Alternative:
    """Other data with the same messages, and the matrix that they come from."""

    features: Array
    turn: Array
    others: str
    """How many there are: "none", "one" or "infinitely many"."""


def householder(vector: Array) -> Array:
    """The reflection P with P e_1 = vector / |vector|; P = P' and P P = I."""
    unit = vector / np.linalg.norm(vector)
    first = np.zeros(len(unit))
    first[0] = 1.0
    # Reflecting e_1 - unit would cancel digits where they nearly agree; then P is the identity to rounding.
    across = first - unit
    size = float(across @ across)
    reflection: Array = np.eye(len(unit)) - (2.0 / size * np.outer(across, across) if size > 1e-30 else 0.0)
    return reflection


def turning(start: Array, generator: np.random.Generator) -> tuple[Array, str]:
    """An orthogonal U, not the identity, with U start = start (the Lemma); and how many such there are."""
    columns = len(start)
    if not np.any(start):
        if columns == 1:
            return -np.eye(1), "one"
        return _orthogonal(columns, generator), "infinitely many"
    if columns == 1:
        raise DataError("theorem 1: one column and a start other than 0 determine the data up to nothing")
    if columns == 2:
        inner, others = -np.eye(1), "one"
    else:
        inner, others = _orthogonal(columns - 1, generator), "infinitely many"
    block = np.eye(columns)
    block[1:, 1:] = inner
    reflection = householder(start)
    return reflection @ block @ reflection, others


def _orthogonal(size: int, generator: np.random.Generator) -> Array:
    """Uniform over the orthogonal matrices (Haar), from the QR decomposition of a Gaussian one."""
    unitary, triangle = np.linalg.qr(generator.normal(size=(size, size)))
    result: Array = unitary * np.sign(np.diag(triangle))
    return result


def alternative(features: Array, start: Array, seed: int = 0) -> Alternative:
    """Data that a party could have instead, for everything that the others see of a plain run.

    `start`: its parameters before the first round. The optimiser has to turn along (SGD does, Adam does
    not: it works column by column).
    """
    if features.shape[1] != len(start):
        raise DataError(f"theorem 1: {features.shape[1]} columns and {len(start)} parameters given")
    turn, others = turning(np.asarray(start, dtype=np.float64), np.random.default_rng(seed))
    return Alternative(features @ turn, turn, others)
