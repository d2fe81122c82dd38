"""A bound on a ciphertext's noise, and the flooding that hides it at an opening.

A reader of the exact phase = value + noise can solve for the noise's parts: the secret key (Li and Micciancio
2021) or the multipliers. So each opening adds a Gaussian flood whose deviation is a multiple of a bound on
the noise. The bound depends on public numbers alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log, log2, sqrt

from securefed.crypto.ckks.parameters import ERROR_DEVIATION, MOST_REPLIES, RING, SECURITY_BITS
from securefed.crypto.errors import CapacityError, FormatError
from securefed.crypto.lattice.sampling import MOST_DEVIATION_BITS

__all__ = ["FRESH", "MOST_MULTIPLIER_BITS", "MOST_TERMS", "Noise", "flood_deviation", "noise_bound"]

_KEY_NORM = 2 * RING / 3 + 6 * sqrt(2 * RING / 9)
"""Squared norm of a uniform ternary key, six deviations above its mean."""
FRESH_DEVIATION = sqrt((1 + _KEY_NORM) / 12)
SWITCH_DEVIATION = sqrt(ERROR_DEVIATION**2 * 2 * RING / 3 + FRESH_DEVIATION**2)
TAIL = sqrt(2 * (SECURITY_BITS + log2(MOST_REPLIES)) * log(2))
"""Deviations that no reply of a key exceeds, except with probability 2^-s: 2^-(s + log2 tau) for each."""
MOST_MULTIPLIER_BITS = 60
MOST_TERMS = 1 << 30
_MOST_BLOCKS = 1 << 20


@dataclass(frozen=True)
class Noise:
    """The public numbers that determine an array's noise. They are sent with masked blocks."""

    terms: int = 1
    """Added encryptions. Amplitudes add, since they may share their randomness."""
    multiplier_bits: int = 0
    """Multipliers are at most sqrt(2) * 2^multiplier_bits in every slot; 0 for no multiplier."""
    blocks: int = 1
    """Added products of one unit."""

    def __post_init__(self) -> None:
        for name, value, least, most in (
            ("terms", self.terms, 1, MOST_TERMS),
            ("multiplier bits", self.multiplier_bits, 0, MOST_MULTIPLIER_BITS),
            ("blocks", self.blocks, 1, _MOST_BLOCKS),
        ):
            if not least <= value <= most:
                raise FormatError(f"noise: {value} {name} given, {least} to {most} are allowed")


FRESH = Noise()


def noise_bound(noise: Noise, coefficients: int, units: int, levels: int) -> float:
    """A bound on the Euclidean norm of the noise in the returned coefficients of one opening.

    1. A fresh encryption under the public key is made modulo p0 p1 p2 and divided by p2; what remains is the
       rounding u0 + u1 s with u uniform in [-1/2, 1/2]: per coefficient the variance (1 + |s|^2) / 12, with
       |s|^2 the number of nonzero coefficients of s. (The owner's encryptions have deviation 3.24.)
    2. A sum of `terms` of them has at most `terms` times that deviation.
    3. Multiplying by a polynomial t with |t| <= A in every slot multiplies the deviation of a coefficient by
       |t|_2 <= A (Parseval), and no direction by more than A. A = sqrt(2) * 2^multiplier_bits for two outputs
       in one complex number; the rounding of t's coefficients adds at most sqrt(N) / 2 to it. `blocks`
       products with independent noises add up to sqrt(blocks) times as much.
    4. Masking adds one fresh encryption of zero. A merge doubles what is in the useful coefficients before
       it (the halving in advance undoes that for what the units brought along) and adds the noise of a key
       switch: two digits below 2^60, not centred, times errors, divided by p2, and a rounding. So after
       `levels` merges at most 2^levels times that.
    5. With a the root of the sum of squares, the vector of n returned coefficients from U units is a linear
       image of independent errors, of Frobenius norm at most a sqrt(n) and operator norm at most a sqrt(U).
       By Gaussian concentration its norm exceeds a (sqrt(n) + sqrt(U) sqrt(2 k ln 2)) with probability below
       2^-k; with k = s + log2 tau none of the key's replies does, but for 2^-s.

    Heuristic in two places: the errors are taken as Gaussian and as white (the spectrum of s is flat up to a
    small factor, and the multipliers do not know it).
    """
    factor = sqrt(2) * 2.0**noise.multiplier_bits + sqrt(RING) / 2 if noise.multiplier_bits else 1.0
    computed = noise.terms * FRESH_DEVIATION * factor * sqrt(noise.blocks)
    switched = SWITCH_DEVIATION * 2.0**levels if levels else 0.0
    total = sqrt(computed**2 + switched**2 + FRESH_DEVIATION**2)
    return total * (sqrt(coefficients) + sqrt(units) * TAIL)


def flood_deviation(noise: Noise, coefficients: int, units: int, levels: int) -> float:
    """Return sigma = sqrt(12 tau) * 2^(s/2) * |noise|: tau replies together are 2^-s from noise-free ones.

    (Li, Micciancio, Schultz and Sorrell 2022: the divergence of one reply is |noise|^2 / (2 sigma^2), that of
    tau replies tau times as much.)
    """
    bound = noise_bound(noise, coefficients, units, levels)
    deviation = sqrt(12 * MOST_REPLIES) * 2.0 ** (SECURITY_BITS / 2) * bound
    if deviation > 2.0**MOST_DEVIATION_BITS:
        raise CapacityError(f"noise of {noise} cannot be flooded below the modulus")
    return float(deviation)
