"""The encryptor's arithmetic: blocks of U as ciphertexts, and the reading of replies.

A message is a fresh seed of 32 bytes and then, for each chunk of `Layout.chunks`, the residues of c0,
packed. c1 is expanded from the seed in the Y-domain, where the multiplier needs it, and interpolated here. A
party cannot send any other c1.
"""

from __future__ import annotations

from math import prod
from typing import cast

import numpy as np
from numpy.typing import NDArray

from securefed.crypto.blind.layout import Chunk, Layout, bodies_from_bytes, kept_limbs
from securefed.crypto.blind.rerandomise import PAIRS, nonce_polynomials
from securefed.crypto.blind.shares import (
    LIMBS,
    WIDTH,
    Floats,
    Share,
    carry,
    from_bytes,
    from_floats,
    shift_left,
    size_in_bytes,
)
from securefed.crypto.errors import RangeError
from securefed.crypto.lattice.convolution import BATCH, DEGREE, Spectra, multiply, spectrum
from securefed.crypto.lattice.ring import RING, reduce
from securefed.crypto.lattice.sampling import SEED_BYTES, errors
from securefed.crypto.randomness import ByteSource

__all__ = ["Secret", "encrypted", "public_key", "read"]

Secret = NDArray[np.int8]
"""s: 4096 coefficients in -1, 0, 1."""
MOST_MESSAGE = 2.0**52
RESPONSES = 4
"""Responses that are read at a time: they stay in the processor's cache."""


def public_key(secret: Secret, nonce: bytes, source: ByteSource) -> bytes:
    """Return b_i = -(a_i s + e_i) for the seven a_i of a nonce, packed as (5, 7, 4096)."""
    noise = errors(source, PAIRS * DEGREE).reshape(PAIRS, DEGREE)
    keys, factor = nonce_polynomials(nonce), spectrum(secret)
    for index, prime in enumerate(RING.primes):
        keys[index] = -multiply(keys[index], factor)
        keys[index] -= noise
        reduce(keys[index], prime)
    return RING.to_bytes(keys)


def _messages(rows: Floats | Share, chunk: Chunk, digits: int, size: int) -> list[Floats]:
    """Return round(q m 2**(size digit) / 2**105) for each prime: (ciphertexts, t, columns), below 2**52."""
    if rows.dtype != np.int64:
        scaled = np.rint(rows * (RING.modulus / 2.0**WIDTH))
        largest = float(np.abs(scaled).max())
        if not largest < MOST_MESSAGE:
            raise RangeError(f"left factor: {largest:.3g} after scaling, below 2**52 is allowed")
        if digits == 1:
            return [chunk.arranged(scaled)] * len(RING.primes)
        rows = from_floats(cast(Floats, rows), 0)
    digit_parts = []
    for digit in range(digits):
        lifted = RING.lifted(shift_left(cast(Share, rows), size * digit))
        digit_parts.append([chunk.arranged(residues) for residues in lifted])
    return [np.concatenate(parts) for parts in zip(*digit_parts, strict=True)]


def encrypted(source: ByteSource, secret: Secret, plan: Layout, rows: Floats | Share) -> bytes:
    """Encrypt one block of rows of U.

    Parameters
    ----------
    source: secret bytes.
    secret: the key.
    plan: the layout of the product.
    rows: the block's rows, floats (rows, left) or limbs (5, rows, left).

    Returns
    -------
    The message.

    Raises
    ------
    RangeError for floats that are not finite or too large.
    """
    seed = source(SEED_BYTES)
    factor, parts, chunks = spectrum(secret), [seed], plan.chunks(rows.shape[-2])
    largest = max(chunk.total for chunk in chunks)
    expanded, residues = np.empty(largest * DEGREE), np.empty(largest * DEGREE)
    for chunk in chunks:
        panel, total = chunk.panel, chunk.total
        own = rows[..., chunk.first : chunk.last, panel.first : panel.last]
        messages = _messages(own, chunk, plan.product.digits, plan.product.digit_size)
        shape = (total, panel.rows, panel.sent)
        heads, words = residues[: prod(shape)].reshape(shape), np.zeros(chunk.size // 8, dtype="<i8")
        noise = errors(source, heads.size).astype(np.float64).reshape(shape)
        for index, prime in enumerate(RING.primes):
            values = expanded[: total * DEGREE]
            RING.expand(seed, chunk.label, index, total * DEGREE, values)
            values = values.reshape(panel.rows, total, panel.span)
            for start in range(0, total, BATCH):
                batch = slice(start, start + BATCH)
                products = _times_secret(factor, index, values[:, batch])[..., : panel.sent]
                np.subtract(noise[batch], products, out=heads[batch])
                heads[batch, :, : panel.width] += messages[index][batch]
                reduce(heads[batch], prime)
            RING.pack(words, index, heads)
        parts.append(words.tobytes())
    return b"".join(parts)


def _times_secret(factor: Spectra, index: int, values: Floats) -> Floats:
    """Return the coefficients of c1 s, (n, t, D), for c1 in the Y-domain, (t, n, D), modulo one prime."""
    coefficients = RING.y_domain(index, len(values)).interpolate(np.ascontiguousarray(values))
    arranged = reduce(coefficients, RING.primes[index]).transpose(1, 0, 2)
    return multiply(arranged.reshape(-1, DEGREE), factor).reshape(arranged.shape)


def read(secret: Secret, plan: Layout, reply: bytes) -> Share:
    """Return c0 + c1 s at the places of U'V, modulo 2**105: (5, left, right). The reply's length is right."""
    product, factor, start = plan.product, spectrum(secret), 0
    bits, kept = plan.body_bits, kept_limbs(plan.body_bits)
    at = len(reply) - size_in_bytes(product.left * product.right)
    share = from_bytes(reply[at:], (LIMBS, product.left, product.right))
    for panel in plan.panels:
        by_response = np.empty((kept, panel.responses, panel.sent), dtype=np.int64)
        for first in range(0, panel.responses, RESPONSES):
            last = min(first + RESPONSES, panel.responses)
            end = start + (last - first) * plan.response_bytes
            bodies = bodies_from_bytes(memoryview(reply)[start:end], (last - first, DEGREE), bits)
            products = multiply(bodies.reshape(-1, DEGREE).astype(np.float64), factor, panel.sent)
            by_response[:, first:last] = products.reshape(kept, last - first, panel.sent)
            start = end
        places, groups = panel.places()
        for limb in range(kept):
            share[limb + LIMBS - kept, panel.first : panel.last] += by_response[limb][groups, places]
    return carry(share)
