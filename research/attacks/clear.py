"""`cross` without any protection: the same shares and messages, with U in the clear.

Tests compare with it, and naive variants are built from it. No run takes it: it is not in the package.
"""

from __future__ import annotations

from collections.abc import Sequence

from securefed.crypto.blind.interface import (
    NONCE_BYTES,
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
from securefed.crypto.randomness import key_stream
from securefed.crypto.scheme import Mapper
from securefed.crypto.shares import (
    LIMBS,
    Share,
    add,
    from_bytes,
    matmul,
    negate,
    size_in_bytes,
    to_bytes,
    uniform,
    uniform_from,
    zeros,
)
from securefed.errors import BadKey

BLOCK_ROWS = 1 << 14


def _blocks(product: Product) -> list[tuple[int, int]]:
    return [(start, min(start + BLOCK_ROWS, product.inner)) for start in range(0, product.inner, BLOCK_ROWS)]


LENGTHS = Lengths(
    NONCE_BYTES,
    _blocks,
    lambda product, rows: size_in_bytes(rows * product.left),
    lambda product: size_in_bytes(product.left * product.right),
)


class ClearKey(CrossKey):
    lengths = LENGTHS

    def __init__(self) -> None:
        super().__init__(b"clear")

    def _public(self, nonce: bytes) -> bytes:
        return bytes(self._secret and nonce)

    def _encrypt(
        self, product: Product, blocks: Sequence[int], operand: Operand, mapper: Mapper, repeatable: bool
    ) -> list[bytes]:
        _ = self._secret  # raises once it is erased
        return [to_bytes(limbs_of(self._rows(product, block, operand))) for block in blocks]

    def _read(self, product: Product, reply: bytes) -> Share:
        _ = self._secret
        return from_bytes(reply, (LIMBS, product.left, product.right))

    def to_bytes(self) -> bytes:
        return bytes(self._secret)


class ClearPublic(CrossPublic):
    lengths = LENGTHS

    def evaluate(self, product: Product, seed: bytes | None = None) -> Evaluation:
        return ClearEvaluation(product, seed)


class ClearEvaluation(Evaluation):
    def __init__(self, product: Product, seed: bytes | None) -> None:
        super().__init__(product, LENGTHS)
        self._total, self._seed = zeros(product.left, product.right), seed

    def _multiply(self, pieces: Sequence[tuple[bytes, FactorRows]], mapper: Mapper) -> None:
        for ciphertexts, rows in pieces:
            left = from_bytes(ciphertexts, (LIMBS, rows.shape[-2], self._product.left))
            right = limbs_of(rows)
            self._total = add(self._total, matmul(left.transpose(0, 2, 1), right))

    def _reply(self) -> tuple[bytes, Share]:
        shape = self._product.left, self._product.right
        mask = uniform(*shape) if self._seed is None else uniform_from(key_stream(self._seed), *shape)
        return to_bytes(add(self._total, mask)), negate(mask)


def _load(data: bytes, nonce: bytes) -> CrossPublic:
    if data != nonce:
        raise BadKey("public key: it was made for another nonce")
    return ClearPublic()


CLEAR = CrossScheme("clear", ClearKey, _load, lambda data: ClearKey())
