"""The binary form of keys, ciphertext blocks, masked blocks and openings.

All have one frame, little-endian, with no optional field:

    magic      4   b"SFED"
    version    1   1
    kind       1   Kind
    scheme     1   the number of a kind of keys
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

from securefed.errors import FormatError, SecurefedError, ShapeError, WrongKey

MAGIC = b"SFED"
VERSION = 1
HEADER = struct.Struct("<4sBBBB2I4i16s16sQ16s")
MOST_BYTES = 1 << 31
MOST_ENTRIES = 1 << 28


Shape = tuple[int, ...]
Numbers = tuple[int, int, int, int]
NO_NUMBERS: Numbers = (0, 0, 0, 0)


class Kind(IntEnum):
    PUBLIC_KEY = 1
    SECRET_KEY = 2
    ENCRYPTED = 3
    MASKED = 4
    OPENED = 5
    DISCLOSURE = 6


NUMBERS = {"plain": 0, "paillier": 1, "ckks": 2}
"""The numbers of the kinds of keys (securefed.crypto.KEY_KINDS)."""


def kind_of_keys(number: int) -> str | None:
    """Return the kind of keys with this number; None for an unknown one."""
    return next((name for name, each in NUMBERS.items() if each == number), None)


def check_length(
    what: str, data: bytes | memoryview, due: int, error: type[SecurefedError] = FormatError
) -> None:
    """Raise the error for another number of bytes than is due."""
    if len(data) != due:
        raise error(f"{what}: {len(data)} bytes given, {due} are due")


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
    scheme: str
    parameters: bytes
    key: bytes
    payload: bytes = field(repr=False)
    shape: Shape = ()
    numbers: Numbers = NO_NUMBERS

    def to_bytes(self) -> bytes:
        sizes = (*self.shape, 0, 0)[:2]
        head = (MAGIC, VERSION, self.kind, NUMBERS[self.scheme], len(self.shape), *sizes, *self.numbers)
        bare = HEADER.pack(*head, self.parameters, self.key, len(self.payload), bytes(16))
        checksum = hashlib.sha256(bare + self.payload).digest()[:16]
        return bare[:-16] + checksum + self.payload

    @classmethod
    def from_bytes(cls, blob: bytes, kind: Kind) -> Frame:
        """Parse a frame of the given kind, or raise FormatError."""
        if len(blob) > MOST_BYTES:
            raise FormatError(f"{len(blob)} bytes given, at most {MOST_BYTES} are allowed")
        if len(blob) < HEADER.size:
            raise FormatError(f"cut short: {len(blob)} bytes given, a frame has at least {HEADER.size}")
        magic, version, stated, number, ndim, rows, columns, *numbers = HEADER.unpack_from(blob)
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
        scheme = kind_of_keys(number)
        if scheme is None:
            raise FormatError(f"scheme number {number} given, {[*NUMBERS.values()]} are allowed")
        if ndim > 2 or (ndim < 2 and columns) or (ndim < 1 and rows):
            raise FormatError(f"a shape of {ndim} dimensions ({rows}, {columns}) is not allowed")
        shape = (rows, columns)[:ndim]
        return cls(kind, scheme, parameters, key, blob[HEADER.size :], shape, tuple(numbers))

    def expect(self, scheme: str, parameters: bytes, key: bytes) -> Frame:
        """Raise WrongKey unless the frame belongs to this scheme, parameter set and key."""
        if self.scheme != scheme:
            raise WrongKey(f"a {self.scheme} frame given, {scheme} expected")
        if self.parameters != parameters:
            raise WrongKey(f"parameter set {self.parameters.hex()} given, {parameters.hex()} expected")
        if self.key != key:
            raise WrongKey(f"key {self.key.hex()} given, {key.hex()} expected")
        return self

    def expect_array(self) -> None:
        """Raise ShapeError if this is no array, or an empty or too large one."""
        entries = prod(self.shape) if self.shape else 0
        if not 1 <= entries <= MOST_ENTRIES:
            raise ShapeError(f"shape {self.shape} has {entries} entries, 1 to {MOST_ENTRIES} are allowed")
