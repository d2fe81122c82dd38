"""Masked blocks, openings and masks.

    requester                                         key-holder
    c1 + zero's, c0 + zero's + mask at the places  ->
                                                      phase = c0 + c1 s there, + Gaussian flood
                                                  <-  residues
    - mask, centred, decoded, scale undone

The key-holder sees uniform residues and a fresh c1. It returns the layout's coefficients, for sums as many as
there are sums. So the requester learns the sums, blurred by the flood, but neither single rows nor the noise.
For a disclosure the requester floods instead and hands over the mask. The key-holder then learns the values
and nothing about their computation.

Limits: the parties must follow the protocol. A requester that announces too little noise, or chooses c1
itself, gets an answer with too little flooding. The layout limits how many coefficients it gets, not what
they are. The noise bound is heuristic (securefed.crypto.ckks.noise). With inputs of both parties in one
result, independent flooding meets a weaker simulation notion than a sum that one party alone computed. SEAL's
product by a plaintext does not run in constant time.
"""

from __future__ import annotations

from functools import cached_property
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from securefed.crypto.ckks.layout import CkksLayout, RowLayout, layout_of
from securefed.crypto.ckks.noise import Noise, flood_deviation
from securefed.crypto.ckks.parameters import RING
from securefed.crypto.errors import FormatError, MaskError, ShapeError
from securefed.crypto.lattice.sampling import secret_bytes
from securefed.crypto.lattice.word_ring import Words, add, centred, check_residues, gaussian, subtract
from securefed.crypto.scheme import Floats, Mask, Masked, Opened
from securefed.crypto.wire import Frame, Kind, fingerprint

if TYPE_CHECKING:
    from securefed.crypto.ckks.keys import CkksPublicKey

__all__ = [
    "CkksMask",
    "CkksMasked",
    "CkksOpened",
    "answer_bytes",
    "decode",
    "flood",
    "masked_bytes",
    "read_answer",
    "repeated",
]

_DIGEST_BYTES = 16


def masked_bytes(layout: CkksLayout) -> int:
    """Return the size of a masked block's payload."""
    return 8 * 2 * (layout.ciphertexts * RING + layout.coefficients)


def answer_bytes(layout: CkksLayout) -> int:
    """Return the size of the payload of an opening or a disclosure."""
    return _DIGEST_BYTES + 8 * 2 * layout.coefficients


def flood(layout: CkksLayout, noise: Noise) -> Words:
    """Draw Gaussian residues for the returned coefficients of one opening."""
    count = layout.coefficients
    return gaussian(secret_bytes(), count, flood_deviation(noise, count, layout.units, layout.levels))


def decode(layout: CkksLayout, residues: Words, scale: int) -> Floats:
    """Map unmasked residues of the returned coefficients to values."""
    return layout.values(np.ldexp(centred(residues), -scale))


def repeated(c1: Words) -> int:
    """Count blocks that share c1, and so the randomness, with another."""
    return len(c1) - len({block.tobytes() for block in c1})


class CkksMasked(Masked):
    """A block of c1 in full and c0 + mask at the returned coefficients."""

    public: CkksPublicKey

    def __init__(self, public: CkksPublicKey, layout: CkksLayout, noise: Noise, c0: Words, c1: Words) -> None:
        self.public = public
        self.layout = layout
        self.shape = layout.shape
        self.noise = noise
        self.c0 = c0
        self.c1 = c1

    @property
    def ciphertexts(self) -> int:
        return len(self.c1)

    def repeated(self) -> int:
        return repeated(self.c1)

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
        split, expected = layout.ciphertexts * 2 * RING, masked_bytes(layout)
        if len(frame.payload) != expected:
            raise FormatError(f"{len(frame.payload)} bytes given, {expected} expected for {frame.shape}")
        words = np.frombuffer(frame.payload, dtype="<u8").astype(np.uint64)
        c1 = check_residues(words[:split].reshape(-1, 2, RING), "masked block")
        c0 = check_residues(words[split:].reshape(2, layout.coefficients), "masked block")
        return cls(public, layout, noise, c0, c1)


class CkksOpened(Opened):
    """Residues of value + mask + flood."""

    public: CkksPublicKey

    def __init__(self, public: CkksPublicKey, layout: CkksLayout, digest: bytes, residues: Words) -> None:
        self.public = public
        self.layout = layout
        self.shape = layout.shape
        self.digest = digest
        self.residues = residues

    def to_bytes(self) -> bytes:
        payload = self.digest + self.residues.astype("<u8").tobytes()
        return self.public.frame(Kind.OPENED, payload, self.shape, (0, 0, 0, self.layout.code)).to_bytes()

    @classmethod
    def from_frame(cls, public: CkksPublicKey, frame: Frame) -> CkksOpened:
        layout = layout_of(frame.shape, frame.numbers[3])
        return cls(public, layout, *read_answer(frame, layout))


def read_answer(frame: Frame, layout: CkksLayout) -> tuple[bytes, Words]:
    """Return the digest and the residues of an opening or a disclosure."""
    expected = answer_bytes(layout)
    if len(frame.payload) != expected:
        raise FormatError(f"{len(frame.payload)} bytes given, {expected} expected for {frame.shape}")
    words = np.frombuffer(frame.payload, dtype="<u8", offset=_DIGEST_BYTES).astype(np.uint64)
    residues = check_residues(words.reshape(2, layout.coefficients), "answer")
    return frame.payload[:_DIGEST_BYTES], residues


class CkksMask(Mask):
    """The added residues, and the scale of the values under them."""

    def __init__(self, masked: CkksMasked, residues: Words, scale: int) -> None:
        super().__init__()
        self._public = masked.public
        self._layout = masked.layout
        self._noise = masked.noise
        self._digest = masked.digest
        self._residues = residues
        self._scale = scale

    def _remove(self, opened: CkksOpened) -> Floats:
        if not isinstance(opened, CkksOpened) or opened.digest != self._digest:
            raise MaskError("this is the answer to another question: its mask is another one")
        return decode(self._layout, subtract(opened.residues, self._residues), self._scale)

    def _material(self) -> list[bytes]:
        return [self._residues.tobytes()]

    def _narrow(self) -> int:
        # Uniform below 2**60: half of them, of at least four, below 2**40 is less likely than 2**-40.
        return int(np.median(self._residues) < 2.0**40)

    def _disclose(self) -> bytes:
        residues = add(self._residues, flood(self._layout, self._noise))
        payload = self._digest + residues.astype("<u8").tobytes()
        numbers = (self._scale, 0, 0, self._layout.code)
        return self._public.frame(Kind.DISCLOSURE, payload, self._layout.shape, numbers).to_bytes()
