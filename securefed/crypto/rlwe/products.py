"""A plain matrix times a hidden array under RLWE, cut into parts that do not depend on each other.

A *part* is some units of one ciphertext of the result (securefed.crypto.rlwe.packing), a whole subtree of its
merges. Whoever does a part encodes a few thousand entries of the matrix at a time, so no matter how large
the matrix is, what is held beyond its own numbers is a block of it. How work is cut follows from shapes
alone: results are the same, bit for bit, wherever the parts are done.

Parts that are done in other processes (securefed.engine) carry public keys, ciphertexts and plain numbers
of this party; no secret key is among what they are given.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from securefed.crypto.hidden import PART_ENTRIES, PlainMatrix
from securefed.crypto.rlwe.merging import merge, merges_of
from securefed.crypto.rlwe.packing import Block, Packing
from securefed.crypto.rlwe.ring import Ring, Words
from securefed.crypto.rlwe.sealed import sealed
from securefed.crypto.scheme import Shared

if TYPE_CHECKING:
    from securefed.crypto.rlwe.keys import RlwePublicKey

__all__ = ["Terms", "kept_encodings", "multiply"]

Integers = NDArray[np.int64]
PARTS = 8
"""Parts that a product is cut into, where there is so much to do."""
WORTH_SHARING = 256
"""Products of ciphertexts, some tenths of a second, from which on other processes are asked."""


class Terms:
    """The ciphertexts of an operand, by columns, then by pieces; they travel as residues."""

    def __init__(self, ring: Ring, held: Sequence[Any], words: Words | None = None) -> None:
        self.ring, self._held, self._words = ring, held, words

    @cached_property
    def seal(self) -> Sequence[Any]:
        if self._words is None:
            return self._held
        return [sealed(self.ring).ciphertext(pair) for pair in self._words]

    def __getstate__(self) -> dict[str, Any]:
        words = self._words
        if words is None:
            words = np.stack([sealed(self.ring).read(item) for item in self._held])
        return {"ring": self.ring, "_held": (), "_words": words}


@dataclass(frozen=True)
class Part:
    """Units `first` to `last` of a block."""

    block: Block
    first: int
    last: int

    def rows(self, length: int) -> slice:
        """Of the result: units that are merged with each other interleave theirs."""
        starts = self.block.unit_starts(length)
        low = min(starts[self.first : self.last])
        first, end = self.block.first_row, self.block.first_row + self.block.rows
        return slice(first + low, max(end, first + low), len(starts) // (self.last - self.first))


@dataclass(frozen=True, eq=False)
class Job:
    """One part, and what it is about."""

    public: Shared[RlwePublicKey]
    terms: Shared[Terms]
    matrix: Shared[PlainMatrix]
    part: Part
    length: int
    pieces: int


def multiply(public: RlwePublicKey, terms: Terms, matrix: PlainMatrix, packing: Packing, length: int) -> Any:
    """matrix @ array: a ciphertext for each block of the packing."""
    ring, mapper = public.ring, public.mapper
    pieces = -(-matrix.shape[1] // length)
    parts = [part for block in packing.blocks for part in _parts(block, length, len(packing.blocks))]
    work = sum((part.last - part.first) * part.block.columns for part in parts) * pieces
    if mapper.workers == 1 or work < WORTH_SHARING:
        roots = [_roots(public, terms, matrix, part, length, pieces) for part in parts]
    else:
        given = public.shared(), mapper.share(terms), _shared(matrix, mapper)
        found = mapper.map(do, [Job(*given, part, length, pieces) for part in parts])
        roots = [_loaded(ring, words) for words in found]
    made = dict(zip(parts, roots, strict=True))
    return [_joined(public, block, made, length, len(packing.blocks)) for block in packing.blocks]


def _parts(block: Block, length: int, blocks: int) -> list[Part]:
    units = block.spacing(length) // block.stride
    count = 1
    while count < units and count * blocks < PARTS:
        count *= 2
    size = units // count
    return [Part(block, first, first + size) for first in range(0, units, size)]


def _joined(
    public: RlwePublicKey, block: Block, made: dict[Part, list[Any]], length: int, blocks: int
) -> Any:
    """The last merges of a block: its parts, then its columns."""
    parts = _parts(block, length, blocks)
    stride = block.spacing(length) // (parts[0].last - parts[0].first)
    leaves = [made[part][column] for column in range(block.columns) for part in parts]
    return merge(public.ring, leaves, stride, public.galois)


def do(job: Job) -> list[Words | None]:
    """A part's roots as residues; a top-level function, for other processes."""
    public = job.public.get()
    found = _roots(public, job.terms.get(), job.matrix.get(), job.part, job.length, job.pieces)
    return [None if root is None else sealed(public.ring).read(root) for root in found]


def _loaded(ring: Ring, words: Sequence[Words | None]) -> list[Any]:
    return [None if each is None else sealed(ring).ciphertext(each) for each in words]


def _roots(
    public: RlwePublicKey, terms: Terms, matrix: PlainMatrix, part: Part, length: int, pieces: int
) -> list[Any]:
    """For each column of the block, one ciphertext with the part's units; None where it has no rows."""
    ring, block = public.ring, part.block
    held, size = sealed(ring), part.last - part.first
    unit_rows = block.unit_rows(length)
    merges = merges_of([len(rows) > 0 for rows in unit_rows] * block.columns)
    leaves: list[Any] = [None] * (size * block.columns)
    for unit, first, polynomials in _encoded(ring, matrix, part, length, pieces, merges):
        for column in range(block.columns):
            start = (block.first_column + column) * pieces + first
            chosen = terms.seal[start : start + len(polynomials)]
            total = _inner(ring, chosen, polynomials)
            if total is None:
                continue
            # One encoding serves all columns; those that are merged less often are doubled here.
            for _ in range(merges[unit] - merges[unit + column * len(unit_rows)]):
                held.evaluator.add_inplace(total, total)
            at = unit - part.first + column * size
            if leaves[at] is None:
                leaves[at] = total
            else:
                held.evaluator.add_inplace(leaves[at], total)
    for unit in range(part.first, part.last):
        for column in range(block.columns if len(unit_rows[unit]) else 0):
            at = unit - part.first + column * size
            if leaves[at] is None:  # all its multipliers are 0, which SEAL refuses: zero is encrypted for it
                leaves[at] = public.zero()
    columns = [leaves[start : start + size] for start in range(0, len(leaves), size)]
    return [merge(ring, column, block.spacing(length), public.galois) for column in columns]


def _inner(ring: Ring, terms: Sequence[Any], polynomials: Sequence[Any]) -> Any:
    """The sum of ciphertexts times plaintexts; None if all of these are 0."""
    held, total = sealed(ring), None
    for term, polynomial in zip(terms, polynomials, strict=True):
        if polynomial.is_zero():
            continue
        product = held.apply("multiply_plain", term, polynomial)
        if total is None:
            total = product
        else:
            held.evaluator.add_inplace(total, product)
    return total


# Encodings of the matrix


class KeptEncodings:
    """How many bytes of encodings this process keeps for matrices that come again: a budget for all."""

    def __init__(self, limit: int) -> None:
        self.limit, self.spent = limit, 0

    def reserve(self, matrix: PlainMatrix, size: int) -> bool:
        """Room for so many bytes, until the matrix is gone."""
        if self.spent + size > self.limit:
            return False
        self.spent += size
        weakref.finalize(matrix, self._release, size)
        return True

    def _release(self, size: int) -> None:
        self.spent -= size


kept_encodings = KeptEncodings(512 << 20)
"""Beyond that they are made again in each round."""


def _encoded(
    ring: Ring, matrix: PlainMatrix, part: Part, length: int, pieces: int, merges: Sequence[int]
) -> Iterator[tuple[int, int, list[Any]]]:
    """(unit, first piece, SEAL plaintexts for some pieces) of all units of a part that have rows."""
    rows = part.rows(length)
    units = sum(len(found) > 0 for found in part.block.unit_rows(length)[part.first : part.last])
    if not units:
        return
    each = max(1, PART_ENTRIES // (len(range(rows.stop)[rows]) * length))
    for first in range(0, pieces, each):
        last = min(first + each, pieces)
        key = (ring.name, part, length, first, last)
        kept = matrix.encodings.get(key)
        if kept is None:
            size = units * (last - first) * len(ring.data_primes) * ring.degree * 8
            made = _encode(ring, matrix, part, length, (first, last), merges)
            if matrix.keep and kept_encodings.reserve(matrix, size):
                kept = matrix.encodings[key] = list(made)
            else:
                yield from made
                continue
        yield from kept


def _encode(
    ring: Ring,
    matrix: PlainMatrix,
    part: Part,
    length: int,
    pieces: tuple[int, int],
    merges: Sequence[int],
) -> Iterator[tuple[int, int, list[Any]]]:
    first, last = pieces
    block, held = part.block, sealed(ring)
    rows, size = part.rows(length), part.last - part.first
    whole = matrix.integers(rows, slice(first * length, min(last * length, matrix.shape[1])))
    for unit, found in enumerate(block.unit_rows(length)[part.first : part.last], part.first):
        if not len(found):
            continue
        integers = whole[(block.first_row + int(found[0]) - rows.start) // rows.step :: size]
        polynomials = _polynomials(ring, integers, block.spacing(length), length, last - first)
        halved = ring.scaled(ring.from_small(polynomials), pow(2, -merges[unit], ring.modulus))
        yield unit, first, [held.plaintext(words) for words in held.to_ntt(halved)]


def _polynomials(ring: Ring, integers: Integers, spacing: int, length: int, pieces: int) -> Integers:
    """(pieces, N): A(X) of the module on packing, for the rows of one unit and some pieces of the operand."""
    rows, inputs = integers.shape
    table = np.zeros((ring.degree // spacing, pieces * length), dtype=np.int64)
    table[:rows, :inputs] = integers
    result = np.zeros((pieces, ring.degree // spacing, spacing), dtype=np.int64)
    for piece in range(pieces):
        part = table[:, piece * length : (piece + 1) * length]
        result[piece, :, 0] = part[:, 0]
        if length > 1:
            turned = np.roll(part[:, :0:-1], -1, axis=0)
            turned[-1] *= -1
            result[piece, :, spacing - length + 1 :] = turned
    return result.reshape(pieces, ring.degree)


def _shared(matrix: PlainMatrix, mapper: Any) -> Shared[PlainMatrix]:
    """Placed once, for as long as the matrix is kept."""
    known = matrix.encodings.get("shared")
    if known is None or known[0] is not mapper:
        known = matrix.encodings["shared"] = mapper, mapper.share(matrix)
    found: Shared[PlainMatrix] = known[1]
    return found
