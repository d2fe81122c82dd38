"""The group of the set intersection: Curve25519 by u-coordinates, with `cryptography`'s X25519.

Ids are hashed to the curve as RFC 9380 says (suite curve25519_XMD:SHA-512_ELL2_NU_), u-coordinate only.
Elligator 2 always lands on the curve. Other bytes would lie on its quadratic twist for half of the ids, and
masking keeps it so: each masked id would show one bit of its hash.

X25519 takes scalars of the form 8m with bit 254 set. The factor 8 sends a point into the subgroup of prime
order ORDER, so a point of small order, or one moved by such a point, tells its sender nothing: the first
gives all zeros, which `multiply` refuses, the second is the same point again. What others send may lie on the
twist. Its order is 4 times a prime of 253 bits, so such a point hides the scalar as well.

A mask that has to come off again needs a scalar whose inverse mod ORDER is of the form 8m too. One residue
in two has such a representative, so `draw_pair` finds a scalar and its inverse after two draws on average;
the scalar is then uniform on a quarter of the group, which spares an attacker two bits of 252.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterable, Sequence

import gmpy2
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from securefed.errors import DataError

PRIME = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
POINT = 32
"""Bytes of a point, and of a scalar."""
_J = 486662
_LENGTH = 48  # bytes of SHA-512 output a field element: 128 bits more than the prime, so that it is uniform
_ORDER_INVERSE = pow(ORDER, -1, 8)


class SmallOrder(DataError):
    """A point that no honest party sends: any multiple of it is the neutral element."""


def hash_to_curve(messages: Sequence[bytes], tag: bytes) -> list[bytes]:
    """One u-coordinate on the curve for each message. `tag` separates uses: the RFC's DST."""
    if not 0 < len(tag) < 256:
        raise DataError(f"tag: {len(tag)} bytes given, 1 to 255 are allowed")
    suffix = tag + bytes([len(tag)])
    start = hashlib.sha512(bytes(128))
    points = (_elligator(_to_field(start.copy(), message, suffix)) for message in messages)
    return [point.to_bytes(POINT, "little") for point in points]


def _to_field(state: hashlib._Hash, message: bytes, suffix: bytes) -> int:
    """expand_message_xmd and hash_to_field for one element; `state` has taken the zero padding."""
    state.update(message + _LENGTH.to_bytes(2, "big") + b"\0" + suffix)
    block = hashlib.sha512(state.digest() + b"\1" + suffix).digest()
    return int.from_bytes(block[:_LENGTH], "big") % PRIME


def _elligator(r: int) -> int:
    """Elligator 2: exactly one of x and -x - J is on the curve, for x = -J / (1 + 2 r^2).

    The denominator is never 0: -1/2 is not a square modulo this prime.
    """
    x = -_J * int(gmpy2.invert(1 + 2 * r * r, PRIME)) % PRIME
    return x if gmpy2.jacobi((x * x + _J * x + 1) * x % PRIME, PRIME) >= 0 else (-x - _J) % PRIME


def multiply(scalar: bytes, points: Iterable[bytes]) -> list[bytes]:
    key = X25519PrivateKey.from_private_bytes(scalar)
    try:
        return [key.exchange(X25519PublicKey.from_public_bytes(point)) for point in points]
    except ValueError:
        raise SmallOrder("a point of small order was given; none of those belongs to an id") from None


def public(scalar: bytes) -> bytes:
    """The base point times the scalar, for an ordinary X25519 key agreement."""
    return X25519PrivateKey.from_private_bytes(scalar).public_key().public_bytes_raw()


def draw_scalar(bits: Callable[[int], int] = secrets.randbits) -> bytes:
    """Draw a secret scalar, by default from the operating system."""
    return (2**254 + 8 * bits(251)).to_bytes(POINT, "little")


def draw_pair(bits: Callable[[int], int] = secrets.randbits) -> tuple[bytes, bytes]:
    """Draw a secret scalar, and the one that undoes it."""
    while True:
        scalar = draw_scalar(bits)
        residue = int.from_bytes(scalar, "little") % ORDER
        undo = _representative(pow(residue, -1, ORDER)) if residue else None
        if undo is not None:
            return scalar, undo


def _representative(residue: int) -> bytes | None:
    """The integer that X25519 takes as a scalar and that is this residue mod ORDER, if there is one."""
    value = residue + ORDER * (-residue * _ORDER_INVERSE % 8)
    return value.to_bytes(POINT, "little") if 2**254 <= value < 2**255 else None
