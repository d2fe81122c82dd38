"""Whole numbers of any size as arrays of machine words: what holders mask and key-holders read, row by row.

A number is a sum of limbs, word[i] * 2^(54 i): all words but the last are in [0, 2^54), that has the sign.
Sums, shifts and comparisons are a few numpy operations for all numbers at once, some ten times as fast as on
numpy's arrays of Python's integers. Whatever else is asked for is done on those (`wide`), so that either can
take the other's place. 54 bits are what the primes of hidden arrays have (securefed.crypto.rlwe.ring).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefed.crypto.errors import ShapeError
from securefed.crypto.randomness import ByteSource

__all__ = ["LIMB_BITS", "Limbs", "limbs_for"]

LIMB_BITS = 54
_LOW = (1 << LIMB_BITS) - 1
Integers = NDArray[np.int64]
Bools = NDArray[np.bool_]


def limbs_for(bits: int) -> int:
    """Limbs of numbers below 2**bits in magnitude: the last one has bits to spare, for sums."""
    return max(1, -(-bits // LIMB_BITS))


class Limbs:
    """Numbers of one shape; words are (limbs, *shape)."""

    def __init__(self, words: Integers) -> None:
        """From words that may be negative, or 2^54 and beyond: carried here, in place."""
        for limb in range(len(words) - 1):
            words[limb + 1] += words[limb] >> LIMB_BITS
            words[limb] &= _LOW
        self.words = words

    @classmethod
    def of(cls, integers: Any) -> Limbs:
        """From an array of integers: int64, or Python's of any size."""
        if isinstance(integers, Limbs):
            return integers
        whole = np.asarray(integers)
        if whole.dtype not in (np.int64, object):
            raise TypeError(f"integers: an array of {whole.dtype} given, int64 or Python's are allowed")
        try:
            small = whole.astype(np.int64)
        except OverflowError:
            bits = max(abs(int(number)).bit_length() for number in whole.ravel())
            last = limbs_for(bits) - 1
            low = [(whole >> (LIMB_BITS * limb) & _LOW).astype(np.int64) for limb in range(last)]
            return cls(np.stack([*low, (whole >> (LIMB_BITS * last)).astype(np.int64)]))
        return cls(np.stack([small, np.zeros_like(small)]))

    @classmethod
    def sums(cls, source: ByteSource, terms: int, count: int, bits: int) -> Limbs:
        """`count` sums of `terms` numbers uniform below 2**bits; a limb takes the low bits of a word."""
        limbs = limbs_for(bits)
        drawn = np.frombuffer(source(8 * terms * limbs * count), dtype="<i8").reshape(terms, limbs, count)
        total = (drawn & _LOW).sum(axis=0)
        total[-1] = (drawn[:, -1] & ((1 << (bits - LIMB_BITS * (limbs - 1))) - 1)).sum(axis=0)
        return cls(total)

    # As arrays of numbers

    @property
    def shape(self) -> tuple[int, ...]:
        return self.words.shape[1:]

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))

    def __len__(self) -> int:
        return self.shape[0]

    def wide(self) -> NDArray[Any]:
        """Numpy's array of Python's integers."""
        total: NDArray[Any] = self.words[-1].astype(object)
        for word in self.words[-2::-1]:
            total = (total << LIMB_BITS) + word.astype(object)
        return total

    def shaped(self, *shape: int) -> Limbs:
        """The same numbers in another shape, or (-1) in none."""
        return Limbs(self.words.reshape(len(self.words), *shape))

    def ordered(self, places: NDArray[np.intp]) -> Limbs:
        """By their places among all of them."""
        return Limbs(self.words.reshape(len(self.words), -1).take(places, axis=1))

    def to_bytes(self) -> bytes:
        """One number after the other, each of the same length."""
        return np.ascontiguousarray(self.words.reshape(len(self.words), -1).T, dtype="<i8").tobytes()

    def any(self) -> bool:
        return bool(self.words.any())

    def fill(self, number: int) -> None:
        """With a number of one word."""
        self.words.fill(0)
        self.words[0].fill(number)

    def __setitem__(self, chosen: Bools, number: int) -> None:
        self.words[:, chosen] = 0
        self.words[0, chosen] = number

    # Arithmetic

    def __add__(self, other: Any) -> Limbs:
        return self._with(other, np.add)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Limbs:
        return self._with(other, np.subtract)

    def __neg__(self) -> Limbs:
        return Limbs(-self.words)

    def __rshift__(self, bits: int) -> Limbs:
        """Rounded down, as Python's."""
        whole, rest = divmod(bits, LIMB_BITS)
        if whole >= len(self.words):
            return Limbs(self.words[-1:] >> 63)
        words = self.words[whole:] >> rest
        if rest:
            words[:-1] |= self.words[whole + 1 :] << (LIMB_BITS - rest) & _LOW
        return Limbs(words)

    def __lshift__(self, bits: int) -> Limbs:
        whole, rest = divmod(bits, LIMB_BITS)
        own = Limbs(self._longer(len(self.words) + 1)).words  # so that the last is small
        words = np.zeros((whole + len(own), *self.shape), dtype=np.int64)
        words[whole:-1] = own[:-1] << rest & _LOW
        words[-1] = own[-1] << rest
        words[whole + 1 :] += own[:-1] >> (LIMB_BITS - rest)
        return Limbs(words)

    def __lt__(self, number: int) -> Bools:
        return self._with(number, np.subtract)._sign() < 0

    def __gt__(self, number: int) -> Bools:
        return self._with(number + 1, np.subtract)._sign() >= 0

    def _sign(self) -> Integers:
        """-1 for negative numbers, 0 for others."""
        found: Integers = self.words[-1] >> 63
        return found

    def _with(self, other: Any, work: Callable[..., Any]) -> Limbs:
        if isinstance(other, int):
            count = max(len(self.words), limbs_for(other.bit_length()))
            parts = [other >> (LIMB_BITS * limb) & _LOW for limb in range(count - 1)]
            parts.append(other >> (LIMB_BITS * (count - 1)))
            return Limbs(work(self._longer(count), np.array(parts).reshape(count, *(1 for _ in self.shape))))
        others = Limbs.of(other)
        if others.shape != self.shape:
            raise ShapeError(f"integers of shape {others.shape} given, {self.shape} expected")
        count = max(len(self.words), len(others.words))
        return Limbs(work(self._longer(count), others._longer(count)))

    def _longer(self, count: int) -> Integers:
        """Words with zeros above; carrying them moves the sign up."""
        more = count - len(self.words)
        return np.concatenate([self.words, np.zeros((more, *self.shape), np.int64)]) if more else self.words

    # What Python's integers do

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self.wide() if dtype in (None, object) else self.wide().astype(dtype)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **settings: Any) -> Any:
        """Where an array is the left operand, or a function of numpy is asked."""
        given = [each.wide() if isinstance(each, Limbs) else each for each in inputs]
        return getattr(ufunc, method)(*given, **settings)

    def __getattr__(self, name: str) -> Any:
        """Methods of arrays."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.wide(), name)

    def __getitem__(self, place: Any) -> Any:
        return self.wide()[place]

    def __mul__(self, other: Any) -> Any:
        return self.wide() * other

    def __and__(self, other: Any) -> Any:
        return self.wide() & other
