"""Products of shared matrices between two parties (securefed.crypto.shares), one round trip for many of them.

    k -> peer     share: k's share of what the peer multiplies, hidden under k's key
    peer -> k     share-product: its product, every entry under a mask

A party sees ciphertexts of the other's key, and numbers under masks of the other's: nothing. Shapes, scales
and ranges are both sides' own, from the agreement; what a frame says besides is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefed.crypto import KeyHolder
from securefed.crypto.hidden import HidingLayout, PlainMatrix, Range, Result, Wide
from securefed.crypto.shares import (
    DIGIT_BITS,
    DIGITS,
    SHARE_BITS,
    digits,
    multiples,
    reduced,
    scaled_back,
    scaled_up,
)
from securefed.errors import SettingError
from securefed.protocols.channel import Channel
from securefed.protocols.keyring import Keyring
from securefed.protocols.refresh import hiding
from securefed.transport import Link

__all__ = ["MATRIX_BITS", "MATRIX_FRACTION", "Factor", "Product", "Shape", "exchange"]

Array = NDArray[np.float64]
MATRIX_FRACTION = 28
"""Fraction bits of a party's own matrices."""
MATRIX_BITS = 38
"""Their entries stay below 2**(MATRIX_BITS - MATRIX_FRACTION)."""


@dataclass(frozen=True)
class Shape:
    """What is public about a product: (rows, inner) times (inner, columns)."""

    rows: int
    inner: int
    columns: int
    wide: bool = False
    """Both factors are shared: the left one goes in digits."""

    @property
    def operand(self) -> tuple[int, int]:
        return (self.inner * DIGITS if self.wide else self.inner, self.columns)

    @property
    def result(self) -> Result:
        """For the keys that merges take."""
        return Result(self.rows, self.columns, self.operand[0])

    @property
    def entries(self) -> int:
        return self.rows * self.columns

    def range(self, layout: HidingLayout) -> Range:
        """Of what comes back, without its mask: modulo q, or whole."""
        if layout.wraps:
            return Range(0, layout.room(Range(0, 0), 0))
        bits = DIGIT_BITS if self.wide else MATRIX_BITS
        return Range(0, SHARE_BITS + bits + self.operand[0].bit_length())

    def slack(self, layout: HidingLayout, slack: int) -> int:
        return 0 if layout.wraps else slack


@dataclass
class Factor:
    """What this party multiplies by: its own matrix, or its share of one."""

    integers: Wide
    """For its own share of the other factor."""
    matrix: PlainMatrix = field(repr=False)
    """For the peer's."""

    @classmethod
    def own(cls, values: Array, fraction_bits: int = MATRIX_FRACTION) -> Factor:
        """A matrix that this party knows; the product's scale is finer by `fraction_bits`."""
        scaled = np.rint(np.ldexp(values, fraction_bits))
        matrix = PlainMatrix(scaled, 0, MATRIX_BITS, keep=True)
        return cls(scaled.astype(np.int64).astype(object), matrix)

    @classmethod
    def shared(cls, share: Wide) -> Factor:
        return cls(share, PlainMatrix(digits(share), 0, DIGIT_BITS, keep=True))


@dataclass
class Product:
    """One product as one party sees it: what it multiplies by, and what it has the peer multiply."""

    shape: Shape
    factor: Factor | None
    """None where the peer alone multiplies."""
    share: Wide | None
    """This party's share of the right factor; None where there is none."""
    sends: bool
    """Whether the peer multiplies this party's share."""

    def local(self) -> Wide | int:
        """The part that takes nobody else."""
        if self.factor is None or self.share is None:
            return 0
        return self.factor.integers @ self.share


async def exchange(
    link: Link, keys: Keyring, products: Sequence[Product], slack: int, t: int, step: int
) -> list[Wide]:
    """This party's shares of all products: messages number `step` and those that follow."""
    own, key, peer = keys.own, hiding(keys), keys.opener
    if own is None:
        raise SettingError("shares: two parties hold keys for each other")
    for place, product in enumerate(products, step):
        if product.sends:
            with link.activity("encrypt"):
                operand = _operand(own, product)
            Channel(link, peer, t, place).send("share", operand, activity="encrypt")
    found: list[Wide] = []
    for place, product in enumerate(products, step):
        total: Any = product.local()
        if product.factor is not None:
            shape, channel = product.shape, Channel(link, peer, t, place)
            load = partial(key.load_array, shape=shape.operand, range_=_held(key))
            checks = ("shape", "scale", "ciphertexts")
            array = await channel.take("share", load, *checks, activity="products")
            with link.activity("products"):
                sums = product.factor.matrix @ array
                block, masks = sums.within(shape.range(key), shape.slack(key, slack)).lend()
            channel.ask("share-product", block, masks)
            total = total + scaled_back(key, -masks)
            channel.spend("share-product", masks)
        found.append(total)
    for index, product in enumerate(products):
        if product.sends:
            channel, checks = Channel(link, peer, t, step + index), ("as agreed", "ciphertexts", "not seen")
            read = partial(_read, own, product.shape, slack)
            found[index] = found[index] + await channel.take("share-product", read, *checks, activity="open")
    return [reduced(total) for total in found]


def _held(layout: HidingLayout) -> Range:
    """Of operands."""
    return Range(0, layout.room(Range(0, 0), 0) if layout.wraps else SHARE_BITS)


def _operand(own: KeyHolder, product: Product) -> Any:
    public: Any = own.public
    if product.share is None:
        raise SettingError("shares: nothing to multiply")
    share = multiples(product.share) if product.shape.wide else product.share
    return own.conceal(scaled_up(public, share), _held(public))


def _read(own: KeyHolder, shape: Shape, slack: int, blob: bytes) -> Wide:
    public: Any = own.public
    block = public.load_block(
        blob, (shape.rows, shape.columns), shape.range(public), shape.slack(public, slack)
    )
    return scaled_back(public, own.read(block))
