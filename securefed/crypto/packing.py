"""Packing: several signed integers in one plaintext, with headroom that is derived and kept.

    P = v_0 + v_1 * 2**w + v_2 * 2**(2 w) + ...        |v_j| <= limit < 2**b,   w = b + 2

P is a signed integer, taken mod n when it is encrypted. Adding two P adds their slots, and multiplying P
by an integer multiplies every slot by it, as long as no slot passes the plan's limit. The plan is made for
a number of terms of a size and a multiplier of a size, says what that takes, and refuses more: a slot that
overflowed would run into its neighbour and nobody would notice.

Unpacking goes from low to high, each slot centred around 0 with its borrow handed on to the next; what is
left above the last slot has to be 0, or the plaintext was not one of this plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import gmpy2
from gmpy2 import mpz

from securefed.crypto.errors import CapacityError, RangeError, ShapeError

__all__ = ["PackingPlan", "pack", "slots_for", "unpack"]


def slots_for(modulus_bits: int, width: int) -> int:
    """How many slots of this width a plaintext of that many bits carries, sign included; at least one."""
    return max(1, (modulus_bits - 2) // width)


@dataclass(frozen=True)
class PackingPlan:
    """Room for `terms` values up to `magnitude`, each times an integer up to `multiplier`, signs aside."""

    modulus_bits: int
    magnitude: int
    terms: int = 1
    multiplier: int = 1

    def __post_init__(self) -> None:
        for name in ("modulus_bits", "magnitude", "terms", "multiplier"):
            given = getattr(self, name)
            if not isinstance(given, int) or isinstance(given, bool) or given < 1:
                raise RangeError(f"{name}: {given!r} given, a whole number of at least 1 is allowed")
        if self.value_bits > self.modulus_bits - 2:
            raise CapacityError(
                f"{self.terms} terms of {self.magnitude.bit_length()} bits times "
                f"{self.multiplier.bit_length()} bits take {self.value_bits} bits, "
                f"a plaintext of this key holds {self.modulus_bits - 2}"
            )

    @property
    def limit(self) -> int:
        """The largest magnitude that a slot may reach."""
        return self.magnitude * self.terms * self.multiplier

    @property
    def value_bits(self) -> int:
        """b with limit < 2**b."""
        return self.limit.bit_length()

    @property
    def width(self) -> int:
        """Bits per slot."""
        return self.value_bits + 2

    @property
    def slots(self) -> int:
        """Values per ciphertext."""
        return slots_for(self.modulus_bits, self.width)

    def ciphertexts(self, values: int) -> int:
        """How many ciphertexts that many values take."""
        return -(-values // self.slots)

    def terms_left(self, magnitude: int) -> int:
        """How many arrays of the plan's own magnitude can be added to one whose slots reach `magnitude`."""
        return max(0, (self.limit - magnitude) // self.magnitude)

    def admit(self, magnitude: int) -> int:
        """`magnitude` itself, or CapacityError when slots would pass the limit."""
        if magnitude > self.limit:
            raise CapacityError(
                f"slots would reach {magnitude}, this plan has room up to {self.limit} "
                f"({self.terms} terms of {self.magnitude} times at most {self.multiplier})"
            )
        return magnitude


def pack(values: Sequence[int], width: int) -> mpz:
    """The signed integer sum of values[j] * 2**(width * j); every |value| must be below 2**(width - 1)."""
    if not values:
        raise ShapeError("nothing to pack: the list of values is empty")
    if width < 2:
        raise RangeError(f"width: {width} given, at least 2 is allowed")
    half = mpz(1) << (width - 1)
    shifted = [value + half for value in values]
    if min(shifted) <= 0 or max(shifted) >= 2 * half:
        raise CapacityError(
            f"a value reaches {max(abs(v) for v in values)}, a slot of {width} bits holds less than {half}"
        )
    return gmpy2.pack(shifted, width) - _offset(width, len(values))


def unpack(packed: int, width: int, count: int) -> list[int]:
    """The `count` values of a packed integer, or RangeError when it holds anything besides."""
    if count < 1:
        raise ShapeError(f"count: {count} given, at least 1 is allowed")
    if width < 2:
        raise RangeError(f"width: {width} given, at least 2 is allowed")
    # Half a slot added everywhere turns the centred digits with their borrows into plain digits at once.
    lifted = mpz(packed) + _offset(width, count)
    if lifted < 0 or lifted.bit_length() > width * count:
        raise RangeError(
            f"a remainder is left above the last of {count} slots of {width} bits: another plan's plaintext"
        )
    half = 1 << (width - 1)
    digits = [int(digit) - half for digit in gmpy2.unpack(lifted, width)]
    return digits + [-half] * (count - len(digits))


def _offset(width: int, count: int) -> mpz:
    """Half a slot in each of `count` slots."""
    return (mpz(1) << (width - 1)) * (((mpz(1) << (width * count)) - 1) // ((mpz(1) << width) - 1))
