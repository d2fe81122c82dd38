"""The interface that every scheme implements: arrays in, arrays out.

    values --encrypt--> Encrypted --(+, @)--> Encrypted --mask--> Masked + Mask
                                                      Masked --KeyHolder.open--> Opened
                                                      Mask.remove(Opened) --> values

Objects without the secret key have no method that decrypts: see `securefed.crypto.keyholder`.

An `Encrypted` is a vector (rows,) or a matrix (rows, columns). Its one heavy operation, `contract`, makes
sums over rows. They leave a party under a mask only, which re-randomises them.

This module checks shapes, finiteness, declared ranges and keys once for all schemes, before any arithmetic.
The schemes implement `from_frame` and the methods with a leading underscore.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any, ClassVar, Literal, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike
from tqdm import tqdm

from securefed.crypto.fixed import (
    FixedPoint,
    Floats,
    Multipliers,
    as_multipliers,
    check_magnitude,
    checked_array,
)
from securefed.crypto.wire import NO_NUMBERS, Frame, Kind, Numbers, Shape
from securefed.errors import MaskError, RangeError, ShapeError, WrongKey

Origin = Literal["fresh", "re-randomised", "arrived", "computed"]
"""Where a ciphertext's randomness comes from. What leaves a party is fresh, or re-randomised by its mask.
Whoever knows the randomness of the operands could read multipliers out of "computed" ciphertexts."""
FLOAT_BITS = 52
"""Fraction bits of addends: floats represent all small multiples of 2**-52 exactly."""
PATIENCE = 2.0
"""Seconds before a progress bar appears."""
T = TypeVar("T")
R = TypeVar("R")


class Mapper(Protocol):
    """Runs independent pieces of work in this process or in others (securefed.engine)."""

    @property
    def workers(self) -> int: ...

    @property
    def local(self) -> Mapper:
        """The mapper for work with a secret key. It uses only this process and those that it started."""
        ...

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> list[R]: ...


class Serial:
    """A mapper that works in this process."""

    workers = 1

    @property
    def local(self) -> Mapper:
        return self

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> list[R]:
        return [function(item) for item in items]


SERIAL = Serial()


def progress(items: Iterable[T], what: str, total: int, unit: str = "block") -> Iterator[T]:
    """Yield the items. A terminal shows a bar on stderr if that takes long; a file or a pipe does not."""
    if not sys.stderr.isatty():
        yield from items
        return
    with tqdm(items, desc=what, total=total, unit=unit, delay=PATIENCE, leave=False, file=sys.stderr) as bar:
        yield from bar


class PublicKey(ABC):
    """The public part of a key pair: it encrypts, computes and parses what arrives."""

    scheme: ClassVar[str]
    """The kind of keys."""
    encrypted_type: ClassVar[type[Encrypted]]
    masked_type: ClassVar[type[Masked]]
    opened_type: ClassVar[type[Opened]]
    parameters: bytes
    """Hash of the parameter set, which both sides build themselves."""
    key_id: bytes
    """Fingerprint of the key, 16 bytes."""
    mapper: Mapper = SERIAL

    def encrypt(self, values: ArrayLike, fixed: FixedPoint) -> Encrypted:
        """Encrypt `values`, each |value| <= fixed.bound, with the operating system's randomness."""
        encrypted = self._encrypt(fixed.checked(values), fixed)
        encrypted.origin = "fresh"
        return encrypted

    @abstractmethod
    def _encrypt(self, values: Floats, fixed: FixedPoint) -> Encrypted: ...

    @abstractmethod
    def to_bytes(self) -> bytes:
        """Return a frame of kind PUBLIC_KEY for `securefed.crypto.load_public_key`."""

    def load(self, blob: bytes, shape: Shape | None = None) -> Encrypted:
        """Parse and validate ciphertexts that arrived. `shape` is the expected shape."""
        frame = self.arrived_frame(blob, Kind.ENCRYPTED)
        if shape is not None and frame.shape != shape:
            raise ShapeError(f"ciphertexts of shape {frame.shape} given, {shape} expected")
        encrypted = self.encrypted_type.from_frame(self, frame)
        encrypted.origin = "arrived"
        return encrypted

    def load_masked(self, blob: bytes) -> Masked:
        return self.masked_type.from_frame(self, self.arrived_frame(blob, Kind.MASKED))

    def load_opened(self, blob: bytes) -> Opened:
        return self.opened_type.from_frame(self, self.arrived_frame(blob, Kind.OPENED))

    def arrived_frame(self, blob: bytes, kind: Kind) -> Frame:
        frame = Frame.from_bytes(blob, kind).expect(self.scheme, self.parameters, self.key_id)
        frame.expect_array()
        return frame

    def frame(self, kind: Kind, payload: bytes, shape: Shape = (), numbers: Numbers = NO_NUMBERS) -> Frame:
        return Frame(kind, self.scheme, self.parameters, self.key_id, payload, shape, numbers)

    def __repr__(self) -> str:
        return f"<{self.scheme} public key {self.key_id.hex()[:8]}>"


class Framed(ABC):
    """What travels in a frame of a key."""

    public: PublicKey
    shape: Shape
    ciphertexts: int
    """The number of ciphertexts, or of opened plaintexts."""
    origin: Origin = "computed"
    """For the audit. Arithmetic gives "computed", except that a sum with a fresh term is fresh."""

    @abstractmethod
    def to_bytes(self) -> bytes:
        """Return a frame."""

    @classmethod
    @abstractmethod
    def from_frame(cls, public: Any, frame: Frame) -> Self:
        """Parse what arrived, whose shape is that of an array."""

    def repeated(self) -> int:
        """Count ciphertexts that share randomness with another: the difference of their values is public."""
        return 0


class Encrypted(Framed):
    """An encrypted array and its operations without the secret key."""

    __array_ufunc__: ClassVar[None] = None  # so that numpy hands `matrix @ encrypted` over
    bound: float
    """Public bound on every |value|, from declared ranges and operations, never from values."""
    shown: bool = False
    """It was sent, so its randomness can no longer re-randomise a sum."""
    unit_bits: int = FLOAT_BITS
    """Fraction bits of the addends of `add_units`."""

    @property
    def rows(self) -> int:
        return self.shape[0]

    @property
    def columns(self) -> int:
        return self.shape[1] if len(self.shape) == 2 else 1

    def __add__(self, other: Encrypted | ArrayLike) -> Encrypted:
        """Add. A plain addend is at most as large as the declared bound."""
        if not isinstance(other, Encrypted):
            every = np.broadcast_to(np.asarray(other), self.shape) if np.ndim(other) == 0 else other
            array = checked_array(every, "addend")
            if array.shape != self.shape:
                raise ShapeError(f"addend: shape {array.shape} given, {self.shape} expected")
            check_magnitude(array, self.bound, "addend")
            return self._add_plain(array)
        if other.public.key_id != self.public.key_id or other.public.scheme != self.public.scheme:
            raise WrongKey(f"arrays under two keys do not add up: {self.public!r} and {other.public!r}")
        if other.shape != self.shape:
            raise ShapeError(f"shapes {self.shape} and {other.shape} do not add up")
        total: Encrypted = self._add(other)
        total.origin = self._origin_of_sum(other)
        return total

    __radd__ = __add__

    def __rmatmul__(self, matrix: ArrayLike) -> Encrypted:
        """Return matrix (outputs, rows) @ encrypted (rows[, columns])."""
        array = checked_array(matrix, "matrix")
        if array.ndim != 2 or array.shape[1] != self.rows:
            raise ShapeError(f"matrix: shape {array.shape} given, (any, {self.rows}) expected")
        return self.contract(np.broadcast_to(array, (self.columns, *array.shape)))

    def contract(self, multipliers: ArrayLike | Multipliers, fixed: FixedPoint | None = None) -> Encrypted:
        """Return result[a, j] = sum over i of multipliers[j, a, i] * self[i, j].

        `fixed`: the public scale of the multipliers. Without it their scale stays with the caller as long as
        the result is only masked.
        """
        checked = as_multipliers(multipliers)
        columns, outputs, rows = checked.shape
        if columns != self.columns or rows != self.rows or outputs == 0:
            raise ShapeError(
                f"multipliers: shape {checked.shape} given, ({self.columns}, any, {self.rows}) expected"
            )
        if not np.isfinite(checked.largest).all():
            raise RangeError("multipliers: NaN or infinite entries; only finite numbers are allowed")
        if fixed is not None:
            check_magnitude(checked.largest, fixed.bound, "multipliers")
        return self._contract(checked, fixed)

    @abstractmethod
    def mask(self) -> tuple[Masked, Mask]:
        """Pack, re-randomise and mask the values for the key-holder. Return the masked block and the mask."""

    def add_units(self, units: Sequence[int]) -> Encrypted:
        """Add multiples of 2**-unit_bits, one to each value of a vector; exactly in an exact scheme."""
        return self + np.ldexp(np.array(units, dtype=np.float64), -self.unit_bits)

    @abstractmethod
    def _add(self, other: Any) -> Encrypted: ...

    @abstractmethod
    def _add_plain(self, values: Floats) -> Encrypted: ...

    @abstractmethod
    def _contract(self, multipliers: Multipliers, fixed: FixedPoint | None) -> Encrypted: ...

    def _origin_of_sum(self, other: Encrypted) -> Origin:
        """Return the origin of a sum. A term with unseen randomness makes one sum fresh."""
        for term in (self, other):
            if term.origin in ("fresh", "re-randomised") and not term.shown:
                term.origin = "computed"
                return "fresh"
        return "computed"

    def __repr__(self) -> str:
        return f"<{self.public.scheme} encrypted {self.shape} under {self.public.key_id.hex()[:8]}>"


class Bare(Encrypted):
    """An array of a scheme that protects nothing. Anybody may read it."""

    values: Floats


class Masked(Framed):
    """A re-randomised block of value + mask, with no public scale: all that a key-holder opens."""

    def fresh_parts(self) -> list[bytes]:
        """Return the parts that every honest block has anew. A key-holder opens each of them once."""
        return [self.to_bytes()]

    def check_room(self, width: int) -> None:
        """Raise ShapeError for more ciphertexts than the values take at `width` bits each."""
        if self.ciphertexts > prod(self.shape):
            raise ShapeError(f"{self.ciphertexts} ciphertexts to open for {prod(self.shape)} values")

    def check_sums(self, operand: Shape, outputs: int) -> None:
        """Raise ShapeError unless this is a request for `outputs` sums over the rows of an `operand`."""
        if self.shape != (outputs, *operand[1:]):
            raise ShapeError(f"sums of shape {self.shape} to open, {(outputs, *operand[1:])} expected")


class Opened(Framed):
    """The key-holder's answer: value + mask in the clear. It is uniform without the mask."""


class Mask(ABC):
    """The requester's secret for one opening. It is used once and then destroyed."""

    def remove(self, opened: Opened) -> Floats:
        """Return the value under the mask."""
        with self._used():
            return self._remove(opened)

    def disclose(self) -> bytes:
        """Return a DISCLOSURE frame: it tells the key-holder the mask, and so the value (a score)."""
        with self._used():
            return self._disclose()

    @contextmanager
    def _used(self) -> Iterator[None]:
        self._check_unspent()
        try:
            yield
        finally:
            self._destroy()

    def _destroy(self) -> None:
        """Delete all attributes, so that nothing of a used mask stays reachable."""
        vars(self).clear()

    @property
    def destroyed(self) -> bool:
        return not vars(self)

    def _check_unspent(self) -> None:
        if self.destroyed:
            raise MaskError("this mask was used already; each opening takes a fresh one")

    def material(self) -> list[bytes]:
        """Return the secret numbers, a piece for each draw, for the transcript's fingerprint."""
        self._check_unspent()
        return self._material()

    def narrow(self) -> int:
        """Count pieces that are smaller than a uniform one ever is, except with probability 2**-40 each."""
        self._check_unspent()
        return self._narrow()

    def _narrow(self) -> int:
        return 0

    @abstractmethod
    def _material(self) -> list[bytes]: ...

    @abstractmethod
    def _remove(self, opened: Any) -> Floats: ...

    @abstractmethod
    def _disclose(self) -> bytes: ...
