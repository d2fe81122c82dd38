"""Keys and encrypted arrays without values, for rehearsing runs that open own gradients.

The schemes' own classes follow scales, ranges and layouts (Extent and PackedLayout of Paillier, ArrayForm and
RowLayout of CKKS). So an array has the ciphertexts and bytes of a real one, and fails where a real one fails.
A `Meter` records every operation. Frames are empty, of exactly the right length. Every opened value is 0.
Masks, plain matrices and transcripts are real.

No user can choose these keys, and no party accepts one from a peer: they are not in securefed.crypto's
registry, and their frames are not valid there. Only a rehearsal (securefed.plan.rehearsal) reads them, with
`DryKeys.read_key`.

The clock of a rehearsal, and frames that stand for encrypted arrays.

A frame of a rehearsal is as long as the real one and contains only a number. The meter keeps the array's
public figures for the reader of the frame.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from statistics import median
from time import thread_time
from typing import Any, Protocol, Self, TypeVar

import numpy as np

from securefed.crypto import KEY_KINDS, KeyHolder, generate, load_public_key, protects
from securefed.crypto.blind.interface import Product
from securefed.crypto.ckks.arrays import answer_bytes, encrypted_bytes, masked_bytes
from securefed.crypto.ckks.form import ArrayForm, added, fresh_form, plain_added, product_form
from securefed.crypto.ckks.keys import PUBLIC_BYTES
from securefed.crypto.ckks.layout import RowLayout
from securefed.crypto.fixed import FixedPoint, Floats, Multipliers
from securefed.crypto.keyholder import SecretKey
from securefed.crypto.paillier.arrays import Extent, multiplier_scale
from securefed.crypto.paillier.keys import roots_needed
from securefed.crypto.paillier.masking import PackedLayout
from securefed.crypto.scheme import FLOAT_BITS, Encrypted, Mask, Masked, Opened, PublicKey
from securefed.crypto.wire import HEADER, Scheme, fingerprint
from securefed.errors import BadKey, CapacityError, FormatError, SettingError, ShapeError

WORD = b"dry run\0"
HEAD = struct.Struct("<8sQI")
"""The contents of a dry frame: its mark, its number, ciphertexts."""
EFFICIENCY = 0.85
"""Efficiency of a worker process, relative to work in this one."""
T = TypeVar("T")


@dataclass(frozen=True)
class Operation:
    """One operation of a party on encrypted arrays, in an encrypted product, or on keys."""

    name: str
    """Encrypted arrays: encrypt (under the own key), encrypt for another, load, add, plus (plain numbers),
    contract, draw (r**n, or what re-randomises), mask, sum bytes, load sum, open, unmask; key.

    Encrypted products: generate, public, load public; encrypt, multiply, respond, read.
    """
    shape: tuple[int, ...] = (0, 0)
    """Shape of the array, or of the result."""
    ciphertexts: int = 0
    inner: int = 0
    """Rows of a sum, or the rows of this operation in an encrypted product."""
    width: int = 0
    """Bits of a slot, where sums are packed."""
    terms: int = 0
    """Multipliers of a contraction that are not 0."""
    product: Product | None = None
    blocks: int = 1
    """Blocks of rows that several processes may share."""
    exact: bool = False
    """The rows are numbers of 105 bits."""

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns; a vector has one."""
        return self.shape[0], self.shape[1] if len(self.shape) == 2 else 1


class Costs(Protocol):
    """The seconds of each operation of one kind. Raises SettingError for an operation that the kind lacks."""

    def seconds(self, operation: Operation) -> float: ...


@dataclass
class Meter:
    """A clock that adds the cost of operations to the time that really passes."""

    costs: Costs
    timer: Callable[[], float]
    _ahead: float = 0.0
    _serial: Any = field(default_factory=lambda: count(1))
    _kept: dict[int, Any] = field(default_factory=dict)

    def now(self) -> float:
        return self.timer() + self._ahead

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop the clock for work that a real run does not do."""
        begin = self.timer()
        try:
            yield
        finally:
            self._ahead -= self.timer() - begin

    def note(self, operation: Operation) -> None:
        with self.stopped():  # it may be measured only now
            seconds = self.costs.seconds(operation)
        self._ahead += seconds

    def scaled(self, work: Callable[[], T], factor: float) -> T:
        """Do a part of some work, whose whole takes `factor` times as long."""
        begin = self.timer()
        done = work()
        self._ahead += (factor - 1.0) * (self.timer() - begin)
        return done

    def number(self) -> int:
        return int(next(self._serial))

    def blank(self, payload: int, kept: object = None, ciphertexts: int = 0) -> bytes:
        """Return a frame with a payload of this size. `kept` is what its reader gets."""
        serial = self.number()
        self._kept[serial] = kept
        return HEAD.pack(WORD, serial, ciphertexts).ljust(HEADER.size + payload, b"\0")

    def read(self, blob: bytes, *payloads: int) -> Any:
        """Return what a frame stands for. `payloads` lists the allowed lengths; none allows all."""
        if not blob.startswith(WORD) or (payloads and len(blob) - HEADER.size not in payloads):
            raise FormatError(f"{len(blob)} bytes given, a dry frame with a payload of {payloads} expected")
        return self._kept[HEAD.unpack_from(blob)[1]]


def ciphertexts_in(blob: bytes) -> int:
    """Return the ciphertexts that a rehearsal's message stands for; 0 if it is no dry frame."""
    return int(HEAD.unpack_from(blob)[2]) if blob.startswith(WORD) else 0


def timed(work: Callable[[], object], repeats: int = 3) -> float:
    """Return the median of a few processor times of this thread."""
    seconds = []
    for _ in range(repeats):
        begin = thread_time()
        work()
        seconds.append(thread_time() - begin)
    return median(seconds)


@dataclass(frozen=True)
class Block:
    """A masked result: the sizes of its request and its answer. Bytes are those of payloads."""

    shape: tuple[int, ...]
    ciphertexts: int
    bytes: int
    opened_bytes: int
    inner: int = 0
    """Rows of its sums; 0 if it is no sum."""
    width: int = 0


@dataclass(frozen=True)
class PaillierFigures:
    """One value per ciphertext; masked results are packed."""

    key_bits: int
    shape: tuple[int, ...]
    extent: Extent
    inner: int = 0

    def __post_init__(self) -> None:
        bits = self.extent.magnitude.bit_length()
        if bits + 1 >= self.key_bits:
            raise CapacityError(f"integers of {bits} bits, signed, do not fit a key of {self.key_bits}")

    @property
    def plaintext_bytes(self) -> int:
        """Bytes of a plaintext. A ciphertext has twice as many."""
        return (self.key_bits + 7) // 8

    @property
    def bound(self) -> float:
        return self.extent.bound

    @property
    def ciphertexts(self) -> int:
        return int(np.prod(self.shape))

    @property
    def bytes(self) -> int:
        return self.ciphertexts * 2 * self.plaintext_bytes

    @property
    def unit_bits(self) -> int:
        return self.extent.fraction_bits

    def arrived(self) -> Self:
        return replace(self, extent=Extent.from_numbers(self.extent.numbers()))

    def plus(self, other: Self) -> Self:
        bits = max(self.extent.fraction_bits, other.extent.fraction_bits)
        return replace(self, extent=self.extent.scaled(bits).plus(other.extent.scaled(bits)))

    def plus_plain(self) -> Self:
        return replace(self, extent=self.extent.plus_plain())

    def contracted(self, multipliers: Multipliers, fixed: FixedPoint | None) -> Self:
        columns, outputs, rows = multipliers.shape
        extent = self.extent.times(multiplier_scale(multipliers, fixed), rows)
        shape = (outputs, columns) if len(self.shape) == 2 else (outputs,)
        return replace(self, shape=shape, extent=extent, inner=rows)

    def masked(self, width: int | None) -> Block:
        layout = PackedLayout.of(self.key_bits, self.shape, self.extent, width)
        opened = layout.ciphertexts * self.plaintext_bytes
        return Block(self.shape, layout.ciphertexts, 2 * opened, opened, self.inner, width=layout.width)


@dataclass(frozen=True)
class CkksFigures:
    """Thousands of values a ciphertext; an owner's fresh ones travel in half the bytes."""

    form: ArrayForm
    seeded: bool = False
    inner: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        return self.form.layout.shape

    @property
    def bound(self) -> float:
        return self.form.bound

    @property
    def ciphertexts(self) -> int:
        return self.form.layout.units

    @property
    def bytes(self) -> int:
        return encrypted_bytes(self.form.layout, self.seeded)

    unit_bits = FLOAT_BITS

    def arrived(self) -> Self:
        return self

    def plus(self, other: Self) -> Self:
        low, high = sorted((self.form, other.form), key=lambda form: form.scale)
        return replace(self, form=added(low, high)[0], seeded=False)

    def plus_plain(self) -> Self:
        return replace(self, form=plain_added(self.form), seeded=False)

    def contracted(self, multipliers: Multipliers, fixed: FixedPoint | None) -> Self:
        _, outputs, count = multipliers.shape
        rows = RowLayout(self.shape)
        largest = float(multipliers.largest.max())
        form, _ = product_form(self.form, rows.contracted(outputs), largest, fixed, rows.ciphertexts, count)
        return replace(self, form=form, seeded=False, inner=count)

    def masked(self, width: int | None) -> Block:
        layout = self.form.layout
        return Block(self.shape, layout.ciphertexts, masked_bytes(layout), answer_bytes(layout), self.inner)


Figures = PaillierFigures | CkksFigures
"""The public numbers of an encrypted array."""
Fresh = Callable[[tuple[int, ...], FixedPoint, bool], Figures]
"""Takes a shape, the fixed point, and whether the key's owner encrypts."""


class DryEncrypted(Encrypted):
    """An encrypted array without values."""

    def __init__(self, public: DryPublicKey, figures: Any) -> None:
        self.key, self.public, self.figures = public, public, figures
        self.shape, self.bound = figures.shape, figures.bound

    @property
    def ciphertexts(self) -> int:
        return int(self.figures.ciphertexts)

    def _note(self, name: str, **more: Any) -> None:
        self.key.note(name, self.shape, self.ciphertexts, **more)

    def _add(self, other: DryEncrypted) -> DryEncrypted:
        self._note("add")
        return DryEncrypted(self.key, self.figures.plus(other.figures))

    def _add_plain(self, values: object) -> DryEncrypted:
        self._note("plus")
        return DryEncrypted(self.key, self.figures.plus_plain())

    @property
    def unit_bits(self) -> int:
        return int(self.figures.unit_bits)

    def add_units(self, units: Sequence[int]) -> DryEncrypted:
        return self._add_plain(units)

    def _contract(self, multipliers: Multipliers, fixed: FixedPoint | None) -> DryEncrypted:
        sums = DryEncrypted(self.key, self.figures.contracted(multipliers, fixed))
        sums._note("contract", inner=self.rows, terms=int(np.count_nonzero(multipliers)))
        return sums

    def mask(self, width: int | None = None) -> tuple[DryMasked, DryMask]:
        block = self.figures.masked(width)
        self.key.note("mask", self.shape, block.ciphertexts, inner=block.inner, width=block.width)
        masked = DryMasked(self.key, block)
        masked.origin = "re-randomised"
        return masked, DryMask(self.key, block)

    def to_bytes(self) -> bytes:
        return self.key.meter.blank(self.figures.bytes, self.figures, self.ciphertexts)


class DryMasked(Masked):
    """A masked result without values."""

    def __init__(self, public: DryPublicKey, block: Block, blob: bytes = b"") -> None:
        self.public, self.key, self.block, self.shape = public, public, block, block.shape
        self._blob = blob or public.meter.blank(block.bytes, block, block.ciphertexts)

    @property
    def ciphertexts(self) -> int:
        return self.block.ciphertexts

    def to_bytes(self) -> bytes:
        self.key.note("sum bytes", self.shape, self.ciphertexts)
        return self._blob


class DryOpened(Opened):
    def __init__(self, public: DryPublicKey, block: Block, blob: bytes) -> None:
        self.public, self.block, self.shape, self._blob = public, block, block.shape, blob

    def plus(self, units: Sequence[int], fraction_bits: int, width: int) -> DryOpened:
        return self

    def to_bytes(self) -> bytes:
        return self._blob


class DryMask(Mask):
    """A mask that hides nothing."""

    def __init__(self, public: DryPublicKey, block: Block) -> None:
        super().__init__()
        self._public, self._block = public, block

    def _remove(self, opened: DryOpened) -> Floats:
        block = self._block
        self._public.note("unmask", block.shape, block.ciphertexts, inner=block.inner)
        return np.zeros(block.shape)

    def _material(self) -> list[bytes]:
        return [WORD]

    def _disclose(self) -> bytes:
        return self._public.meter.blank(self._block.opened_bytes)


class DryPublicKey(PublicKey):
    """A public key without a key."""

    def __init__(self, serial: int, meter: Meter, size: int, fresh: Fresh) -> None:
        """`size`: bytes of a key. `fresh`: the figures of fresh ciphertexts."""
        self._serial, self.meter, self._size, self.fresh = serial, meter, size, fresh
        self.parameters = fingerprint(WORD)
        self.key_id = fingerprint(WORD, serial.to_bytes(8, "little"))

    def note(self, name: str, shape: Sequence[int] = (0, 0), ciphertexts: int = 0, **more: Any) -> None:
        self.meter.note(Operation(name, tuple(shape), ciphertexts, **more))

    def to_bytes(self) -> bytes:
        return self.meter.blank(self._size, self._serial)

    def _encrypt(self, values: Floats, fixed: FixedPoint) -> DryEncrypted:
        fresh = DryEncrypted(self, self.fresh(values.shape, fixed, False))
        self.note("encrypt for another", fresh.shape, fresh.ciphertexts)
        return fresh

    def load(self, blob: bytes, shape: tuple[int, ...] | None = None) -> DryEncrypted:
        array = DryEncrypted(self, self.meter.read(blob).arrived())
        if shape is not None and array.shape != shape:
            raise ShapeError(f"ciphertexts of shape {array.shape} given, {shape} expected")
        self.note("load", array.shape, array.ciphertexts)
        array.origin = "arrived"
        return array

    def load_masked(self, blob: bytes) -> DryMasked:
        masked = DryMasked(self, self.meter.read(blob), blob)
        self.note("load sum", masked.shape, masked.ciphertexts)
        return masked

    def load_opened(self, blob: bytes) -> DryOpened:
        return DryOpened(self, self.meter.read(blob), blob)


class DryCkksKey(DryPublicKey):
    scheme = Scheme.CKKS


class DryPaillierKey(DryPublicKey):
    scheme = Scheme.PAILLIER


class DrySecretKey(SecretKey):
    """A secret key that only records a key-holder's operations."""

    def __init__(self, public: DryPublicKey) -> None:
        self.public: DryPublicKey = public

    def encrypt(self, values: Floats, fixed: FixedPoint) -> DryEncrypted:
        fresh = DryEncrypted(self.public, self.public.fresh(values.shape, fixed, True))
        self.public.note("encrypt", fresh.shape, fresh.ciphertexts)
        return fresh

    def open(self, masked: DryMasked) -> DryOpened:
        block = masked.block
        self.public.note("open", block.shape, block.ciphertexts, inner=block.inner)
        return DryOpened(self.public, block, self.public.meter.blank(block.opened_bytes, block))

    def receive(self, masked: DryMasked, disclosure: bytes) -> Floats:
        self.public.meter.read(disclosure, masked.block.opened_bytes)
        self.open(masked)
        return np.zeros(masked.shape)

    def to_bytes(self) -> bytes:
        raise BadKey("a dry key is not kept")


@dataclass(frozen=True)
class DryKeys:
    """A maker and reader of one kind of keys for one rehearsal.

    Keys that protect nothing are real: they cost nothing, and computations need their values.
    """

    kind: str
    key_bits: int
    meter: Meter

    def __post_init__(self) -> None:
        if self.kind not in MAKERS and (self.kind not in KEY_KINDS or protects(self.kind)):
            raise SettingError(f"plan: nobody has said what keys of kind {self.kind!r} take")

    def holder(self) -> KeyHolder:
        if self.kind not in MAKERS:
            return generate(self.kind)
        return KeyHolder(DrySecretKey(MAKERS[self.kind](self.meter.number(), self)))

    def read_key(self, blob: bytes) -> PublicKey:
        """Parse a dry key that arrived."""
        if self.kind not in MAKERS:
            return load_public_key(blob)
        self.meter.note(Operation("key"))
        return MAKERS[self.kind](self.meter.read(blob), self)


def _ckks_key(serial: int, keys: DryKeys) -> DryPublicKey:
    def fresh(shape: tuple[int, ...], fixed: FixedPoint, owner: bool) -> Figures:
        return CkksFigures(fresh_form(shape, fixed), seeded=owner)

    return DryCkksKey(serial, keys.meter, PUBLIC_BYTES, fresh)


def _paillier_key(serial: int, keys: DryKeys) -> DryPublicKey:
    bits = keys.key_bits

    def fresh(shape: tuple[int, ...], fixed: FixedPoint, owner: bool) -> Figures:
        return PaillierFigures(bits, shape, Extent.fresh(fixed))

    # n and the roots of its proof
    return DryPaillierKey(serial, keys.meter, (1 + roots_needed(bits)) * ((bits + 7) // 8), fresh)


MAKERS = {"paillier": _paillier_key, "ckks": _ckks_key}
