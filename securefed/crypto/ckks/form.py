"""The public numbers of an encrypted array, and their change under operations.

Nothing here looks at a value. A form follows from declared ranges, shapes and operations, so errors, headers
and the amount of flooding say nothing about data. The one exception is marked: a private scale.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import frexp, isfinite, log2

import numpy as np

from securefed.crypto.ckks.layout import CkksLayout, RowLayout
from securefed.crypto.ckks.noise import FRESH, MOST_MULTIPLIER_BITS, MOST_TERMS, Noise
from securefed.crypto.ckks.parameters import (
    ALIGNMENT_BITS,
    CAPACITY_BITS,
    DATA_BITS,
    LEAST_MULTIPLIER_BITS,
    MULTIPLIER_BITS,
)
from securefed.crypto.errors import CapacityError
from securefed.crypto.fixed import FixedPoint

__all__ = ["MOST_SCALE", "ArrayForm", "added", "fresh_form", "plain_added", "product_form"]

MOST_SCALE = 1200
_LEAST_POWER, _MOST_POWER = -512, 1000


@dataclass(frozen=True)
class ArrayForm:
    layout: CkksLayout
    bound: float
    """Every |value| is at most this."""
    scale: int
    """Values are multiplied by 2^scale."""
    magnitude: float
    """Relevant coefficients stay below 2^magnitude."""
    noise: Noise = FRESH
    product: bool = False
    """It is a product, and cannot be multiplied again."""
    private: bool = False
    """The scale has a private part: the power of two of a party's multipliers."""
    aligned: bool = False
    """A sum of arrays with private scales. Its declared magnitude and noise have room for aligning them."""
    room: int = 0
    """Unused bits of that room. Private, never sent."""

    def __post_init__(self) -> None:
        if self.magnitude > CAPACITY_BITS:
            raise CapacityError(
                f"the result would take {self.magnitude:.1f} bits, {CAPACITY_BITS:.0f} are available: "
                f"add fewer arrays, or open in between"
            )
        if abs(self.scale) > MOST_SCALE or not isfinite(self.bound):
            raise CapacityError(f"a scale of 2^{self.scale} is out of range: declare other bounds")


def power_above(number: float) -> int:
    """Return the least n with number <= 2^n, and at least -512."""
    mantissa, exponent = frexp(number)
    return max(exponent - (mantissa == 0.5), _LEAST_POWER)


def fresh_form(shape: tuple[int, ...], fixed: FixedPoint) -> ArrayForm:
    power = power_above(fixed.bound)
    return ArrayForm(RowLayout(shape), fixed.bound, DATA_BITS - power, DATA_BITS + log2(fixed.bound) - power)


def plain_added(form: ArrayForm) -> ArrayForm:
    """Return the form of a sum with plain numbers no larger than the bound."""
    return replace(form, bound=2 * form.bound, magnitude=form.magnitude + 1)


def added(low: ArrayForm, high: ArrayForm) -> tuple[ArrayForm, int]:
    """Return the form of a sum, and the lift: the power of two that multiplies the array of lower scale.

    Public scales are aligned exactly. If one is private, the lift is private too. The form then always
    declares ALIGNMENT_BITS for it, once for all further sums.
    """
    lift = high.scale - low.scale
    bits = low.noise.multiplier_bits - low.room + lift, high.noise.multiplier_bits - high.room
    magnitude = float(np.logaddexp2(low.magnitude + lift, high.magnitude))
    private, room = low.private or high.private, 0
    if private:
        extra = [0 if form.aligned else ALIGNMENT_BITS for form in (low, high)]
        declared = max(form.noise.multiplier_bits + e for form, e in zip((low, high), extra, strict=True))
        largest = max(low.magnitude + extra[0], high.magnitude + extra[1])
        room, magnitude = declared - max(bits), largest + 1
        if room < 0 or low.magnitude - low.room + lift > largest:
            raise CapacityError(
                f"the scales of the two products are too far apart to add them up: more than a factor of "
                f"{2**ALIGNMENT_BITS} between their largest multipliers; give both a public `fixed`"
            )
        bits = declared, declared
    if max(bits) > MOST_MULTIPLIER_BITS:
        raise CapacityError(f"the scales of the two arrays are 2^{lift} apart: too far to add them up")
    terms = low.noise.terms + high.noise.terms
    if terms > MOST_TERMS:
        raise CapacityError(f"a sum of {terms} encryptions given, at most {MOST_TERMS} are allowed")
    noise = Noise(terms, max(bits), max(low.noise.blocks, high.noise.blocks))
    return (
        ArrayForm(
            low.layout,
            low.bound + high.bound,
            high.scale,
            magnitude,
            noise,
            low.product or high.product,
            private,
            aligned=private,
            room=room,
        ),
        lift,
    )


def product_form(
    form: ArrayForm, layout: CkksLayout, largest: float, fixed: FixedPoint | None, blocks: int, terms: int
) -> tuple[ArrayForm, int]:
    """Return the form of a product, and the power of two that scales the multipliers.

    The multipliers are divided by a power of two not below the largest (or the bound of `fixed`). They take
    as many bits as the sum over `blocks` leaves, at most 32. One value is a sum of `terms` products.
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
    power = power_above(fixed.bound if fixed else largest or 1.0)
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
        True,
        fixed is None,
    )
    return result, scale
