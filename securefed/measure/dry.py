"""Keys that encrypt nothing: for running the real programs of a blind training without its work.

Hidden arrays under them know their shapes and ranges, and what they would take: ciphertexts and bytes come
from the layouts that the real keys have (RlweLayout, PaillierLayout), and every operation is told to a
`Meter`. What is not encrypted (masks, plain matrices, transcripts) is done for real. Frames have exactly the
right length and hold nothing.

Nobody can choose these keys, and no party takes one from a peer: they are no kind in securefed.crypto's
registry, and a frame of theirs is none of its frames. Only a rehearsal (securefed.measure.rehearsal) reads
them, with `DryKeys.read_key`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Never, Protocol, Self, runtime_checkable

import numpy as np

from securefed.crypto import KeyHolder
from securefed.crypto.errors import BadKey, FormatError, ShapeError
from securefed.crypto.hidden import (
    HiddenArray,
    HiddenBlock,
    HiddenSum,
    HidingLayout,
    PlainMatrix,
    Range,
    Wide,
    draw_masks,
)
from securefed.crypto.paillier.hidden import PaillierLayout, slot_width
from securefed.crypto.rlwe.layout import RlweLayout
from securefed.crypto.scheme import Floats, Mask, Masked, Opened, PublicKey, SecretKey
from securefed.crypto.wire import HEADER, Scheme, fingerprint
from securefed.errors import SettingError

__all__ = ["DryKeys", "HiddenCosts", "Meter", "Operation", "ciphertexts_in"]

Shape = tuple[int, int]
HEAD = struct.Struct("<8sQ3I")
"""What stands in a dry frame: that it is one, its number, ciphertexts, rows, columns."""
WORD = b"dry run\0"


@dataclass(frozen=True)
class Operation:
    """One thing that a party does to hidden arrays, or to keys."""

    name: str
    """key, switching, load switching; zeros, load array, array plus, array bytes, multiply, flatten (array to
    sum); pack, add, sum plus, rerandomise, sum bytes, load sum; read, open, conceal. And what is put off and
    done once: prepare an array that arrived for its first use, unfold one that was computed to send it.
    """
    shape: Shape = (0, 0)
    """Of the array, or of the result."""
    ciphertexts: int = 0
    blocks: int = 1
    inner: int = 0
    """Of a product: rows of the operand."""
    matrix: PlainMatrix | None = None
    """Of a product."""
    again: bool = False
    """Whether the matrix was kept from an earlier product."""
    width: int = 0
    """Of a slot, where sums are packed."""


@runtime_checkable
class HiddenCosts(Protocol):
    """Seconds for an operation on hidden arrays of one kind of keys."""

    def hidden(self, operation: Operation) -> float: ...


class Meter:
    """A clock that goes on by what operations would take, besides what really passes."""

    def __init__(self, costs: HiddenCosts, timer: Callable[[], float]) -> None:
        self._costs, self._timer, self._ahead = costs, timer, 0.0
        self.serial = count(1)

    def now(self) -> float:
        return self._timer() + self._ahead

    def note(self, operation: Operation) -> None:
        begin = self._timer()
        seconds = self._costs.hidden(operation)  # may be measured only now: not on this clock
        self._ahead += seconds - (self._timer() - begin)


def _blank(payload: int, serial: int, ciphertexts: int = 0, shape: Sequence[int] = (0, 0)) -> bytes:
    return HEAD.pack(WORD, serial, ciphertexts, *shape).ljust(HEADER.size + payload, b"\0")


def _read(blob: bytes, *payloads: int) -> tuple[int, int, Shape]:
    """Number, ciphertexts and shape of a dry frame of one of these lengths."""
    if blob[: len(WORD)] != WORD or len(blob) - HEADER.size not in payloads:
        raise FormatError(f"{len(blob)} bytes given, a dry frame with a payload of {payloads} expected")
    _, serial, ciphertexts, *shape = HEAD.unpack_from(blob)
    return serial, ciphertexts, (shape[0], shape[1])


def ciphertexts_in(blob: bytes) -> int:
    """Ciphertexts that a message of a rehearsal stands for; 0 where it is no dry frame."""
    return int(HEAD.unpack_from(blob)[2]) if blob.startswith(WORD) else 0


class DryPublicKey(PublicKey, HidingLayout):
    """A public key without a key."""

    def __init__(self, serial: int, meter: Meter) -> None:
        self._serial, self.meter = serial, meter
        self.parameters = fingerprint(WORD)
        self.key_id = fingerprint(WORD, serial.to_bytes(8, "little"))

    def note(self, name: str, shape: Shape = (0, 0), ciphertexts: int = 0, **more: Any) -> None:
        self.meter.note(Operation(name, shape, ciphertexts, **more))

    def blank(self, payload: int, ciphertexts: int = 0, shape: Sequence[int] = (0, 0)) -> bytes:
        return _blank(payload, next(self.meter.serial), ciphertexts, shape)

    def to_bytes(self) -> bytes:
        return _blank(self.key_bytes(), self._serial)

    # Hidden arrays

    def hidden_zeros(self, shape: Shape, range_: Range, blocks: int = 1) -> DryArray:
        array = DryArray(self, shape, range_, blocks, seeded=False)
        array._prepared, array._unfolded = True, False
        self.note("zeros", shape, array.ciphertexts, blocks=blocks)
        return array

    def load_array(self, blob: bytes, shape: Shape, range_: Range, blocks: int = 1) -> DryArray:
        short, full = (self.array_bytes(shape, blocks, seeded) for seeded in (True, False))
        _read(blob, short, full)
        array = DryArray(self, shape, range_, blocks, seeded=len(blob) == HEADER.size + short)
        self.note("load array", shape, array.ciphertexts, blocks=blocks)
        return array

    def load_sum(self, blob: bytes, shape: Shape, range_: Range, slack: int) -> DrySum:
        _read(blob, self.sum_bytes(shape, range_, slack))
        sums = DrySum(self, shape, range_, slack)
        self.note("load sum", shape, sums.ciphertexts)
        return sums

    def load_block(self, blob: bytes, shape: Shape, range_: Range, slack: int) -> DryBlock:
        return DryBlock(self.load_sum(blob, shape, range_, slack), blob)

    def load_masked(self, blob: bytes) -> DryMasked:
        masked = DryMasked(self, blob)
        self.note("load sum", masked.shape, masked.ciphertexts)
        return masked

    def load_opened(self, blob: bytes) -> DryOpened:
        return DryOpened(self, blob)

    def without(self, opened: DryOpened, integers: Wide, range_: Range, slack: int) -> DryOpened:
        return opened

    def zero_chains(self, seed: bytes) -> tuple[DryMasked, DryMask]:
        sums = DrySum(self, getattr(self, "chain_shape"), Range(0, 0))  # noqa: B009
        return sums.rerandomise().mask()

    def noise_bits(self, opened: DryOpened, seed: bytes) -> int:
        return 0

    def load_switching(self, blob: bytes, strides: Sequence[int]) -> None:
        _read(blob, self.switching_bytes(strides))
        self.note("load switching", ciphertexts=len(strides))

    def _encrypt(self, values: Any, fixed: Any) -> Never:
        raise BadKey("a dry key encrypts nothing")

    _load = _load_masked = _load_opened = _encrypt  # type: ignore[assignment]  # nothing comes by these ways


class DryRlweKey(RlweLayout, DryPublicKey):
    scheme = Scheme.RLWE


class DryPaillierKey(PaillierLayout, DryPublicKey):
    scheme = Scheme.PAILLIER

    def __init__(self, serial: int, meter: Meter, bits: int) -> None:
        super().__init__(serial, meter)
        self.bits = bits


class DryArray(HiddenArray):
    """An operand that is not there."""

    def __init__(
        self, public: DryPublicKey, shape: Shape, range_: Range, blocks: int, *, seeded: bool
    ) -> None:
        self.public, self.shape, self.range = public, shape, range_
        self._blocks, self._seeded = blocks, seeded
        self._prepared, self._unfolded = False, True

    @property
    def ciphertexts(self) -> int:
        return self.public.array_ciphertexts(self.shape, self._blocks)

    def _prepare(self) -> None:
        if not self._prepared:
            self.public.note("prepare", self.shape, self.ciphertexts, blocks=self._blocks)
        self._prepared = True

    def _product(self, matrix: PlainMatrix) -> DrySum:
        self._prepare()
        shape, again = (matrix.shape[0], self.shape[1]), matrix.keep and WORD in matrix.encodings
        self.public.note(
            "multiply", shape, inner=self.shape[0], blocks=self._blocks, matrix=matrix, again=again
        )
        matrix.encodings[WORD] = True
        range_ = Range(self.range.fraction_bits + matrix.fraction_bits, self.range.bits + matrix.bits)
        return DrySum(self.public, shape, range_)

    def packed(self) -> DrySum:
        self._prepare()
        self.public.note("flatten", self.shape, inner=self.shape[0], blocks=self._blocks)
        return DrySum(self.public, self.shape, self.range)

    def add_plain(self, integers: Wide, range_: Range) -> Self:
        if integers.shape != self.shape:
            raise ShapeError(f"integers of shape {integers.shape} given, {self.shape} expected")
        self._prepare()
        self.public.note("array plus", self.shape, self.ciphertexts, blocks=self._blocks)
        array = type(self)(self.public, self.shape, range_, self._blocks, seeded=self._seeded)
        array._prepared, array._unfolded = True, False
        return array

    def to_bytes(self) -> bytes:
        if not self._unfolded:
            self.public.note("unfold", self.shape, self.ciphertexts, blocks=self._blocks)
        self._unfolded = True
        self.public.note("array bytes", self.shape, self.ciphertexts, blocks=self._blocks)
        payload = self.public.array_bytes(self.shape, self._blocks, self._seeded)
        return self.public.blank(payload, self.ciphertexts, self.shape)


class DrySum(HiddenSum):
    """A result that is not there."""

    def __init__(self, public: DryPublicKey, shape: Shape, range_: Range, slack: int = 0) -> None:
        self.public, self.shape, self.range, self.slack = public, shape, range_, slack

    @property
    def ciphertexts(self) -> int:
        return self.public.sum_ciphertexts(self.shape, self.range, self.slack)

    @property
    def payload(self) -> int:
        return self.public.sum_bytes(self.shape, self.range, self.slack)

    def repeated(self) -> int:
        return 0

    def within(self, range_: Range, slack: int) -> Self:
        if range_.fraction_bits != self.range.fraction_bits:
            raise ShapeError(f"sums at {self.range} given, {range_} agreed")
        sums = type(self)(self.public, self.shape, range_, slack)
        self.public.note("pack", self.shape, sums.ciphertexts, width=slot_width(range_, slack))
        return sums

    def __add__(self, other: Self) -> Self:
        if (other.shape, other.range.fraction_bits) != (self.shape, self.range.fraction_bits):
            raise ShapeError(f"sums {self.shape} at {self.range} and {other.shape} at {other.range}")
        self.public.note("add", self.shape, self.ciphertexts)
        return type(self)(self.public, self.shape, self.range, self.slack)

    def add_plain(self, integers: Wide) -> Self:
        if integers.shape != self.shape:
            raise ShapeError(f"integers of shape {integers.shape} given, {self.shape} expected")
        self.public.note("sum plus", self.shape, self.ciphertexts)
        return self

    def rerandomise(self) -> Self:
        self.public.note("rerandomise", self.shape, self.ciphertexts)
        return self

    def hide(self) -> tuple[DryBlock, Wide]:
        masks = draw_masks(self.shape, self.range.bits + self.slack)
        sums = self.add_plain(masks).rerandomise()
        return DryBlock(sums, self.public.blank(self.payload, self.ciphertexts, self.shape)), masks

    lend = hide

    def mask(self) -> tuple[DryMasked, DryMask]:
        self.rerandomise().add_plain(np.zeros(self.shape, dtype=object))
        blob = self.public.blank(self.payload, self.ciphertexts, self.shape)
        return DryMasked(self.public, blob), DryMask(self.shape)

    def to_bytes(self) -> bytes:
        self.public.note("sum bytes", self.shape, self.ciphertexts)
        return self.public.blank(self.payload, self.ciphertexts, self.shape)


class DryBlock(HiddenBlock):
    """value + mask, neither of them there."""

    public: DryPublicKey
    shape: Shape

    def __init__(self, sums: DrySum, blob: bytes) -> None:
        self.public, self.shape, self.range, self.slack = sums.public, sums.shape, sums.range, sums.slack
        self._count, self._blob = sums.ciphertexts, blob

    @property
    def ciphertexts(self) -> int:
        return self._count

    def to_bytes(self) -> bytes:
        self.public.note("sum bytes", self.shape, self.ciphertexts)
        return self._blob


class DryMasked(Masked):
    """A masked result that is not there; its frame says its shape."""

    public: DryPublicKey
    shape: Shape

    def __init__(self, public: DryPublicKey, blob: bytes) -> None:
        _, self._count, self.shape = _read(blob, len(blob) - HEADER.size)
        self.public, self._blob = public, blob

    @property
    def ciphertexts(self) -> int:
        return self._count

    def to_bytes(self) -> bytes:
        self.public.note("sum bytes", self.shape, self.ciphertexts)
        return self._blob


class DryOpened(Opened):
    public: DryPublicKey
    shape: Shape

    def __init__(self, public: DryPublicKey, blob: bytes) -> None:
        _, _, self.shape = _read(blob, len(blob) - HEADER.size)
        self.public, self._blob = public, blob

    def to_bytes(self) -> bytes:
        return self._blob


class DryMask(Mask):
    """Nothing to hide."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self._shape = shape

    def _remove(self, opened: DryOpened) -> Floats:
        return np.zeros(self._shape)

    def _material(self) -> list[bytes]:
        return [WORD]

    def _disclose(self) -> bytes:
        raise BadKey("a dry mask hides nothing")


class DrySecretKey(SecretKey):
    """What a key-holder would do."""

    def __init__(self, public: DryPublicKey) -> None:
        self.public: DryPublicKey = public

    def switching(self, strides: Sequence[int]) -> bytes:
        self.public.note("switching", ciphertexts=len(strides))
        return self.public.blank(self.public.switching_bytes(strides))

    def read(self, block: DryBlock) -> Wide:
        """Something as large as an entry under its mask."""
        self.public.note("read", block.shape, block.ciphertexts)
        return np.full(block.shape, 1 << (block.range.bits + block.slack), dtype=object)

    def conceal(self, integers: Wide, range_: Range, blocks: int) -> DryArray:
        array = DryArray(self.public, (len(integers), integers.shape[1]), range_, blocks, seeded=True)
        self.public.note("conceal", array.shape, array.ciphertexts, blocks=blocks)
        return array

    def open_twice(self, masked: DryMasked, width: int) -> tuple[DryOpened, DryOpened]:
        """Of a range check, which a rehearsal leaves out."""
        return self.open(masked), self.open(masked)

    def open_noise(self, masked: DryMasked) -> tuple[DryOpened, DryOpened]:
        opened = self.open(masked)
        return opened, opened

    def open(self, masked: DryMasked) -> DryOpened:
        self.public.note("open", masked.shape, masked.ciphertexts)
        payload = self.public.opened_bytes(masked.shape, masked.ciphertexts)
        return DryOpened(self.public, self.public.blank(payload, 0, masked.shape))

    def encrypt(self, values: Any, fixed: Any) -> Never:
        raise BadKey("a dry key encrypts nothing")

    def receive(self, masked: Any, disclosure: bytes) -> Never:
        raise BadKey("a dry key receives nothing")

    def to_bytes(self) -> bytes:
        raise BadKey("a dry key is not kept")


@dataclass(frozen=True)
class DryKeys:
    """Makes and reads dry keys of one kind, for one rehearsal."""

    kind: str
    key_bits: int
    meter: Meter

    def __post_init__(self) -> None:
        if self.kind not in ("rlwe", "paillier"):
            raise SettingError(f"scheme: keys of kind {self.kind} hide no arrays")

    def _public(self, serial: int) -> DryPublicKey:
        if self.kind == "rlwe":
            return DryRlweKey(serial, self.meter)
        return DryPaillierKey(serial, self.meter, self.key_bits)

    def holder(self) -> KeyHolder:
        return KeyHolder(DrySecretKey(self._public(next(self.meter.serial))))

    def read_key(self, blob: bytes) -> PublicKey:
        """A dry key that arrived; nothing else is one."""
        self.meter.note(Operation("key"))
        serial, _, _ = _read(blob, len(blob) - HEADER.size)
        return self._public(serial)
