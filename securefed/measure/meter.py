"""What operations would take: the clock of a rehearsal, and frames that stand for arrays.

A frame of a rehearsal is as long as the real one and holds nothing but a number; what is public about the
array that it stands for is kept beside the clock, for whoever reads the frame.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol

from securefed.crypto.errors import FormatError
from securefed.crypto.hidden import PlainMatrix
from securefed.crypto.wire import HEADER

__all__ = ["WORD", "Costs", "Meter", "Operation", "ciphertexts_in"]

WORD = b"dry run\0"
HEAD = struct.Struct("<8sQI")
"""What stands in a dry frame: that it is one, its number, ciphertexts."""


@dataclass(frozen=True)
class Operation:
    """One thing that a party does to encrypted arrays, to hidden ones, or to keys."""

    name: str
    """Encrypted arrays: encrypt (under the own key), encrypt for another, load, add, plus (plain numbers),
    contract, draw (r**n, or what re-randomises), mask, open, unmask.

    Hidden ones: zeros, load array, array plus, array bytes, multiply, flatten (array to sum); pack, add sums,
    sum plus, rerandomise, sum bytes, load sum; read, open, conceal. And what is put off and done once:
    prepare an array that arrived for its first use, unfold one that was computed to send it.

    Keys: key, switching, load switching.
    """
    shape: tuple[int, ...] = (0, 0)
    """Of the array, or of the result."""
    ciphertexts: int = 0
    blocks: int = 1
    inner: int = 0
    """Of a product, and of what becomes of it: rows of the operand."""
    matrix: PlainMatrix | None = None
    """Of a product of a hidden array."""
    again: bool = False
    """Whether the matrix was kept from an earlier product."""
    width: int = 0
    """Of a slot, where sums are packed."""
    rough: bool = False
    """Whether the matrix allows more noise."""
    terms: int = 0
    """Of a contraction: multipliers that are not 0."""

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns; a vector has one."""
        return self.shape[0], self.shape[1] if len(self.shape) == 2 else 1


class Costs(Protocol):
    """Seconds for an operation under one kind of keys; SettingError for what such keys cannot do."""

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

    def note(self, operation: Operation) -> None:
        begin = self.timer()
        seconds = self.costs.seconds(operation)  # may be measured only now: not on this clock
        self._ahead += seconds - (self.timer() - begin)

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
