"""The binary form of keys, ciphertext blocks, masked blocks and openings.

All have one frame, little-endian, with no optional field:

    magic      4   b"SFED"
    version    1   1
    kind       1   Kind
    scheme     1   Scheme
    ndim       1   1 or 2 (0: not an array)
    shape      8   two u32
    numbers   16   four i32 whose meaning the scheme fixes (fraction bits, ...)
    parameters 16  hash of the parameter set that both sides build by themselves
    key        16  fingerprint of the public key
    length     8   u64, bytes of payload
    checksum   16  SHA-256 over all the rest, cut to 16 bytes: finds damage; authenticity is the transport's
    payload

The payload has only residues and integers. No context, parameter set or pickled object is ever accepted from
a peer.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, field
from enum import IntEnum
from math import prod
from typing import ClassVar

from securefed.errors import FormatError, ShapeError, WrongKey

MAGIC = b"SFED"
VERSION = 1
HEADER = struct.Struct("<4sBBBB2I4i16s16sQ16s")
MOST_BYTES = 1 << 31


class Kind(IntEnum):
    PUBLIC_KEY = 1
    SECRET_KEY = 2
    ENCRYPTED = 3
    MASKED = 4
    OPENED = 5
    DISCLOSURE = 6


@dataclass(frozen=True)
class Scheme:
    """A key kind as a frame names it: a number and a name."""

    number: int
    name: str

    PLAIN: ClassVar[Scheme]
    PAILLIER: ClassVar[Scheme]
    CKKS: ClassVar[Scheme]
    known: ClassVar[dict[int, Scheme]] = {}

    @classmethod
    def register(cls, number: int, name: str) -> Scheme:
        if number in cls.known:
            raise FormatError(f"scheme number {number} given, {cls.known[number].name} has it")
        return cls.known.setdefault(number, cls(number, name))


Scheme.PLAIN = Scheme.register(0, "plain")
Scheme.PAILLIER = Scheme.register(1, "paillier")
Scheme.CKKS = Scheme.register(2, "ckks")


def fingerprint(*parts: bytes) -> bytes:
    """Return 16 bytes that identify a key or a parameter set."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()[:16]


@dataclass(frozen=True)
class Frame:
    kind: Kind
    scheme: Scheme
    parameters: bytes
    key: bytes
    payload: bytes = field(repr=False)
    shape: tuple[int, ...] = ()
    numbers: tuple[int, int, int, int] = (0, 0, 0, 0)

    def to_bytes(self) -> bytes:
        sizes = (*self.shape, 0, 0)[:2]
        head = (MAGIC, VERSION, self.kind, self.scheme.number, len(self.shape), *sizes, *self.numbers)
        bare = HEADER.pack(*head, self.parameters, self.key, len(self.payload), bytes(16))
        checksum = hashlib.sha256(bare + self.payload).digest()[:16]
        return bare[:-16] + checksum + self.payload

    @classmethod
    def from_bytes(cls, blob: bytes, kind: Kind, most_bytes: int = MOST_BYTES) -> Frame:
        """Parse a frame of the given kind, or raise FormatError."""
        if len(blob) > most_bytes:
            raise FormatError(f"{len(blob)} bytes given, at most {most_bytes} are allowed")
        if len(blob) < HEADER.size:
            raise FormatError(f"cut short: {len(blob)} bytes given, a frame has at least {HEADER.size}")
        magic, version, stated, scheme, ndim, rows, columns, *numbers = HEADER.unpack_from(blob)
        *numbers, parameters, key, length, checksum = numbers
        if magic != MAGIC:
            raise FormatError("not a securefed frame: its first bytes are others")
        if version != VERSION:
            raise FormatError(f"version {version} given, version {VERSION} is allowed")
        if length != len(blob) - HEADER.size:
            raise FormatError(f"{len(blob) - HEADER.size} bytes of payload given, {length} announced")
        digest = hashlib.sha256(blob[: HEADER.size - 16] + bytes(16))
        digest.update(memoryview(blob)[HEADER.size :])
        if digest.digest()[:16] != checksum:
            raise FormatError("damaged: the checksum does not fit the bytes")
        if stated != kind:
            name = Kind(stated).name.lower() if stated in iter(Kind) else stated
            raise FormatError(f"a frame of kind {name} given, {kind.name.lower()} expected")
        if scheme not in Scheme.known:
            raise FormatError(f"scheme number {scheme} given, {[*Scheme.known]} are allowed")
        if ndim > 2 or (ndim < 2 and columns) or (ndim < 1 and rows):
            raise FormatError(f"a shape of {ndim} dimensions ({rows}, {columns}) is not allowed")
        shape = (rows, columns)[:ndim]
        return cls(kind, Scheme.known[scheme], parameters, key, blob[HEADER.size :], shape, tuple(numbers))

    def expect(self, scheme: Scheme, parameters: bytes, key: bytes) -> Frame:
        """Raise WrongKey unless the frame belongs to this scheme, parameter set and key."""
        if self.scheme != scheme:
            raise WrongKey(f"a {self.scheme.name} frame given, {scheme.name} expected")
        if self.parameters != parameters:
            raise WrongKey(f"parameter set {self.parameters.hex()} given, {parameters.hex()} expected")
        if self.key != key:
            raise WrongKey(f"key {self.key.hex()} given, {key.hex()} expected")
        return self

    def expect_array(self, most_entries: int = 1 << 28) -> tuple[int, ...]:
        """Return the shape of an array frame. Raises ShapeError if it is empty or too large."""
        entries = prod(self.shape)
        if not self.shape or entries == 0:
            raise ShapeError(f"shape {self.shape} is empty")
        if entries > most_entries:
            raise ShapeError(f"shape {self.shape} has {entries} entries, at most {most_entries} are allowed")
        return self.shape
