"""A plain matrix times a hidden array under RLWE, cut into parts that do not depend on each other.

*Turns.* A merge (securefed.crypto.rlwe.merging) takes the automorphism of a product, sigma(A v) =
sigma(A) sigma(v), so the first k merges can be done on the operand: with tau running over the 2^k products of
their automorphisms,

    the first merges of 2^k units   =   sum over tau of D_tau tau(v),     D_tau plain polynomials

and tau(v) serves all *groups* of 2^k units. Instead of U - 1 key switches for U units there are 2^k - 1 for
each piece of the operand and U / 2^k - 1: some 2 sqrt(U). The halvings that undo the first k merges are done
on v; a key switch after them adds noise that D_tau then multiplies, so matrices say whether they allow it
(`PlainMatrix.rough`).

*Parts.* A part is some groups of one ciphertext of the result, a whole subtree of its merges. Whoever does a
part encodes a few thousand entries of the matrix at a time, so no matter how large the matrix is, what is
held beyond its own numbers is a block of it. How work is cut follows from shapes alone: results are the same,
bit for bit, wherever the parts are done.

Parts that are done in other processes (securefed.engine) carry public keys, ciphertexts and plain numbers
of this party; no secret key is among what they are given.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from securefed.crypto.hidden import PART_ENTRIES, PlainMatrix
from securefed.crypto.rlwe.merging import merge, merges_of
from securefed.crypto.rlwe.packing import Block, Packing, reversed_bits, turns_for
from securefed.crypto.rlwe.ring import Ring, Words
from securefed.crypto.rlwe.sealed import sealed
from securefed.crypto.scheme import Shared

if TYPE_CHECKING:
    from securefed.crypto.rlwe.keys import RlwePublicKey

__all__ = ["Terms", "kept_encodings", "multiply"]

Integers = NDArray[np.int64]
PARTS = 8
"""Parts that a product is cut into, where there is so much to do."""
WORD_BITS = 53
"""Of multipliers, which have to stay below every prime."""
WORTH_SHARING = 256
"""Products of ciphertexts, some tenths of a second, from which on other processes are asked."""


class Terms:
    """The ciphertexts of an operand, by columns, then by pieces; they travel as residues."""

    def __init__(self, ring: Ring, held: Sequence[Any], words: Words | None = None) -> None:
        self.ring, self._held, self._words = ring, held, words
        self._turned: dict[tuple[int, int], list[Sequence[Any]]] = {}

    @cached_property
    def seal(self) -> Sequence[Any]:
        if self._words is None:
            return self._held
        return [sealed(self.ring).ciphertext(pair) for pair in self._words]

    def turned(self, length: int, turns: int, galois: Any) -> Sequence[Sequence[Any]]:
        """All ciphertexts, of pieces of that length, divided by `turns` and under each tau; made once."""
        if turns == 1:
            return [self.seal]
        found = self._turned.get((length, turns))
        if found is None:
            ring, held = self.ring, sealed(self.ring)
            divided = _constant(ring, pow(turns, -1, ring.modulus))
            found = [[held.apply("multiply_plain", item, divided) for item in self.seal]]
            while len(found) < turns:
                element = ring.galois_element(length // len(found))
                found += [
                    [held.apply("apply_galois", item, element, galois) for item in each] for each in found
                ]
            self._turned[length, turns] = found
        return found

    def __getstate__(self) -> dict[str, Any]:
        words = self._words
        if words is None:
            words = np.stack([sealed(self.ring).read(item) for item in self._held])
        return {"ring": self.ring, "_held": (), "_words": words, "_turned": {}}


@cache
def _constant(ring: Ring, number: int) -> Any:
    """A number modulo q as a polynomial in NTT form."""
    words = np.array([[number % prime] for prime in ring.data_primes], dtype=np.uint64)
    return sealed(ring).plaintext(np.broadcast_to(words, (len(words), ring.degree)))


@dataclass(frozen=True)
class Form:
    """How a product is done: the operand's pieces, and their turns."""

    length: int
    pieces: int
    turns: int

    def group(self, block: Block) -> int:
        """Units of a group."""
        return min(self.turns, block.spacing(self.length) // block.stride)

    def groups(self, block: Block) -> int:
        """Whether they have rows or not."""
        return block.spacing(self.length) // block.stride // self.group(block)

    def present(self, block: Block) -> list[bool]:
        """Which groups have rows."""
        some = -(-block.units(self.length) // self.group(block))
        return [group < some for group in range(self.groups(block))]

    def group_rows(self, block: Block) -> int:
        return self.group(block) * block.unit_size(self.length)


@dataclass(frozen=True)
class Part:
    """Groups `first` to `last` of a block."""

    block: Block
    first: int
    last: int

    def rows(self, form: Form) -> slice:
        """Of the result."""
        each, first = form.group_rows(self.block), self.block.first_row
        low, high = (min(self.block.rows, group * each) for group in (self.first, self.last))
        return slice(first + low, first + high)


@dataclass(frozen=True, eq=False)
class Job:
    """One part, and what it is about."""

    public: Shared[RlwePublicKey]
    terms: Shared[Terms]
    matrix: Shared[PlainMatrix]
    part: Part
    form: Form


def multiply(public: RlwePublicKey, terms: Terms, matrix: PlainMatrix, packing: Packing, length: int) -> Any:
    """matrix @ array: a ciphertext for each block of the packing."""
    ring, mapper = public.ring, public.mapper
    pieces = -(-matrix.shape[1] // length)
    most = 1 << max(0, WORD_BITS - matrix.bits) if matrix.rough else 1
    form = Form(length, pieces, turns_for(packing, length, pieces, most)[0])
    parts = [part for block in packing.blocks for part in _parts(block, form, len(packing.blocks))]
    work = sum((p.last - p.first) * form.group(p.block) * p.block.columns for p in parts) * pieces
    if mapper.workers == 1 or work < WORTH_SHARING:
        roots = [_roots(public, terms, matrix, part, form) for part in parts]
    else:
        given = public.shared(), mapper.share(terms), _shared(matrix, mapper)
        found = mapper.map(do, [Job(*given, part, form) for part in parts])
        roots = [_loaded(ring, words) for words in found]
    made = dict(zip(parts, roots, strict=True))
    return [_joined(public, block, made, form, len(packing.blocks)) for block in packing.blocks]


def _parts(block: Block, form: Form, blocks: int) -> list[Part]:
    groups, count = form.groups(block), 1
    while count < groups and count * blocks < PARTS:
        count *= 2
    size = groups // count
    return [Part(block, first, first + size) for first in range(0, groups, size)]


def _joined(public: RlwePublicKey, block: Block, made: dict[Part, list[Any]], form: Form, blocks: int) -> Any:
    """The last merges of a block: its parts, then its columns."""
    parts = _parts(block, form, blocks)
    stride = block.spacing(form.length) // (form.group(block) * (parts[0].last - parts[0].first))
    leaves = [made[part][column] for column in range(block.columns) for part in parts]
    return merge(public.ring, leaves, stride, public.galois)


def do(job: Job) -> list[Words | None]:
    """A part's roots as residues; a top-level function, for other processes."""
    public = job.public.get()
    found = _roots(public, job.terms.get(), job.matrix.get(), job.part, job.form)
    return [None if root is None else sealed(public.ring).read(root) for root in found]


def _loaded(ring: Ring, words: Sequence[Words | None]) -> list[Any]:
    return [None if each is None else sealed(ring).ciphertext(each) for each in words]


def _roots(public: RlwePublicKey, terms: Terms, matrix: PlainMatrix, part: Part, form: Form) -> list[Any]:
    """For each column of the block, one ciphertext with the part's groups; None where it has no rows."""
    ring, block = public.ring, part.block
    held, size, spacing = sealed(ring), part.last - part.first, block.spacing(form.length)
    present = form.present(block)
    merges = merges_of(present * block.columns)
    leaves: list[Any] = [None] * (size * block.columns)
    turned = (
        terms.turned(form.length, form.turns, public.galois) if any(present[part.first : part.last]) else []
    )
    for group, first, polynomials in _encoded(ring, matrix, part, form):
        for column in range(block.columns):
            start = (block.first_column + column) * form.pieces + first
            total = None
            for operand, some in zip(turned, polynomials, strict=False):
                total = _inner(ring, operand[start : start + len(some)], some, total)
            at = group - part.first + column * size
            if leaves[at] is None:
                leaves[at] = total
            elif total is not None:
                held.evaluator.add_inplace(leaves[at], total)
    # Turns that this block has no use for have halved the operand too.
    unused = form.turns // form.group(block)
    for group in range(part.first, part.last):
        for column in range(block.columns if present[group] else 0):
            at = group - part.first + column * size
            if leaves[at] is None:  # all its multipliers are 0, which SEAL refuses: zero is encrypted for it
                leaves[at] = public.zero()
            doubled = 1 << merges[group + column * len(present)]
            if doubled != unused:
                undone = _constant(ring, unused * pow(doubled, -1, ring.modulus) % ring.modulus)
                held.evaluator.multiply_plain_inplace(leaves[at], undone)
    columns = [leaves[start : start + size] for start in range(0, len(leaves), size)]
    return [merge(ring, column, spacing // form.group(block), public.galois) for column in columns]


def _inner(ring: Ring, terms: Sequence[Any], polynomials: Sequence[Any], total: Any) -> Any:
    """The sum of ciphertexts times plaintexts, added to `total`; None if there is nothing but 0."""
    held = sealed(ring)
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
    ring: Ring, matrix: PlainMatrix, part: Part, form: Form
) -> Iterator[tuple[int, int, list[list[Any]]]]:
    """(group, first piece, for each tau SEAL plaintexts for some pieces) of all groups that have rows."""
    rows = part.rows(form)
    count = rows.stop - rows.start
    if not count:
        return
    taken = -(-count // form.group_rows(part.block)) * form.group(part.block)
    each = max(1, PART_ENTRIES // (count * form.length))
    for first in range(0, form.pieces, each):
        last = min(first + each, form.pieces)
        key = (ring.name, part, form, first, last)
        kept = matrix.encodings.get(key)
        if kept is None:
            size = taken * (last - first) * len(ring.data_primes) * ring.degree * 8
            made = _encode(ring, matrix, part, form, (first, last))
            if matrix.keep and kept_encodings.reserve(matrix, size):
                kept = matrix.encodings[key] = list(made)
            else:
                yield from made
                continue
        yield from kept


def _encode(
    ring: Ring, matrix: PlainMatrix, part: Part, form: Form, pieces: tuple[int, int]
) -> Iterator[tuple[int, int, list[list[Any]]]]:
    first, last = pieces
    block, held, rows = part.block, sealed(ring), part.rows(form)
    each, units, spacing = form.group_rows(block), form.group(block), block.spacing(form.length)
    whole = matrix.integers(rows, slice(first * form.length, min(last * form.length, matrix.shape[1])))
    for group in range(part.first, part.last):
        integers = whole[(group - part.first) * each : (group - part.first + 1) * each]
        if not len(integers):
            return
        polynomials = _polynomials(ring, integers, spacing, form.length, last - first, units)
        merged = _merged(ring, polynomials, spacing).reshape(-1, ring.degree)
        made = held.plaintexts(merged)
        yield group, first, [made[at : at + last - first] for at in range(0, len(made), last - first)]


def _polynomials(
    ring: Ring, integers: Integers, spacing: int, length: int, pieces: int, units: int
) -> Integers:
    """(units, pieces, N): A(X) of the module on packing, for the rows of so many units and some pieces of the
    operand.
    """
    rows, inputs = integers.shape
    size = ring.degree // spacing
    table = np.zeros((units * size, pieces * length), dtype=np.int64)
    table[:rows, :inputs] = integers
    parts = table.reshape(units, size, pieces, length)[:, reversed_bits(size)].swapaxes(1, 2)
    result = np.zeros((units, pieces, size, spacing), dtype=np.int64)
    result[..., 0] = parts[..., 0]
    if length > 1:
        turned = np.roll(parts[..., :0:-1], -1, axis=2)
        turned[:, :, -1] *= -1
        result[..., spacing - length + 1 :] = turned
    return result.reshape(units, pieces, ring.degree)


def _merged(ring: Ring, units: Integers, stride: int) -> Integers:
    """(taus, pieces, N): what each turn of the operand is multiplied by, from (units, pieces, N)."""
    nodes: Integers = units[:, None]
    while len(nodes) > 1:
        a, b = nodes[::2], _shifted(nodes[1::2], stride // 2)
        source, sign = _automorphism(ring, stride)
        nodes = np.concatenate([a + b, sign * (a - b)[..., source]], axis=1)
        stride //= 2
    merged: Integers = nodes[0]
    return merged


def _shifted(polynomials: Integers, exponent: int) -> Integers:
    """Times X^exponent."""
    found = np.roll(polynomials, exponent, axis=-1)
    found[..., :exponent] *= -1
    return found


@cache
def _automorphism(ring: Ring, stride: int) -> tuple[NDArray[np.intp], Integers]:
    """Where the coefficients of sigma(p) come from, and with which sign."""
    places = np.arange(ring.degree) * ring.galois_element(stride) % (2 * ring.degree)
    source, sign = np.empty(ring.degree, dtype=np.intp), np.empty(ring.degree, dtype=np.int64)
    source[places % ring.degree] = np.arange(ring.degree)
    sign[places % ring.degree] = np.where(places < ring.degree, 1, -1)
    return source, sign


def _shared(matrix: PlainMatrix, mapper: Any) -> Shared[PlainMatrix]:
    """Placed once, for as long as the matrix is kept."""
    known = matrix.encodings.get("shared")
    if known is None or known[0] is not mapper:
        known = matrix.encodings["shared"] = mapper, mapper.share(matrix)
    found: Shared[PlainMatrix] = known[1]
    return found
