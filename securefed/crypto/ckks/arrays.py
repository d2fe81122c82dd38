"""CKKS arrays: ciphertexts and their operations, masked blocks, openings and masks.

An array has public numbers (`ArrayForm`). One contraction with plain numbers is possible. The scale of
multipliers is public with `fixed`, else it stays with the caller as long as the result is opened.

    requester                                         key-holder
    c1 + zero's, c0 + zero's + mask at the places  ->
                                                      phase = c0 + c1 s there, + Gaussian flood
                                                  <-  residues
    - mask, centred, decoded, scale undone

The key-holder sees uniform residues and a fresh c1. It returns the layout's coefficients, for sums as many as
there are sums. So the requester learns the sums, blurred by the flood, but neither single rows nor the noise.
For a disclosure the requester floods instead and hands over the mask and the scale. The parties must follow
the protocol: docs/proofs.md has the limits (noise and flooding of CKKS).

Ciphertexts are residues of coefficients, (5, 2, ciphertexts, N): primes first, then c0 and c1. On the wire
they are packed, three residues of 21 bits in eight bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from math import isfinite, prod
from typing import TYPE_CHECKING

import numpy as np

from securefed.crypto import shares
from securefed.crypto.ckks.form import (
    MOST_SCALE,
    ArrayForm,
    Noise,
    added,
    flood_deviation,
    product_form,
)
from securefed.crypto.ckks.layout import (
    CAPACITY_BITS,
    SLOTS,
    CkksLayout,
    Complex,
    RowLayout,
    SumLayout,
    coefficients,
    layout_of,
    merge,
    returned,
)
from securefed.crypto.fixed import EVERY, FixedPoint, Floats, Multipliers
from securefed.crypto.lattice.ring import DEGREE, HALF, PRIMES, RING, inverse, spectrum
from securefed.crypto.randomness import SEED_BYTES, gaussian_integers, secret_bytes
from securefed.crypto.scheme import Encrypted, Mask, Masked, Opened
from securefed.crypto.shares import size_in_bytes
from securefed.crypto.wire import Frame, Kind, check_length, fingerprint
from securefed.errors import FormatError, MaskError, ShapeError

if TYPE_CHECKING:
    from securefed.crypto.ckks.keys import CkksPublicKey

LABEL = b"ckks"
"""The label of the c1 that a seed expands to."""
_DIGEST_BYTES = 16
_HEAD = struct.Struct("<dd")


def encrypted_bytes(layout: CkksLayout, seeded: bool) -> int:
    """Return the size of an array's payload. `seeded`: fresh from its key-holder."""
    count = layout.units * DEGREE * (1 if seeded else 2)
    return _HEAD.size + (SEED_BYTES if seeded else 0) + residue_bytes(count)


def masked_bytes(layout: CkksLayout) -> int:
    return residue_bytes(layout.ciphertexts * DEGREE) + residue_bytes(layout.coefficients)


def answer_bytes(layout: CkksLayout) -> int:
    """Return the size of the payload of an opening or a disclosure."""
    return _DIGEST_BYTES + residue_bytes(layout.coefficients)


def residue_bytes(count: int) -> int:
    return size_in_bytes(count, len(PRIMES))


def encoded(polynomials: Floats, scale: int) -> Floats:
    """Return the residues, (5, ...), of round(polynomials * 2^scale)."""
    return RING.residues(shares.from_floats(polynomials, scale), centred=True)


def _parts(residues: Floats) -> list[bytes]:
    """Return each ciphertext's c1, (5, ciphertexts, N), as bytes."""
    return [np.ascontiguousarray(residues[:, i]).tobytes() for i in range(residues.shape[1])]


class CkksEncrypted(Encrypted):
    """An array of ciphertexts: blocks of rows, or units of sums."""

    public: CkksPublicKey

    def __init__(self, public: CkksPublicKey, form: ArrayForm, residues: Floats, seed: bytes = b"") -> None:
        """`seed`: the public seed of c1, where the array is fresh from its owner. Then only c0 is sent."""
        self.public, self.form, self.shape, self.bound = public, form, form.layout.shape, form.bound
        self.residues, self._seed, self.ciphertexts = residues, seed, form.layout.units

    def repeated(self) -> int:
        return self.ciphertexts - len(set(_parts(self.residues[:, 1])))

    # Sums

    def _add(self, other: CkksEncrypted) -> CkksEncrypted:
        low, high = sorted((self, other), key=lambda item: item.form.scale)
        form, lift = added(low.form, high.form)
        total = RING.scaled(low.residues, 1 << lift) + high.residues
        return CkksEncrypted(self.public, form, RING.reduced(total))

    def _add_plain(self, values: Floats) -> CkksEncrypted:
        form, total = self.form, self.residues.copy()
        total[:, 0] += encoded(form.layout.polynomials(values), form.scale)
        form = replace(form, bound=2 * form.bound, magnitude=form.magnitude + 1)
        return CkksEncrypted(self.public, form, RING.reduced(total))

    # Products

    def _contract(self, multipliers: Multipliers, fixed: FixedPoint | None) -> CkksEncrypted:
        rows = RowLayout(self.shape)
        target = rows.contracted(multipliers.shape[1])
        largest = float(multipliers.largest.max())
        form, scale = product_form(self.form, target, largest, fixed, rows.ciphertexts, self.rows)
        # Copies that no output needs repeat the others: the sum is as many times larger, and so more precise.
        form = replace(form, scale=form.scale + (rows.copies // target.copies).bit_length() - 1)
        size = 2 * target.copies
        outputs = (slice(start, start + size) for start in range(0, target.rows, size))
        slots = (_unit_slots(target, rows, multipliers.block(EVERY, each) * 2.0**scale) for each in outputs)
        return CkksEncrypted(self.public, form, _products(self.residues, slots, target.units))

    # What leaves

    def mask(self) -> tuple[CkksMasked, CkksMask]:
        """Merge, add an encryption of zero, which hides c1, and mask the coefficients that are sent."""
        layout = self.form.layout
        merged = self.merged()
        blocks = RING.reduced(merged + self.public.zeros(layout.ciphertexts))
        mask = RING.uniform(secret_bytes(), layout.coefficients)
        c0, c1 = RING.reduced(returned(layout, blocks[:, 0]) + mask), np.ascontiguousarray(blocks[:, 1])
        masked = CkksMasked(self.public, layout, self.form.noise, c0, c1)
        masked.origin = "re-randomised"
        return masked, CkksMask(masked, mask, self.form.scale)

    def merged(self) -> Floats:
        """Return the ciphertexts that an opening takes, not re-randomised."""
        layout = self.form.layout
        if isinstance(layout, RowLayout):
            return self.residues
        parts = [self.residues[:, :, layout.members(i)] for i in range(layout.ciphertexts)]
        merged = [merge(part, layout.stride, self.public.apply_galois) for part in parts]
        return np.stack(merged, axis=2)

    def to_bytes(self) -> bytes:
        form, noise, seed = self.form, self.form.noise, self._seed
        if form.product:
            raise MaskError("sums over rows are not sent as they are: mask them")
        head = _HEAD.pack(form.bound, form.magnitude)
        body = seed + RING.to_bytes(self.residues[:, 0] if seed else self.residues)
        numbers = (form.scale, noise.terms, noise.multiplier_bits, 1 if seed else 0)
        return self.public.frame(Kind.ENCRYPTED, head + body, self.shape, numbers).to_bytes()

    @classmethod
    def from_frame(cls, public: CkksPublicKey, frame: Frame) -> CkksEncrypted:
        if len(frame.payload) < _HEAD.size:
            raise FormatError(f"{len(frame.payload)} bytes of payload given, at least {_HEAD.size} expected")
        bound, magnitude = _HEAD.unpack_from(frame.payload)
        scale, terms, multiplier_bits, seeded = frame.numbers
        sound = isfinite(bound) and bound > 0 and 0 < magnitude <= CAPACITY_BITS and seeded in (0, 1)
        if not sound or abs(scale) > MOST_SCALE:
            raise FormatError(
                f"bound {bound}, magnitude {magnitude}, scale {scale} or seeds {seeded} is not of an array"
            )
        layout = RowLayout(frame.shape)
        form = ArrayForm(layout, bound, scale, magnitude, Noise(terms, multiplier_bits))
        check_length("array", frame.payload, encrypted_bytes(layout, bool(seeded)))
        start = _HEAD.size + SEED_BYTES * seeded
        seed, body = frame.payload[_HEAD.size : start], memoryview(frame.payload)[start:]
        if not seed:
            return cls(public, form, RING.from_bytes(body, (2, layout.units, DEGREE)))
        residues = np.empty((len(PRIMES), 2, layout.units, DEGREE))
        residues[:, 0], residues[:, 1] = (
            RING.from_bytes(body, (layout.units, DEGREE)),
            RING.polynomials(seed, LABEL, layout.units),
        )
        return cls(public, form, residues, seed)


def _unit_slots(target: SumLayout, rows: RowLayout, multipliers: Floats) -> Complex:
    """Return the (blocks, slots) complex multipliers of one unit, from (columns, outputs, rows)."""
    size = 2 * target.copies
    chosen = multipliers.transpose(1, 2, 0)
    table = np.zeros((size, rows.ciphertexts * rows.height, rows.width))
    table[: len(chosen), : rows.rows, : rows.columns] = chosen
    halves = table.reshape(2, target.copies, rows.ciphertexts, rows.height, rows.width)
    shape = (rows.ciphertexts, rows.height, rows.copies // target.copies, target.copies, rows.width)
    slots = np.empty(shape, dtype=np.complex128)
    slots.real = halves[0].transpose(1, 2, 0, 3)[:, :, None]
    slots.imag = halves[1].transpose(1, 2, 0, 3)[:, :, None]
    return slots.reshape(rows.ciphertexts, SLOTS)


def _products(residues: Floats, slots: Iterator[Complex], units: int) -> Floats:
    """Return for each unit the sum over the blocks of ciphertext times multipliers.

    Transforms in float64 err by a deviation of 0.036 for two blocks, before rounding (docs/proofs.md).
    """
    primes, _, blocks, _ = residues.shape
    spectra = spectrum(residues).reshape(2 * primes, blocks, HALF)
    result, sums = np.zeros((primes, 2, units, DEGREE)), np.empty((2 * primes, HALF), dtype=np.complex128)
    for unit, unit_slots in enumerate(slots):
        factors = spectrum(np.rint(coefficients(unit_slots)))
        for start in range(0, blocks, 2):
            np.multiply(spectra[:, start], factors[start], out=sums)
            if start + 1 < blocks:
                sums += spectra[:, start + 1] * factors[start + 1]
            result[:, :, unit] += inverse(sums).reshape(primes, 2, DEGREE)
    # Far below 2^53 for any number of blocks: with more of them multipliers have fewer bits.
    return RING.reduced(result)


# Openings


def flood(layout: CkksLayout, noise: Noise) -> Floats:
    """Draw residues of a Gaussian for the returned coefficients of one opening, (5, coefficients)."""
    deviation = flood_deviation(noise, layout.coefficients, layout.units, layout.levels)
    return RING.whole(*gaussian_integers(secret_bytes(), layout.coefficients, deviation))


def decode(layout: CkksLayout, residues: Floats, scale: int) -> Floats:
    """Map unmasked residues of the returned coefficients to values."""
    return layout.values(np.ldexp(RING.centred(residues), -scale))


class CkksMasked(Masked):
    """A block of c1 in full and c0 + mask at the returned coefficients."""

    public: CkksPublicKey

    def __init__(
        self, public: CkksPublicKey, layout: CkksLayout, noise: Noise, c0: Floats, c1: Floats
    ) -> None:
        self.public, self.layout, self.shape, self.noise = public, layout, layout.shape, noise
        self.c0, self.c1, self.ciphertexts = c0, c1, layout.ciphertexts

    def repeated(self) -> int:
        return self.ciphertexts - len(set(_parts(self.c1)))

    def fresh_parts(self) -> list[bytes]:
        return _parts(self.c1)

    def check_sums(self, operand: tuple[int, ...], outputs: int) -> None:
        super().check_sums(operand, outputs)
        if self.layout != RowLayout(operand).contracted(outputs):
            raise ShapeError(f"a request for coefficients that its {prod(self.shape)} sums do not lie in")

    def _payload(self) -> bytes:
        return RING.to_bytes(self.c1) + RING.to_bytes(self.c0)

    @cached_property
    def digest(self) -> bytes:
        """Identifies this block in its answer."""
        return fingerprint(self._payload())

    def to_bytes(self) -> bytes:
        noise = self.noise
        numbers = (noise.terms, noise.multiplier_bits, noise.blocks, self.layout.code)
        return self.public.frame(Kind.MASKED, self._payload(), self.shape, numbers).to_bytes()

    @classmethod
    def from_frame(cls, public: CkksPublicKey, frame: Frame) -> CkksMasked:
        terms, multiplier_bits, blocks, code = frame.numbers
        noise, layout = Noise(terms, multiplier_bits, blocks), layout_of(frame.shape, code)
        check_length("masked block", frame.payload, masked_bytes(layout))
        split, payload = residue_bytes(layout.ciphertexts * DEGREE), memoryview(frame.payload)
        c1 = RING.from_bytes(payload[:split], (layout.ciphertexts, DEGREE))
        c0 = RING.from_bytes(payload[split:], (layout.coefficients,))
        return cls(public, layout, noise, c0, c1)


class CkksOpened(Opened):
    """Residues of value + mask + flood."""

    public: CkksPublicKey

    def __init__(self, public: CkksPublicKey, layout: CkksLayout, digest: bytes, residues: Floats) -> None:
        self.public, self.layout, self.shape = public, layout, layout.shape
        self.digest, self.residues, self.ciphertexts = digest, residues, layout.ciphertexts

    def to_bytes(self) -> bytes:
        payload = self.digest + RING.to_bytes(self.residues)
        return self.public.frame(Kind.OPENED, payload, self.shape, (0, 0, 0, self.layout.code)).to_bytes()

    @classmethod
    def from_frame(cls, public: CkksPublicKey, frame: Frame) -> CkksOpened:
        """Parse an opening, or a disclosure, whose first number is its scale."""
        layout = layout_of(frame.shape, frame.numbers[3])
        check_length("opening", frame.payload, answer_bytes(layout))
        residues = RING.from_bytes(memoryview(frame.payload)[_DIGEST_BYTES:], (layout.coefficients,))
        return cls(public, layout, frame.payload[:_DIGEST_BYTES], residues)


class CkksMask(Mask):
    """The added residues, and the scale of the values under them."""

    def __init__(self, masked: CkksMasked, residues: Floats, scale: int) -> None:
        self._public, self._layout, self._noise = masked.public, masked.layout, masked.noise
        self._digest, self._residues, self._scale = masked.digest, residues, scale

    def _remove(self, opened: CkksOpened) -> Floats:
        if not isinstance(opened, CkksOpened) or opened.digest != self._digest:
            raise MaskError("this is the answer to another question: its mask is another one")
        return decode(self._layout, RING.reduced(opened.residues - self._residues), self._scale)

    def _material(self) -> list[bytes]:
        return [self._residues.tobytes()]

    def _narrow(self) -> int:
        # Uniform below 2^103.4: half of at least two below 2^83 is less likely than 2^-40.
        return int(np.median(np.abs(RING.centred(self._residues))) < 2.0**82)

    def _disclose(self) -> bytes:
        residues = RING.reduced(self._residues + flood(self._layout, self._noise))
        payload = self._digest + RING.to_bytes(residues)
        numbers = (self._scale, 0, 0, self._layout.code)
        return self._public.frame(Kind.DISCLOSURE, payload, self._layout.shape, numbers).to_bytes()
