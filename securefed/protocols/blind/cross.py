"""The encrypted product between two parties, as messages (securefed.crypto.blind.interface has the algebra).

    multiplier -> encryptor    nonce
    encryptor -> multiplier    cross-key: a public key for that nonce
    encryptor -> multiplier    operand: U encrypted, a block of rows a message
    multiplier -> encryptor    received, every few blocks, where there are many: it bounds memory
    multiplier -> encryptor    reply: U'V under a uniform mask

A key serves one purpose: the pass, the correlations, or scores. Those of the pass and of the correlations are
made for one attempt at a run and erased when their purpose is done. The scoring key stays with the model.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

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
from securefed.crypto.errors import FormatError
from securefed.crypto.scheme import Mapper
from securefed.crypto.shares import Share
from securefed.transport import Link

__all__ = ["Encryptor", "Multiplier", "operand_of"]

WINDOW = 4
"""Blocks that are encrypted, sent and multiplied together."""
AHEAD = 2
"""Windows that may be under way."""


def operand_of(whole: Share) -> Operand:
    """Return the rows of a matrix of limbs, (5, inner, columns), as a factor."""
    return lambda first, last: np.ascontiguousarray(whole[:, first:last])


class Encryptor:
    """The party with the key and the left factor."""

    def __init__(self, link: Link, key: CrossKey, mapper: Mapper) -> None:
        self.link, self.key, self._mapper = link, key, mapper

    @classmethod
    async def begin(
        cls,
        link: Link,
        scheme: CrossScheme,
        peers: Iterable[str],
        mapper: Mapper,
        *,
        step: int,
        round: int = 0,
    ) -> Encryptor:
        """Make a key and send its public half to everybody who will multiply."""
        with link.activity("keys"):
            encryptor = cls(link, scheme.generate(), mapper)
        for peer in peers:
            await encryptor.introduce(peer, step=step, round=round)
        return encryptor

    async def introduce(self, peer: str, *, step: int, round: int = 0) -> None:
        """Answer one multiplier's nonce with a public key."""
        nonce = await self.link.receive("nonce", peer, round=round, step=step)
        if len(nonce) != NONCE_BYTES:
            raise FormatError(f"nonce: {len(nonce)} bytes given by {peer}, {NONCE_BYTES} are due")
        with self.link.activity("keys"):
            public = self.key.public(nonce)
        self.link.send(peer, "cross-key", public, round=round, step=step)

    async def send(
        self,
        peer: str,
        product: Product,
        operand: Operand,
        *,
        step: int,
        round: int = 0,
        repeatable: bool = False,
    ) -> None:
        """Encrypt the left factor for one multiplier; `repeatable`: the same numbers give the same bytes."""
        count = len(self.key.blocks(product))
        for window, first in enumerate(range(0, count, WINDOW)):
            if window >= AHEAD:
                await self.link.receive("received", peer, round=round, step=step)
            blocks = range(first, min(first + WINDOW, count))
            with self.link.activity("encrypt"):
                encrypted = self.key.encrypt(product, blocks, operand, self._mapper, repeatable=repeatable)
            for block in encrypted:
                self.link.send(peer, "operand", block, round=round, step=step)

    async def read(self, peer: str, product: Product, *, step: int, round: int = 0) -> Share:
        """This party's share of the product."""
        windows = -(-len(self.key.blocks(product)) // WINDOW)
        for _ in range(min(AHEAD, windows) if windows > AHEAD else 0):
            await self.link.receive("received", peer, round=round, step=step)
        reply = await self.link.receive("reply", peer, round=round, step=step)
        with self.link.activity("open"):
            return self.key.read(product, reply)

    def end(self) -> None:
        """Erase the key."""
        self.key.erase()


class Multiplier:
    """The party with the right factor and somebody else's public key."""

    def __init__(self, link: Link, peer: str, public: CrossPublic, mapper: Mapper) -> None:
        self.link, self.peer, self.public, self._mapper = link, peer, public, mapper
        self.key_bytes, self.nonce = b"", b""
        """The public key as it arrived, and the nonce that it answers: for a model at rest."""

    @classmethod
    async def begin(
        cls,
        link: Link,
        scheme: CrossScheme,
        peer: str,
        mapper: Mapper,
        *,
        step: int,
        round: int = 0,
        nonce: bytes | None = None,
    ) -> Multiplier:
        """Send a nonce, a fresh one unless one is given, and take the public key for it."""
        nonce = os.urandom(NONCE_BYTES) if nonce is None else nonce
        link.send(peer, "nonce", nonce, round=round, step=step)
        data = await link.receive("cross-key", peer, round=round, step=step)
        with link.activity("keys"):
            public = scheme.load_public(data, nonce)
        multiplier = cls(link, peer, public, mapper)
        multiplier.key_bytes, multiplier.nonce = data, nonce
        return multiplier

    async def multiply(self, product: Product, operand: Operand, *, step: int, round: int = 0) -> Share:
        """This party's share of the product."""
        evaluation, count = self.public.evaluate(product), len(self.public.blocks(product))
        windows = range(0, count, WINDOW)
        for first in windows:
            blocks = {}
            for block in range(first, min(first + WINDOW, count)):
                blocks[block] = await self.link.receive("operand", self.peer, round=round, step=step)
            with self.link.activity("products"):
                evaluation.add(blocks, operand, self._mapper)
            if len(windows) > AHEAD:
                self.link.send(self.peer, "received", b"\1", round=round, step=step)
        return self.reply(evaluation, step=step, round=round)

    async def take(self, product: Product, *, step: int, round: int = 0) -> list[bytes]:
        """The left factor as it arrives, to be kept and multiplied later."""
        count = len(self.public.blocks(product))
        return [await self.link.receive("operand", self.peer, round=round, step=step) for _ in range(count)]

    def multiply_kept(
        self,
        product: Product,
        blocks: list[bytes],
        operand: Operand,
        seed: bytes,
        *,
        step: int,
        round: int = 0,
    ) -> Share:
        """The same for a left factor that was kept. `seed`: what the reply's randomness follows from."""
        evaluation = self.public.evaluate(product, seed)
        with self.link.activity("products"):
            evaluation.add(dict(enumerate(blocks)), operand, self._mapper)
        return self.reply(evaluation, step=step, round=round)

    def reply(self, evaluation: Evaluation, *, step: int, round: int = 0) -> Share:
        with self.link.activity("mask"):
            reply, share = evaluation.finish()
        self.link.send(self.peer, "reply", reply, round=round, step=step)
        return share
