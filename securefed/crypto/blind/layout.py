"""How matrices lie in ciphertexts. Both parties derive it from the public shape of a product alone.

A *panel* is a range of columns of U. A ciphertext of a panel holds t = 4096 / D rows of it: row number s at
offset s D, entry i at s D + i. The multiplier multiplies by sum_s V[s, j] X**(-s D) and adds up. Coefficients
0..I-1 of the sum are column j of U'V. The columns j in groups of g share a response: column j is shifted by
(j mod g) I, so that D has to be at least g I. With g = 1 the padding, places I..D-1 of a row, is not sent:
coefficients i and i' that differ modulo D never meet.

A larger D means fewer responses and more ciphertexts. `layout` takes the D with the smallest cost in bytes,
where processor time counts as bytes too. docs/proofs.md says why a reply needs only the highest bits of c1.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from securefed.crypto import shares
from securefed.crypto.blind.interface import Product
from securefed.crypto.lattice.ring import DEGREE, EXACT_TERMS, PRIMES
from securefed.crypto.randomness import SEED_BYTES
from securefed.crypto.shares import LIMB_BITS, LIMB_MASK, Floats, Share, size_in_bytes
from securefed.crypto.wire import check_length

FINE_BITS, COARSE_BITS = 71, 42

BLOCK_BYTES = 16 << 20
"""About the largest message of ciphertexts."""
CHUNK = 64
"""Ciphertexts that are worked on at a time, at most."""
CIPHERTEXT_BYTES = size_in_bytes(DEGREE, len(PRIMES))
BYTES_PER_SECOND = 3e6
"""What a second of processor time counts for, in bytes."""
CIPHERTEXT_SECONDS, COLUMN_SECONDS, RESPONSE_SECONDS = 0.0005, 8e-6, 0.0016
"""A ciphertext, its product with a column of V, and a response, at both parties together."""
COARSE_SIZE = 67
"""Digits of so many bits bring more noise than rounding c1 to 42 bits does."""


@dataclass(eq=False)
class Panel:
    """Columns first..last-1 of U, in ciphertexts of `DEGREE / span` rows."""

    first: int
    last: int
    right: int
    span: int
    """D: the distance of two rows in a ciphertext."""

    def __post_init__(self) -> None:
        self.width = self.last - self.first
        """I: the panel's columns."""
        self.group = min(self.right, self.span // self.width)
        """g: columns of V in a response."""
        self.rows = DEGREE // self.span
        """t: rows in a ciphertext."""
        self.responses = -(-self.right // self.group)
        self.sent = self.width if self.group == 1 else self.span
        """Coefficients of c0 that a row has: with one column in a response, no padding."""

    def ciphertexts(self, rows: int) -> int:
        return -(-rows // self.rows)

    def places(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return the coefficient, (width, right), and the response, (1, right), of entries (i, j) of U'V."""
        columns = np.arange(self.right)
        places = np.arange(self.width)[:, None] + (columns % self.group) * self.width
        return places, columns[None] // self.group


@dataclass(frozen=True)
class Chunk:
    """Ciphertexts of a message that are worked on at a time: rows first..last-1 of its block."""

    panel: Panel
    number: int
    first: int
    last: int
    count: int
    """Ciphertexts of one digit."""
    total: int
    """Ciphertexts of all digits, one digit after the other."""

    @property
    def size(self) -> int:
        """The bytes of c0."""
        return size_in_bytes(self.total * self.panel.rows * self.panel.sent, len(PRIMES))

    @property
    def label(self) -> bytes:
        """The label of this chunk's c1 among those that one seed expands to."""
        return b"c1" + self.number.to_bytes(4, "big")

    def arranged(self, rows: Floats) -> Floats:
        """Fill the last ciphertext with rows of zeros: (rows, columns) to (count, t, columns)."""
        due = self.count * self.panel.rows
        if len(rows) < due:
            filled = np.zeros((due, rows.shape[1]))
            filled[: len(rows)] = rows
            rows = filled
        return rows.reshape(self.count, self.panel.rows, rows.shape[1])


@dataclass
class Layout:
    """The panels of a product and its blocks of rows."""

    product: Product
    panels: tuple[Panel, ...]

    def __post_init__(self) -> None:
        self.responses = sum(panel.responses for panel in self.panels)
        self.body_bits = COARSE_BITS if self.product.digit_size >= COARSE_SIZE else FINE_BITS
        """Bits of a coefficient of c1 in a reply."""
        self.response_bytes = body_bytes(DEGREE, self.body_bits)
        """The length of c1 of a response."""

    def blocks(self) -> list[tuple[int, int]]:
        """Return the inner rows (first, last) of each message: whole ciphertexts, about 16 MB at most."""
        step = max(panel.rows for panel in self.panels)
        size = self.product.digits * sum(step // panel.rows * CIPHERTEXT_BYTES for panel in self.panels)
        step *= max(1, BLOCK_BYTES // size)
        inner = self.product.inner
        return [(start, min(start + step, inner)) for start in range(0, inner, step)]

    def chunks(self, rows: int) -> list[Chunk]:
        """Return the pieces of a message of so many rows, in order."""
        chunks: list[Chunk] = []
        digits = self.product.digits
        for panel in self.panels:
            # The rows of a chunk are added up in float64 without a reduction.
            most = max(1, min(CHUNK, EXACT_TERMS // panel.rows) // digits)
            for start in range(0, rows, most * panel.rows):
                last = min(start + most * panel.rows, rows)
                count = panel.ciphertexts(last - start)
                chunks.append(Chunk(panel, len(chunks), start, last, count, digits * count))
        return chunks

    def block_bytes(self, rows: int) -> int:
        """Return the length of a message of so many rows."""
        return SEED_BYTES + sum(chunk.size for chunk in self.chunks(rows))

    def reply_bytes(self) -> int:
        return self.responses * self.response_bytes + size_in_bytes(self.product.left * self.product.right)


@cache
def layout(product: Product) -> Layout:
    whole, left = product.left // DEGREE * DEGREE, product.left
    panels = [_best(product, first, first + DEGREE)[1] for first in range(0, whole, DEGREE)]
    if rest := left - whole:
        cost, one = _best(product, whole, left)
        middle = whole + (1 << (rest.bit_length() - 1))
        halves = [_best(product, whole, middle), _best(product, middle, left)] if middle < left else []
        split = bool(halves) and sum(each for each, _ in halves) < cost
        panels += [panel for _, panel in halves] if split else [one]
    return Layout(product, tuple(panels))


def _best(product: Product, first: int, last: int) -> tuple[float, Panel]:
    """Return the cheapest panel, of the largest span if several are, and its cost."""
    span, options = DEGREE, []
    while span >= last - first:
        panel = Panel(first, last, product.right, span)
        seconds = CIPHERTEXT_SECONDS + COLUMN_SECONDS * product.right
        each = CIPHERTEXT_BYTES * panel.sent / span + seconds * BYTES_PER_SECOND
        reply = Layout(product, ()).response_bytes + RESPONSE_SECONDS * BYTES_PER_SECOND
        cost = product.digits * panel.ciphertexts(product.inner) * each + panel.responses * reply
        options.append((cost, panel))
        span //= 2
    return min(options, key=lambda option: option[0])


def kept_limbs(bits: int) -> int:
    """Return the limbs that hold so many bits of a coefficient, the lowest in part."""
    return -(-bits // LIMB_BITS)


def body_bytes(count: int, bits: int) -> int:
    """Return the length of `bodies_to_bytes` for one polynomial of so many coefficients."""
    return size_in_bytes(count, bits // LIMB_BITS) + (count if bits % LIMB_BITS else 0)


def bodies_to_bytes(limbs: Share, bits: int) -> bytes:
    """Round limbs (limbs, polynomials, coefficients), the highest of a number, to `bits`, and pack them.

    A polynomial has its whole limbs, packed, and then the rest of 8 bits, if there is one. The limbs are
    overwritten.
    """
    rest = bits % LIMB_BITS
    if not rest:
        return b"".join(shares.to_bytes(limbs[:, i]) for i in range(limbs.shape[1]))
    limbs[0] += 1 << (LIMB_BITS - rest - 1)
    for limb in range(len(limbs) - 1):
        limbs[limb + 1] += limbs[limb] >> LIMB_BITS
    limbs &= LIMB_MASK
    last = (limbs[0] >> (LIMB_BITS - rest)).astype(np.uint8)
    return b"".join(shares.to_bytes(limbs[1:, i]) + last[i].tobytes() for i in range(len(last)))


def bodies_from_bytes(data: bytes | memoryview, shape: tuple[int, int], bits: int) -> Share:
    """Read what `bodies_to_bytes` packed, or raise FormatError for another length or content."""
    (polynomials, count), size = shape, body_bytes(shape[1], bits)
    whole, rest = divmod(bits, LIMB_BITS)
    check_length("polynomials", data, polynomials * size)
    limbs = np.empty((kept_limbs(bits), polynomials, count), dtype=np.int64)
    for i in range(polynomials):
        own, end = data[i * size : (i + 1) * size], size_in_bytes(count, whole)
        limbs[len(limbs) - whole :, i] = shares.from_bytes(own[:end], (whole, count))
        if rest:
            limbs[0, i] = np.frombuffer(own[end:], dtype=np.uint8).astype(np.int64) << (LIMB_BITS - rest)
    return limbs
