"""How far an encrypted run may be from the plain run of the same loss: derived, not tuned.

One opening. A party opens sums[a, j] = sum over i of T[a, i] E[i, j], with E the sum of `terms` arrays that
were encoded and encrypted one by one.

  Paillier is exact on integers. E is off by at most terms * 2^-33 (32 fraction bits, rounded), T by at most
  2^-24 of its largest entry (24 significant bits), so a sum is off by at most
      max|T| * (rows * terms * 2^-33 + 2^-24 * sum|E|).

  CKKS. Data at scale 2^74 and multipliers at 2^26 relative to their declared bounds rounded up to powers of
  two, b and t. Encryption noise has deviation at most 250 a coefficient, times sqrt(2) 2^26 for the product,
  so 2^34.5 * terms for the sum of the terms. Over the n = 2 G U returned coefficients (G groups in U units)
  its norm is at most 2^34.5 terms (sqrt(n) + 9.2 sqrt(U)); the key-holder's flood has deviation
  sqrt(12 * 2^20) * 2^20 = 2^31.8 times that. A sum over rows is read from G complex coefficients with the
  factor 2048 / G, which makes the deviation of a value
      2048 / sqrt(G) * 2^(34.5 + 31.8 - 100) * terms (sqrt(2 G U) + 9.2 sqrt(U)) b t
          <= 2^-19.2 sqrt(U) terms b t.
  Eight deviations: 2^-16 sqrt(U) terms b t, with the noise of some merges. The rounding of the multipliers'
  coefficients changes each by 8 sqrt(4096 / 12) 2^-26 t < 2^-18 t at most.

A run. Let delta be the distance of the parameters of all parties, and B the larger of delta now and delta
where the round began. A local step moves party k along the gradient at a mixed point: its own parameters of
now, the others' of the exchange. With L a bound on the Hessian of the objective, mu the proximal weight and e
the error of the opened gradients (the norm over all parties),

    parallel:    B <- (1 + eta (L sqrt(1 + K) + 2 mu)) B + eta e       (Q steps a round)
    sequential:  B <- (1 + eta (L + 2 mu)) B + eta e                   (K Q steps a round)

since the K mixed points differ from their twins by at most sqrt(delta_now^2 + K delta_start^2) together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log2, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.protocols.federation import Federation, Shared

Array = NDArray[np.float64]
ROUNDING = 1e-12  # of the plain arithmetic itself
SLACK = 1.01  # what was seen in the plain run may be this much larger in the encrypted one


class Observed:
    """A side that remembers the largest numbers that passed through it, and what a test asks for."""

    def __init__(self, side: Any) -> None:
        self._side = side
        self.contributions: list[Array] = []
        self.factors: list[Array] = []
        self.sums: list[Array] = []
        self.gradients: list[Array] = []
        self.visited: list[Array] = [side.parameters]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._side, name)

    @property
    def parameters(self) -> Array:
        result: Array = self._side.parameters
        return result

    @parameters.setter
    def parameters(self, values: Array) -> None:
        self._side.parameters = values
        self.visited.append(self._side.parameters)

    def contribution(self) -> Array:
        self.contributions.append(self._side.contribution())
        return self.contributions[-1]

    def multipliers(self) -> Array:
        self.factors.append(np.asarray(self._side.multipliers()))
        return self.factors[-1]

    def gradient(self, sums: Array, included: bool) -> Array:
        self.sums.append(sums)
        self.gradients.append(self._side.gradient(sums, included))
        return self.gradients[-1]


def observe(made: Federation) -> dict[str, Observed]:
    """Put an observer around each side."""
    watched = {name: Observed(side) for name, side in made.sides.items()}
    made.sides = dict(watched)
    return watched


def power(number: float) -> float:
    return 2.0 ** ceil(log2(number))


def opening_error(
    scheme: str,
    *,
    rows: int,
    terms: int,
    factor: float,
    total: float,
    bound: float,
    columns: int,
    outputs: int,
) -> float:
    """On one opened sum. `factor`: max|T|; `total`: sum|E|; `bound`: declared for a contribution."""
    if scheme == "paillier":
        return SLACK * factor * (rows * terms * 2.0**-33 + 2.0**-24 * total)
    width = power(columns)
    filled = outputs & -outputs if outputs < rows else outputs
    copies = min(max(1.0, 2048 // width // power(rows)), filled, power(ceil(outputs / 2)))
    units = ceil(outputs / (2 * copies))
    if rows * width > 2048:
        raise ValueError("more than one block of rows: the derivation above is for one")
    flood = 2.0**-16 * sqrt(units) * terms * power(bound) * power(factor)
    return SLACK * (flood + 2.0**-18 * power(factor) * total)


def gradient_error(made: Federation, watched: dict[str, Observed]) -> float:
    """e: the norm over all parties of the error of their gradients, at the worst opening of the plain run."""
    scheme, squares = made.agreement.scheme, 0.0
    names = list(watched)
    rows = made.agreement.batches.effective_size
    for name, side in watched.items():
        others = [watched[other] for other in names if other != name]
        # Around a star the sum contains the party's own contribution as well.
        included = not made.agreement.mutual and made.agreement.exchange == "star"
        parts = [*others, side] if included else others
        arrays = [np.atleast_2d(c.T).T for part in parts for c in part.contributions]
        largest = max(float(np.abs(a).sum(axis=0).max()) for a in arrays)
        factor = max(float(np.abs(t).max()) for t in side.factors)
        columns, outputs, length = side.factors[0].shape
        error = opening_error(
            scheme,
            rows=length,
            terms=len(parts),
            factor=factor,
            total=len(parts) * largest,
            bound=max(float(part.fixed().bound) for part in parts),
            columns=columns,
            outputs=outputs,
        )
        squares += columns * outputs * (error / rows) ** 2
    return sqrt(squares)


def trajectory_error(made: Federation, smoothness: float, error: float) -> float:
    """B after all rounds."""
    agreement, algorithm = made.agreement, made.agreement.algorithm
    parties = len(agreement.members)
    sequential = algorithm.order == "sequential"
    stretch = smoothness * (1.0 if sequential else sqrt(1 + parties)) + 2 * algorithm.proximal
    distance = 0.0
    for t in range(agreement.stopping.rounds):
        eta = agreement.learning_rate(t)
        for _ in range(algorithm.local_steps * (parties if sequential else 1)):
            distance = (1 + eta * stretch) * distance + eta * error + ROUNDING
    return distance


# Bounds on the Hessian of the three objectives.


def linear_smoothness(
    blocks: Sequence[Array], batches: Sequence[NDArray[np.intp]], weight: float, l2: float
) -> float:
    """weight / S * |X_S|^2 + l2: the Taylor loss is a quadratic."""
    joined = np.hstack(blocks)
    return max(weight * float(np.linalg.norm(joined[rows], 2)) ** 2 / len(rows) for rows in batches) + l2


@dataclass(frozen=True)
class Slopes:
    """sup |act'| and sup |act''|; |act| <= 1."""

    first: float
    second: float


SLOPES = {"sigmoid": Slopes(0.25, 0.0963), "tanh": Slopes(1.0, 0.7699)}


def longest(rows: Array) -> float:
    """The largest norm of a row with its 1."""
    return float(np.sqrt((rows**2).sum(axis=1) + 1).max())


def transfer_smoothness(people: Shared, width: int, activation: str, gamma: float, l2: float) -> float:
    """With r the longest rows, s the slopes, |u|, |Phi| <= sqrt(h) and |phi| <= h; along a direction d:

    |dphi|^2 <= h s1^2 (rA^2 + rB^2) |d|^2,  |d2phi| <= (sqrt(h) s2 max r^2 + s1^2 rA rB) |d|^2,
    loss'' = 1/4 and |loss'| <= 1/2 + h/4; the alignment: 2 gamma |duA - duB|^2 + 2 gamma |uA - uB| |d2u|.
    """
    a, b, slope = longest(people.a), longest(people.b), SLOPES[activation]
    most = max(a, b) ** 2
    score = width * slope.first**2 * (a**2 + b**2) / 4
    bend = (0.5 + width / 4) * (sqrt(width) * slope.second * most + slope.first**2 * a * b)
    align = 2 * gamma * (slope.first**2 * (a**2 + b**2) + 2 * sqrt(width) * slope.second * most)
    return score + bend + align + l2


def network_smoothness(
    blocks: Sequence[Array],
    watched: dict[str, Observed],
    hidden: int,
    weight: float,
    l2: float,
    residual: float,
) -> float:
    """H^k = v . tanh(W'x + b) + c:  |dH| <= sqrt(h + 1 + r^2 |v|^2) |d|,  |d2H| <= (r + max|v| s2 r^2) |d|^2.

    v is taken where the plain run has been; `residual` bounds |loss'| there.
    """
    squares, bend = 0.0, 0.0
    for block, side in zip(blocks, watched.values(), strict=True):
        r = longest(block)
        last = np.array([theta[-hidden - 1 : -1] for theta in side.visited])
        norm = SLACK * float(np.linalg.norm(last, axis=1).max())
        squares += hidden + 1 + (r * norm) ** 2
        bend = max(bend, r + SLACK * float(np.abs(last).max()) * SLOPES["tanh"].second * r**2)
    return weight * squares + residual * bend + l2
