"""The multiplier's arithmetic: ciphertexts times V, added up, re-randomised, and the reply.

For each panel the sums of c1 stay in the Y-domain, (5, t, G, D) for G responses. Of c0 only the coefficients
of one row are needed, (5, G, `Panel.sent`). All sums are exact: they are the same whoever computes them.


Re-randomisation makes a reply independent of V, whatever the encryptor sent: docs/proofs.md has the formula
and the proof (re-randomised replies).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from securefed.crypto import shares
from securefed.crypto.blind.interface import FactorRows, limbs_of
from securefed.crypto.blind.layout import Chunk, Layout, Panel, bodies_to_bytes, kept_limbs
from securefed.crypto.lattice.ring import (
    DEGREE,
    EXACT_TERMS,
    HALF,
    RING,
    PackedResidues,
    Spectra,
    inverse,
    reduce,
    spectrum,
)
from securefed.crypto.randomness import SEED_BYTES, ByteSource, normals
from securefed.crypto.shares import Floats, Share

PAIRS = 7
RESPONSES = 4
"""Responses at a time: what they need stays in the processor's cache."""
SHIFTED = 64
"""Shifted ciphertexts that are multiplied at a time, or as many as a chunk has."""


def nonce_polynomials(nonce: bytes) -> Floats:
    """Expand a_1..a_7 from the multiplier's nonce: residues of coefficients, (5, 7, 4096)."""
    return RING.polynomials(nonce, b"nonce", PAIRS)


class Rerandomiser:
    """The spectra of a public key: b_1..b_7, centred residues of coefficients, (5, 7, 4096)."""

    def __init__(self, nonce: bytes, public: Floats) -> None:
        # Frequencies first: at each of them a matrix of 7 rows, with the primes for c1 and then for c0.
        self.spectra: Spectra = np.empty((HALF, PAIRS, 2, len(RING.primes)), dtype=np.complex128)
        for side, polynomials in enumerate((nonce_polynomials(nonce), public)):
            self.spectra[:, :, side] = spectrum(polynomials).transpose(2, 1, 0)

    def zeros(self, source: ByteSource, span: int) -> Zeros:
        """Begin to draw ciphertexts that are added to responses, with `span` coefficients of c0."""
        return Zeros(self.spectra, source, span)


class Zeros:
    """Encryptions of zero, drawn a few at a time in the same memory.

    Fresh pages of memory take longer than transforms.
    """

    def __init__(self, spectra: Spectra, source: ByteSource, span: int) -> None:
        primes = len(RING.primes)
        self._keys, self._source, self._span = spectra.reshape(HALF, PAIRS, -1), source, span
        self._drawn = np.empty((PAIRS + 1) * RESPONSES * DEGREE)
        self._spectra = np.empty((PAIRS, RESPONSES, HALF), dtype=np.complex128)
        self._turned = np.empty((HALF, RESPONSES, PAIRS), dtype=np.complex128)
        self._mixed = np.empty((HALF, RESPONSES, 2 * primes), dtype=np.complex128)
        self._sums = np.empty((primes, RESPONSES, HALF), dtype=np.complex128)
        self._bodies, self._heads = np.empty(primes * RESPONSES * DEGREE), np.empty(primes * RESPONSES * span)

    def draw(self, count: int) -> tuple[Floats, Floats]:
        """Draw c1, (5, count, 4096), and c0, (5, count, span), for at most `RESPONSES` responses.

        They are whole numbers below 2**51. The next draw overwrites them.
        """
        primes = len(RING.primes)
        drawn = self._drawn[: (PAIRS + 1) * count * DEGREE].reshape(PAIRS + 1, count, DEGREE)
        normals(self._source, drawn.size, drawn)
        turned, mixed = self._turned[:, :count], self._mixed[:, :count]
        turned[...] = spectrum(drawn[1:], self._spectra[:, :count]).transpose(2, 1, 0)
        np.matmul(turned, self._keys, out=mixed)
        bodies = self._bodies[: primes * count * DEGREE].reshape(primes, count, DEGREE)
        heads = self._heads[: primes * count * self._span].reshape(primes, count, self._span)
        sums = self._sums[:, :count]
        for side, target in enumerate((bodies, heads)):
            sums[...] = mixed[:, :, side * primes : (side + 1) * primes].transpose(2, 1, 0)
            inverse(sums, target.shape[-1], target)
        bodies += drawn[0]
        return bodies, heads


@dataclass(frozen=True)
class Sums:
    """The sums of one panel: c1 in the Y-domain, (5, t, G, D), and c0, (5, G, sent)."""

    bodies: Floats
    heads: Floats


def add_sums(total: list[Sums], more: list[Sums]) -> None:
    """Add sums to a total, in place. An empty total takes them over."""
    if not total:
        total += more
        return
    for mine, other in zip(total, more, strict=True):
        for into, term in ((mine.bodies, other.bodies), (mine.heads, other.heads)):
            into += term
            RING.reduced(into)


def _factors(rows: FactorRows, plan: Layout) -> list[Floats]:
    """Return V as whole numbers below 2**52, (rows, right) for each digit, or as residues, (5, ...)."""
    product, exact = plan.product, rows.dtype == np.int64
    if product.digits > 1:
        return shares.centred_digits(limbs_of(rows), product.digits, product.digit_size)
    return [RING.residues(cast(Share, rows), centred=True) if exact else np.rint(cast(Floats, rows))]


def multiplied(plan: Layout, message: bytes, rows: FactorRows) -> list[Sums]:
    """Multiply one block of ciphertexts, of the right length, by the same rows of V."""
    factors = _factors(rows, plan)
    seed, at = message[:SEED_BYTES], SEED_BYTES
    chunks = plan.chunks(rows.shape[-2])
    works = {
        panel: _Products(panel, max(chunk.total for chunk in chunks if chunk.panel == panel))
        for panel in plan.panels
    }
    for chunk in chunks:
        heads = np.frombuffer(message, dtype="<i8", count=chunk.size // 8, offset=at)
        at += chunk.size
        works[chunk.panel].add(seed, chunk, heads, factors)
    return [works[panel].sums() for panel in plan.panels]


class _Products:
    """The products of one panel's ciphertexts with the columns of V, added up by response.

    Columns of V are in the order of their places in a response, and then of responses. A last response that
    is not full gets columns of zeros. All chunks use the same memory.
    """

    def __init__(self, panel: Panel, most: int) -> None:
        """`most`: ciphertexts of the largest chunk."""
        self._panel, self._right = panel, panel.group * panel.responses
        primes, size = len(RING.primes), panel.rows * most * self._right
        self._bodies = np.empty((primes, panel.rows, panel.responses, panel.span))
        self._heads = np.zeros((primes, panel.responses, panel.sent))
        self._terms = 0
        """Products of residues in each sum of `_bodies` that have not been reduced."""
        self._random = np.empty(most * DEGREE)
        many = panel.group > 1
        self._shifted = np.empty(max(SHIFTED, most) * DEGREE * many)
        self._twice = np.empty(2 * most * DEGREE * many)
        self._residues, self._values, self._turned = np.empty(size), np.empty(size), np.empty(size)
        self._fresh = np.empty(self._bodies.shape[1:])

    def add(self, seed: bytes, chunk: Chunk, heads: PackedResidues, factors: list[Floats]) -> None:
        """Add a chunk's products, from packed residues of c0. Digits of V stand one after the other."""
        panel, total = self._panel, chunk.total
        shared = None if factors[0].ndim == 3 else self._columns(factors, chunk)
        size, before = panel.rows * total * self._right, self._terms
        for index, prime in enumerate(RING.primes):
            if shared is None:
                columns = self._columns([each[index] for each in factors], chunk)
            else:
                columns = self._residues[:size].reshape(shared.shape)
                columns[...] = shared
                reduce(columns, prime)
            values = RING.y_domain(index, panel.rows).evaluate(columns, self._values[:size])
            random = self._random[: total * DEGREE]
            RING.expand(seed, chunk.label, index, total * DEGREE, random)
            self._terms = before
            self._add_bodies(index, random.reshape(panel.rows, total, panel.span), values)
            arrived = random[: total * panel.rows * panel.sent]
            RING.unpack(heads, index, arrived)
            self._add_heads(index, arrived.reshape(total, -1), columns)

    def _columns(self, factors: list[Floats], chunk: Chunk) -> Floats:
        """Arrange rows of V as ciphertexts are, and the columns by place: (t, ciphertexts, columns)."""
        panel = self._panel
        own = [chunk.arranged(each[chunk.first : chunk.last]) for each in factors]
        together = own[0] if len(own) == 1 else np.concatenate(own)
        if self._right > panel.right:
            filled = np.zeros((*together.shape[:2], self._right))
            filled[..., : panel.right] = together
            together = filled
        places = together.reshape(*together.shape[:2], panel.responses, panel.group)
        ordered = np.ascontiguousarray(places.transpose(1, 0, 3, 2))
        return ordered.reshape(panel.rows, chunk.total, self._right)

    def _add_bodies(self, index: int, random: Floats, values: Floats) -> None:
        """Multiply c1 in the Y-domain, (t, ciphertexts, D), by values of V, (t, ciphertexts, columns)."""
        panel, (rows, total, span) = self._panel, random.shape
        if panel.group == 1:
            self._add_product(index, values, random)
            return
        # What is shifted beyond X**D comes back times the root.
        twice = self._twice[: 2 * random.size].reshape(rows, total, 2 * span)
        twice[..., span:] = random
        random *= RING.y_domain(index, rows).roots[:, None, None]
        twice[..., :span] = reduce(random, RING.primes[index])
        windows = sliding_window_view(twice, span, axis=2)
        by_place = values.reshape(rows, total, panel.group, panel.responses)
        for places, back in self._places(total, EXACT_TERMS, span):
            count = places.stop - places.start
            shifted = self._shifted[: count * total * DEGREE].reshape(rows, total, count, span)
            shifted[...] = windows[:, :, back]
            own = by_place[:, :, places].reshape(rows, total * count, panel.responses)
            self._add_product(index, own, shifted.reshape(rows, total * count, span))

    def _add_product(self, index: int, values: Floats, random: Floats) -> None:
        sums, prime, terms = self._bodies[index], RING.primes[index], values.shape[1]
        if not self._terms:
            np.matmul(values.transpose(0, 2, 1), random, out=sums)
        else:
            if self._terms + terms > EXACT_TERMS:
                reduce(sums, prime)
                self._terms = 1
            sums += np.matmul(values.transpose(0, 2, 1), random, out=self._fresh)
        self._terms += terms

    def _add_heads(self, index: int, heads: Floats, columns: Floats) -> None:
        """Multiply c0, (ciphertexts, t sent), by V."""
        panel, sums, prime = self._panel, self._heads[index], RING.primes[index]
        rows, total, right = columns.shape
        turned = self._turned[: columns.size]
        if panel.group == 1:
            turned.reshape(total, rows, right)[...] = columns.transpose(1, 0, 2)
            own, ciphertexts = turned.reshape(-1, right), heads.reshape(-1, panel.sent)
            for start in range(0, total * rows, EXACT_TERMS):
                terms = slice(start, start + EXACT_TERMS)
                sums += own[terms].T @ ciphertexts[terms]
                reduce(sums, prime)
            return
        twice = self._twice[: 2 * heads.size].reshape(total, 2 * DEGREE)
        twice[:, DEGREE:] = heads
        np.negative(heads, out=twice[:, :DEGREE])
        windows = sliding_window_view(twice, DEGREE, axis=1)
        by_place = turned.reshape(total, panel.group, rows, panel.responses)
        by_place[...] = columns.reshape(rows, total, panel.group, panel.responses).transpose(1, 2, 0, 3)
        for places, back in self._places(total, EXACT_TERMS // rows, DEGREE):
            count = places.stop - places.start
            shifted = self._shifted[: count * total * DEGREE].reshape(total, count, DEGREE)
            shifted[...] = windows[:, back]
            own = by_place[:, places].reshape(-1, panel.responses)
            sums += own.T @ shifted.reshape(-1, panel.span)
            reduce(sums, prime)

    def _places(self, total: int, most: int, length: int) -> Iterator[tuple[slice, slice]]:
        """Yield places of a response, at most `most` ciphertexts together, and their windows."""
        group, width = self._panel.group, self._panel.width
        step = max(1, min(SHIFTED, most) // total)
        for first in range(0, group, step):
            last = min(first + step, group)
            stop = length - last * width
            yield slice(first, last), slice(length - first * width, stop if stop >= 0 else None, -width)

    def sums(self) -> Sums:
        return Sums(RING.reduced(self._bodies), self._heads)


def responded(
    source: ByteSource, plan: Layout, totals: list[Sums], rerandomiser: Rerandomiser
) -> tuple[bytes, Share]:
    """Re-randomise, switch to 2**105, mask: the reply, and the multiplier's share of U'V.

    The order matters. c1 is uniform after the first step, whatever the totals are. The mask comes last and
    once, so that c0 is uniform too.
    """
    product, bits, parts, entries = plan.product, plan.body_bits, [], []
    for panel, total in zip(plan.panels, totals, strict=True):
        zeros = rerandomiser.zeros(source, panel.sent)
        heads = np.empty_like(total.heads)
        for start in range(0, panel.responses, RESPONSES):
            batch = slice(start, min(start + RESPONSES, panel.responses))
            count = batch.stop - start
            bodies, tops = zeros.draw(count)
            for index, prime in enumerate(RING.primes):
                sums = np.ascontiguousarray(total.bodies[index, :, batch]).reshape(panel.rows, -1)
                summed = RING.y_domain(index, panel.rows).interpolate(sums)
                summed = summed.reshape(panel.rows, count, panel.span).transpose(1, 0, 2)
                arranged = bodies[index].reshape(summed.shape, copy=False)
                arranged += summed
                reduce(bodies[index], prime)
                np.add(total.heads[index, batch], tops[index], out=heads[index, batch])
                reduce(heads[index, batch], prime)
            parts.append(bodies_to_bytes(RING.switched(bodies, kept_limbs(bits)), bits))
        places, groups = panel.places()
        entries.append(RING.switched(heads[:, groups, places]))
    mask = shares.uniform_from(source, product.left, product.right)
    masked = shares.add(np.concatenate(entries, axis=1), mask)
    return b"".join([*parts, shares.to_bytes(masked)]), shares.negate(mask)
