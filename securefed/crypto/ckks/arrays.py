"""CKKS arrays: ciphertexts and their operations, masked blocks, openings and masks.

An array has public numbers (`ArrayForm`). One contraction with plain numbers is possible. Its sums leave
under a mask only. The scale of multipliers is public with `fixed`, else it stays with the caller as long as
the result is opened. A disclosure contains it.

    requester                                         key-holder
    c1 + zero's, c0 + zero's + mask at the places  ->
                                                      phase = c0 + c1 s there, + Gaussian flood
                                                  <-  residues
    - mask, centred, decoded, scale undone

The key-holder sees uniform residues and a fresh c1. It returns the layout's coefficients, for sums as many as
there are sums. So the requester learns the sums, blurred by the flood, but neither single rows nor the noise.
For a disclosure the requester floods instead and hands over the mask.

Limits: the parties must follow the protocol. A requester that announces too little noise, or chooses c1
itself, gets an answer with too little flooding. The noise bound is heuristic (docs/proofs.md). With inputs of
both parties in one result, independent flooding meets a weaker simulation notion than a sum that one party
alone computed. SEAL's product by a plaintext does not run in constant time.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from math import isfinite, prod
from typing import TYPE_CHECKING, Any

import numpy as np

from securefed.crypto.ckks.form import (
    MOST_SCALE,
    ArrayForm,
    Noise,
    added,
    flood_deviation,
    plain_added,
    product_form,
)
from securefed.crypto.ckks.layout import (
    CAPACITY_BITS,
    RING,
    SLOTS,
    CkksLayout,
    Complex,
    RowLayout,
    SumLayout,
    constant,
    layout_of,
    merge,
    seal_order,
)
from securefed.crypto.fixed import EVERY, FixedPoint, Floats, Multipliers
from securefed.crypto.lattice import seal_ring as ring
from securefed.crypto.lattice.seal_ring import Words, apply
from securefed.crypto.randomness import SEED_BYTES, secret_bytes
from securefed.crypto.scheme import Encrypted, Mask, Masked, Opened
from securefed.crypto.wire import Frame, Kind, fingerprint
from securefed.errors import BadCiphertext, FormatError, MaskError, ShapeError

if TYPE_CHECKING:
    from securefed.crypto.ckks.keys import CkksPublicKey

_DIGEST_BYTES = 16
_HEAD = struct.Struct("<ddBB6x")
_SEEDED = 8
"""The flag of an array whose c1 comes from a seed."""


def encrypted_bytes(layout: CkksLayout, seeded: bool) -> int:
    """Return the size of an array's payload. `seeded`: fresh from its key-holder."""
    words = layout.units * RING * 2 * (1 if seeded else 2)
    return _HEAD.size + (SEED_BYTES if seeded else 0) + 8 * words


def masked_bytes(layout: CkksLayout) -> int:
    """Return the size of a masked block's payload."""
    return 8 * 2 * (layout.ciphertexts * RING + layout.coefficients)


def answer_bytes(layout: CkksLayout) -> int:
    """Return the size of the payload of an opening or a disclosure."""
    return _DIGEST_BYTES + 8 * 2 * layout.coefficients


def _expect_size(frame: Frame, expected: int) -> None:
    if len(frame.payload) != expected:
        raise FormatError(f"{len(frame.payload)} bytes given, {expected} expected for shape {frame.shape}")


def _repeated(c1: Words) -> int:
    """Count blocks that share c1, and so the randomness, with another."""
    return len(c1) - len({block.tobytes() for block in c1})


class CkksEncrypted(Encrypted):
    """An array of ciphertexts: blocks of rows, or units of sums."""

    public: CkksPublicKey

    def __init__(
        self,
        public: CkksPublicKey,
        form: ArrayForm,
        *,
        ciphertexts: Sequence[Any] | None = None,
        words: Words | None = None,
        seed: bytes = b"",
    ) -> None:
        """`seed`: the public seed of c1, where the array is fresh from its owner. Then only c0 is sent."""
        self.public, self.form, self.shape, self.bound = public, form, form.layout.shape, form.bound
        self._objects, self._words, self._seed = ciphertexts, words, seed
        self.ciphertexts = form.layout.units

    @property
    def _seal(self) -> Sequence[Any]:
        """SEAL's objects, made at first use."""
        if self._objects is None:
            self._objects = [ring.ciphertext(block) for block in self.residues()]
        return self._objects

    def residues(self) -> Words:
        """Return (ciphertexts, 2, 2, N) residues in NTT form."""
        if self._words is not None:
            return self._words
        ciphertexts = self._objects or ()
        return np.stack([ring.read_ciphertext(item) for item in ciphertexts])

    def repeated(self) -> int:
        return _repeated(self.residues()[:, 1])

    def _make(self, form: ArrayForm, ciphertexts: Sequence[Any]) -> CkksEncrypted:
        return CkksEncrypted(self.public, form, ciphertexts=ciphertexts)

    # Sums

    def _add(self, other: CkksEncrypted) -> CkksEncrypted:
        low, high = sorted((self, other), key=lambda item: item.form.scale)
        form, lift = added(low.form, high.form)
        lifted = low._seal
        if lift:
            factor = constant(1 << lift)
            lifted = [apply("multiply_plain", item, factor) for item in lifted]
        pairs = zip(lifted, high._seal, strict=True)
        return self._make(form, [self._sum(a, b) for a, b in pairs])

    def _sum(self, a: Any, b: Any) -> Any:
        try:
            return apply("add", a, b)
        except RuntimeError as error:
            if "transparent" not in str(error):
                raise
            return self.public.zero()  # a + (-a): SEAL has no ciphertext for it

    def _add_plain(self, values: Floats) -> CkksEncrypted:
        form = plain_added(self.form)
        polynomials = ring.from_floats(self.form.layout.polynomials(values), self.form.scale)
        addends = ring.to_ntt(polynomials)
        pairs = zip(self._seal, addends, strict=True)
        return self._make(form, [apply("add_plain", item, ring.plaintext(addend)) for item, addend in pairs])

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
        units = [self._unit(target, rows, _scaled(multipliers.block(EVERY, each), scale)) for each in outputs]
        return self._make(form, units)

    def _unit(self, target: SumLayout, rows: RowLayout, multipliers: Floats) -> Any:
        """Return the sum over the blocks of ciphertext times multipliers, for the outputs of one unit."""
        slots = _unit_slots(target, rows, multipliers)
        total: Any = None
        for block, multiplier in zip(self._seal, _encoded(slots), strict=True):
            if multiplier is not None:
                product = apply("multiply_plain", block, multiplier)
                total = product if total is None else self._sum(total, product)
        return self.public.zero() if total is None else total

    # What leaves

    def mask(self, width: int | None = None) -> tuple[CkksMasked, CkksMask]:
        """Merge, add an encryption of zero, which hides c1, and mask the coefficients that are sent."""
        layout = self.form.layout
        blocks = [self.public.blinded(item) for item in self._merged()]
        chosen = [block[0][:, places] for block, places in zip(blocks, layout.places, strict=True)]
        mask = ring.uniform(secret_bytes(), layout.coefficients)
        c0 = ring.add(np.concatenate(chosen, axis=1), mask)
        c1 = np.stack([block[1] for block in blocks])
        masked = CkksMasked(self.public, layout, self.form.noise, c0, c1)
        masked.origin = "re-randomised"
        return masked, CkksMask(masked, mask, self.form.scale)

    def _merged(self) -> Sequence[Any]:
        layout = self.form.layout
        if isinstance(layout, RowLayout):
            return self._seal
        return [
            merge([self._seal[unit] for unit in layout.members(i)], layout.stride, self.public.galois)
            for i in range(layout.ciphertexts)
        ]

    def to_bytes(self) -> bytes:
        form, noise, seed = self.form, self.form.noise, self._seed
        if form.product:
            raise MaskError("sums over rows are not sent as they are: mask them")
        head = _HEAD.pack(form.bound, form.magnitude, 0, _SEEDED if seed else 0)
        words = self.residues()[:, :1] if seed else self.residues()
        body = seed + words.astype("<u8").tobytes()
        numbers = (form.scale, noise.terms, noise.multiplier_bits, noise.blocks)
        return self.public.frame(Kind.ENCRYPTED, head + body, self.shape, numbers).to_bytes()

    @classmethod
    def from_frame(cls, public: CkksPublicKey, frame: Frame) -> CkksEncrypted:
        if len(frame.payload) < _HEAD.size:
            raise FormatError(f"{len(frame.payload)} bytes of payload given, at least {_HEAD.size} expected")
        bound, magnitude, unused, flags = _HEAD.unpack_from(frame.payload)
        scale, terms, multiplier_bits, blocks = frame.numbers
        sound = isfinite(bound) and bound > 0 and 0 < magnitude <= CAPACITY_BITS
        if not sound or abs(scale) > MOST_SCALE or unused or flags not in (0, _SEEDED) or blocks != 1:
            raise FormatError(
                f"bound {bound}, magnitude {magnitude}, scale {scale} or flags {flags} is not of an array"
            )
        seeded, layout = flags == _SEEDED, RowLayout(frame.shape)
        form = ArrayForm(layout, bound, scale, magnitude, Noise(terms, multiplier_bits))
        _expect_size(frame, encrypted_bytes(layout, seeded))
        start = _HEAD.size + (SEED_BYTES if seeded else 0)
        words = np.frombuffer(frame.payload, dtype="<u8", offset=start).astype(np.uint64)
        residues = ring.check_residues(words.reshape(layout.units, -1, 2, RING), "ciphertexts")
        if not residues.any(axis=-1).all():
            raise BadCiphertext("ciphertexts: a polynomial is zero")
        seed = frame.payload[_HEAD.size : start]
        if seed:
            residues = np.stack([residues[:, 0], ring.expand(seed, len(residues))], axis=1)
        return cls(public, form, words=residues, seed=seed)


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


def _scaled(values: Floats, scale: int) -> Floats:
    """Return values * 2^scale. `ldexp` is exact for every scale, but ten times slower."""
    return np.asarray(values * 2.0**scale if abs(scale) < 1000 else np.ldexp(values, scale))


def _encoded(slots: Complex) -> Iterator[Any]:
    """Yield a SEAL plaintext for each block of scaled multipliers, or None where it is zero."""
    order, conjugated = seal_order()
    for block in slots:
        arranged = block[order]
        arranged.imag[conjugated] *= -1.0
        yield ring.encode(arranged.tolist())


# Openings


def flood(layout: CkksLayout, noise: Noise) -> Words:
    """Draw Gaussian residues for the returned coefficients of one opening."""
    count = layout.coefficients
    return ring.gaussian(secret_bytes(), count, flood_deviation(noise, count, layout.units, layout.levels))


def decode(layout: CkksLayout, residues: Words, scale: int) -> Floats:
    """Map unmasked residues of the returned coefficients to values."""
    return layout.values(np.ldexp(ring.centred(residues), -scale))


class CkksMasked(Masked):
    """A block of c1 in full and c0 + mask at the returned coefficients."""

    public: CkksPublicKey

    def __init__(self, public: CkksPublicKey, layout: CkksLayout, noise: Noise, c0: Words, c1: Words) -> None:
        self.public, self.layout, self.shape, self.noise = public, layout, layout.shape, noise
        self.c0, self.c1, self.ciphertexts = c0, c1, len(c1)

    def repeated(self) -> int:
        return _repeated(self.c1)

    def fresh_parts(self) -> list[bytes]:
        return [block.tobytes() for block in self.c1]

    def check_sums(self, operand: tuple[int, ...], outputs: int) -> None:
        super().check_sums(operand, outputs)
        if self.layout != RowLayout(operand).contracted(outputs):
            raise ShapeError(f"a request for coefficients that its {prod(self.shape)} sums do not lie in")

    def _payload(self) -> bytes:
        return self.c1.astype("<u8").tobytes() + self.c0.astype("<u8").tobytes()

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
        _expect_size(frame, masked_bytes(layout))
        split = layout.ciphertexts * 2 * RING
        words = np.frombuffer(frame.payload, dtype="<u8").astype(np.uint64)
        c1 = ring.check_residues(words[:split].reshape(-1, 2, RING), "masked block")
        c0 = ring.check_residues(words[split:].reshape(2, layout.coefficients), "masked block")
        return cls(public, layout, noise, c0, c1)


class CkksOpened(Opened):
    """Residues of value + mask + flood."""

    public: CkksPublicKey

    def __init__(self, public: CkksPublicKey, layout: CkksLayout, digest: bytes, residues: Words) -> None:
        self.public, self.layout, self.shape = public, layout, layout.shape
        self.digest, self.residues, self.ciphertexts = digest, residues, layout.ciphertexts

    def to_bytes(self) -> bytes:
        payload = self.digest + self.residues.astype("<u8").tobytes()
        return self.public.frame(Kind.OPENED, payload, self.shape, (0, 0, 0, self.layout.code)).to_bytes()

    @classmethod
    def from_frame(cls, public: CkksPublicKey, frame: Frame) -> CkksOpened:
        layout = layout_of(frame.shape, frame.numbers[3])
        return cls(public, layout, *read_answer(frame, layout))


def read_answer(frame: Frame, layout: CkksLayout) -> tuple[bytes, Words]:
    """Return the digest and the residues of an opening or a disclosure."""
    _expect_size(frame, answer_bytes(layout))
    words = np.frombuffer(frame.payload, dtype="<u8", offset=_DIGEST_BYTES).astype(np.uint64)
    residues = ring.check_residues(words.reshape(2, layout.coefficients), "answer")
    return frame.payload[:_DIGEST_BYTES], residues


class CkksMask(Mask):
    """The added residues, and the scale of the values under them."""

    def __init__(self, masked: CkksMasked, residues: Words, scale: int) -> None:
        super().__init__()
        self._public, self._layout, self._noise = masked.public, masked.layout, masked.noise
        self._digest, self._residues, self._scale = masked.digest, residues, scale

    def _remove(self, opened: CkksOpened) -> Floats:
        if not isinstance(opened, CkksOpened) or opened.digest != self._digest:
            raise MaskError("this is the answer to another question: its mask is another one")
        return decode(self._layout, ring.subtract(opened.residues, self._residues), self._scale)

    def _material(self) -> list[bytes]:
        return [self._residues.tobytes()]

    def _narrow(self) -> int:
        # Uniform below 2**60: half of them, of at least four, below 2**40 is less likely than 2**-40.
        return int(np.median(self._residues) < 2.0**40)

    def _disclose(self) -> bytes:
        residues = ring.add(self._residues, flood(self._layout, self._noise))
        payload = self._digest + residues.astype("<u8").tobytes()
        numbers = (self._scale, 0, 0, self._layout.code)
        return self._public.frame(Kind.DISCLOSURE, payload, self._layout.shape, numbers).to_bytes()
