"""Keys that encrypt nothing: for running the real programs of a training without its work.

Arrays under them know their shapes and ranges, and what they would take: ciphertexts and bytes come from the
layouts that the real keys have (of encrypted arrays: securefed.measure.dry_encrypted; of hidden ones:
RlweLayout, PaillierLayout), and every operation is told to a `Meter`. What is not encrypted (masks, plain
matrices, transcripts) is done for real. Frames have exactly the right length and hold nothing.

Nobody can choose these keys, and no party takes one from a peer: they are no kind in securefed.crypto's
registry, and a frame of theirs is none of its frames. Only a rehearsal (securefed.measure.rehearsal) reads
them, with `DryKeys.read_key`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Never, Self

import numpy as np

from securefed.crypto import KeyHolder, generate, load_public_key
from securefed.crypto.ckks.keys import PUBLIC_BYTES
from securefed.crypto.errors import BadKey, ShapeError
from securefed.crypto.fixed import FixedPoint
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
from securefed.crypto.limbs import Limbs
from securefed.crypto.paillier.extent import Extent
from securefed.crypto.paillier.hidden import PaillierLayout, slot_width
from securefed.crypto.registry import KEY_KINDS, kind_protects
from securefed.crypto.rlwe.layout import RlweLayout
from securefed.crypto.scheme import Floats, PublicKey, SecretKey
from securefed.crypto.wire import HEADER, Scheme, fingerprint
from securefed.errors import SettingError
from securefed.measure.dry_encrypted import (
    Block,
    CkksFigures,
    DryEncrypted,
    DryMask,
    DryMasked,
    DryOpened,
    Figures,
    PaillierFigures,
)
from securefed.measure.meter import WORD, Meter, Operation

__all__ = ["DryKeys"]

Shape = tuple[int, int]


class DryPublicKey(PublicKey):
    """A public key without a key."""

    def __init__(self, serial: int, meter: Meter) -> None:
        self._serial, self.meter = serial, meter
        self.parameters = fingerprint(WORD)
        self.key_id = fingerprint(WORD, serial.to_bytes(8, "little"))

    def note(self, name: str, shape: Sequence[int] = (0, 0), ciphertexts: int = 0, **more: Any) -> None:
        self.meter.note(Operation(name, tuple(shape), ciphertexts, **more))

    def key_bytes(self) -> int:
        raise BadKey("a key of no kind")

    def to_bytes(self) -> bytes:
        return self.meter.blank(self.key_bytes(), self._serial)

    # Encrypted arrays

    def figures(self, shape: tuple[int, ...], fixed: FixedPoint, *, owner: bool) -> Figures:
        """Of fresh ciphertexts."""
        raise BadKey(f"a dry {self.scheme.name} key encrypts no arrays of this kind")

    def _encrypt(self, values: Floats, fixed: FixedPoint) -> DryEncrypted:
        fresh = DryEncrypted(self, self.figures(values.shape, fixed, owner=False))
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

    def _no_frame(self, frame: Any) -> Never:
        raise BadKey("a dry key reads dry frames")

    _load = _load_masked = _load_opened = _no_frame  # nothing comes by these ways


class DryCkksKey(DryPublicKey):
    scheme = Scheme.CKKS

    def key_bytes(self) -> int:
        return PUBLIC_BYTES

    def figures(self, shape: tuple[int, ...], fixed: FixedPoint, *, owner: bool) -> Figures:
        return CkksFigures.fresh(shape, fixed, owner)


class DryHidingKey(DryPublicKey, HidingLayout):
    """One under which arrays can be hidden too."""

    def hidden_zeros(self, shape: Shape, range_: Range, blocks: int = 1) -> DryArray:
        array = DryArray(self, shape, range_, blocks, seeded=False)
        array._prepared, array._unfolded = True, False
        self.note("zeros", shape, array.ciphertexts, blocks=blocks)
        return array

    def load_array(self, blob: bytes, shape: Shape, range_: Range, blocks: int = 1) -> DryArray:
        short, full = (self.array_bytes(shape, blocks, seeded) for seeded in (True, False))
        self.meter.read(blob, short, full)
        array = DryArray(self, shape, range_, blocks, seeded=len(blob) == HEADER.size + short)
        self.note("load array", shape, array.ciphertexts, blocks=blocks)
        return array

    def load_sum(self, blob: bytes, shape: Shape, range_: Range, slack: int) -> DrySum:
        self.meter.read(blob, self.sum_bytes(shape, range_, slack))
        sums = DrySum(self, shape, range_, slack)
        self.note("load sum", shape, sums.ciphertexts)
        return sums

    def load_block(self, blob: bytes, shape: Shape, range_: Range, slack: int) -> DryBlock:
        return DryBlock(self.load_sum(blob, shape, range_, slack), blob)

    def without(self, opened: DryOpened, integers: Wide, range_: Range, slack: int) -> DryOpened:
        return opened

    modulus = 1 << 64
    """Of nothing."""

    def unmasked(self, opened: DryOpened, material: bytes) -> Wide:
        """Of a range check, which a rehearsal leaves out."""
        return np.zeros(opened.shape, dtype=object)

    def zero_chains(self, seed: bytes) -> tuple[DryMasked, DryMask]:
        sums = DrySum(self, getattr(self, "chain_shape"), Range(0, 0))  # noqa: B009
        return sums.rerandomise().mask()

    def noise_bits(self, opened: DryOpened, seed: bytes) -> int:
        return 0

    def load_switching(self, blob: bytes, strides: Sequence[int]) -> None:
        self.meter.read(blob, self.switching_bytes(strides))
        self.note("load switching", ciphertexts=len(strides))


class DryRlweKey(RlweLayout, DryHidingKey):
    scheme = Scheme.RLWE


class DryPaillierKey(PaillierLayout, DryHidingKey):
    scheme = Scheme.PAILLIER

    def __init__(self, serial: int, meter: Meter, bits: int) -> None:
        super().__init__(serial, meter)
        self.bits = bits

    def figures(self, shape: tuple[int, ...], fixed: FixedPoint, *, owner: bool) -> Figures:
        return PaillierFigures(self, shape, Extent.fresh(fixed))


class DryArray(HiddenArray):
    """An operand that is not there."""

    def __init__(
        self, public: DryHidingKey, shape: Shape, range_: Range, blocks: int, *, seeded: bool
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
        return self.public.meter.blank(payload, None, self.ciphertexts)


class DrySum(HiddenSum):
    """A result that is not there."""

    def __init__(self, public: DryHidingKey, shape: Shape, range_: Range, slack: int = 0) -> None:
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
        self.public.note("add sums", self.shape, self.ciphertexts)
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
        drawn = draw_masks(self.shape, self.range.bits + self.slack)
        masks = drawn if self.public.wraps else drawn.wide()
        sums = self.add_plain(masks).rerandomise()
        return DryBlock(sums, self.public.meter.blank(self.payload, None, self.ciphertexts)), masks

    lend = hide

    def mask(self) -> tuple[DryMasked, DryMask]:
        self.rerandomise().add_plain(np.zeros(self.shape, dtype=object))
        count = self.ciphertexts
        block = Block(self.shape, count, self.payload, self.public.opened_bytes(self.shape, count))
        return DryMasked(self.public, block), DryMask(self.public, block)

    def to_bytes(self) -> bytes:
        self.public.note("sum bytes", self.shape, self.ciphertexts)
        return self.public.meter.blank(self.payload, None, self.ciphertexts)


class DryBlock(HiddenBlock):
    """value + mask, neither of them there."""

    public: DryHidingKey
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


class DrySecretKey(SecretKey):
    """What a key-holder would do."""

    def __init__(self, public: DryPublicKey) -> None:
        self.public: DryPublicKey = public

    def encrypt(self, values: Floats, fixed: FixedPoint) -> DryEncrypted:
        fresh = DryEncrypted(self.public, self.public.figures(values.shape, fixed, owner=True))
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


class DryHidingSecret(DrySecretKey):
    """The same where arrays are hidden."""

    def __init__(self, public: DryHidingKey) -> None:
        super().__init__(public)
        self.hiding = public

    def switching(self, strides: Sequence[int]) -> bytes:
        self.public.note("switching", ciphertexts=len(strides))
        return self.public.meter.blank(self.hiding.switching_bytes(strides))

    def read(self, block: DryBlock) -> Wide:
        """Something as large as an entry under its mask."""
        self.public.note("read", block.shape, block.ciphertexts)
        bits = block.range.bits + block.slack
        if self.hiding.wraps:
            return Limbs.of(np.ones(block.shape, dtype=np.int64)) << bits
        return np.full(block.shape, 1 << bits, dtype=object)

    def conceal(self, integers: Wide, range_: Range, blocks: int) -> DryArray:
        array = DryArray(self.hiding, (len(integers), integers.shape[1]), range_, blocks, seeded=True)
        self.public.note("conceal", array.shape, array.ciphertexts, blocks=blocks)
        return array

    def open_twice(self, masked: DryMasked, width: int) -> tuple[DryOpened, DryOpened]:
        """Of a range check, which a rehearsal leaves out."""
        return self.open(masked), self.open(masked)

    def open_noise(self, masked: DryMasked) -> tuple[DryOpened, DryOpened]:
        opened = self.open(masked)
        return opened, opened


@dataclass(frozen=True)
class DryKeys:
    """Makes and reads keys of one kind, for one rehearsal. Where keys protect nothing, they are the real
    ones: they cost nothing, and whoever computes on them wants values.
    """

    kind: str
    key_bits: int
    meter: Meter

    def __post_init__(self) -> None:
        if self.kind not in MAKERS and (self.kind not in KEY_KINDS or kind_protects(self.kind)):
            raise SettingError(f"plan: nobody has said what keys of kind {self.kind!r} take")

    def holder(self) -> KeyHolder:
        if self.kind not in MAKERS:
            return generate(self.kind)
        public = MAKERS[self.kind](self.meter.number(), self)
        secret = DryHidingSecret if isinstance(public, DryHidingKey) else DrySecretKey
        return KeyHolder(secret(public))  # type: ignore[arg-type]  # each takes its own

    def read_key(self, blob: bytes) -> PublicKey:
        """A dry key that arrived; nothing else is one."""
        if self.kind not in MAKERS:
            return load_public_key(blob)
        self.meter.note(Operation("key"))
        return MAKERS[self.kind](self.meter.read(blob), self)


MAKERS: dict[str, Callable[[int, DryKeys], DryPublicKey]] = {
    "rlwe": lambda serial, keys: DryRlweKey(serial, keys.meter),
    "paillier": lambda serial, keys: DryPaillierKey(serial, keys.meter, keys.key_bits),
    "ckks": lambda serial, keys: DryCkksKey(serial, keys.meter),
}
