"""Keys that encrypt nothing, for rehearsing runs that open own gradients.

Their arrays have shapes, ranges and costs. The layouts of the real keys give ciphertexts and bytes
(securefed.plan.fake_arrays), and a `Meter` records every operation. Masks, plain matrices and transcripts are
real. Frames have exactly the right length and are empty.

No user can choose these keys, and no party accepts one from a peer: they are not in securefed.crypto's
registry, and their frames are not valid there. Only a rehearsal (securefed.plan.rehearsal) reads them, with
`DryKeys.read_key`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Never

import numpy as np

from securefed.crypto import KEY_KINDS, KeyHolder, generate, load_public_key, protects
from securefed.crypto.ckks.keys import PUBLIC_BYTES
from securefed.crypto.errors import BadKey, ShapeError
from securefed.crypto.fixed import FixedPoint
from securefed.crypto.keyholder import SecretKey
from securefed.crypto.paillier.arrays import Extent
from securefed.crypto.paillier.keys import roots_needed
from securefed.crypto.scheme import Floats, PublicKey
from securefed.crypto.wire import Scheme, fingerprint
from securefed.errors import SettingError
from securefed.plan.fake_arrays import (
    CkksFigures,
    DryEncrypted,
    DryMasked,
    DryOpened,
    Figures,
    PaillierFigures,
)
from securefed.plan.meter import WORD, Meter, Operation

__all__ = ["DryKeys"]


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

    def figures(self, shape: tuple[int, ...], fixed: FixedPoint, *, owner: bool) -> Figures:
        """Return the figures of fresh ciphertexts."""
        raise BadKey(f"a dry {self.scheme.name} key encrypts no arrays")

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


class DryPaillierKey(DryPublicKey):
    scheme = Scheme.PAILLIER

    def __init__(self, serial: int, meter: Meter, bits: int) -> None:
        super().__init__(serial, meter)
        self.bits = bits

    def key_bytes(self) -> int:
        """Return the size of n and the roots of its proof."""
        return (1 + roots_needed(self.bits)) * ((self.bits + 7) // 8)

    def figures(self, shape: tuple[int, ...], fixed: FixedPoint, *, owner: bool) -> Figures:
        return PaillierFigures(self.bits, shape, Extent.fresh(fixed))


class DrySecretKey(SecretKey):
    """A secret key that only records a key-holder's operations."""

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


MAKERS: dict[str, Callable[[int, DryKeys], DryPublicKey]] = {
    "paillier": lambda serial, keys: DryPaillierKey(serial, keys.meter, keys.key_bits),
    "ckks": lambda serial, keys: DryCkksKey(serial, keys.meter),
}
