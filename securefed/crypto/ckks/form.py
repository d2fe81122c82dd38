"""The public numbers of an encrypted array, their change under operations, and the noise that follows.

Nothing here looks at a value. A form follows from declared ranges, shapes and operations, so errors, headers
and the amount of flooding say nothing about data. The one exception is marked: a private scale.

Each opening adds a Gaussian flood, since the exact noise would show the secret key or the multipliers.
docs/proofs.md derives the bound on the noise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, frexp, isfinite, log, log2, sqrt

import numpy as np

from securefed.crypto.ckks.layout import CAPACITY_BITS, CkksLayout, RowLayout, SumLayout
from securefed.crypto.fixed import FixedPoint
from securefed.crypto.lattice.ring import DEGREE, PRIMES
from securefed.crypto.randomness import ERROR_DEVIATION, MOST_DEVIATION_BITS
from securefed.errors import CapacityError, FormatError

DATA_BITS = 74
MULTIPLIER_BITS = 26
LEAST_MULTIPLIER_BITS = 16
MOST_MULTIPLIER_BITS = 60
MOST_SCALE = 1200
_LEAST_POWER, _MOST_POWER = -512, 1000
MOST_TERMS = 1 << 30
_MOST_BLOCKS = 1 << 20

SECURITY_BITS = 40
"""s: statistical security of the flooding."""
MOST_REPLIES = 1 << 20
"""tau: openings that one key answers before it must be replaced."""
_KEY_NORM = 2 * DEGREE / 3 + 6 * sqrt(2 * DEGREE / 9)
"""Squared norm of a uniform ternary polynomial, six deviations above its mean."""
PUBLIC_TERMS = ceil(sqrt(1 + 2 * _KEY_NORM))
"""The noise of an encryption under the public key, in owner's encryptions."""
FRESH_DEVIATION = ERROR_DEVIATION * PUBLIC_TERMS
SWITCH_DEVIATION = ERROR_DEVIATION * sqrt(DEGREE * sum(prime**2 / 12 for prime in PRIMES))
TAIL = sqrt(2 * (SECURITY_BITS + log2(MOST_REPLIES)) * log(2))
"""Deviations that no reply of a key exceeds, except with probability 2^-s: 2^-(s + log2 tau) for each."""


@dataclass(frozen=True)
class Noise:
    """The public numbers that determine an array's noise. They are sent with masked blocks."""

    terms: int = 1
    """Added encryptions by the owner. Amplitudes add, since they may share their randomness."""
    multiplier_bits: int = 0
    """Multipliers are at most sqrt(2) * 2^multiplier_bits in every slot; 0 for no multiplier."""
    blocks: int = 1
    """Added products of one unit."""

    def __post_init__(self) -> None:
        sound = 1 <= self.terms <= MOST_TERMS and 1 <= self.blocks <= _MOST_BLOCKS
        if not sound or not 0 <= self.multiplier_bits <= MOST_MULTIPLIER_BITS:
            raise FormatError(f"noise: {self} given, which no array has")


def noise_bound(noise: Noise, coefficients: int, units: int, levels: int) -> float:
    """Return a bound on the Euclidean norm of the noise in the returned coefficients of one opening."""
    factor = sqrt(2) * 2.0**noise.multiplier_bits + sqrt(DEGREE) / 2 if noise.multiplier_bits else 1.0
    computed = noise.terms * ERROR_DEVIATION * factor * sqrt(noise.blocks)
    switched = SWITCH_DEVIATION * 2.0**levels if levels else 0.0
    total = sqrt(computed**2 + switched**2 + FRESH_DEVIATION**2)
    return total * (sqrt(coefficients) + sqrt(units) * TAIL)


def flood_deviation(noise: Noise, coefficients: int, units: int, levels: int) -> float:
    """Return sigma = sqrt(12 tau) * 2^(s/2) * |noise|: tau replies together are 2^-s from noise-free ones."""
    bound = noise_bound(noise, coefficients, units, levels)
    deviation = sqrt(12 * MOST_REPLIES) * 2.0 ** (SECURITY_BITS / 2) * bound
    if deviation > 2.0**MOST_DEVIATION_BITS:
        raise CapacityError(f"noise of {noise} cannot be flooded below the modulus")
    return float(deviation)


@dataclass(frozen=True)
class ArrayForm:
    """The public numbers of an array. The scale of sums is private if the scale of their multipliers is."""

    layout: CkksLayout
    bound: float
    """Every |value| is at most this."""
    scale: int
    """Values are multiplied by 2^scale."""
    magnitude: float
    """Relevant coefficients stay below 2^magnitude."""
    noise: Noise = Noise()

    @property
    def product(self) -> bool:
        """Sums over rows are products, and cannot be multiplied or added again."""
        return isinstance(self.layout, SumLayout)

    def __post_init__(self) -> None:
        if self.magnitude > CAPACITY_BITS:
            raise CapacityError(
                f"the result would take {self.magnitude:.1f} bits, {CAPACITY_BITS:.0f} are available: "
                f"add fewer arrays, or open in between"
            )
        if abs(self.scale) > MOST_SCALE or not isfinite(self.bound):
            raise CapacityError(f"a scale of 2^{self.scale} is out of range: declare other bounds")


def _power_above(number: float) -> int:
    """Return the least n with number <= 2^n, and at least -512."""
    mantissa, exponent = frexp(number)
    return max(exponent - (mantissa == 0.5), _LEAST_POWER)


def fresh_form(shape: tuple[int, ...], fixed: FixedPoint, terms: int) -> ArrayForm:
    power = _power_above(fixed.bound)
    magnitude = DATA_BITS + log2(fixed.bound) - power
    return ArrayForm(RowLayout(shape), fixed.bound, DATA_BITS - power, magnitude, Noise(terms))


def added(low: ArrayForm, high: ArrayForm) -> tuple[ArrayForm, int]:
    """Return the form of a sum, and the lift: the power of two that multiplies the array of lower scale."""
    if low.product or high.product:
        raise CapacityError("sums over rows do not add up: add the arrays before, or open the sums apart")
    lift = high.scale - low.scale
    bits = max(low.noise.multiplier_bits + lift, high.noise.multiplier_bits)
    if bits > MOST_MULTIPLIER_BITS:
        raise CapacityError(f"the scales of the two arrays are 2^{lift} apart: too far to add them up")
    terms = low.noise.terms + high.noise.terms
    if terms > MOST_TERMS:
        raise CapacityError(f"a sum of {terms} encryptions given, at most {MOST_TERMS} are allowed")
    form = replace(
        high,
        bound=low.bound + high.bound,
        magnitude=float(np.logaddexp2(low.magnitude + lift, high.magnitude)),
        noise=Noise(terms, bits),
    )
    return form, lift


def product_form(
    form: ArrayForm, layout: CkksLayout, largest: float, fixed: FixedPoint | None, blocks: int, terms: int
) -> tuple[ArrayForm, int]:
    """Return the form of a product, and the power of two that scales the multipliers.

    The multipliers are divided by a power of two not below the largest (or the bound of `fixed`). They take
    as many bits as the sum over `blocks` leaves, at most 26. One value is a sum of `terms` products.
    """
    if form.product:
        raise CapacityError("one product is possible and this array is one: open it, or encrypt anew")
    growth = log2(blocks) + 0.5  # two outputs in one complex number: sqrt(2)
    bits = min(MULTIPLIER_BITS, int(CAPACITY_BITS - form.magnitude - growth))
    if bits < LEAST_MULTIPLIER_BITS:
        raise CapacityError(
            f"{bits} bits are left for multipliers, {LEAST_MULTIPLIER_BITS} at least are needed: "
            f"{blocks} blocks of rows at {form.magnitude:.1f} bits are too many"
        )
    # A private limit is known by its power of two alone: a bound to the last digit would show the largest.
    power = _power_above(fixed.bound if fixed else largest or 1.0)
    if power > _MOST_POWER:
        raise CapacityError(f"multipliers above 2^{_MOST_POWER} given: declare smaller ones")
    limit = fixed.bound if fixed else 2.0**power
    scale = bits - power
    result = ArrayForm(
        layout,
        form.bound * limit * terms,
        form.scale + scale,
        form.magnitude + bits + growth,
        Noise(form.noise.terms, form.noise.multiplier_bits + bits, blocks),
    )
    return result, scale
