"""Additive shares of whole numbers modulo t = 2**SHARE_BITS, and products of them by way of hidden arrays.

A hidden number x is x = x_1 + x_2 modulo t, one share at each of two parties; each share alone is uniform.
Sums, and products by numbers that both know, are made on the shares. A product of a matrix M that one party
knows (its own columns, or its share of something) with the other's share x takes one round trip:

    k -> p    [[x]]_k, an array that k hides under its own key
    p -> k    [[M x + mask]]_k; k reads M x + mask, its share of M x; p's is -mask

so a product of two shared matrices is two of them, at once. With a key-holder party C, where k
lacks the key:

    k -> p    [[x]]_C, an array that k hides under C's public key
    p -> C    [[M x + mask]]_C; C reads M x + mask
    C -> k    that modulo t: k's share of M x; p's is -mask

What p multiplies by is cut into digits
(`digits`), and k hides the multiples of x that belong to them (`multiples`), so that multipliers stay small
where ciphertexts carry noise. Nobody sees anything: masks are uniform modulo the ring's q under RLWE, and as
much wider than the values as the whole run needs under Paillier (`HiddenSum.lend`).

Under RLWE x travels as round(q x / t), as in BFV, so that sums wrap modulo t where the ring wraps modulo q;
the noise stays below q / t, and shares that are scaled back are right up to a unit or two (of products, which
lose 28 bits or more to truncation). Whoever lacks the secret key encrypts with 2**7 times the noise, and then
it is some 2 + sqrt(inner) / 4 units. Under Paillier whole numbers do not wrap at all.

*Truncation* (to a smaller scale) is local: each party shifts its share. The result is off by a unit, and
wrong altogether with probability |x| / t (Mohassel and Zhang, SecureML, theorem 1): with values below 2**76
that is below 2**-36 each.
"""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray

from securefed.crypto.errors import ShapeError
from securefed.crypto.hidden import HidingLayout, Wide
from securefed.crypto.randomness import uniform_integers
from securefed.crypto.scheme import PublicKey
from securefed.crypto.wire import Frame, Kind

__all__ = [
    "DIGITS",
    "DIGIT_BITS",
    "SHARE_BITS",
    "centred",
    "digits",
    "from_bytes",
    "multiples",
    "read_share",
    "reduced",
    "scaled_back",
    "scaled_up",
    "split",
    "to_bytes",
    "truncated",
    "write_share",
]

SHARE_BITS = 112
SHARE_BYTES = SHARE_BITS // 8
SALT_BYTES = 16
DIGIT_BITS = 38
DIGITS = 3
"""Digits of DIGIT_BITS that make up a share."""
_T = 1 << SHARE_BITS


def reduced(integers: Wide) -> Wide:
    """Modulo t, from 0 on."""
    return integers & (_T - 1)


def centred(integers: Wide) -> Wide:
    """Modulo t, around 0."""
    return ((integers + (_T >> 1)) & (_T - 1)) - (_T >> 1)


def split(values: Wide) -> tuple[Wide, Wide]:
    """Two shares of values."""
    drawn = np.array(uniform_integers(values.size, SHARE_BITS), dtype=object).reshape(values.shape)
    return drawn, reduced(values - drawn)


def truncated(share: Wide, bits: int, *, first: bool) -> Wide:
    """A share of the value without its low `bits`; one of the two parties is the first."""
    return share >> bits if first else reduced(-((-share & (_T - 1)) >> bits))


def digits(share: Wide) -> NDArray[np.float64]:
    """(rows, DIGITS x columns): the digits of a share as multipliers, the lowest first, around 0."""
    found, rest = [], centred(share)
    half = 1 << (DIGIT_BITS - 1)
    for _ in range(DIGITS):
        digit = ((rest + half) & ((1 << DIGIT_BITS) - 1)) - half
        found.append(digit.astype(np.float64))
        rest = (rest - digit) >> DIGIT_BITS
    return np.hstack(found)


def multiples(share: Wide) -> Wide:
    """(DIGITS x rows, columns): what digits of the other's share are multiplied with."""
    return np.vstack([reduced(share << (DIGIT_BITS * place)) for place in range(DIGITS)])


def scaled_up(layout: HidingLayout, share: Wide) -> Wide:
    """A share as whole numbers to hide."""
    q = layout.wraps
    return centred(share) if not q else _rounded(reduced(share) * q, _T)


def scaled_back(layout: HidingLayout, integers: Wide) -> Wide:
    """A share from what was read, or from masks with their sign changed."""
    q = layout.wraps
    return reduced(integers if not q else _rounded(integers * _T, q))


def _rounded(numerators: Wide, denominator: int) -> Wide:
    return (2 * numerators + denominator) // (2 * denominator)


def to_bytes(share: Wide) -> bytes:
    return b"".join(int(value).to_bytes(SHARE_BYTES, "little") for value in share.ravel())


def from_bytes(raw: bytes, shape: tuple[int, int]) -> Wide:
    if len(raw) != shape[0] * shape[1] * SHARE_BYTES:
        raise ShapeError(f"{len(raw)} bytes of shares given, {shape} numbers of {SHARE_BYTES} are due")
    values = [int.from_bytes(raw[i : i + SHARE_BYTES], "little") for i in range(0, len(raw), SHARE_BYTES)]
    return np.array(values, dtype=object).reshape(shape)


def write_share(public: PublicKey, share: Wide) -> bytes:
    """A share, from the holder of the key that it was read with to its owner; a frame of kind OPENED.

    It ends in random bytes: transcripts have a hash of every message, and whoever multiplied knows the mask
    and could try guesses at what was multiplied on it.
    """
    payload = to_bytes(share) + os.urandom(SALT_BYTES)
    return public.frame(Kind.OPENED, payload, (share.shape[0], share.shape[1])).to_bytes()


def read_share(public: PublicKey, blob: bytes, shape: tuple[int, int]) -> Wide:
    """The same, as it arrived."""
    frame = Frame.from_bytes(blob, Kind.OPENED).expect(public.scheme, public.parameters, public.key_id)
    if frame.shape != shape:
        raise ShapeError(f"shares of shape {frame.shape} given, {shape} expected")
    return from_bytes(frame.payload[: max(0, len(frame.payload) - SALT_BYTES)], shape)
