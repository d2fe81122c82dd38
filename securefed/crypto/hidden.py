"""Hidden arrays: values that stay encrypted from the first round to the last.

Whoever works on a hidden array lacks its key; the key-holder sees it only under masks. Two forms, both
matrices of whole numbers (rows, columns) at a public scale:

    HiddenArray   one operand: a plain matrix times it gives a HiddenSum; plain numbers can be added
    HiddenSum     results, packed: they add up, take plain numbers, and go to the key-holder

and what happens to them:

    matrix @ array                       by its holder, alone
    sum.hide() -> block, masks           to the key-holder: value + noise + mask, entry by entry
    key_holder.read(block)               value + noise + mask
    key_holder.conceal(integers)         a fresh HiddenArray, of what was read, shifted or combined
    array.add_plain(-masks)              and the holder has the refreshed array

so a *refresh* (to another scale) and a *conversion* (to another holder) are one round trip each, in which
nobody sees a value. `sum.mask()` is the other way out: a uniform mask, for an opening to whoever may learn
the result (scores; parameters that all agreed to release).

Masks. The mask of an entry is the sum of three numbers uniform in [0, 2^(bits + slack)), where value and
noise stay below 2^bits. It survives a shift, which a uniform mask does not. What the key-holder sees of T
entries is within 1.07 sqrt(T) 2^-slack of something independent of the values: with f the density of the
sum of three uniforms of width W, sqrt(f) is absolutely continuous, so the squared Hellinger distance of one
entry is at most (v/W)^2 I / 8 with the Fisher information I = 4.57, T entries multiply their affinities,
however adaptively they are chosen, and the statistical distance is at most sqrt(2 T I / 8) v / W. (One
uniform mask would only give T 2^-slack.) `slack_for` turns that round for a whole run.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil, inf, isfinite, log2, sqrt
from typing import Any, Protocol, Self, TypeGuard, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from securefed.crypto.errors import RangeError, ShapeError
from securefed.crypto.limbs import Limbs
from securefed.crypto.randomness import ByteSource
from securefed.crypto.scheme import Floats, Mask, Masked, Opened, Origin

__all__ = [
    "HiddenArray",
    "HiddenBlock",
    "HiddenSum",
    "HidingKey",
    "HidingLayout",
    "HidingSecret",
    "PlainMatrix",
    "Range",
    "Result",
    "Wide",
    "concealed",
    "draw_masks",
    "hides",
    "slack_for",
    "to_integers",
]

Wide = Any
"""Integers of any size, (rows, columns): numpy's array of Python's, or `Limbs`, which take its place."""
SECURITY_BITS = 40
"""What a key-holder sees in all runs on the same data is within 2^-40 of something independent of them."""
RUNS_BITS = 10
"""Runs on the same data that this is counted for: 2^10."""
MASK_TERMS = 3
PART_ENTRIES = 1 << 21
"""Of a matrix, that are worked on at once."""
MASK_BLOCK = 1 << 16
"""Masks that are drawn at once."""
EVERY = slice(None)
FLOOD_BITS = 96
"""What is opened is flooded by three numbers uniform below this power of two, where a scheme or a check needs
it: values, and noise, that are far below are hidden as by masks.
"""


@dataclass(frozen=True)
class Range:
    """Public facts about an array: integers stand for integer * 2**-fraction_bits, and stay below 2**bits."""

    fraction_bits: int
    bits: int

    def cut(self, shift: int) -> Range:
        """Of the same values with `shift` low bits cut off (or added, where it is negative)."""
        return Range(self.fraction_bits - shift, self.bits - shift)

    def masked(self, slack: int) -> Range:
        """Of value + mask."""
        return Range(self.fraction_bits, self.bits + slack + 2)


def slack_for(entries: int) -> int:
    """Bits by which masks are wider than values, where `entries` of them are hidden in a run."""
    return SECURITY_BITS + 1 + ceil((log2(max(entries, 1)) + RUNS_BITS) / 2)


def draw_masks(shape: tuple[int, int], bits: int) -> Limbs:
    """A mask for each entry: three numbers uniform below 2**bits, added up."""
    count = shape[0] * shape[1]
    sizes = [min(MASK_BLOCK, count - start) for start in range(0, count, MASK_BLOCK)]
    parts = [Limbs.of(_sums_from(os.urandom, size, bits)).words for size in sizes]
    return Limbs(np.concatenate(parts, axis=1)).shaped(*shape)


def _sums_from(source: ByteSource, count: int, bits: int) -> Limbs:
    return Limbs.sums(source, MASK_TERMS, count, bits)


def to_integers(values: Floats, fraction_bits: int) -> Wide:
    """round(value * 2**fraction_bits) of each, of any size."""
    scaled = np.rint(np.ldexp(np.asarray(values, dtype=np.float64), fraction_bits))
    if not np.isfinite(scaled).all():
        raise RangeError("values: NaN or infinite entries; only finite numbers are allowed")
    if np.abs(scaled).max(initial=0.0) < 2.0**62:
        return scaled.astype(np.int64).astype(object)
    return np.array([int(value) for value in scaled.ravel().tolist()], dtype=object).reshape(scaled.shape)


@dataclass(eq=False)
class PlainMatrix:
    """A plain matrix (outputs, inputs) that hidden arrays are multiplied by, at a public scale.

    It is `weight` times `values`, or, with `left`, `weight` times left @ values': of that, and of values on
    disk, there is never more in memory than the part that is worked on. Inputs that are `idle` count as
    nothing. What a scheme makes of it is kept
    with it while `keep` is true and there is room: columns that are used again in every round are encoded
    once.
    """

    values: NDArray[Any]
    fraction_bits: int
    bits: int
    """Public: |entry| * 2**fraction_bits < 2**bits."""
    keep: bool = False
    left: Floats | None = None
    weight: float = 1.0
    idle: NDArray[np.bool_] | None = None
    """Of the rows of `values`, where `left` is given."""
    rough: bool = False
    """Whether sums may carry more noise, some 2**10 times as much, where that makes them cheaper: not where
    they are opened, or low bits count, or the makers of keys are not trusted.
    """
    encodings: dict[Any, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self._bound() * 2.0**self.fraction_bits < 2.0**self.bits:
            return
        largest = max((float(np.max(np.abs(part), initial=0.0)) for part in self._parts()), default=0.0)
        if not np.isfinite(largest) or largest * 2.0**self.fraction_bits >= 2.0**self.bits:
            allowed = 2.0 ** (self.bits - self.fraction_bits)
            raise RangeError(f"multipliers: {largest:.6g} given, below {allowed:g} is allowed")

    def _bound(self) -> float:
        """On entries of left @ values', from the lengths of their rows: nothing is multiplied for it."""
        if self.left is None:
            return inf
        each = max(1, PART_ENTRIES // max(1, self.values.shape[1]))
        parts = (self.values[start : start + each] for start in range(0, len(self.values), each))
        longest = max((float(np.einsum("ij,ij->i", part, part).max()) for part in parts), default=inf)
        square = (
            self.weight**2 * float(np.einsum("ij,ij->i", self.left, self.left).max(initial=0.0)) * longest
        )
        return sqrt(square) if isfinite(square) else inf

    def __getstate__(self) -> dict[str, Any]:
        """Encodings stay where they were made."""
        return {**vars(self), "encodings": {}}

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.values.shape
        return (rows, columns) if self.left is None else (len(self.left), rows)

    def part(self, rows: slice, columns: slice) -> Floats:
        """Some rows of some columns."""
        if self.left is None:
            found: Floats = np.asarray(self.values[rows, columns], dtype=np.float64)
            return found if self.weight == 1.0 else self.weight * found
        product: Floats = self.weight * (self.left[rows] @ np.asarray(self.values[columns]).T)
        if self.idle is not None:
            product[:, self.idle[columns]] = 0.0
        return product

    def integers(self, rows: slice = EVERY, columns: slice = EVERY) -> NDArray[np.int64]:
        scaled = np.ldexp(self.part(rows, columns), self.fraction_bits)
        return np.rint(scaled, out=scaled).astype(np.int64)

    def _parts(self) -> Iterator[Floats]:
        """All of it, by and by."""
        rows, columns = self.shape
        by_rows = self.left is None
        each = max(1, PART_ENTRIES // max(1, columns if by_rows else rows))
        for start in range(0, rows if by_rows else columns, each):
            some = slice(start, start + each)
            yield self.part(some, EVERY) if by_rows else self.part(EVERY, some)


class HiddenArray(ABC):
    """Operands: what a plain matrix can be multiplied with."""

    shape: tuple[int, int]
    range: Range
    origin: Origin = "computed"
    shown: bool = False

    def __rmatmul__(self, matrix: PlainMatrix) -> HiddenSum:
        """[[matrix array]]; the matrix' scale adds to the array's."""
        if matrix.shape[1] != self.shape[0]:
            raise ShapeError(f"matrix: shape {matrix.shape} given, (any, {self.shape[0]}) expected")
        return self._product(matrix)

    @property
    @abstractmethod
    def ciphertexts(self) -> int: ...

    def repeated(self) -> int:
        """Ciphertexts that share their randomness: none, unless something is broken."""
        return 0

    @abstractmethod
    def _product(self, matrix: PlainMatrix) -> HiddenSum: ...

    def whole(self) -> HiddenArray:
        """All numbers that its ciphertexts hold, also where no entry stands (`HidingLayout.places`)."""
        return self

    @abstractmethod
    def packed(self) -> HiddenSum:
        """The same values, on their way to the key-holder."""

    @abstractmethod
    def add_plain(self, integers: Wide, range_: Range) -> Self:
        """Plain integers added; `range_` is the result's."""

    @abstractmethod
    def to_bytes(self) -> bytes: ...


class HiddenSum(ABC):
    """Results: sums of products, packed."""

    shape: tuple[int, int]
    range: Range
    slack: int
    origin: Origin = "computed"
    shown: bool = False

    @property
    @abstractmethod
    def ciphertexts(self) -> int: ...

    @abstractmethod
    def repeated(self) -> int: ...

    @abstractmethod
    def within(self, range_: Range, slack: int) -> Self:
        """The same sums under a run's declared range and with room for its masks, the same at all parties."""

    @abstractmethod
    def __add__(self, other: Self) -> Self: ...

    @abstractmethod
    def add_plain(self, integers: Wide) -> Self: ...

    @abstractmethod
    def rerandomise(self) -> Self: ...

    @abstractmethod
    def hide(self) -> tuple[HiddenBlock, Wide]:
        """Re-randomised and under masks, for the key-holder; and the masks, to keep."""

    @abstractmethod
    def lend(self) -> tuple[HiddenBlock, Wide]:
        """As `hide`, for a value that is added up under another key and opened there: `HidingKey.without`."""

    @abstractmethod
    def mask(self) -> tuple[Masked, Mask]:
        """Re-randomised and under a uniform mask, to be opened for its holder."""

    @abstractmethod
    def to_bytes(self) -> bytes: ...


class HiddenBlock(Masked):
    """value + noise + mask, entry by entry: what a key-holder may read."""

    range: Range
    slack: int

    def narrow(self, masks: Wide) -> int:
        """How many masks are no wider than the values: a good one is once in 2**slack."""
        return int(np.count_nonzero(masks < 1 << self.range.bits))


@dataclass(frozen=True)
class Result:
    """A product that a run will compute: its shape, and the operand's rows and blocks."""

    rows: int
    columns: int
    inner: int
    blocks: int = 1


class HidingLayout(Protocol):
    """What hidden arrays take under a kind of keys, from shapes and ranges alone; bytes are of payloads."""

    scoring_lift: int
    """Bits that parameters are lifted by for scoring, so that what blurs a score covers the noise."""
    chains: int
    """Encryptions of zero that are opened to check a key before its first use; 0 where keys are proven."""
    lending_slack: int
    """Bits that masks of lent values are wider by (0: they are uniform)."""

    @property
    def wraps(self) -> int:
        """What hidden integers are reduced by, the same under all keys of the kind; 0: they are not, while
        they stay in their range.
        """
        ...

    def room(self, range_: Range, slack: int) -> int:
        """Bits that are left above values of this range and their masks; negative where they do not fit."""
        ...

    def blocks_for(self, size: int, rows: int, *, rough: bool = False) -> int:
        """Into how many pieces an operand is cut that `rows` results are computed from, by matrices that are
        `rough` or not: a matter of cost.
        """
        ...

    def places(self, rows: int, blocks: int) -> tuple[int, NDArray[np.intp]]:
        """How many numbers the ciphertexts of one column hold, and where its entries stand among them."""
        ...

    def strides_for(self, results: Iterable[Result]) -> tuple[int, ...]:
        """The switching keys that such results take; none in schemes that have no use for them."""
        ...

    def array_ciphertexts(self, shape: tuple[int, int], blocks: int) -> int: ...

    def array_bytes(self, shape: tuple[int, int], blocks: int, seeded: bool) -> int:
        """`seeded`: as its key-holder made it, where that is shorter."""
        ...

    def sum_ciphertexts(self, shape: tuple[int, int], range_: Range, slack: int) -> int: ...

    def sum_bytes(self, shape: tuple[int, int], range_: Range, slack: int) -> int: ...

    def opened_bytes(self, shape: tuple[int, int], ciphertexts: int) -> int: ...

    def key_bytes(self) -> int: ...

    def switching_bytes(self, strides: Sequence[int]) -> int: ...

    def check_range(self, range_: Range, numbers: int) -> Range:
        """What sums of so many numbers of that range are sent in, to check them."""
        ...

    def slot_bits(self, range_: Range, slack: int) -> int:
        """Of a slot, where several values lie in a ciphertext; 0 where they do not lie in slots."""
        ...


@runtime_checkable
class HidingKey(HidingLayout, Protocol):
    """A public key under which arrays can be hidden."""

    key_id: bytes

    def hidden_zeros(self, shape: tuple[int, int], range_: Range, blocks: int = 1) -> HiddenArray: ...

    def load_array(
        self, blob: bytes, shape: tuple[int, int], range_: Range, blocks: int = 1
    ) -> HiddenArray: ...

    def load_sum(self, blob: bytes, shape: tuple[int, int], range_: Range, slack: int) -> HiddenSum: ...

    def load_block(self, blob: bytes, shape: tuple[int, int], range_: Range, slack: int) -> HiddenBlock: ...

    def load_masked(self, blob: bytes) -> Masked: ...

    def load_opened(self, blob: bytes) -> Any: ...

    def without(self, opened: Any, integers: Wide, range_: Range, slack: int) -> Any:
        """An opening of sums of that range, less integers that were lent."""
        ...

    @property
    def modulus(self) -> int:
        """Of whole numbers under a mask."""
        ...

    def unmasked(self, opened: Any, material: bytes) -> Wide:
        """The whole numbers of an opening; `material` is its mask's. BadCiphertext where it is of none."""
        ...

    def load_switching(self, blob: bytes, strides: Sequence[int]) -> None: ...


def hides(key: object) -> TypeGuard[HidingKey]:
    """Whether arrays can be hidden under a public key; looked at once for each kind."""
    kind = type(key)
    if kind not in _HIDING:
        _HIDING[kind] = isinstance(key, HidingKey)
    return _HIDING[kind]


_HIDING: dict[type, bool] = {}


def concealed(key: HidingKey, integers: Wide, range_: Range) -> HiddenArray:
    """A fresh hidden array by somebody without the secret key: as `HidingSecret.conceal`, slower and, where
    ciphertexts carry noise, with more of it.
    """
    array = key.hidden_zeros((integers.shape[0], integers.shape[1]), range_).add_plain(integers, range_)
    array.origin = "fresh"  # nobody has seen the zeros
    return array


@runtime_checkable
class HidingSecret(Protocol):
    """The secret key that belongs to it."""

    def read(self, block: Any) -> Wide: ...

    def open_twice(self, masked: Any, width: int) -> tuple[Opened, Opened]:
        """As it is, and flooded."""
        ...

    def conceal(self, integers: Wide, range_: Range, blocks: int) -> HiddenArray: ...
