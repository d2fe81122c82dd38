"""What the tests of `cross` share: the schemes, and one product from key to shares.

A new scheme is one line in `CASES`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from research.attacks import clear
from research.attacks.clear import CLEAR
from securefed.crypto import shares
from securefed.crypto.blind import layout, paillier
from securefed.crypto.blind.interface import (
    NONCE_BYTES,
    CrossKey,
    CrossScheme,
    Evaluation,
    Operand,
    Product,
)
from securefed.crypto.blind.rlwe import RLWE
from securefed.crypto.scheme import SERIAL, Mapper
from securefed.crypto.shares import Share
from tests.crypto.blind.noise import error_bound
from tests.crypto.blind.paillier_case import PAILLIER_SMALL

__all__ = ["CASES", "Case", "begin", "cross", "distance", "limbs", "operand", "whole"]


@dataclass(frozen=True)
class Case:
    """A scheme, and how far an entry of U'V may be off, by the product and the size of V's entries."""

    scheme: CrossScheme
    bound: Callable[[Product, float | None], float]
    several: Product
    """A product of several blocks, with factors of 20 and 10 bits, with the next setting."""
    block: tuple[ModuleType, str, int]
    """A module, and the name and value of its setting for the size of blocks."""


CASES = [
    Case(CLEAR, lambda product, size: 0.0, Product(40, 2, 1, 20, 10), (clear, "BLOCK_ROWS", 9)),
    Case(RLWE, error_bound, Product(200, 51, 2, 20, 10), (layout, "BLOCK_BYTES", 60_000)),
    Case(
        PAILLIER_SMALL, lambda product, size: 1.0, Product(20, 5, 2, 20, 10), (paillier, "BLOCK_BYTES", 2000)
    ),
]


def operand(matrix: NDArray[np.float64] | Share) -> Operand:
    """Rows of a matrix of floats (rows, columns) or of limbs (5, rows, columns)."""
    return lambda first, last: matrix[..., first:last, :]


def whole(rng: np.random.Generator, bits: float, *shape: int) -> NDArray[np.float64]:
    """Random whole numbers below 2**bits in magnitude, as floats."""
    return np.rint(rng.uniform(-(2.0**bits), 2.0**bits, shape))


def limbs(rng: np.random.Generator, bits: int, *shape: int) -> Share:
    """Random whole numbers of -2**(bits-1)..2**(bits-1), as limbs."""
    drawn = rng.integers(0, 1 << shares.LIMB_BITS, (shares.LIMBS, *shape))
    middle = shares.from_integer(1 << (bits - 1)).reshape(shares.LIMBS, *(1 for _ in shape))
    return shares.subtract(shares.reduce_bits(drawn, bits), np.broadcast_to(middle, drawn.shape))


def begin(scheme: CrossScheme, product: Product) -> tuple[CrossKey, Evaluation]:
    """A fresh key, and an evaluation under it."""
    key, nonce = scheme.generate(), os.urandom(NONCE_BYTES)
    return key, scheme.load_public(key.public(nonce), nonce).evaluate(product)


def cross(
    scheme: CrossScheme,
    product: Product,
    left: NDArray[np.float64] | Share,
    right: NDArray[np.float64] | Share,
    mapper: Mapper = SERIAL,
) -> tuple[Share, Share]:
    """The encryptor's and the multiplier's share of U'V."""
    key, evaluation = begin(scheme, product)
    numbers = range(len(key.lengths.blocks(product)))
    messages = key.encrypt(product, numbers, operand(left), mapper)
    evaluation.add(dict(zip(numbers, messages, strict=True)), operand(right), mapper)
    reply, second = evaluation.finish()
    return key.read(product, reply), second


def distance(
    total: Share, left: NDArray[np.float64] | Share, right: NDArray[np.float64] | Share
) -> NDArray[np.float64]:
    """How far a share is from U'V modulo 2**105, entry by entry."""
    factors = [
        each if each.dtype == np.int64 else shares.from_floats(each, 0)  # type: ignore[arg-type]
        for each in (left, right)
    ]
    due = shares.matmul(factors[0].transpose(0, 2, 1), factors[1])
    return np.abs(shares.to_floats(shares.subtract(total, due), 0))
