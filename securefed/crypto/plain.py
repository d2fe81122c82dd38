"""No encryption: the same interface on bare float64 arrays.

It serves experiments and is the oracle of the encrypted schemes. It protects nothing. Users must write the
word "plain" to select it, and every result of such a run has that word.
"""

from __future__ import annotations

import secrets
from math import prod
from typing import ClassVar, Self

import numpy as np

from securefed.crypto.fixed import FixedPoint, Floats, Multipliers
from securefed.crypto.keyholder import SecretKey
from securefed.crypto.scheme import Bare, Framed, Mask, Masked, Opened, PublicKey
from securefed.crypto.wire import Frame, Kind, check_length, fingerprint
from securefed.errors import BadKey, MaskError, RangeError

MOST_PUBLIC_BYTES = 256


def most_bytes(shape: tuple[int, ...], sums: int = 0) -> int:
    columns = shape[1] if len(shape) == 2 else 1
    return 256 + 8 * (sums * columns if sums else prod(shape))


class _Clear(Framed):
    """Values in the clear, in a frame: the bound and the values, and a nonce among the numbers."""

    kind: ClassVar[Kind]

    def __init__(self, public: PublicKey, values: Floats, bound: float = 1.0, nonce: int = 0) -> None:
        self.public, self.values, self.shape, self.bound = public, values, values.shape, bound
        self._nonce, self.ciphertexts = nonce, int(values.size)

    def to_bytes(self) -> bytes:
        payload = np.float64(self.bound).tobytes() + np.ascontiguousarray(self.values, dtype="<f8").tobytes()
        return self.public.frame(self.kind, payload, self.shape, (self._nonce, 0, 0, 0)).to_bytes()

    @classmethod
    def from_frame(cls, public: PublicKey, frame: Frame) -> Self:
        check_length("values", frame.payload, 8 * (prod(frame.shape) + 1))
        numbers = np.frombuffer(frame.payload, dtype="<f8").astype(np.float64)
        if not np.isfinite(numbers).all() or numbers[0] <= 0:
            raise RangeError("values: NaN or infinite entries; only finite numbers are allowed")
        return cls(public, numbers[1:].reshape(frame.shape), float(numbers[0]), frame.numbers[0])


class PlainEncrypted(_Clear, Bare):
    kind = Kind.ENCRYPTED

    def _add(self, other: PlainEncrypted) -> PlainEncrypted:
        return PlainEncrypted(self.public, self.values + other.values, self.bound + other.bound)

    def _add_plain(self, values: Floats) -> PlainEncrypted:
        return PlainEncrypted(self.public, self.values + values, 2 * self.bound)

    def _contract(self, multipliers: Multipliers, fixed: FixedPoint | None) -> PlainEncrypted:
        matrix = self.values.reshape(self.rows, self.columns)
        result = np.empty((multipliers.shape[1], self.columns))
        for j, a, block in multipliers.blocks():
            result[a, j] = np.matmul(block, matrix.T[j, :, None])[:, :, 0].T
        largest = fixed.bound if fixed else float(multipliers.largest.max())
        shaped = np.ascontiguousarray(result if len(self.shape) == 2 else result[:, 0])
        return PlainEncrypted(self.public, shaped, self.bound * self.rows * (largest or 1.0))

    def mask(self) -> tuple[PlainBlock, PlainMask]:
        # The key-holder refuses repeats by their bytes, and two openings of equal values are two openings.
        return PlainBlock(self.public, self.values, nonce=secrets.randbits(31)), PlainMask(self.shape)


class PlainBlock(_Clear, Masked):
    kind = Kind.MASKED


class PlainReply(_Clear, Opened):
    kind = Kind.OPENED


class PlainMask(Mask):
    def __init__(self, shape: tuple[int, ...]) -> None:
        self._shape = shape

    def _remove(self, opened: PlainReply) -> Floats:
        if opened.shape != self._shape:
            raise MaskError(f"an opening of shape {opened.shape} given, this mask is for {self._shape}")
        return opened.values

    def _disclose(self) -> bytes:
        return b""

    def _material(self) -> list[bytes]:
        return [bytes(1)]


class PlainPublicKey(PublicKey):
    """A name that tells the arrays of two owners apart, not a key."""

    scheme = "plain"
    encrypted_type, masked_type, opened_type = PlainEncrypted, PlainBlock, PlainReply
    parameters = fingerprint(b"plain")

    def __init__(self, token: bytes) -> None:
        check_length("plain", token, 16, BadKey)
        self._token = token
        self.key_id = fingerprint(b"plain", token)

    def to_bytes(self) -> bytes:
        return self.frame(Kind.PUBLIC_KEY, self._token).to_bytes()

    @classmethod
    def from_frame(cls, frame: Frame) -> PlainPublicKey:
        key = cls(frame.payload)
        frame.expect(cls.scheme, cls.parameters, key.key_id)
        return key

    def _encrypt(self, values: Floats, fixed: FixedPoint) -> PlainEncrypted:
        return PlainEncrypted(self, values, fixed.bound)


class PlainSecretKey(SecretKey):
    """The form of a secret key. It opens values that anybody can read."""

    public: PlainPublicKey

    def __init__(self, token: bytes | None = None) -> None:
        self._token = token if token is not None else secrets.token_bytes(16)
        self.public = PlainPublicKey(self._token)

    def open(self, masked: PlainBlock) -> PlainReply:
        return PlainReply(self.public, masked.values)

    def receive(self, masked: PlainBlock, disclosure: bytes) -> Floats:
        check_length("disclosure", disclosure, 0)
        return masked.values

    def to_bytes(self) -> bytes:
        return self.public.frame(Kind.SECRET_KEY, self._token).to_bytes()

    @classmethod
    def from_frame(cls, frame: Frame) -> PlainSecretKey:
        key = cls(frame.payload)
        frame.expect(key.public.scheme, key.public.parameters, key.public.key_id)
        return key


generate_secret_key = PlainSecretKey


def strong_parameters() -> dict[str, str]:
    return {}
