"""Making a public key from a secret one: an encryption of zero and the Galois keys for merging.

Every part is b = -(a s + e) modulo p0 p1 p2 with a uniform and e small. Where it is the key that leads from
sigma(s) back to s, digit i also carries p2 * sigma(s) in its residue modulo p_i (SEAL's form: the digits of a
ciphertext are its residues, and p2 is divided out at the end). All the a come from one public seed, so a
public key is a seed and the b: half the size.
"""

from __future__ import annotations

import os

import numpy as np

from securefed.crypto.ckks.parameters import DATA_PRIMES, GALOIS_STRIDES, PRIMES, RING, galois_element
from securefed.crypto.ckks.residues import Integers, Words, add, from_pieces, multiply, subtract
from securefed.crypto.ckks.sampling import SEED_BYTES, errors, expand
from securefed.crypto.ckks.sealbytes import to_ntt

__all__ = ["ELEMENTS", "PARTS", "automorphism", "public_parts"]

ELEMENTS = tuple(galois_element(stride) for stride in GALOIS_STRIDES)
PARTS = 1 + len(DATA_PRIMES) * len(ELEMENTS)
"""The encryption of zero, then for each Galois element one part for each data prime."""


def automorphism(polynomial: Integers, element: int) -> Integers:
    """p(X^element) modulo X^N + 1."""
    exponents = np.arange(RING) * element % (2 * RING)
    result = np.zeros_like(polynomial)
    result[exponents % RING] = np.where(exponents < RING, polynomial, -polynomial)
    return result


def public_parts(ternary: Integers) -> tuple[bytes, Words]:
    """A fresh seed and the (PARTS, 3, N) residues b in NTT form that belong to a secret key."""
    seed = os.urandom(SEED_BYTES)
    images = [ternary, *(automorphism(ternary, element) for element in ELEMENTS)]
    # One by one: the transforms are permutations of each other, and together they would be compressed.
    key, *turned = (to_ntt(from_pieces(image[None], 0, primes=len(PRIMES)))[0] for image in images)
    zero = np.zeros_like(key)
    noise = to_ntt(from_pieces(errors(PARTS * RING).reshape(PARTS, RING), 0, primes=len(PRIMES)))
    masks = expand(seed, PARTS, len(PRIMES))
    parts = [subtract(zero, add(multiply(a, key), e)) for a, e in zip(masks, noise, strict=True)]
    special = np.array([[PRIMES[-1] % prime] for prime in PRIMES], dtype=np.uint64)
    for i, image in enumerate(turned):
        scaled = multiply(image, np.broadcast_to(special, image.shape))
        for digit in range(len(DATA_PRIMES)):
            part, row = parts[1 + len(DATA_PRIMES) * i + digit], slice(digit, digit + 1)
            carried = np.zeros_like(part)
            carried[row] = scaled[row]
            parts[1 + len(DATA_PRIMES) * i + digit] = add(part, carried)
    return seed, np.stack(parts)
