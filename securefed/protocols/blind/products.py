"""Products of a shared matrix with shared vectors, prepared beforehand so that a round needs no ciphertext.

Holders 1 and 2 share M = S_1 + S_2. Beforehand each draws random columns r_h, and two calls of `cross` give
them shares of K = S_1 r_2 + S_2 r_1. To multiply M by v = v_1 + v_2 each sends

    difference    v_h - r_h, uniform because r_h is

and computes S_h (v_h + the other's difference) + K_h; the two add up to M v. A random column serves once, and
lives only as long as this attempt at the run: nothing of it is in a checkpoint. A wrong difference tells its
sender nothing: it shifts v, as another input would.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from securefed.crypto.blind import shares
from securefed.crypto.blind.interface import CrossScheme, Product
from securefed.crypto.blind.shares import LIMBS, Floats, Share
from securefed.crypto.errors import MaskError
from securefed.crypto.scheme import Mapper
from securefed.protocols.blind.cross import Encryptor, Multiplier
from securefed.transport import Link

__all__ = ["Prepared", "prepare"]


class Prepared:
    """One holder's share of a matrix, with prepared products by random columns."""

    def __init__(self, link: Link, peer: str, share: Share, random: Share, products: Share) -> None:
        self._link, self._peer, self._share = link, peer, share
        self._random, self._products, self._used = random, products, 0
        self._float: Floats = share.astype(np.float64)

    @property
    def left(self) -> int:
        """Random columns that have not been used."""
        return int(self._random.shape[2]) - self._used

    async def times(self, vectors: Share, *, round: int, step: int) -> Share:
        """This holder's share of the matrix times the shared vectors (5, inner, count)."""
        count = vectors.shape[2]
        if count > self.left:
            raise MaskError(f"{count} prepared columns are needed, {self.left} are left")
        at = slice(self._used, self._used + count)
        self._used += count
        difference = shares.subtract(vectors, self._random[:, :, at])
        self._link.send(self._peer, "difference", shares.to_bytes(difference), round=round, step=step)
        arrived = await self._link.receive("difference", self._peer, round=round, step=step)
        theirs = shares.from_bytes(arrived, vectors.shape)
        with self._link.activity("rounds"):
            products = shares.matmul(self._float, shares.add(vectors, theirs))
            return shares.add(products, self._products[:, :, at])


async def prepare(
    link: Link,
    peer: str,
    wanted: Sequence[tuple[Share, int]],
    scheme: CrossScheme,
    mapper: Mapper,
    *,
    first: bool,
    step: int,
    round: int = 0,
    matrix_bits: int = shares.WIDTH,
) -> list[Prepared]:
    """Prepare products of shared matrices, each by so many columns. The first holder encrypts.

    `matrix_bits`: the size of the shares of matrices, with their sign.
    """
    randoms = [shares.uniform(share.shape[2], count) for share, count in wanted]
    matrices = [share for share, _ in wanted]
    products: list[Share] = []
    keys: Encryptor | Multiplier
    if first:
        keys = await Encryptor.begin(link, scheme, [peer], mapper, step=step, round=round)
    else:
        keys = await Multiplier.begin(link, scheme, peer, mapper, step=step, round=round)
    for group in _groups(matrices):
        chosen = [matrices[place] for place in group], [randoms[place] for place in group]
        products += await _prepare_group(keys, peer, *chosen, step=step, round=round, matrix_bits=matrix_bits)
    if isinstance(keys, Encryptor):
        keys.end()
    return [
        Prepared(link, peer, share, random, product)
        for share, random, product in zip(matrices, randoms, products, strict=True)
    ]


def _groups(matrices: Sequence[Share]) -> list[list[int]]:
    """Neighbours with as many rows are prepared together."""
    groups: list[list[int]] = []
    for place, matrix in enumerate(matrices):
        if groups and matrices[groups[-1][-1]].shape[1] == matrix.shape[1]:
            groups[-1].append(place)
        else:
            groups.append([place])
    return groups


async def _prepare_group(
    keys: Encryptor | Multiplier,
    peer: str,
    matrices: Sequence[Share],
    randoms: Sequence[Share],
    *,
    step: int,
    round: int,
    matrix_bits: int,
) -> list[Share]:
    """K of matrices with equally many rows, by one product each way.

    The matrices stand side by side, and their random columns in a block-diagonal matrix beside them, so that
    the sum over all inner rows gives each matrix times its own columns: the fuller ciphertexts are, the fewer
    there are.
    """
    beside = np.concatenate(matrices, axis=2).transpose(0, 2, 1)
    diagonal = _block_diagonal(randoms)
    rows, inner, count = matrices[0].shape[1], beside.shape[1], diagonal.shape[2]
    forth = Product(inner, count, rows, right_bits=matrix_bits)
    back = Product(inner, rows, count, matrix_bits)
    if isinstance(keys, Encryptor):
        await keys.send(peer, forth, _limbs(diagonal), step=step, round=round)
        theirs = await keys.read(peer, forth, step=step, round=round)
        await keys.send(peer, back, _limbs(beside), step=step, round=round)
        rest = await keys.read(peer, back, step=step, round=round)
    else:
        theirs = await keys.multiply(forth, _limbs(beside), step=step, round=round)
        rest = await keys.multiply(back, _limbs(diagonal), step=step, round=round)
    total = shares.add(theirs.transpose(0, 2, 1), rest)
    return np.split(total, np.cumsum([random.shape[2] for random in randoms])[:-1], axis=2)


def _block_diagonal(randoms: Sequence[Share]) -> Share:
    """(5, inner of all, columns of all)."""
    inner, count = sum(each.shape[1] for each in randoms), sum(each.shape[2] for each in randoms)
    diagonal = shares.zeros(inner, count)
    row = column = 0
    for each in randoms:
        diagonal[:, row : row + each.shape[1], column : column + each.shape[2]] = each
        row, column = row + each.shape[1], column + each.shape[2]
    return diagonal


def _limbs(whole: Share) -> Callable[[int, int], Share]:
    if whole.shape[0] != LIMBS:
        raise MaskError(f"a share has {LIMBS} limbs, not {whole.shape[0]}")
    return lambda first, last: np.ascontiguousarray(whole[:, first:last])
