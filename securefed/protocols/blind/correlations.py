"""Products of a shared matrix and columns that change, prepared beforehand.

The two holders share M = M_1 + M_2 and a column v = v_1 + v_2. For each column that will come, holder h draws
a random r_h, and encrypted products give the holders shares K_h of M_1 r_2 + M_2 r_1. Later holder h sends
v_h - r_h, and M_h (v_h + the other's difference) + K_h is its share of M v.

A random number masks one number and serves once. It comes from the operating system, and no checkpoint holds
it. What travels is uniform. A wrong difference tells its sender nothing: it shifts v, as another input would.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np

from securefed.crypto import shares
from securefed.crypto.blind.interface import Operand, Product
from securefed.crypto.shares import LIMBS, WIDTH, Floats, Share
from securefed.errors import MaskError
from securefed.protocols.blind.cross import At, CrossTools, operand_of
from securefed.protocols.blind.statistics import SHARE_BITS
from securefed.transport.link import Link

AHEAD = 4
"""Encrypted factors that may be under way before the first reply is read."""
SMALL_BLOCKS = 4
"""Blocks of a factor that is sent ahead: it takes no acknowledgement."""
Name = tuple[int, int]
"""The name of a matrix: the system and the turn."""


class Size(NamedTuple):
    """What is public about a matrix."""

    rows: int
    inner: int
    columns: int
    """How many columns it will be multiplied by, over all rounds."""


class Prepared(NamedTuple):
    """One holder's side of some columns of a matrix."""

    share: Floats
    random: Share
    products: Share


class Correlations:
    """One holder's prepared products."""

    def __init__(self, prepared: Mapping[Name, Prepared]) -> None:
        self._prepared = dict(prepared)
        """What is left of each matrix's columns."""

    def _take(self, name: Name, count: int) -> Prepared:
        share, random, products = self._prepared[name]
        if count > random.shape[2]:
            raise MaskError(f"{count} prepared columns are needed, {random.shape[2]} are left")
        self._prepared[name] = Prepared(share, random[:, :, count:], products[:, :, count:])
        return Prepared(share, random[:, :, :count], products[:, :, :count])

    async def multiply(
        self, link: Link, peer: str, factors: Sequence[tuple[Name, Share]], at: At
    ) -> list[Share]:
        """Return this holder's shares of several products, by one message each way."""
        prepared = [self._take(name, vectors.shape[2]) for name, vectors in factors]
        with link.activity("rounds"):
            differences = [
                shares.subtract(vectors, own.random).reshape(LIMBS, -1)
                for (_, vectors), own in zip(factors, prepared, strict=True)
            ]
            whole = np.concatenate(differences, axis=1)
        link.send(peer, "difference", shares.to_bytes(whole), round=at.round, step=at.step)
        message = await link.receive("difference", peer, round=at.round, step=at.step)
        theirs = shares.from_bytes(message, whole.shape)
        products, start = [], 0
        with link.activity("rounds"):
            for (_, vectors), own in zip(factors, prepared, strict=True):
                end = start + vectors[0].size
                opened = shares.add(vectors, theirs[:, start:end].reshape(vectors.shape))
                products.append(shares.add(shares.matmul(own.share, opened), own.products))
                start = end
        return products


def prepared_products(sizes: Mapping[Name, Size]) -> list[Product]:
    """List the encrypted products that prepare all columns: (M_2 r_1)' and M_1 r_2 of each group."""
    products = []
    for names in _together(sizes):
        rows, inner, _ = sizes[names[0]]
        inner, columns = len(names) * inner, sum(sizes[name].columns for name in names)
        products.append(Product(inner, columns, rows, WIDTH, SHARE_BITS))
        products.append(Product(inner, rows, columns, SHARE_BITS, WIDTH))
    return products


async def prepare_all(
    tools: CrossTools,
    peer: str,
    sizes: Mapping[Name, Size],
    own: Mapping[Name, Share],
    *,
    first: bool,
    at: At,
    draw: Callable[..., Share] = shares.uniform,
) -> Correlations:
    """Prepare the products of all matrices; `own`: this holder's shares of them, (5, rows, inner)."""
    randoms = {name: draw(size.inner, size.columns) for name, size in sizes.items()}
    factors: list[Operand] = []
    for names in _together(sizes):
        matrices = np.concatenate([own[name] for name in names], axis=2).transpose(0, 2, 1)
        columns = _block_diagonal([randoms[name] for name in names])
        factors += map(operand_of, (columns, matrices) if first else (matrices, columns))
    jobs = list(zip(prepared_products(sizes), factors, strict=True))
    encrypted = iter(await _products(tools, peer, jobs, first=first, at=at))
    prepared = {}
    for names in _together(sizes):
        products = shares.add(next(encrypted).transpose(0, 2, 1), next(encrypted))
        ends = np.cumsum([sizes[name].columns for name in names])[:-1]
        for name, part in zip(names, np.split(products, ends, axis=2), strict=True):
            prepared[name] = Prepared(own[name].astype(np.float64), randoms[name], part)
    return Correlations(prepared)


def _together(sizes: Mapping[Name, Size]) -> list[list[Name]]:
    """Group matrices of the same shape, one after the other, that are prepared together.

    They stand side by side, and their random columns in a block-diagonal matrix beside them. So the sum over
    all inner rows gives each matrix times its own columns, and ciphertexts are fuller.
    """
    return [list(names) for _, names in groupby(sizes, key=lambda name: sizes[name][:2])]


def _block_diagonal(blocks: Sequence[Share]) -> Share:
    """(5, inner, columns) each -> (5, inner of all, columns of all), with 0 away from the blocks."""
    inner, columns = (sum(each.shape[axis] for each in blocks) for axis in (1, 2))
    whole = shares.zeros(inner, columns)
    row = column = 0
    for each in blocks:
        whole[:, row : row + each.shape[1], column : column + each.shape[2]] = each
        row, column = row + each.shape[1], column + each.shape[2]
    return whole


async def _products(
    tools: CrossTools, peer: str, jobs: Sequence[tuple[Product, Operand]], *, first: bool, at: At
) -> list[Share]:
    """Return this holder's shares of encrypted products, in order. The key ends with them."""
    if not first:
        theirs = await tools.multiplier(peer, at=at)
        return [await theirs.multiply(product, operand, at=at) for product, operand in jobs]
    own = await tools.encryptor([peer], at=at)
    products: list[Share] = []
    waiting: list[Product] = []

    async def read(most: int) -> None:
        while len(waiting) > most:
            products.append(await own.read(peer, waiting.pop(0), at=at))

    for product, operand in jobs:
        small = len(own.key.lengths.blocks(product)) <= SMALL_BLOCKS
        if not small:
            await read(0)
        await own.send(peer, product, operand, at=at)
        waiting.append(product)
        await read(AHEAD if small else 0)
    await read(0)
    own.key.erase()
    return products
