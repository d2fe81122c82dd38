"""Attacks on what the parties of blind transfer learning see (securefed.protocols.blind_transfer).

A party has its shares of everything, and as a key-holder it reads products of its shares with the peer's
numbers, under the peer's masks (or has them read by a key-holder party, who sees the same). Here it takes its
shares for the values themselves, and what it reads for products without masks. That finds nothing where
shares are uniform and masks are drawn as they should be, and everything where they are not: `careless` and
`unmasked` make such runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from securefed.crypto import KeyHolder
from securefed.crypto.hidden import HiddenBlock, Wide
from securefed.crypto.paillier.hidden import PaillierBlock, PaillierSum
from securefed.crypto.rlwe.arrays import RlweBlock, RlweSum
from securefed.crypto.shares import SHARE_BITS, centred, reduced, scaled_back
from securefed.protocols import blind_transfer, shared_products
from securefed.protocols.channel import Channel
from securefed.protocols.keyring import Keyring
from securefed.protocols.shared_products import Product, Shape
from securefed.protocols.transfer_algebra import VALUE_BITS
from securefed.transport import Link

__all__ = [
    "Guess",
    "Reading",
    "Seen",
    "as_values",
    "careless",
    "columns_from_cross",
    "labels_from_steps",
    "moments_from_cross",
    "unmasked",
    "watched",
]

Array = NDArray[np.float64]
LARGEST = 1 << (VALUE_BITS + 16)
"""No honest number is."""
Guess = Callable[[str, Any, tuple[int, ...], int], Wide]
"""Masks, for whoever asks: role, key, shape, bits."""


@dataclass(frozen=True)
class Seen:
    """One product as one party has it."""

    round: int
    shape: Shape
    factor: Wide | None
    """What it multiplies by: its own numbers, or its share of the left factor."""
    share: Wide | None
    """Its share of the right factor."""
    read: Wide | None
    """What it read of the peer's answer, as a share."""
    found: Wide
    """Its share of the product."""


class Reading(KeyHolder):
    """A key-holder that keeps what it reads."""

    def __init__(self, holder: KeyHolder) -> None:
        super().__init__(holder._secret)
        self.readings: list[Wide] = []

    def read(self, block: HiddenBlock) -> Wide:
        found = super().read(block)
        self.readings.append(found)
        return found


@contextmanager
def watched(guess: Guess | None = None) -> Iterator[dict[str, list[Seen]]]:
    """All products of runs made here, by party. Key-holders have to be `Reading`. `guess`: the masks that a
    reader takes off; none if it has no idea.
    """
    kept: dict[str, list[Seen]] = {}
    exchange, take = shared_products.exchange, Channel.take
    told: dict[tuple[str, int, int], Wide] = {}

    async def taking(self: Channel, kind: str, *more: Any, **named: Any) -> Any:
        found = await take(self, kind, *more, **named)
        if kind == "product-share":
            told[self.link.name, self.round, self.step] = found
        return found

    async def noting(
        link: Link, keys: Keyring, peer: str, products: Sequence[Product], slack: int, t: int, step: int
    ) -> list[Wide]:
        own = keys.own
        if own is not None and not isinstance(own, Reading):
            raise TypeError("a key-holder that is not watched")
        before = 0 if own is None else len(own.readings)
        found = await exchange(link, keys, peer, products, slack, t, step)
        public: Any = keys.public if own is None else own.public
        for place, (product, share) in enumerate(zip(products, found, strict=True), step):
            seen = None
            if product.sends:
                shape = product.shape
                bits = shape.range(public).bits + shape.slack(public, slack)
                size = (shape.rows, shape.columns)
                masks = np.zeros(size, dtype=object) if guess is None else guess("reader", public, size, bits)
                if own is None:
                    seen = reduced(told[link.name, t, place] - scaled_back(public, masks))
                else:
                    seen, before = scaled_back(public, own.readings[before] - masks), before + 1
            factor = None if product.factor is None else product.factor.integers
            kept.setdefault(link.name, []).append(Seen(t, product.shape, factor, product.share, seen, share))
        return found

    with patch.object(blind_transfer, "exchange", noting), patch.object(Channel, "take", taking):
        yield kept


@contextmanager
def careless() -> Iterator[Guess]:
    """The naive variant: masks come from a generator that is seeded by what all know, here the key's name.
    Gives what a reader needs: the same masks again, in the same order.
    """
    streams: dict[tuple[str, int], Random] = {}

    def draw(who: str, public: Any, shape: tuple[int, ...], bits: int) -> Wide:
        # Each party has an object of its own for a key that both have.
        stream = streams.setdefault((who, id(public)), Random(public.key_id))  # noqa: S311  # the flaw
        most = public.wraps or 1 << bits
        drawn = [stream.randrange(most) for _ in range(int(np.prod(shape)))]
        return np.array(drawn, dtype=object).reshape(shape)

    def seeded(kind: Any, block: Any) -> Any:
        def lend(self: Any) -> tuple[Any, Wide]:
            masks = draw("lender", self.public, self.shape, self.range.bits + self.slack)
            return block(self.add_plain(masks).rerandomise()), masks

        return patch.object(kind, "lend", lend)

    with seeded(PaillierSum, PaillierBlock), seeded(RlweSum, RlweBlock):
        yield draw


@contextmanager
def unmasked() -> Iterator[None]:
    """The naive variant without masks: what is multiplied goes to the key-holder as it is."""

    def bare(kind: Any, block: Any) -> Any:
        def lend(self: Any) -> tuple[Any, Wide]:
            masks = np.zeros(self.shape, dtype=np.int64).astype(object)
            return block(self.rerandomise()), masks

        return patch.object(kind, "lend", lend)

    with bare(PaillierSum, PaillierBlock), bare(RlweSum, RlweBlock):
        yield


def as_values(share: Wide) -> Array:
    """A share taken for the value; around its mean, since truncation leaves a constant on shares."""
    values = np.asarray(centred(share).astype(np.float64)) / 2.0**VALUE_BITS
    result: Array = values - values.mean()
    return result


def columns_from_cross(own: Array, cross: Wide, row_bits: int) -> Array:
    """A's guess at B's features, (n, d_B), from what it read of K' = F_B'F_A/n: of all that give it, the
    smallest.
    """
    read = np.asarray(centred(cross).astype(np.float64)) / 2.0 ** (VALUE_BITS + row_bits)
    found = np.linalg.lstsq(own.T / len(own), read.T, rcond=1e-9)[0]
    return np.asarray(found, dtype=np.float64)


def moments_from_cross(public: Any, reading: Wide, row_bits: int) -> Array:
    """A key-holder party's guess at F_B'[F_A, w y]/n, from the first thing that it read: which columns go
    with which, and with the labels.
    """
    read = centred(scaled_back(public, reading)).astype(np.float64)
    return np.asarray(read, dtype=np.float64) / 2.0 ** (VALUE_BITS + row_bits)


def labels_from_steps(seen: Sequence[Seen], rows: Array) -> Array:
    """B's guess at the labels, (n,). B's step of a round is Z Phi', and A multiplies its share of Z by B's of
    Phi. Without the mask B divides and has A's share, so Z; F_B Z says which way its rows were pushed.
    """
    total = np.zeros(len(rows))
    for product in seen:
        shape, right, read = product.shape, product.share, product.read
        if not shape.wide or (shape.inner, shape.rows) != (1, rows.shape[1]) or right is None or read is None:
            continue
        if product.factor is None or not right.any():
            continue
        column = min(range(shape.columns), key=lambda j: _twos(int(right[0, j])))
        twos = _twos(int(right[0, column]))
        modulus = 1 << (SHARE_BITS - twos)  # an even factor leaves so much less of what it multiplied
        inverse = pow(int(right[0, column]) >> twos, -1, modulus)
        sums = ((read[:, column] >> twos) * inverse + product.factor[:, 0]) % modulus
        sums = np.where(sums >= modulus // 2, sums - modulus, sums)
        wrong = np.abs(sums) >= LARGEST
        if 2 * wrong.sum() < len(wrong):
            sums[wrong] = 0  # read with an error of one, which a division makes into anything
        step = as_values(sums)
        pushed = rows @ step
        total += pushed / max(float(np.linalg.norm(pushed)), 1e-300)
    return total


def _twos(number: int) -> int:
    """How often 2 divides it."""
    return (number & -number).bit_length() - 1 if number else SHARE_BITS
