"""Hidden arrays under RLWE: exact integers in the coefficients of polynomials.

There is no embedding and no approximation but noise: a product by a plain matrix is integer arithmetic
modulo q. `securefed.crypto.rlwe.packing` says where entries stand.

What leaves for the key-holder (`RlweBlock`, `RlweMasked`) consists of c1, hidden by one fresh encryption of
zero for each ciphertext after its last product or merge, and of c0 at the places of the entries only, each
under a mask; c0 at other places, which holds products that nobody may see, is never sent. What goes to
somebody without the key (`RlweSum`) has the same form without masks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from securefed.crypto.errors import CapacityError, FormatError, MaskError, ShapeError, WrongKey
from securefed.crypto.hidden import HiddenArray, HiddenBlock, HiddenSum, PlainMatrix, Range, Wide, draw_masks
from securefed.crypto.limbs import Limbs
from securefed.crypto.rlwe.packing import PLACES, Packing, operand_length, padded
from securefed.crypto.rlwe.products import Terms, multiply
from securefed.crypto.rlwe.ring import SEED_BYTES, Ring, Words
from securefed.crypto.rlwe.sealed import sealed
from securefed.crypto.scheme import Floats, Mask, Masked, Opened
from securefed.crypto.wire import Frame, Kind

if TYPE_CHECKING:
    from securefed.crypto.rlwe.keys import RlwePublicKey

__all__ = ["RlweArray", "RlweBlock", "RlweMask", "RlweMasked", "RlweOpened", "RlweSum", "coefficients"]

SHORT = 64


class RlweArray(HiddenArray):
    """Operands: for each column, and each block of it, a ciphertext.

    They are coefficients while they travel (c0, and c1 or its public seed) and take plain numbers, and SEAL's
    objects in NTT form while they are multiplied; each form is made from the other when it is needed.
    """

    def __init__(
        self,
        public: RlwePublicKey,
        shape: tuple[int, int],
        range_: Range,
        blocks: int,
        *,
        held: Sequence[Any] | None = None,
        c0: Words | None = None,
        c1: Words | None = None,
        seed: bytes = b"",
    ) -> None:
        self.public, self.shape, self.range = public, shape, range_
        self.blocks = blocks
        self._held, self._c0, self._c1, self._seed = held, c0, c1, seed

    @property
    def length(self) -> int:
        """Entries in one ciphertext, padded."""
        return operand_length(self.shape[0], self.blocks, self.public.ring.degree)

    @property
    def ciphertexts(self) -> int:
        return self.public.array_ciphertexts(self.shape, self.blocks)

    def repeated(self) -> int:
        return 0 if self._seed else _repeated(self._words()[1])

    def _words(self) -> tuple[Words, Words]:
        """c0 and c1, (ciphertexts, primes, N) each."""
        if self._c0 is None:
            held = sealed(self.public.ring)
            found = np.stack([held.read(held.apply("transform_from_ntt", item)) for item in self._held or ()])
            self._c0, self._c1 = found[:, 0], found[:, 1]
        if self._c1 is None:
            self._c1 = self.public.ring.expand(self._seed, len(self._c0))
        return self._c0, self._c1

    @property
    def _seal(self) -> Sequence[Any]:
        if self._held is None:
            held = sealed(self.public.ring)
            self._held = [held.ciphertext(pair, ntt=False) for pair in np.stack(self._words(), axis=1)]
            for item in self._held:
                held.evaluator.transform_to_ntt_inplace(item)
        return self._held

    def add_plain(self, integers: Wide, range_: Range) -> Self:
        if integers.shape != self.shape:
            raise ShapeError(f"integers of shape {integers.shape} given, {self.shape} expected")
        ring, (c0, c1) = self.public.ring, self._words()
        total = ring.add(c0, coefficients(ring, integers, self.length))
        # c1 stays what it was, so its seed still gives it.
        result = type(self)(self.public, self.shape, range_, self.blocks, c0=total, c1=c1, seed=self._seed)
        result.origin = "arrived" if self.origin == "arrived" else "computed"
        return result

    def whole(self) -> RlweArray:
        """Every coefficient of every piece."""
        pieces_ = self.ciphertexts // self.shape[1]
        shape = (pieces_ * self.public.ring.degree, self.shape[1])
        return RlweArray(self.public, shape, self.range, pieces_, held=self._seal)

    def packed(self) -> RlweSum:
        size = self.shape[0]
        return self._product(PlainMatrix(np.eye(size), 0, 1))

    def _product(self, matrix: PlainMatrix) -> RlweSum:
        packing = Packing(matrix.shape[0], self.shape[1], self.public.ring.degree)
        terms = Terms(self.public.ring, self._seal)
        held = multiply(self.public, terms, matrix, packing, self.length)
        bits = self.range.bits + matrix.bits + padded(self.shape[0]).bit_length()
        found = Range(self.range.fraction_bits + matrix.fraction_bits, bits)
        return RlweSum(self.public, packing, found, held=held)

    def to_bytes(self) -> bytes:
        ring = self.public.ring
        numbers = (self.range.fraction_bits, self.range.bits, self.blocks, int(bool(self._seed)))
        c0, c1 = self._words()
        payload = (self._seed or ring.to_bytes(c1)) + ring.to_bytes(c0)
        return self.public.frame(Kind.ENCRYPTED, payload, self.shape, numbers).to_bytes()

    @classmethod
    def from_frame(
        cls, public: RlwePublicKey, frame: Frame, shape: tuple[int, int], range_: Range, blocks: int
    ) -> RlweArray:
        ring = public.ring
        if frame.shape != shape:
            raise ShapeError(f"ciphertexts of shape {frame.shape} given, {shape} expected")
        fraction_bits, _, found_blocks, seeded = frame.numbers
        if (fraction_bits, found_blocks) != (range_.fraction_bits, blocks) or seeded not in (0, 1):
            raise ShapeError(
                f"a hidden array with numbers {frame.numbers} given,"
                f" {range_.fraction_bits} fraction bits in {blocks} blocks were agreed"
            )
        size = (public.array_ciphertexts(shape, blocks), len(ring.data_primes), ring.degree)
        body = memoryview(frame.payload)
        start = SEED_BYTES if seeded else ring.byte_count(int(np.prod(size)))
        c0 = ring.from_bytes(body[start:], size, "ciphertexts")
        if seeded:
            return cls(public, shape, range_, blocks, c0=c0, seed=bytes(body[:start]))
        c1 = ring.from_bytes(body[:start], size, "ciphertexts")
        if not c1.any(axis=-1).all():
            raise FormatError("ciphertexts: a polynomial is zero")
        return cls(public, shape, range_, blocks, c0=c0, c1=c1)


class RlweSum(HiddenSum):
    """Results: SEAL's objects, with plain numbers still to be added; or residues, c0 at the places of the
    entries, (primes, entries), and c1, (ciphertexts, primes, N), both as coefficients.
    """

    def __init__(
        self,
        public: RlwePublicKey,
        packing: Packing,
        range_: Range,
        slack: int = 0,
        *,
        held: Sequence[Any] | None = None,
        plain: Words | None = None,
        words: tuple[Words, Words] | None = None,
    ) -> None:
        self.public, self.packing, self.range, self.slack = public, packing, range_, slack
        self.shape = (packing.rows, packing.columns)
        self._held, self._plain, self._words = held, plain, words

    @property
    def ciphertexts(self) -> int:
        return len(self.packing.blocks)

    @property
    def words(self) -> tuple[Words, Words]:
        """c0 at the places of the entries, and c1."""
        if self._words is None:
            ring, held = self.public.ring, sealed(self.public.ring)
            c0, c1 = [], []
            for item, block in zip(self._held or (), self.packing.blocks, strict=True):
                first, second = held.read(held.apply("transform_from_ntt", item))
                c0.append(first[:, block.places.ravel()])
                c1.append(second)
            total = np.concatenate(c0, axis=1)
            if self._plain is not None:
                total = ring.add(total, self._plain)
            self._words = total, np.stack(c1)
        return self._words

    def repeated(self) -> int:
        return _repeated(self.words[1])

    def within(self, range_: Range, slack: int) -> Self:
        if range_.fraction_bits != self.range.fraction_bits:
            raise ShapeError(
                f"sums at {self.range.fraction_bits} fraction bits given, {range_.fraction_bits} agreed"
            )
        if self.public.room(range_, slack) < 0:
            raise CapacityError(f"values of {range_.bits} bits and masks of {slack} more do not fit the ring")
        result = self._like()
        result.range, result.slack, result.origin = range_, slack, self.origin
        return result

    def _like(self, **changes: Any) -> Self:
        state: dict[str, Any] = {"held": self._held, "plain": self._plain, "words": self._words}
        if changes:
            state = {"held": None, "plain": None, "words": None, **changes}
        return type(self)(self.public, self.packing, self.range, self.slack, **state)

    def __add__(self, other: Self) -> Self:
        if other.public.key_id != self.public.key_id:
            raise WrongKey(f"arrays under two keys do not add up: {self.public!r} and {other.public!r}")
        if (other.packing, other.range.fraction_bits) != (self.packing, self.range.fraction_bits):
            raise ShapeError(f"sums {self.shape} at {self.range} and {other.shape} at {other.range}")
        ring = self.public.ring
        if self._held is not None and other._held is not None:
            held = [sealed(ring).apply("add", a, b) for a, b in zip(self._held, other._held, strict=True)]
            plain = [words for words in (self._plain, other._plain) if words is not None]
            both = ring.add(*plain) if len(plain) == 2 else plain[0] if plain else None
            return self._like(held=held, plain=both)
        (a0, a1), (b0, b1) = self.words, other.words
        return self._like(words=(ring.add(a0, b0), ring.add(a1, b1)))

    def add_plain(self, integers: Wide) -> Self:
        ring = self.public.ring
        addend = ring.from_wide(flat(self.packing, integers))
        if self._held is not None:
            plain = addend if self._plain is None else ring.add(self._plain, addend)
            return self._like(held=self._held, plain=plain)
        c0, c1 = self.words
        return self._like(words=(ring.add(c0, addend), c1))

    def rerandomise(self) -> Self:
        """A fresh encryption of zero added to every ciphertext."""
        ring = self.public.ring
        zeros = self.public.zeros(len(self.packing.blocks))
        if self._held is not None:
            held = [sealed(ring).apply("add", a, zero) for a, zero in zip(self._held, zeros, strict=True)]
            result = self._like(held=held, plain=self._plain)
        else:
            (a0, a1), (b0, b1) = self.words, self._like(held=zeros).words
            result = self._like(words=(ring.add(a0, b0), ring.add(a1, b1)))
        result.origin = "re-randomised"
        return result

    def hide(self) -> tuple[RlweBlock, Wide]:
        masks = draw_masks(self.shape, self.range.bits + self.slack)
        return RlweBlock(self.add_plain(masks).rerandomise()), masks

    def lend(self) -> tuple[RlweBlock, Wide]:
        """Under masks uniform modulo q, which all keys of the ring have in common."""
        ring = self.public.ring
        masks = unflat(self.packing, ring.to_limbs(ring.uniform(self.packing.entries)))
        return RlweBlock(self.add_plain(masks).rerandomise()), masks.wide()

    def mask(self) -> tuple[RlweMasked, RlweMask]:
        ring = self.public.ring
        fresh = self.rerandomise()
        uniform = ring.uniform(self.packing.entries)
        c0, c1 = fresh.words
        masked = RlweMasked(self.public, self.packing, ring.add(c0, uniform), c1)
        masked.origin = fresh.origin
        return masked, RlweMask(self.public, self.packing, self.range, uniform)

    def payload(self) -> bytes:
        c0, c1 = self.words
        return self.public.ring.to_bytes(c0) + self.public.ring.to_bytes(c1)

    def to_bytes(self) -> bytes:
        numbers = (self.range.fraction_bits, self.range.bits, self.slack, PLACES)
        return self.public.frame(Kind.ENCRYPTED, self.payload(), self.shape, numbers).to_bytes()

    @classmethod
    def from_frame(
        cls, public: RlwePublicKey, frame: Frame, shape: tuple[int, int], range_: Range, slack: int
    ) -> RlweSum:
        if frame.shape != shape or frame.numbers != (range_.fraction_bits, range_.bits, slack, PLACES):
            raise FormatError(
                f"sums of shape {frame.shape} with numbers {frame.numbers} given: not what was agreed"
            )
        packing = Packing(*shape, public.ring.degree)
        return cls(public, packing, range_, slack, words=read_words(public.ring, packing, frame.payload))


class RlweBlock(HiddenBlock):
    """value + noise + mask, for the key-holder to read."""

    public: RlwePublicKey

    def __init__(self, sums: RlweSum) -> None:
        self.public, self.shape, self.range = sums.public, sums.shape, sums.range
        self.slack, self.origin = sums.slack, sums.origin
        self.packing, self._sums = sums.packing, sums

    @property
    def c0(self) -> Words:
        return self._sums.words[0]

    @property
    def c1(self) -> Words:
        return self._sums.words[1]

    @property
    def ciphertexts(self) -> int:
        return self._sums.ciphertexts

    def repeated(self) -> int:
        return self._sums.repeated()

    def narrow(self, masks: Wide) -> int:
        if self.slack:
            return super().narrow(masks)
        # Lent values are under masks uniform modulo q: one that is this small is once in 2**SHORT.
        least = self.public.ring.capacity_bits - SHORT
        return int(np.count_nonzero(np.abs(masks) < 1 << (least - 1)))

    def to_bytes(self) -> bytes:
        numbers = (self.range.fraction_bits, self.range.bits, self.slack, PLACES)
        return self.public.frame(Kind.MASKED, self._sums.payload(), self.shape, numbers).to_bytes()


class RlweMasked(Masked):
    """value + noise + a mask uniform modulo q, to be opened for whoever has the mask."""

    public: RlwePublicKey

    def __init__(self, public: RlwePublicKey, packing: Packing, c0: Words, c1: Words) -> None:
        self.public, self.packing = public, packing
        self.shape = (packing.rows, packing.columns)
        self.c0, self.c1 = c0, c1

    @property
    def ciphertexts(self) -> int:
        return len(self.c1)

    def repeated(self) -> int:
        return _repeated(self.c1)

    def to_bytes(self) -> bytes:
        ring = self.public.ring
        payload = ring.to_bytes(self.c0) + ring.to_bytes(self.c1)
        return self.public.frame(Kind.MASKED, payload, self.shape, (PLACES, 0, 0, 0)).to_bytes()

    @classmethod
    def from_frame(cls, public: RlwePublicKey, frame: Frame) -> RlweMasked:
        if len(frame.shape) != 2 or frame.numbers != (PLACES, 0, 0, 0):
            raise FormatError(f"shape {frame.shape} and numbers {frame.numbers}: not a masked block")
        packing = Packing(*frame.shape, public.ring.degree)
        return cls(public, packing, *read_words(public.ring, packing, frame.payload))


class RlweOpened(Opened):
    """value + noise + mask modulo q in the clear; uniform to whoever lacks the mask."""

    public: RlwePublicKey

    def __init__(self, public: RlwePublicKey, shape: tuple[int, ...], residues: Words) -> None:
        self.public, self.shape, self.residues = public, shape, residues

    def to_bytes(self) -> bytes:
        payload = self.public.ring.to_bytes(self.residues)
        return self.public.frame(Kind.OPENED, payload, self.shape).to_bytes()

    @classmethod
    def from_frame(cls, public: RlwePublicKey, frame: Frame) -> RlweOpened:
        if len(frame.shape) != 2:
            raise ShapeError(f"an opening of shape {frame.shape} given, (rows, columns) expected")
        ring = public.ring
        size = (len(ring.data_primes), frame.shape[0] * frame.shape[1])
        return cls(public, frame.shape, ring.from_bytes(frame.payload, size, "opening"))


class RlweMask(Mask):
    """The uniform residues that hide one block."""

    def __init__(self, public: RlwePublicKey, packing: Packing, range_: Range, residues: Words) -> None:
        super().__init__()
        self._public, self._packing, self._range, self._residues = public, packing, range_, residues

    def _remove(self, opened: RlweOpened) -> Floats:
        packing, ring = self._packing, self._public.ring
        if opened.shape != (packing.rows, packing.columns):
            raise MaskError(f"an opening of shape {opened.shape} given, this mask is for {packing}")
        found = ring.to_limbs(ring.subtract(opened.residues, self._residues))
        values = unflat(packing, found).wide()
        scale = 1 << self._range.fraction_bits
        return np.array([int(v) / scale for v in values.ravel()], dtype=np.float64).reshape(values.shape)

    def _material(self) -> list[bytes]:
        return [self._residues.astype("<u8").tobytes()]

    def _disclose(self) -> bytes:
        raise MaskError("hidden arrays are opened for their holder; nothing is disclosed to the key-holder")


def _repeated(c1: Words) -> int:
    """Ciphertexts with the same c1 share their randomness."""
    return 0 if len(c1) == 1 else len(c1) - len({block.tobytes() for block in c1})


def coefficients(ring: Ring, integers: Wide, length: int) -> Words:
    """(ciphertexts, data primes, N) residues of operands, by columns, then by blocks."""
    rows, columns = integers.shape
    count, primes = -(-rows // length), len(ring.data_primes)
    entries = np.zeros((columns, primes, count * length), dtype=np.uint64)
    whole = Limbs.of(integers)
    entries[..., :rows] = ring.from_wide(Limbs(np.ascontiguousarray(whole.words.swapaxes(1, 2))))
    result = np.zeros((columns, count, primes, ring.degree), dtype=np.uint64)
    result[..., :length] = entries.reshape(columns, primes, count, length).swapaxes(1, 2)
    return result.reshape(columns * count, primes, ring.degree)


def flat(packing: Packing, integers: Wide) -> Limbs:
    """Entries in the order in which they stand in c0: block by block, row by row."""
    if integers.shape != (packing.rows, packing.columns):
        raise ShapeError(f"integers of shape {integers.shape} given for {packing}")
    whole = Limbs.of(integers)
    return whole.shaped(-1) if packing.order is None else whole.ordered(packing.order)


def unflat(packing: Packing, entries: Limbs) -> Limbs:
    """The inverse of `flat`."""
    if packing.order is not None:
        places = np.empty_like(packing.order)
        places[packing.order] = np.arange(packing.entries)
        entries = entries.ordered(places)
    return entries.shaped(packing.rows, packing.columns)


def read_words(ring: Ring, packing: Packing, payload: bytes) -> tuple[Words, Words]:
    """c0 and c1 of a result that arrived, validated."""
    primes = len(ring.data_primes)
    start = ring.byte_count(primes * packing.entries)
    body = memoryview(payload)
    c0 = ring.from_bytes(body[:start], (primes, packing.entries), "c0")
    c1 = ring.from_bytes(body[start:], (len(packing.blocks), primes, ring.degree), "c1")
    if not c1.any(axis=-1).all():
        raise FormatError("ciphertexts: a polynomial is zero")
    return c0, c1
