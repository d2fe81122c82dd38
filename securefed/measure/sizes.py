"""How many ciphertexts and bytes a message of the own-gradient protocols has, from public numbers alone.

Ranges, scales and shapes decide how values are packed, and all of them are declared and not data: so the size
of every message of a run is known before it. The numbers are taken from the classes that make the messages
(extents, layouts, frames), and a test compares them with what real runs sent, byte for byte.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from securefed.crypto import FixedPoint
from securefed.crypto.paillier.extent import Extent, Multipliers, multipliers_of
from securefed.crypto.paillier.masking import Layout
from securefed.crypto.wire import HEADER
from securefed.errors import SettingError

__all__ = ["Block", "CkksSizes", "Held", "PaillierSizes", "PlainSizes", "Sizes", "get_sizes"]

FLOAT = 8


@dataclass(frozen=True)
class Block:
    """One message: ciphertexts in it, and its bytes."""

    ciphertexts: int
    bytes: int


@dataclass(frozen=True)
class Held:
    """What a party computes on after an exchange: a matrix, as the sum of `fresh` own and `arrived` others'
    contributions, and whether that sum arrived as one.
    """

    rows: int
    columns: int
    fixed: FixedPoint
    arrived: int
    fresh: int = 0
    forwarded: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.rows, self.columns) if self.columns > 1 else (self.rows,)

    @property
    def entries(self) -> int:
        return self.rows * self.columns


class Sizes(Protocol):
    """Messages of the own-gradient protocols under one scheme."""

    def contribution(self, held: Held, *, owner: bool) -> Block:
        """A party's part; `owner`: under its own key."""
        ...

    def residual(self, held: Held) -> Block:
        """The label party's sum of all."""
        ...

    def request(self, held: Held, outputs: int) -> Block:
        """Masked sums over the rows: `outputs` for each column."""
        ...

    def opening(self, held: Held, outputs: int) -> Block: ...


class PlainSizes:
    """Eight bytes a value."""

    def _array(self, entries: int) -> Block:
        return Block(entries, HEADER.size + FLOAT * (entries + 1))

    def contribution(self, held: Held, *, owner: bool) -> Block:
        return self._array(held.entries)

    def residual(self, held: Held) -> Block:
        return self._array(held.entries)

    def request(self, held: Held, outputs: int) -> Block:
        return self._array(outputs * held.columns)

    opening = request


class PaillierSizes:
    """One value a ciphertext on the way in; sums packed on the way to their opening."""

    def __init__(self, key_bits: int) -> None:
        self.key_bits = key_bits
        self.plaintext = (key_bits + 7) // 8
        self.ciphertext = 2 * self.plaintext

    def block(self, ciphertexts: int) -> Block:
        return Block(ciphertexts, HEADER.size + ciphertexts * self.ciphertext)

    def contribution(self, held: Held, *, owner: bool) -> Block:
        return self.block(held.entries)

    def residual(self, held: Held) -> Block:
        return self.block(held.entries)

    def extent(self, held: Held) -> Extent:
        """Of what is held: terms add up, and what arrives is rounded up to full bits."""
        fresh = Extent.fresh(held.fixed)
        terms = [fresh] * held.fresh + [arrived(fresh)] * held.arrived
        total = terms[0]
        for term in terms[1:]:
            total = total.plus(term)
        return arrived(total) if held.forwarded else total

    def layout(self, held: Held, outputs: int) -> Layout:
        """How the sums of a gradient lie in the plaintexts of an opening."""
        sums = self.extent(held).times(private_multipliers(), held.rows)
        shape = (outputs, held.columns) if held.columns > 1 else (outputs,)
        return Layout.of(self.key_bits, shape, sums)

    def request(self, held: Held, outputs: int) -> Block:
        return self.block(self.layout(held, outputs).ciphertexts)

    def opening(self, held: Held, outputs: int) -> Block:
        count = self.layout(held, outputs).ciphertexts
        return Block(count, HEADER.size + count * self.plaintext)


def arrived(extent: Extent) -> Extent:
    """As the receiver reads it from a frame."""
    return Extent.from_numbers(extent.numbers())[0]


def private_multipliers() -> Multipliers:
    """The declared limits of multipliers whose scale stays private."""
    return multipliers_of(np.ones((1, 1, 1)), None)


class CkksSizes:
    """Thousands of values a ciphertext; an owner's fresh ones travel in half the bytes."""

    def __init__(self) -> None:
        from securefed.crypto.ckks import encrypted, parameters, sampling

        self._ring = parameters.RING
        self._head = HEADER.size + encrypted._HEAD.size
        self._seed = sampling.SEED_BYTES

    def contribution(self, held: Held, *, owner: bool) -> Block:
        if not owner:
            return self.residual(held)
        units = self.units(held)
        return Block(units, self._head + self._seed + units * self._ring * 2 * FLOAT)

    def residual(self, held: Held) -> Block:
        units = self.units(held)
        return Block(units, self._head + units * self._ring * 4 * FLOAT)

    def units(self, held: Held) -> int:
        from securefed.crypto.ckks.layout import Rows

        return Rows(held.shape).ciphertexts

    def request(self, held: Held, outputs: int) -> Block:
        from securefed.crypto.ckks.layout import Rows

        sums = Rows(held.shape).contracted(outputs)
        words = sums.ciphertexts * 2 * self._ring + 2 * sums.coefficients
        return Block(sums.ciphertexts, HEADER.size + FLOAT * words)

    def opening(self, held: Held, outputs: int) -> Block:
        from securefed.crypto.ckks.layout import Rows

        sums = Rows(held.shape).contracted(outputs)
        return Block(sums.ciphertexts, HEADER.size + 16 + 2 * FLOAT * sums.coefficients)


def get_sizes(scheme: str, key_bits: int) -> Sizes:
    if scheme == "paillier":
        return PaillierSizes(key_bits)
    if scheme == "ckks":
        return CkksSizes()
    if scheme == "plain":
        return PlainSizes()
    raise SettingError(f"scheme: {scheme!r} given, paillier, ckks or plain is allowed")
