"""Theorem 2 (equation 13): how large FedBCD-p's step may be, and what the mean gradient then is at most.

For 0 < eta <= min( sqrt(2) / (2 Q sqrt(sum_j L_j^2 + 3 L_k^2)), 1/L ), all k, and T >= 1:

    1/T sum_{r<T} E ||grad L(Theta^r)||^2  <=  2/(eta T) (L(Theta^0) - L(Theta*))
                                             + 2 eta^2 (K+3) Q^2 sum_k L_k^2 sigma^2/S  +  2K sigma^2/S

T counts *local steps*, not rounds: T = Q x rounds, and Theta^r joins the parties' parameters after each
local step. sigma^2/S bounds, for every party k, the variance of its gradient over which of the B
mini-batches of size S was drawn for the round (assumption A2'). L and L_k bound how fast the gradient, and
its block k, change (assumption A1).

Two things the proof needs and the statement does not say, found by reading it:

- Its last step needs 1 - L eta - 2 eta^2 Q^2 (sum_j L_j^2 + 3 L_k^2) >= 0. At the first of the two step sizes
  in the theorem the last term alone is 1 already. `proven_step_size` is the largest that satisfies it.
- Lemma 1 applies L_k to the gradient on each single mini-batch, so L_k has to hold there, not only for the
  average over all rows: give `lipschitz_constants` the batches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from securefed.declare import check_integer, check_number
from securefed.errors import DataError, SettingError
from securefed.protocols.losses import get_loss


@dataclass(frozen=True)
class LipschitzConstants:
    """Assumption A1: L of the whole gradient, and L_k of each party's block of it."""

    L: float
    L_k: tuple[float, ...]


def lipschitz_constants(
    blocks: Sequence[ArrayLike],
    *,
    loss: str = "linear",
    l2: float = 0.0,
    batches: Sequence[ArrayLike] | None = None,
) -> LipschitzConstants:
    """L and L_k of (1/N) sum_i f(H_i, y_i) + l2/2 ||Theta||^2 with linear local models on the parties'
    columns.

    `loss` names f; its Taylor polynomial is meant (for least squares that is the loss itself), whose
    Hessian is constant: A = c X'X/N + l2 I with c its curvature. L is the largest eigenvalue of A, L_k the
    largest singular value of A's rows of party k. For the exact logistic and squared hinge losses L holds
    too; L_k need not.

    With `batches` (row numbers of each mini-batch) the L_k are the largest over the batches and over all
    rows.

    It takes all parties' columns in one place: for studies, not for a run among parties.
    """
    columns = [np.asarray(block, dtype=np.float64) for block in blocks]
    if not columns or any(
        block.ndim != 2 or block.shape != (len(columns[0]), block.shape[1]) for block in columns
    ):
        raise DataError(
            f"blocks must be matrices with the same rows, not of shapes {[block.shape for block in columns]}"
        )
    curvature = get_loss(loss).margin_weight
    weight = check_number("l2", l2, least=0.0)
    joined = np.hstack(columns)
    if joined.size == 0 or not np.isfinite(joined).all():
        raise DataError("blocks must hold at least one row and column, and finite numbers only")
    stops = np.cumsum([block.shape[1] for block in columns])[:-1]

    def hessian(rows: NDArray[np.float64]) -> NDArray[np.float64]:
        result: NDArray[np.float64] = curvature * (rows.T @ rows) / len(rows) + weight * np.eye(rows.shape[1])
        return result

    def block_norms(matrix: NDArray[np.float64]) -> list[float]:
        return [float(np.linalg.norm(part, 2)) if part.size else 0.0 for part in np.split(matrix, stops)]

    whole = hessian(joined)
    norms = [block_norms(whole)]
    for batch in batches or ():
        chosen = np.asarray(batch)
        if chosen.ndim != 1 or chosen.size == 0 or not np.isin(chosen, np.arange(len(joined))).all():
            raise DataError(f"each of batches must name rows from 0 to {len(joined) - 1}, not {batch!r}")
        norms.append(block_norms(hessian(joined[chosen.astype(np.intp)])))
    return LipschitzConstants(
        L=float(np.linalg.norm(whole, 2)), L_k=tuple(max(column) for column in zip(*norms, strict=True))
    )


def step_size_bound(Q: int, L: float, L_k: Sequence[float]) -> float:
    """The largest eta that Theorem 2 allows as printed, for all k at once."""
    return min(
        math.sqrt(2.0) / (2.0 * check_integer("Q", Q, least=1) * math.sqrt(_spread(L_k))), 1.0 / _positive(L)
    )


def proven_step_size(Q: int, L: float, L_k: Sequence[float]) -> float:
    """The largest eta with 1 - L eta - 2 eta^2 Q^2 (sum_j L_j^2 + 3 L_k^2) >= 0 for all k, for the proof.

    Always below `step_size_bound`, but never below 0.618 times that (where 1/L and the other term are equal).
    """
    quadratic = 2.0 * check_integer("Q", Q, least=1) ** 2 * _spread(L_k)
    linear = _positive(L)
    # The positive root, in the form that does not subtract nearly equal numbers when L is large.
    return 2.0 / (linear + math.sqrt(linear**2 + 4.0 * quadratic))


def convergence_bound(
    eta: float, T: int, Q: int, K: int, L_k: Sequence[float], sigma2: float, S: int, initial_gap: float
) -> float:
    """Theorem 2's right-hand side; T counts local steps, `initial_gap` is L(Theta^0) - L(Theta*)."""
    check_number("eta", eta, above=0.0)
    check_integer("T", T, least=1)
    check_integer("Q", Q, least=1)
    check_integer("S", S, least=1)
    check_number("sigma2", sigma2, least=0.0)
    check_number("initial_gap", initial_gap, least=0.0)
    if check_integer("K", K, least=1) != len(L_k):
        raise SettingError(f"L_k must have one constant per party, K = {K}, not {len(L_k)}")
    squares = sum(check_number("L_k", constant, least=0.0) ** 2 for constant in L_k)
    variance = sigma2 / S
    return 2.0 * initial_gap / (eta * T) + 2.0 * variance * (eta**2 * (K + 3) * Q**2 * squares + K)


def _spread(L_k: Sequence[float]) -> float:
    """The largest over k of sum_j L_j^2 + 3 L_k^2."""
    squares = [check_number("L_k", constant, least=0.0) ** 2 for constant in L_k]
    if not squares or max(squares) == 0.0:
        raise SettingError(f"L_k must hold at least one constant greater than 0, not {list(L_k)!r}")
    return sum(squares) + 3.0 * max(squares)


def _positive(L: float) -> float:
    return check_number("L", L, above=0.0)
