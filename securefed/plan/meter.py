"""What operations would take: the clock of a rehearsal, and frames that stand for encrypted arrays.

A frame of a rehearsal is as long as the real one and holds nothing but a number. What is public about the
array that it stands for is kept beside the clock, for whoever reads the frame.
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

__all__ = ["EFFICIENCY", "WORD", "Costs", "Meter", "Operation", "ciphertexts_in", "timed"]

WORD = b"dry run\0"
HEAD = struct.Struct("<8sQI")
"""What stands in a dry frame: that it is one, its number, ciphertexts."""
EFFICIENCY = 0.85
"""Of a worker process, beside work in this one."""
T = TypeVar("T")


@dataclass(frozen=True)
class Operation:
    """One thing that a party does to encrypted arrays, in an encrypted product, or to keys."""

    name: str
    """Encrypted arrays: encrypt (under the own key), encrypt for another, load, add, plus (plain numbers),
    contract, draw (r**n, or what re-randomises), mask, sum bytes, load sum, open, unmask; key.

    Encrypted products: generate, public, load public; encrypt, multiply, respond, read.
    """
    shape: tuple[int, ...] = (0, 0)
    """Of the array, or of the result."""
    ciphertexts: int = 0
    inner: int = 0
    """Rows that a sum goes over; of an encrypted product, the rows of this operation."""
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
    """Seconds for an operation of one kind; SettingError for what that kind cannot do."""

    def seconds(self, operation: Operation) -> float: ...


@dataclass
class Meter:
    """A clock that goes on by what operations would take, besides what really passes."""

    costs: Costs
    timer: Callable[[], float]
    _ahead: float = 0.0
    _serial: Any = field(default_factory=lambda: count(1))
    _kept: dict[int, Any] = field(default_factory=dict)

    def now(self) -> float:
        return self.timer() + self._ahead

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Do something that a run does not do: it takes no time on this clock."""
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
        """A frame of this payload; `kept` is what its reader finds."""
        serial = self.number()
        self._kept[serial] = kept
        return HEAD.pack(WORD, serial, ciphertexts).ljust(HEADER.size + payload, b"\0")

    def read(self, blob: bytes, *payloads: int) -> Any:
        """What a frame of one of these lengths stands for; of any length where none is given."""
        if not blob.startswith(WORD) or (payloads and len(blob) - HEADER.size not in payloads):
            raise FormatError(f"{len(blob)} bytes given, a dry frame with a payload of {payloads} expected")
        return self._kept[HEAD.unpack_from(blob)[1]]


def ciphertexts_in(blob: bytes) -> int:
    """Ciphertexts that a message of a rehearsal stands for; 0 where it is no dry frame."""
    return int(HEAD.unpack_from(blob)[2]) if blob.startswith(WORD) else 0


def timed(work: Callable[[], object], repeats: int = 3) -> float:
    """Return the median of a few processor times of this thread."""
    seconds = []
    for _ in range(repeats):
        begin = thread_time()
        work()
        seconds.append(thread_time() - begin)
    return median(seconds)
