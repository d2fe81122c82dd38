"""The clock of a rehearsal, and frames that stand for encrypted arrays.

A frame of a rehearsal is as long as the real one and contains only a number. The meter keeps the array's
public figures for the reader of the frame.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from statistics import median
from time import thread_time
from typing import Any, Protocol, TypeVar

from securefed.crypto.blind.interface import Product
from securefed.crypto.errors import FormatError
from securefed.crypto.wire import HEADER

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
