"""The encrypted product between two parties, as messages (docs/protocols.md, "The encrypted product").

A key serves one purpose: the pass, the correlations, or scores. Those of the pass and of the correlations are
made for one attempt at a run and erased when their purpose is done. The scoring key stays with the model.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

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
from securefed.crypto.scheme import Mapper
from securefed.crypto.shares import Share
from securefed.errors import FormatError
from securefed.transport.link import Link

WINDOW = 4
"""Blocks that are encrypted, sent and multiplied together."""
AHEAD = 2
"""Windows that may be under way."""


class At(NamedTuple):
    """Where a message belongs."""

    step: int
    round: int = 0


def operand_of(whole: Share) -> Operand:
    """Return the rows of a matrix of limbs, (5, inner, columns), as a factor."""
    return lambda first, last: np.ascontiguousarray(whole[:, first:last])


class Encryptor:
    """The party with the key and the left factor."""

    def __init__(self, link: Link, key: CrossKey, mapper: Mapper) -> None:
        self.link, self.key, self._mapper = link, key, mapper

    async def send(
        self, peer: str, product: Product, operand: Operand, *, at: At, repeatable: bool = False
    ) -> None:
        """Encrypt the left factor for one multiplier; `repeatable`: the same numbers give the same bytes."""
        count = len(self.key.lengths.blocks(product))
        for window, first in enumerate(range(0, count, WINDOW)):
            if window >= AHEAD:
                await self.link.receive("received", peer, **at._asdict())
            blocks = range(first, min(first + WINDOW, count))
            with self.link.activity("encrypt"):
                encrypted = self.key.encrypt(product, blocks, operand, self._mapper, repeatable=repeatable)
            for block in encrypted:
                self.link.send(peer, "operand", block, **at._asdict())

    async def read(self, peer: str, product: Product, *, at: At) -> Share:
        """Return this party's share of the product."""
        windows = -(-len(self.key.lengths.blocks(product)) // WINDOW)
        for _ in range(AHEAD if windows > AHEAD else 0):
            await self.link.receive("received", peer, **at._asdict())
        reply = await self.link.receive("reply", peer, **at._asdict())
        with self.link.activity("open"):
            return self.key.read(product, reply)


class Multiplier:
    """The party with the right factor and another party's public key."""

    def __init__(
        self, link: Link, scheme: CrossScheme, mapper: Mapper, peer: str, key: bytes, nonce: bytes
    ) -> None:
        self.link, self._mapper = link, mapper
        self.peer, self.key_bytes, self.nonce = peer, key, nonce
        """The public key as it arrived, and the nonce that it answers: for a model at rest."""
        with link.activity("keys"):
            self.public: CrossPublic = scheme.load_public(key, nonce)

    async def multiply(self, product: Product, operand: Operand, *, at: At) -> Share:
        """Return this party's share of the product."""
        evaluation, count = self.public.evaluate(product), len(self.public.lengths.blocks(product))
        windows = range(0, count, WINDOW)
        for first in windows:
            blocks = {}
            for block in range(first, min(first + WINDOW, count)):
                blocks[block] = await self.link.receive("operand", self.peer, **at._asdict())
            with self.link.activity("products"):
                evaluation.add(blocks, operand, self._mapper)
            if len(windows) > AHEAD:
                self.link.send(self.peer, "received", b"\1", **at._asdict())
        return self._reply(evaluation, at)

    async def take(self, product: Product, *, at: At) -> list[bytes]:
        """Return the left factor as it arrives, to be kept and multiplied later."""
        count = len(self.public.lengths.blocks(product))
        return [await self.link.receive("operand", self.peer, **at._asdict()) for _ in range(count)]

    def multiply_kept(
        self, product: Product, blocks: list[bytes], operand: Operand, seed: bytes, *, at: At
    ) -> Share:
        """Multiply a left factor that was kept. The reply's randomness follows from `seed`."""
        evaluation = self.public.evaluate(product, seed)
        with self.link.activity("products"):
            evaluation.add(dict(enumerate(blocks)), operand, self._mapper)
        return self._reply(evaluation, at)

    def _reply(self, evaluation: Evaluation, at: At) -> Share:
        with self.link.activity("mask"):
            reply, share = evaluation.finish()
        self.link.send(self.peer, "reply", reply, **at._asdict())
        return share


class CrossTools(NamedTuple):
    """A party's link, with the scheme and the workers of its encrypted products."""

    link: Link
    scheme: CrossScheme
    mapper: Mapper

    async def encryptor(self, peers: Iterable[str], *, at: At, secret: bytes | None = None) -> Encryptor:
        """Send a public key to everybody who will multiply. The key is fresh if `secret` is None."""
        with self.link.activity("keys"):
            key = self.scheme.generate() if secret is None else self.scheme.load_key(secret)
        for peer in peers:
            nonce = await self.link.receive("nonce", peer, **at._asdict())
            if len(nonce) != NONCE_BYTES:
                raise FormatError(f"nonce: {len(nonce)} bytes given by {peer}, {NONCE_BYTES} are due")
            with self.link.activity("keys"):
                public = key.public(nonce)
            self.link.send(peer, "cross-key", public, **at._asdict())
        return Encryptor(self.link, key, self.mapper)

    async def multiplier(self, peer: str, *, at: At, nonce: bytes | None = None) -> Multiplier:
        """Send a nonce, a fresh one if it is None, and take the public key for it."""
        nonce = os.urandom(NONCE_BYTES) if nonce is None else nonce
        self.link.send(peer, "nonce", nonce, **at._asdict())
        key = await self.link.receive("cross-key", peer, **at._asdict())
        return Multiplier(*self, peer, key, nonce)
