"""What hidden arrays take under RLWE: ciphertexts, bytes and keys, from shapes and ranges alone.

The keys compute with it, and so does whoever plans a run and has no key (securefed.measure.dry).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from securefed.crypto.hidden import Range, Result
from securefed.crypto.rlwe.packing import (
    MERGE,
    MOST_TURNS,
    Packing,
    operand_length,
    padded,
    strides_of,
    turns_for,
)
from securefed.crypto.rlwe.ring import HIDDEN, SEED_BYTES, Ring

__all__ = ["RlweLayout"]

SCORING_LIFT = 44
PIECE = 8 * MERGE
"""What a piece of an operand costs: about two merges of work, and the rest for its bytes."""


class RlweLayout:
    """Public facts about arrays in one ring. Bytes are those of payloads, without a frame's header."""

    scoring_lift: int = SCORING_LIFT
    chains: int = 3
    lending_slack: int = 0
    ring: Ring = HIDDEN

    @property
    def wraps(self) -> int:
        return self.ring.modulus

    def room(self, range_: Range, slack: int) -> int:
        return self.ring.capacity_bits - range_.masked(slack).bits

    def blocks_for(self, size: int, rows: int, *, rough: bool = False) -> int:
        return _cheapest(size, rows, self.ring.degree, MOST_TURNS if rough else 1)

    @property
    def chain_shape(self) -> tuple[int, int]:
        """Of what is opened to check a key: all coefficients of every chain."""
        return self.ring.degree, self.chains

    def places(self, rows: int, blocks: int) -> tuple[int, NDArray[np.intp]]:
        degree, length = self.ring.degree, operand_length(rows, blocks, self.ring.degree)
        entries = np.arange(rows)
        return -(-rows // length) * degree, entries // length * degree + entries % length

    def strides_for(self, results: Iterable[Result]) -> tuple[int, ...]:
        degree = self.ring.degree
        due = [(r.rows, r.columns, operand_length(r.inner, r.blocks, degree)) for r in results]
        found = set(strides_of({shape for shape in due if shape[0]}, degree))
        for rows, columns, length in due:
            if not rows:  # any number of them
                found |= {1 << k for k in range(1, (length if columns == 1 else degree).bit_length())}
        return tuple(sorted(found, reverse=True))

    def array_ciphertexts(self, shape: tuple[int, int], blocks: int) -> int:
        """Of operands: one for each piece of each column."""
        return -(-shape[0] // operand_length(shape[0], blocks, self.ring.degree)) * shape[1]

    def array_bytes(self, shape: tuple[int, int], blocks: int, seeded: bool) -> int:
        """c0, and c1 or its seed."""
        ring = self.ring
        each = ring.byte_count(self.array_ciphertexts(shape, blocks) * len(ring.data_primes) * ring.degree)
        return each + (SEED_BYTES if seeded else each)

    def sum_ciphertexts(self, shape: tuple[int, int], range_: Range, slack: int) -> int:
        return len(Packing(*shape, self.ring.degree).blocks)

    def sum_bytes(self, shape: tuple[int, int], range_: Range, slack: int) -> int:
        """c0 at the places of the entries, and c1."""
        primes, degree = len(self.ring.data_primes), self.ring.degree
        second = self.sum_ciphertexts(shape, range_, slack) * primes * degree
        return self.opened_bytes(shape, 0) + self.ring.byte_count(second)

    def opened_bytes(self, shape: tuple[int, int], ciphertexts: int) -> int:
        return self.ring.byte_count(len(self.ring.data_primes) * shape[0] * shape[1])

    def key_bytes(self) -> int:
        return SEED_BYTES + self.ring.byte_count(len(self.ring.primes) * self.ring.degree)

    def check_range(self, range_: Range, numbers: int) -> Range:
        most = self.ring.capacity_bits - 2
        return Range(range_.fraction_bits, min(most, range_.bits + numbers.bit_length() + 1))

    def slot_bits(self, range_: Range, slack: int) -> int:
        return 0

    def switching_bytes(self, strides: Sequence[int]) -> int:
        ring = self.ring
        return SEED_BYTES + ring.byte_count(
            len(strides) * len(ring.data_primes) * len(ring.primes) * ring.degree
        )


@cache
def _cheapest(size: int, rows: int, degree: int, most: int) -> int:
    """Shorter pieces of an operand save key switches of the `rows` results; each costs a ciphertext."""
    packing = Packing(rows, 1, degree)

    def cost(blocks: int) -> int:
        length = operand_length(size, blocks, degree)
        pieces = -(-size // length)
        return turns_for(packing, length, pieces, most)[1] + PIECE * pieces

    return min((1 << k for k in range(padded(size).bit_length())), key=cost)
