"""An encrypted product that encrypts nothing, for rehearsing blind runs.

It replaces a CrossScheme. Messages have exactly the length of the real ones (`Lengths`), and a `Meter`
records every operation. Only the first rows of a factor are computed, and their time is scaled to all rows.
Shares are meaningless numbers.

No user can choose this scheme: it is in no registry. A real run would refuse its keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

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
from securefed.crypto.scheme import SERIAL, Mapper
from securefed.crypto.shares import LIMBS, Share
from securefed.errors import BadKey, FormatError
from securefed.plan.fake_keys import Meter, Operation

SAMPLE_ROWS = 1024
"""Computed rows of a factor."""


class Counter:
    """The common state of one rehearsal's keys and evaluations."""

    def __init__(self, lengths: Lengths, meter: Meter) -> None:
        self.lengths, self._meter = lengths, meter

    def note(self, name: str, product: Product | None = None) -> None:
        self._meter.note(Operation(name, product=product))

    def work(self, name: str, product: Product, places: Sequence[tuple[int, int]], operand: Operand) -> None:
        """Compute some rows of a factor. Count the time of all rows and of an operation on them."""
        rows = sum(last - first for first, last in places)
        some = min(rows, SAMPLE_ROWS)
        sample = self._meter.scaled(lambda: operand(0, some), rows / some)
        exact = sample.dtype == np.int64
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
        return _blank(self._counter.lengths.public)

    def blocks(self, product: Product) -> list[tuple[int, int]]:
        return self._counter.lengths.blocks(product)

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
        lengths = self._counter.lengths
        return [_blank(lengths.block(product, last - first)) for first, last in places]

    def read(self, product: Product, reply: bytes) -> Share:
        _check("reply", reply, self._counter.lengths.reply(product))
        self._counter.note("read", product)
        return self._counter.share(product)

    def evaluate(self, product: Product, seed: bytes | None = None) -> Evaluation:
        return CountingEvaluation(self._counter, product)

    def to_bytes(self) -> bytes:
        return b""

    def erase(self) -> None:
        return


class CountingEvaluation(Evaluation):
    def __init__(self, counter: Counter, product: Product) -> None:
        super().__init__(product, counter.lengths.blocks(product))
        self._counter = counter

    def _multiply(self, blocks: Mapping[int, bytes], operand: Operand, mapper: Mapper) -> None:
        places = [self._due[block] for block in blocks]
        for (first, last), data in zip(places, blocks.values(), strict=True):
            _check("block", data, self._counter.lengths.block(self._product, last - first))
        self._counter.work("multiply", self._product, places, operand)

    def _reply(self) -> tuple[bytes, Share]:
        self._counter.note("respond", self._product)
        return _blank(self._counter.lengths.reply(self._product)), self._counter.share(self._product)


def _blank(size: int) -> bytes:
    """Return bytes that no real key, block or reply has."""
    return b"\xff" * size


def _check(what: str, data: bytes, due: int) -> None:
    if len(data) != due:
        raise FormatError(f"{what}: {len(data)} bytes given, {due} are due")


def counting_scheme(lengths: Lengths, meter: Meter) -> CrossScheme:
    """Return the stand-in for a scheme with messages of these lengths. `meter` records operations."""
    counter = Counter(lengths, meter)

    def generate() -> CrossKey:
        counter.note("generate")
        return CountingKey(counter)

    def load_public(data: bytes, nonce: bytes) -> CrossPublic:
        if len(nonce) != NONCE_BYTES or len(data) != counter.lengths.public:
            raise BadKey(f"public key: {len(data)} bytes given, {counter.lengths.public} are due")
        counter.note("load public")
        return CountingKey(counter)

    return CrossScheme("counting", generate, load_public, lambda data: CountingKey(counter))
