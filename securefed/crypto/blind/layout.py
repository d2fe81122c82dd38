"""How matrices lie in ciphertexts. Both parties derive it from the public shape of a product alone.

A *panel* is a range of columns of U. A ciphertext of a panel holds t = 4096 / D rows of it: row number s at
offset s D, entry i at s D + i. The multiplier multiplies by sum_s V[s, j] X**(-s D) and adds up. Coefficients
0..I-1 of the sum are column j of U'V. The columns j in groups of g share a response: column j is shifted by
(j mod g) I, so that D has to be at least g I.

With g = 1 the multiplier shifts by multiples of D alone, so coefficients i and i' that differ modulo D never
meet. c0 is then neither computed nor sent at the padding, places I..D-1 of a row. Which places are left out
is public and the same for every message.

A larger D means fewer responses and more ciphertexts. `layout` takes the D with the smallest cost in bytes,
where processor time counts as bytes too. 301 columns become two panels, of 256 and 45 columns, where that
costs less.

Of c1 a reply has the highest 70 of its 105 bits, or the highest 42. What is cut off is multiplied by s when a
reply is read: rounding to 2**35 becomes an error of about 2**39 (tests/crypto/blind/noise.py). In products
with 70 fraction bits that is 2**-31. Products with a right factor of 67 bits in one piece have more noise
than 42 bits of c1 bring, 2**67, and scores can bear it: they have 95 fraction bits. 70 bits are three limbs
and a third of one. The thirds of three coefficients make a limb.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from securefed.crypto.blind.interface import Product
from securefed.crypto.lattice.ring import DEGREE, EXACT_TERMS, PRIMES
from securefed.crypto.randomness import SEED_BYTES
from securefed.crypto.shares import LIMB_BITS, LIMB_MASK, Floats, size_in_bytes
from securefed.errors import FormatError

FINE_BITS, COARSE_BITS = 70, 42
THIRD_BITS = LIMB_BITS // 3

Limbs = NDArray[np.int64]

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


@dataclass(frozen=True)
class Panel:
    """Columns first..last-1 of U, in ciphertexts of `DEGREE / span` rows."""

    first: int
    last: int
    right: int
    span: int
    """D: the distance of two rows in a ciphertext."""

    @property
    def width(self) -> int:
        """I: the panel's columns."""
        return self.last - self.first

    @property
    def group(self) -> int:
        """g: columns of V in a response."""
        return min(self.right, self.span // self.width)

    @property
    def rows(self) -> int:
        """t: rows in a ciphertext."""
        return DEGREE // self.span

    @property
    def responses(self) -> int:
        return -(-self.right // self.group)

    @property
    def sent(self) -> int:
        """Coefficients of c0 that a row has: with one column in a response, no padding."""
        return self.width if self.group == 1 else self.span

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


@dataclass(frozen=True)
class Layout:
    """The panels of a product and its blocks of rows."""

    product: Product
    panels: tuple[Panel, ...]

    @property
    def responses(self) -> int:
        return sum(panel.responses for panel in self.panels)

    @property
    def body_bits(self) -> int:
        """Bits of a coefficient of c1 in a reply."""
        return COARSE_BITS if self.product.digit_size >= COARSE_SIZE else FINE_BITS

    @property
    def response_bytes(self) -> int:
        """The length of c1 of a response."""
        return body_bytes(DEGREE, self.body_bits)

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
        """Return the length of a reply."""
        return self.responses * self.response_bytes + size_in_bytes(self.product.left * self.product.right)


@cache
def layout(product: Product) -> Layout:
    """Choose the panels of a product by cost."""
    whole = product.left // DEGREE * DEGREE
    panels = [_best(product, first, first + DEGREE)[1] for first in range(0, whole, DEGREE)]
    rest = product.left - whole
    if rest:
        cost, one = _best(product, whole, product.left)
        half = 1 << (rest.bit_length() - 1)
        two = []
        if half < rest:
            first_cost, first = _best(product, whole, whole + half)
            second_cost, second = _best(product, whole + half, product.left)
            if first_cost + second_cost < cost:
                two = [first, second]
        panels += two or [one]
    return Layout(product, tuple(panels))


def _best(product: Product, first: int, last: int) -> tuple[float, Panel]:
    least = 1 << (last - first - 1).bit_length()
    spans = [1 << power for power in range(DEGREE.bit_length()) if 1 << power >= least]
    options = []
    for span in spans:
        panel = Panel(first, last, product.right, span)
        seconds = CIPHERTEXT_SECONDS + COLUMN_SECONDS * product.right
        each = CIPHERTEXT_BYTES * panel.sent / span + seconds * BYTES_PER_SECOND
        cost = product.digits * panel.ciphertexts(product.inner) * each
        reply = Layout(product, ()).response_bytes + RESPONSE_SECONDS * BYTES_PER_SECOND
        cost += panel.responses * reply
        options.append((cost, -span, panel))
    cost, _, panel = min(options, key=lambda each: each[:2])
    return cost, panel


def kept_limbs(bits: int) -> int:
    """Return the limbs that hold so many bits of a coefficient, the lowest in part."""
    return -(-bits // LIMB_BITS)


def _thirds(count: int, bits: int) -> int:
    """Return the limbs that the thirds of so many coefficients make."""
    return -(-count // 3) if bits % LIMB_BITS else 0


def body_bytes(count: int, bits: int) -> int:
    """Return the length of `bodies_to_bytes` for one polynomial of so many coefficients."""
    return 8 * -(-(bits // LIMB_BITS * count + _thirds(count, bits)) // 3)


def bodies_to_bytes(limbs: Limbs, bits: int) -> bytes:
    """Round limbs (limbs, polynomials, coefficients), the highest of a number, to `bits`, and pack them.

    The limbs are overwritten.
    """
    kept, polynomials, count = limbs.shape
    whole, rest, words = bits // LIMB_BITS, _thirds(count, bits), body_bytes(count, bits) // 8
    flat = np.zeros((polynomials, 3 * words), dtype=np.int64)
    if rest:
        limbs[0] += 1 << (LIMB_BITS - THIRD_BITS - 1)
        for limb in range(kept - 1):
            limbs[limb + 1] += limbs[limb] >> LIMB_BITS
            limbs[limb] &= LIMB_MASK
        limbs[kept - 1] &= LIMB_MASK
        thirds = np.zeros((polynomials, 3 * rest), dtype=np.int64)
        thirds[:, :count] = limbs[0] >> (LIMB_BITS - THIRD_BITS)
        together = flat[:, whole * count : whole * count + rest]
        for place in (2, 1, 0):
            together <<= THIRD_BITS
            together |= thirds[:, place * rest : (place + 1) * rest]
    for limb in range(whole):
        flat[:, limb * count : (limb + 1) * count] = limbs[limb + kept - whole]
    packed = flat[:, 2 * words :].copy()
    for place in (1, 0):
        packed <<= LIMB_BITS
        packed |= flat[:, place * words : (place + 1) * words]
    data: bytes = packed.astype("<i8", copy=False).tobytes()
    return data


def bodies_from_bytes(data: bytes | memoryview, shape: tuple[int, int], bits: int) -> Limbs:
    """Read what `bodies_to_bytes` packed, or raise FormatError for another length or content."""
    polynomials, count = shape
    whole, rest, words = bits // LIMB_BITS, _thirds(count, bits), body_bytes(count, bits) // 8
    if len(data) != 8 * words * polynomials:
        raise FormatError(f"polynomials: {len(data)} bytes given, {8 * words * polynomials} are due")
    packed = np.frombuffer(data, dtype="<i8").reshape(polynomials, words)
    if packed.size and int(packed.min()) < 0:
        raise FormatError("polynomials: a bit is set that no number has")
    flat = np.empty((polynomials, 3 * words), dtype=np.int64)
    for place in range(3):
        part = flat[:, place * words : (place + 1) * words]
        np.right_shift(packed, LIMB_BITS * place, out=part)
        part &= LIMB_MASK
    kept = kept_limbs(bits)
    limbs = np.empty((kept, polynomials, count), dtype=np.int64)
    for limb in range(whole):
        limbs[limb + kept - whole] = flat[:, limb * count : (limb + 1) * count]
    if rest:
        together = flat[:, whole * count : whole * count + rest]
        for place in range(3):
            part = limbs[0, :, place * rest : (place + 1) * rest]
            part[...] = together[:, : part.shape[1]] >> (THIRD_BITS * place) & ((1 << THIRD_BITS) - 1)
        limbs[0] <<= LIMB_BITS - THIRD_BITS
    return limbs
