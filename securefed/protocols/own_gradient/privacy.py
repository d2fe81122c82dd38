"""Differential privacy of the labels where own gradients are opened (linear local models).

In round t column holder k sees X_k'(b H + a y) over the batch. Its key-holder adds Gaussian noise before it
answers. The key-holder sees only the masked sum, and the requester sees only sum + noise. `dp_noise` turns
this on.

Neighbours are two runs that differ in one person's label. Then a y_i changes by Delta = 2 |a|, and the sum by
Delta |x_i|, where x_i is the requester's own row. So the requester divides its rows by C_k, the largest of
their norms in the batch. It asks at a public scale and multiplies the result by C_k. The opened sum then has
sensitivity Delta, and noise of deviation z Delta makes it one Gaussian mechanism with noise multiplier z =
dp_noise. C_k depends on the requester's columns alone and stays with it.

The sum also depends on labels through H, that is, through all parties' parameters. The column holders'
parameters come from noisy sums. The label party's gradient X_A'(b H + a y) has the labels in the clear. So
the label party adds noise of the same kind, z Delta C_A, to its own gradient, once a round. The parameters
are then functions of noisy sums and of values that do not depend on labels. Given them, each round is K
Gaussian mechanisms, one for each party.

Nothing else that a column holder sees depends on a label, ciphertexts aside: no verdict (early stopping is
refused), no step size, no scaling of columns. Batches are public, so sampling does not amplify privacy: a
label is in as many rounds as its row is in batches.

K mechanisms in each of c rounds are together one Gaussian mechanism with mu = sqrt(K c) / z, and

    delta(epsilon) = Phi(-epsilon / mu + mu / 2) - exp(epsilon) Phi(-epsilon / mu - mu / 2)

(Balle and Wang 2018; Dong, Roth and Su 2019, corollary 1). The noise is a discrete Gaussian at 2**-56. Its
loss equals this formula to far more digits than are shown. Requesters must follow the protocol: rows that are
longer than declared get less noise.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import erfc, exp, inf, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefed.crypto.randomness import discrete_gaussian
from securefed.protocols.agreement import Agreement
from securefed.protocols.schedules import Batches

__all__ = [
    "LabelPrivacy",
    "epsilon",
    "label_privacy",
    "noise_units",
    "own_noise",
    "participations",
]

Array = NDArray[np.float64]
OWN_BITS = 40
"""Fraction bits of the label party's own noise, which no other party sees."""


@dataclass(frozen=True)
class LabelPrivacy:
    """A run's privacy guarantee for each label, against the parties without labels."""

    epsilon: float
    delta: float
    noise_multiplier: float
    mechanisms: int
    """Noisy sums that contain one label."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return f"labels: epsilon {self.epsilon:.2f}, delta {self.delta:.1e}, noise {self.noise_multiplier:g}"


def label_privacy(agreement: Agreement) -> LabelPrivacy | None:
    """Return the guarantee of a run, or None if no noise was agreed."""
    if not agreement.dp_noise:
        return None
    rounds = participations(agreement.batches, agreement.stopping.rounds)
    mechanisms, delta = rounds * len(agreement.members), 0.1 / agreement.batches.rows
    return LabelPrivacy(epsilon(agreement.dp_noise, mechanisms, delta), delta, agreement.dp_noise, mechanisms)


def participations(batches: Batches, rounds: int) -> int:
    """Return the most rounds that any one row takes part in."""
    counts = np.zeros(batches.rows, dtype=np.int64)
    for t in range(rounds):
        counts[batches.batch(t)] += 1
    return int(counts.max())


def epsilon(noise: float, mechanisms: int, delta: float) -> float:
    """Return epsilon of `mechanisms` Gaussian mechanisms with noise multiplier `noise`, at delta."""
    mu = sqrt(mechanisms) / noise
    if _delta(0.0, mu) <= delta:
        return 0.0
    high = 1.0
    while _delta(high, mu) > delta:
        high *= 2
        if high > 1e6:
            return inf
    low = 0.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _delta(middle, mu) > delta else (low, middle)
    return high


def _delta(eps: float, mu: float) -> float:
    upper = 0.5 * erfc((eps / mu - mu / 2) / sqrt(2))
    # exp(eps) Phi(-x): the product is finite where its first factor is not.
    x = eps / mu + mu / 2
    tail = 0.5 * erfc(x / sqrt(2))
    return upper - (exp(eps) * tail if eps < 700 and tail > 0 else _scaled_tail(eps, x))


def _scaled_tail(eps: float, x: float) -> float:
    """exp(eps) Phi(-x) for large x, by Phi(-x) ~ phi(x) / x, from below."""
    exponent = eps - x * x / 2
    return 0.0 if exponent < -700 else exp(exponent) / (x * sqrt(6.283185307179586)) * x * x / (1 + x * x)


def noise_units(noise: float, sensitivity: float, count: int, fraction_bits: int) -> list[int]:
    """Draw noise for `count` sums of that sensitivity, in units of 2**-fraction_bits."""
    deviation = max(1, round(noise * sensitivity * 2.0**fraction_bits))
    return [discrete_gaussian(deviation) for _ in range(count)]


def own_noise(noise: float, sensitivity: float, count: int) -> Array:
    """Draw the label party's noise for the sums of its own gradient."""
    units = noise_units(noise, sensitivity, count, OWN_BITS)
    return np.array([unit / 2.0**OWN_BITS for unit in units])
