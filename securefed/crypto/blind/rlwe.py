"""`cross` by ring learning with errors: N = 4096, log2 q = 104.4.

    encryptor    c1 = a, expanded from a seed;  c0 = e - a s + round(q U / 2**105);  sends the seed and c0
    multiplier   sums of ciphertexts times V, then in this order:
                 re-randomise, switch from q to 2**105, add a mask that is uniform modulo 2**105;
                 sends the highest 71 or 42 bits of c1, and c0 at the places of U'V alone
    encryptor    reads c0 + c1 s

docs/security.md and docs/proofs.md say why a reply shows nothing of V, for any ciphertexts and any public key
that the encryptor sent. Time and size depend on shapes alone.

A message is a fresh seed of 32 bytes and then, for each chunk of `Layout.chunks`, the residues of c0, packed.
c1 is expanded from the seed in the Y-domain and interpolated here. A party cannot send any other c1.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

from securefed.crypto import shares
from securefed.crypto.blind.evaluation import (
    PAIRS,
    RESPONSES,
    Rerandomiser,
    Sums,
    add_sums,
    multiplied,
    nonce_polynomials,
    responded,
)
from securefed.crypto.blind.interface import (
    CrossKey,
    CrossPublic,
    CrossScheme,
    Evaluation,
    FactorRows,
    Lengths,
    Operand,
    Product,
    limbs_of,
)
from securefed.crypto.blind.layout import Chunk, Layout, bodies_from_bytes, kept_limbs, layout
from securefed.crypto.lattice.ring import BATCH, DEGREE, RING, Spectra, multiply, reduce, spectrum
from securefed.crypto.randomness import SEED_BYTES, ByteSource, errors, key_stream, secret_bytes, ternary
from securefed.crypto.scheme import SERIAL, Mapper
from securefed.crypto.shares import LIMBS, WIDTH, Floats, Share, size_in_bytes
from securefed.crypto.wire import check_length
from securefed.errors import BadKey

Secret = NDArray[np.int8]
"""s: 4096 coefficients in -1, 0, 1."""
PUBLIC_BYTES = size_in_bytes(DEGREE * PAIRS, len(RING.primes))


def public_polynomials(secret: Secret, nonce: bytes, source: ByteSource) -> bytes:
    """Return b_i = -(a_i s + e_i) for the seven a_i of a nonce, packed as (5, 7, 4096)."""
    products = multiply(nonce_polynomials(nonce), spectrum(secret))
    return RING.to_bytes(RING.reduced(-products - errors(source, PAIRS, DEGREE)))


def _messages(rows: FactorRows, chunk: Chunk, digits: int, size: int) -> list[Floats]:
    """Return round(q m 2**(size digit) / 2**105) for each prime: (ciphertexts, t, columns), below 2**51."""
    if rows.dtype != np.int64 and digits == 1:
        return [chunk.arranged(np.rint(rows * (RING.modulus / 2.0**WIDTH)))] * len(RING.primes)
    limbs, digit_parts = limbs_of(rows), []
    for digit in range(digits):
        lifted = RING.lifted(shares.shift_left(limbs, size * digit))
        digit_parts.append([chunk.arranged(residues) for residues in lifted])
    return [np.concatenate(parts) for parts in zip(*digit_parts, strict=True)]


def encrypted_block(source: ByteSource, secret: Secret, plan: Layout, rows: FactorRows) -> bytes:
    """Return the message of one block of rows of U."""
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
        noise = errors(source, *shape).astype(np.float64)
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


def read_reply(secret: Secret, plan: Layout, reply: bytes) -> Share:
    """Return c0 + c1 s at the places of U'V, modulo 2**105: (5, left, right). The reply's length is right."""
    product, factor, start = plan.product, spectrum(secret), 0
    bits, kept = plan.body_bits, kept_limbs(plan.body_bits)
    at = len(reply) - size_in_bytes(product.left * product.right)
    share = shares.from_bytes(reply[at:], (LIMBS, product.left, product.right))
    for panel in plan.panels:
        by_response = np.empty((kept, panel.responses, panel.sent), dtype=np.int64)
        for first in range(0, panel.responses, RESPONSES):
            last = min(first + RESPONSES, panel.responses)
            end = start + (last - first) * plan.response_bytes
            bodies = bodies_from_bytes(memoryview(reply)[start:end], (last - first, DEGREE), bits)
            by_response[:, first:last] = multiply(bodies.astype(np.float64), factor, panel.sent)
            start = end
        places, groups = panel.places()
        for limb in range(kept):
            share[limb + LIMBS - kept, panel.first : panel.last] += by_response[limb][groups, places]
    return shares.carry(share)


def _encrypt_block(task: tuple[Secret, Product, FactorRows, bytes]) -> bytes:
    secret, product, rows, seed = task
    return encrypted_block(key_stream(seed), secret, layout(product), rows)


def _multiply_blocks(task: tuple[Product, Sequence[tuple[bytes, FactorRows]]]) -> list[Sums]:
    product, blocks = task
    totals: list[Sums] = []
    for message, rows in blocks:
        add_sums(totals, multiplied(layout(product), message, rows))
    return totals


LENGTHS = Lengths(
    PUBLIC_BYTES,
    lambda product: layout(product).blocks(),
    lambda product, rows: layout(product).block_bytes(rows),
    lambda product: layout(product).reply_bytes(),
)


class RlweKey(CrossKey):
    """A ternary secret and the seed of the errors of its public keys, both from one seed."""

    lengths = LENGTHS

    def __init__(self, seed: bytes) -> None:
        check_length("secret key", seed, SEED_BYTES, BadKey)
        source, self._seed = key_stream(seed), seed
        super().__init__(ternary(source, DEGREE))
        self._error_seed = source(SEED_BYTES)

    def _public(self, nonce: bytes) -> bytes:
        """Return b_1..b_7. The same nonce gets the same bytes: fresh errors could be averaged away."""
        secret, seed = self._secret, hashlib.sha256(self._error_seed + nonce).digest()
        return public_polynomials(secret, nonce, key_stream(seed))

    def _encrypt(
        self, product: Product, blocks: Sequence[int], operand: Operand, mapper: Mapper, repeatable: bool
    ) -> list[bytes]:
        secret, tasks = self._secret, []
        for block in blocks:
            rows = self._rows(product, block, operand)
            seed = self._seed_of(product, block, rows) if repeatable else os.urandom(SEED_BYTES)
            tasks.append((secret, product, rows, seed))
        return (mapper if len(blocks) > 1 else SERIAL).map(_encrypt_block, tasks)

    def _seed_of(self, product: Product, block: int, rows: FactorRows) -> bytes:
        """The randomness of a block, from the key and all that is encrypted."""
        content = f"{product} {block}".encode() + np.ascontiguousarray(rows).tobytes()
        return hashlib.blake2b(
            content, key=self._error_seed, person=b"repeatable", digest_size=SEED_BYTES
        ).digest()

    def _read(self, product: Product, reply: bytes) -> Share:
        return read_reply(self._secret, layout(product), reply)

    def to_bytes(self) -> bytes:
        _ = self._secret  # raises once it is erased
        return self._seed

    def erase(self) -> None:
        if self._kept is not None:
            self._kept[:] = 0
        super().erase()
        self._error_seed, self._seed = b"", b""

    def __repr__(self) -> str:
        return f"<rlwe key{' (erased)' if self._kept is None else ''}>"


class RlwePublic(CrossPublic):
    lengths = LENGTHS

    def __init__(self, nonce: bytes, keys: Floats) -> None:
        self._rerandomiser = Rerandomiser(nonce, keys)

    def evaluate(self, product: Product, seed: bytes | None = None) -> Evaluation:
        source = secret_bytes() if seed is None else key_stream(seed)
        return RlweEvaluation(layout(product), self._rerandomiser, source)


class RlweEvaluation(Evaluation):
    def __init__(self, plan: Layout, rerandomiser: Rerandomiser, source: ByteSource) -> None:
        super().__init__(plan.product, LENGTHS)
        self._plan, self._rerandomiser, self._source = plan, rerandomiser, source
        self._totals: list[Sums] = []

    def _multiply(self, pieces: Sequence[tuple[bytes, FactorRows]], mapper: Mapper) -> None:
        # One task a process: each returns one sum, however many blocks it has.
        size = max(1, -(-len(pieces) // mapper.workers))
        tasks = [(self._product, pieces[start : start + size]) for start in range(0, len(pieces), size)]
        for sums in (mapper if len(pieces) > 1 else SERIAL).map(_multiply_blocks, tasks):
            add_sums(self._totals, sums)

    def _reply(self) -> tuple[bytes, Share]:
        totals, self._totals = self._totals, []
        return responded(self._source, self._plan, totals, self._rerandomiser)


def _read_public(data: bytes, nonce: bytes) -> CrossPublic:
    return RlwePublic(nonce, RING.from_bytes(data, (PAIRS, DEGREE)))


RLWE = CrossScheme("rlwe", lambda: RlweKey(os.urandom(SEED_BYTES)), _read_public, RlweKey)


def cross_scheme(key_bits: int) -> CrossScheme:
    """For the registry of schemes. The ring has one size."""
    return RLWE


def cross_lengths(key_bits: int) -> Lengths:
    return LENGTHS
