"""`cross` by ring learning with errors: N = 4096, log2 q = 104.4.

    encryptor    c1 = a, expanded from a seed;  c0 = e - a s + round(q U / 2**105);  sends the seed and c0
    multiplier   sums of ciphertexts times V, then in this order:
                 re-randomise, switch from q to 2**105, add a mask that is uniform modulo 2**105;
                 sends the highest 70 or 42 bits of c1, and c0 at the places of U'V alone
    encryptor    reads c0 + c1 s

What each party learns. The multiplier sees ciphertexts under a key that it does not have: RLWE with a ternary
secret, where eprint 2024/463 allows 106 bits of q at this N for 128 bits of classical security. The encryptor
sees a c1 that is statistically close to uniform (`rerandomise`) and a c0 that is uniform because of the mask,
for any ciphertexts and any public key that it sent. Time and size depend on shapes alone: zeros are
multiplied as all other numbers are.

Nothing here opens anything for the multiplier, and no ciphertext has a c1 of the sender's choice.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence

import numpy as np

from securefed.crypto.blind import encryption
from securefed.crypto.blind.encryption import Secret, encrypted
from securefed.crypto.blind.evaluation import Sums, add_sums, multiplied, responded
from securefed.crypto.blind.interface import (
    NONCE_BYTES,
    CrossKey,
    CrossPublic,
    CrossScheme,
    Evaluation,
    Lengths,
    Operand,
    Product,
)
from securefed.crypto.blind.layout import Layout, layout
from securefed.crypto.blind.rerandomise import PAIRS, Rerandomiser
from securefed.crypto.blind.shares import Floats, Share, size_in_bytes
from securefed.crypto.errors import BadKey, FormatError, ShapeError
from securefed.crypto.lattice.convolution import DEGREE
from securefed.crypto.lattice.ring import RING
from securefed.crypto.lattice.sampling import SEED_BYTES, key_stream, secret_bytes, ternary
from securefed.crypto.randomness import ByteSource
from securefed.crypto.scheme import SERIAL, Mapper

__all__ = ["RLWE", "cross_lengths", "cross_scheme"]

PUBLIC_BYTES = size_in_bytes(DEGREE * PAIRS, len(RING.primes))


def _rows(operand: Operand, first: int, last: int, columns: int, side: str) -> Floats | Share:
    """Take rows of a factor and check their shape."""
    rows = operand(first, last)
    if rows.shape[-2:] != (last - first, columns) or rows.ndim != (3 if rows.dtype == np.int64 else 2):
        raise ShapeError(
            f"{side} factor: rows {first} to {last} have shape {rows.shape}, {columns} columns are due"
        )
    return rows


def _encrypt_block(task: tuple[Secret, Product, Floats | Share, bytes]) -> bytes:
    secret, product, rows, seed = task
    return encrypted(key_stream(seed), secret, layout(product), rows)


def _multiply_blocks(task: tuple[Product, list[tuple[bytes, Floats | Share]]]) -> list[Sums]:
    product, blocks = task
    totals: list[Sums] = []
    for message, rows in blocks:
        add_sums(totals, multiplied(layout(product), message, rows))
    return totals


class RlweKey(CrossKey):
    """A ternary secret and the seed of the errors of its public keys, both from one seed."""

    def __init__(self, seed: bytes) -> None:
        if len(seed) != SEED_BYTES:
            raise BadKey(f"secret key: {len(seed)} bytes given, {SEED_BYTES} are due")
        source, self._seed = key_stream(seed), seed
        self._secret: Secret | None = ternary(source, DEGREE)
        self._error_seed = source(SEED_BYTES)

    def _held(self) -> Secret:
        if self._secret is None:
            raise BadKey("the secret key was erased: it reads and encrypts nothing any more")
        return self._secret

    def public(self, nonce: bytes) -> bytes:
        """Return b_1..b_7 for the multiplier that sent this nonce.

        Errors depend on the nonce and on a secret seed. The same nonce gets the same bytes: fresh errors for
        the same a_i could be averaged away.
        """
        if len(nonce) != NONCE_BYTES:
            raise FormatError(f"nonce: {len(nonce)} bytes given, {NONCE_BYTES} are due")
        secret = self._held()
        seed = hashlib.sha256(self._error_seed + nonce).digest()
        return encryption.public_key(secret, nonce, key_stream(seed))

    def blocks(self, product: Product) -> list[tuple[int, int]]:
        return layout(product).blocks()

    def encrypt(
        self,
        product: Product,
        blocks: Sequence[int],
        operand: Operand,
        mapper: Mapper = SERIAL,
        *,
        repeatable: bool = False,
    ) -> list[bytes]:
        secret, places = self._held(), self.blocks(product)

        def task(block: int) -> tuple[Secret, Product, Floats | Share, bytes]:
            rows = _rows(operand, *places[block], product.left, "left")
            seed = self._seed_of(product, block, rows) if repeatable else os.urandom(SEED_BYTES)
            return secret, product, rows, seed

        return (mapper.local if len(blocks) > 1 else SERIAL).map(_encrypt_block, map(task, blocks))

    def _seed_of(self, product: Product, block: int, rows: Floats | Share) -> bytes:
        """The randomness of a block, from the key and all that is encrypted."""
        content = f"{product} {block}".encode() + np.ascontiguousarray(rows).tobytes()
        return hashlib.blake2b(
            content, key=self._error_seed, person=b"repeatable", digest_size=SEED_BYTES
        ).digest()

    def read(self, product: Product, reply: bytes) -> Share:
        secret, plan = self._held(), layout(product)
        if len(reply) != plan.reply_bytes():
            raise FormatError(f"reply: {len(reply)} bytes given, {plan.reply_bytes()} are due")
        return encryption.read(secret, plan, reply)

    def to_bytes(self) -> bytes:
        self._held()
        return self._seed

    def erase(self) -> None:
        if self._secret is not None:
            self._secret[:] = 0
        self._secret, self._error_seed, self._seed = None, b"", b""

    def __repr__(self) -> str:
        return f"<rlwe key{' (erased)' if self._secret is None else ''}>"


class RlwePublic(CrossPublic):
    """Somebody else's public key: it multiplies and answers."""

    def __init__(self, nonce: bytes, keys: Floats) -> None:
        self._rerandomiser = Rerandomiser(nonce, keys)

    def blocks(self, product: Product) -> list[tuple[int, int]]:
        return layout(product).blocks()

    def evaluate(self, product: Product, seed: bytes | None = None) -> Evaluation:
        source = secret_bytes() if seed is None else key_stream(seed)
        return RlweEvaluation(layout(product), self._rerandomiser, source)


class RlweEvaluation(Evaluation):
    """Sums of ciphertexts times V, until they are answered."""

    def __init__(self, plan: Layout, rerandomiser: Rerandomiser, source: ByteSource) -> None:
        super().__init__(plan.product, plan.blocks())
        self._plan, self._rerandomiser, self._source = plan, rerandomiser, source
        self._totals: list[Sums] = []

    def _multiply(self, blocks: Mapping[int, bytes], operand: Operand, mapper: Mapper) -> None:
        plan, product = self._plan, self._product
        for block, message in blocks.items():
            first, last = self._due[block]
            if len(message) != plan.block_bytes(last - first):
                raise FormatError(
                    f"block {block}: {len(message)} bytes given, {plan.block_bytes(last - first)} are due"
                )
        # One piece of work a process: each returns one sum, however many blocks it has.
        numbers = list(blocks)
        size = -(-len(numbers) // mapper.workers) if len(numbers) > 1 else 1
        tasks = (
            (
                product,
                [(blocks[n], _rows(operand, *self._due[n], product.right, "right")) for n in some],
            )
            for some in (numbers[start : start + size] for start in range(0, len(numbers), size))
        )
        for sums in (mapper if len(numbers) > 1 else SERIAL).map(_multiply_blocks, tasks):
            add_sums(self._totals, sums)

    def _reply(self) -> tuple[bytes, Share]:
        totals, self._totals = self._totals, []
        return responded(self._source, self._plan, totals, self._rerandomiser)


def _generate() -> CrossKey:
    return RlweKey(os.urandom(SEED_BYTES))


def _load_public(data: bytes, nonce: bytes) -> CrossPublic:
    if len(nonce) != NONCE_BYTES:
        raise BadKey(f"nonce: {len(nonce)} bytes given, {NONCE_BYTES} are due")
    if len(data) != PUBLIC_BYTES:
        raise BadKey(f"public key: {len(data)} bytes given, {PUBLIC_BYTES} are due")
    try:
        return RlwePublic(nonce, RING.from_bytes(data, (PAIRS, DEGREE)))
    except FormatError as error:
        raise BadKey(f"public key: {error}") from error


RLWE = CrossScheme("rlwe", _generate, _load_public, RlweKey)


class RlweLengths(Lengths):
    """Lengths that follow from layouts."""

    public = PUBLIC_BYTES

    def blocks(self, product: Product) -> list[tuple[int, int]]:
        return layout(product).blocks()

    def block(self, product: Product, rows: int) -> int:
        return layout(product).block_bytes(rows)

    def reply(self, product: Product) -> int:
        return layout(product).reply_bytes()


def cross_scheme(key_bits: int) -> CrossScheme:
    """For the registry of schemes; the ring has one size."""
    return RLWE


def cross_lengths(key_bits: int) -> Lengths:
    """For the registry of schemes."""
    return RlweLengths()
