"""Products of shared matrices between two parties (securefed.crypto.shares), one round trip for many of them.

Two parties, each the key-holder for the other:

    k -> peer     share: k's share of what the peer multiplies, hidden under k's key
    peer -> k     share-product: its product, every entry under a mask

With a key-holder party C:

    k -> peer     share: the same, hidden under C's key
    peer -> C     share-product: its product, every entry under a mask
    C -> k        product-share: what C reads, which is k's share of the product

and for its peer to have something as a hidden array that the two have shares of (`hidden_here`):

    k -> peer     share: its own
    peer -> C     refresh-request: the same share, every entry under a mask
    C -> peer     refreshed: what C reads, hidden afresh; the peer adds its own share and takes the mask off

A party sees ciphertexts of a key that it lacks, and numbers under masks of the other's: nothing. C sees
numbers under masks, and whoever has the masks sees nothing of what C reads. Shapes, scales and ranges are
everybody's own, from the agreement; what a frame says besides is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from securefed.crypto import KeyHolder
from securefed.crypto.hidden import HiddenArray, HidingLayout, PlainMatrix, Range, Result, Wide, concealed
from securefed.crypto.shares import (
    DIGIT_BITS,
    DIGITS,
    SHARE_BITS,
    digits,
    multiples,
    read_share,
    reduced,
    scaled_back,
    scaled_up,
    write_share,
)
from securefed.errors import SettingError
from securefed.protocols.channel import Channel
from securefed.protocols.keyring import Keyring
from securefed.protocols.refresh import hiding
from securefed.transport import Link

__all__ = [
    "MATRIX_BITS",
    "MATRIX_FRACTION",
    "Factor",
    "Product",
    "Shape",
    "exchange",
    "hand_over",
    "hidden_here",
    "serve",
    "serve_hidden",
    "together",
]

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
    by: Literal["a", "b", "both"] = "both"
    """Whose matrix it is; both: the left factor is shared too, and goes in digits."""

    @property
    def wide(self) -> bool:
        return self.by == "both"

    @property
    def messages(self) -> int:
        """Of each kind."""
        return 2 if self.wide else 1

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
    link: Link, keys: Keyring, peer: str, products: Sequence[Product], slack: int, t: int, step: int
) -> list[Wide]:
    """This party's shares of all products: messages number `step` and those that follow."""
    own, key = keys.own, hiding(keys)
    for place, product in enumerate(products, step):
        if product.sends:
            with link.activity("encrypt"):
                operand = _operand(keys, product)
            Channel(link, peer, t, place).send("share", operand, activity="encrypt")
    found: list[Wide] = []
    for place, product in enumerate(products, step):
        total: Any = product.local()
        if product.factor is not None:
            shape, channel = product.shape, Channel(link, peer, t, place)
            load = partial(key.load_array, shape=shape.operand, range_=_held(key))
            array = await channel.take("share", load, *ARRAY, activity="products")
            with link.activity("products"):
                sums = product.factor.matrix @ array
                block, masks = sums.within(shape.range(key), shape.slack(key, slack)).lend()
            answer = Channel(link, keys.opener, t, place)
            answer.ask("share-product", block, masks)
            total = total + scaled_back(key, -masks)
            answer.spend("share-product", masks)
        found.append(total)
    for index, product in enumerate(products):
        if product.sends:
            channel, shape = Channel(link, keys.opener, t, step + index), product.shape
            if own is not None:
                read = partial(_read, own, shape, slack)
                answered = await channel.take("share-product", read, *READ, activity="open")
            else:
                told = partial(read_share, keys.public, shape=(shape.rows, shape.columns))
                answered = await channel.take("product-share", told, "shape", activity="open")
            found[index] = found[index] + answered
    return [reduced(total) for total in found]


async def serve(
    link: Link, own: KeyHolder, names: tuple[str, str], shapes: Sequence[Shape], slack: int, t: int, step: int
) -> None:
    """A key-holder party's part of an exchange: each product goes to the one whose share it is of. `names`:
    of B and A.
    """
    b, a = names
    for place, shape in enumerate(shapes, step):
        # Both multiply where both factors are shared.
        for multiplier, owner in {"a": [(a, b)], "b": [(b, a)], "both": [(b, a), (a, b)]}[shape.by]:
            channel, read = Channel(link, multiplier, t, place), partial(_read, own, shape, slack)
            share = await channel.take("share-product", read, *READ, activity="open")
            Channel(link, owner, t, place).tell("product-share", write_share(own.public, share))


def hand_over(link: Link, keys: Keyring, peer: str, share: Wide, t: int, step: int) -> None:
    """This party's share, for a peer who is to have it hidden (`hidden_here`)."""
    with link.activity("encrypt"):
        operand = _operand(keys, Product(_same(*share.shape), None, share, True))
    Channel(link, peer, t, step).send("share", operand, activity="encrypt")


async def hidden_here(
    link: Link, keys: Keyring, peer: str, share: Wide, range_: Range, lift: int, slack: int, t: int, step: int
) -> HiddenArray:
    """Something shared, hidden under the key-holder party's key and lifted; `share` is this party's.

    The peer made what it sent and knows its noise, so the key-holder hides it afresh.
    """
    key, shape = hiding(keys), _same(*share.shape)
    load = partial(key.load_array, shape=shape.operand, range_=_held(key))
    array = await Channel(link, peer, t, step).take("share", load, *ARRAY, activity="products")
    with link.activity("mask"):
        block, masks = array.packed().within(shape.range(key), shape.slack(key, slack)).lend()
    channel = Channel(link, keys.opener, t, step)
    channel.ask("refresh-request", block, masks)
    own = reduced(share - scaled_back(key, masks))
    channel.spend("refresh-request", masks)
    fresh = partial(key.load_array, shape=shape.operand, range_=_lifted(lift))
    array = await channel.take("refreshed", fresh, *ARRAY, activity="unmask")
    with link.activity("unmask"):
        return array.add_plain(together(own) << lift, range_)


def together(share: Wide) -> Wide:
    """What the other share, from 0 to t, takes to be the value: they add up to it and t, but for once in
    2**(SHARE_BITS - bits of the value).
    """
    return share - (1 << SHARE_BITS)


async def serve_hidden(
    link: Link,
    own: KeyHolder,
    requester: str,
    shape: tuple[int, int],
    lift: int,
    slack: int,
    t: int,
    step: int,
) -> None:
    """The key-holder party's part of `hidden_here`."""
    channel, read = Channel(link, requester, t, step), partial(_read, own, _same(*shape), slack)
    share = await channel.take("refresh-request", read, *READ, activity="refresh")
    with link.activity("refresh"):
        fresh = own.conceal(share << lift, _lifted(lift))
    channel.send("refreshed", fresh, activity="refresh")


def _same(rows: int, columns: int) -> Shape:
    """Numbers as they are: a product by 1."""
    return Shape(rows, rows, columns, "b")


def _lifted(lift: int) -> Range:
    return Range(lift, SHARE_BITS + lift)


ARRAY = ("shape", "scale", "ciphertexts")
"""What an array is checked for."""
READ = ("as agreed", "ciphertexts", "not seen")
"""What a block is checked for before it is read."""


def _held(layout: HidingLayout) -> Range:
    """Of operands."""
    return Range(0, layout.room(Range(0, 0), 0) if layout.wraps else SHARE_BITS)


def _operand(keys: Keyring, product: Product) -> Any:
    public: Any = hiding(keys) if keys.own is None else keys.own.public
    if product.share is None:
        raise SettingError("shares: nothing to multiply")
    share = multiples(product.share) if product.shape.wide else product.share
    integers, range_ = scaled_up(public, share), _held(public)
    return concealed(public, integers, range_) if keys.own is None else keys.own.conceal(integers, range_)


def _read(own: KeyHolder, shape: Shape, slack: int, blob: bytes) -> Wide:
    public: Any = own.public
    block = public.load_block(
        blob, (shape.rows, shape.columns), shape.range(public), shape.slack(public, slack)
    )
    return scaled_back(public, own.read(block))
