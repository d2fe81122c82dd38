"""An encrypted product that encrypts nothing: for rehearsing blind runs.

It takes the place of a CrossScheme. Messages have exactly the length of the real ones, from the layouts that
the real schemes go by. Every operation is told to a `Meter`. Of a factor only the first rows are computed,
and the time of all of them is booked. Shares are numbers without a meaning.

Nobody can choose this scheme: it is in no registry. A run that met one of these keys would refuse it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from securefed.crypto.blind.interface import (
    NONCE_BYTES,
    CrossKey,
    CrossPublic,
    CrossScheme,
    Evaluation,
    Operand,
    Product,
)
from securefed.crypto.blind.layout import layout
from securefed.crypto.blind.paillier import Slots, _blocks
from securefed.crypto.blind.rlwe import PUBLIC_BYTES
from securefed.crypto.blind.shares import LIMBS, Share
from securefed.crypto.errors import BadKey, FormatError
from securefed.crypto.paillier.proof import roots_needed
from securefed.crypto.scheme import SERIAL, Mapper
from securefed.crypto.wire import HEADER
from securefed.errors import SettingError
from securefed.plan.meter import Meter, Operation

__all__ = ["SAMPLE_ROWS", "counting_scheme"]

SAMPLE_ROWS = 1024
"""Rows of a factor that are computed."""


class RlweSizes:
    """Lengths of messages, in bytes."""

    def __init__(self, key_bits: int = 0) -> None:
        self.public_bytes = PUBLIC_BYTES

    def blocks(self, product: Product) -> list[tuple[int, int]]:
        return layout(product).blocks()

    def block_bytes(self, product: Product, rows: int) -> int:
        return layout(product).block_bytes(rows)

    def reply_bytes(self, product: Product) -> int:
        return layout(product).reply_bytes()


class PaillierSizes:
    def __init__(self, bits: int) -> None:
        self.bits = bits
        self.ciphertext_bytes = 2 * ((bits + 7) // 8)
        self.public_bytes = HEADER.size + (1 + roots_needed(bits)) * (self.ciphertext_bytes // 2)

    def blocks(self, product: Product) -> list[tuple[int, int]]:
        return _blocks(product, cast(Any, self))  # it asks a key for these two sizes

    def block_bytes(self, product: Product, rows: int) -> int:
        return rows * Slots.of(product, self.bits).groups * self.ciphertext_bytes

    def reply_bytes(self, product: Product) -> int:
        return Slots.of(product, self.bits).replies * self.ciphertext_bytes


SIZES: dict[str, type[RlweSizes | PaillierSizes]] = {"rlwe": RlweSizes, "paillier": PaillierSizes}


class Counter:
    """What keys and evaluations of one rehearsal have in common."""

    def __init__(self, sizes: RlweSizes | PaillierSizes, meter: Meter) -> None:
        self.sizes, self._meter = sizes, meter

    def note(self, name: str, product: Product | None = None) -> None:
        self._meter.note(Operation(name, product=product))

    def work(self, name: str, product: Product, places: Sequence[tuple[int, int]], operand: Operand) -> None:
        """Compute some rows of a factor, and book the time of all of them and of an operation on them."""
        rows = sum(last - first for first, last in places)
        some = min(rows, SAMPLE_ROWS)
        found = self._meter.scaled(lambda: operand(0, some), rows / some)
        exact = found.dtype == np.int64
        self._meter.note(
            Operation(name, inner=rows, product=product, blocks=max(1, len(places)), exact=exact)
        )

    def share(self, product: Product) -> Share:
        with self._meter.stopped():
            return np.ones((LIMBS, product.left, product.right), dtype=np.int64)


class CountingKey(CrossKey, CrossPublic):
    """Both halves of a key."""

    def __init__(self, counter: Counter) -> None:
        self._counter = counter

    def public(self, nonce: bytes) -> bytes:
        self._counter.note("public")
        return _blank(self._counter.sizes.public_bytes)

    def blocks(self, product: Product) -> list[tuple[int, int]]:
        return self._counter.sizes.blocks(product)

    def encrypt(
        self,
        product: Product,
        blocks: Sequence[int],
        operand: Operand,
        mapper: Mapper = SERIAL,
        *,
        repeatable: bool = False,
    ) -> list[bytes]:
        every = self.blocks(product)
        places = [every[block] for block in blocks]
        self._counter.work("encrypt", product, places, operand)
        sizes = self._counter.sizes
        return [_blank(sizes.block_bytes(product, last - first)) for first, last in places]

    def read(self, product: Product, reply: bytes) -> Share:
        _check("reply", reply, self._counter.sizes.reply_bytes(product))
        self._counter.note("read", product)
        return self._counter.share(product)

    def evaluate(self, product: Product) -> Evaluation:
        return CountingEvaluation(self._counter, product)

    def to_bytes(self) -> bytes:
        return b""

    def erase(self) -> None:
        return


class CountingEvaluation(Evaluation):
    def __init__(self, counter: Counter, product: Product) -> None:
        self._counter, self._product = counter, product
        self._due = dict(enumerate(counter.sizes.blocks(product)))

    def add(self, blocks: Mapping[int, bytes], operand: Operand, mapper: Mapper = SERIAL) -> None:
        places = [self._due.pop(block) for block in blocks]
        for (first, last), data in zip(places, blocks.values(), strict=True):
            _check("block", data, self._counter.sizes.block_bytes(self._product, last - first))
        self._counter.work("multiply", self._product, places, operand)

    def finish(self) -> tuple[bytes, Share]:
        if self._due:
            raise FormatError(f"{len(self._due)} blocks of the product have not come")
        self._counter.note("respond", self._product)
        return _blank(self._counter.sizes.reply_bytes(self._product)), self._counter.share(self._product)


def _blank(size: int) -> bytes:
    """Bytes that no real key, block or reply has."""
    return b"\xff" * size


def _check(what: str, data: bytes, due: int) -> None:
    if len(data) != due:
        raise FormatError(f"{what}: {len(data)} bytes given, {due} are due")


def counting_scheme(name: str, key_bits: int, meter: Meter) -> CrossScheme:
    """Return the stand-in for the scheme of that name (`CrossScheme.name`); SettingError for an unknown one.

    `key_bits` concerns Paillier alone. Operations are told to `meter`.
    """
    if name not in SIZES:
        raise SettingError(f"plan: nobody has said what encrypted products of kind {name!r} take")
    counter = Counter(SIZES[name](key_bits), meter)

    def generate() -> CrossKey:
        counter.note("generate")
        return CountingKey(counter)

    def load_public(data: bytes, nonce: bytes) -> CrossPublic:
        if len(nonce) != NONCE_BYTES or len(data) != counter.sizes.public_bytes:
            raise BadKey(f"public key: {len(data)} bytes given, {counter.sizes.public_bytes} are due")
        counter.note("load public")
        return CountingKey(counter)

    return CrossScheme("counting", generate, load_public, lambda data: CountingKey(counter))
