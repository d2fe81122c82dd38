"""CKKS keys.

A public key is an encryption of zero and the Galois keys for merging. Every part is b = -(a s + e) modulo q.
In the key that leads from sigma(s) back to s, part number i also carries sigma(s) in its residues modulo p_i.
With the residues of c1 modulo p_i as the digits of c1, sum_i digit_i (a_i, b_i) is an encryption of
c1 sigma(s). All the a come from one public seed, so a public key is a seed and the b.
"""

from __future__ import annotations

import os
import struct

import numpy as np
from numpy.typing import NDArray

from securefed.crypto.ckks.arrays import (
    LABEL,
    CkksEncrypted,
    CkksMasked,
    CkksOpened,
    answer_bytes,
    decode,
    encoded,
    encrypted_bytes,
    flood,
    masked_bytes,
    residue_bytes,
)
from securefed.crypto.ckks.form import MOST_REPLIES, MOST_SCALE, PUBLIC_TERMS, fresh_form
from securefed.crypto.ckks.layout import (
    GALOIS_STRIDES,
    PARAMETERS,
    CkksLayout,
    RowLayout,
    galois_element,
    returned,
    turned,
)
from securefed.crypto.fixed import FixedPoint, Floats
from securefed.crypto.keyholder import SecretKey
from securefed.crypto.lattice.ring import DEGREE, PRIMES, RING, Spectra, inverse, multiply, spectrum
from securefed.crypto.randomness import SEED_BYTES, ByteSource, errors, key_stream, secret_bytes, ternary
from securefed.crypto.scheme import PublicKey
from securefed.crypto.wire import Frame, Kind, check_length, fingerprint
from securefed.errors import BadKey, FormatError, MaskError, OpeningRefused, ShapeError

Secret = NDArray[np.int8]
ELEMENTS = tuple(galois_element(stride) for stride in GALOIS_STRIDES)
PARTS = 1 + len(PRIMES) * len(ELEMENTS)
"""The encryption of zero, then for each Galois element one part for each prime."""
PUBLIC_BYTES = SEED_BYTES + residue_bytes(PARTS * DEGREE)
MOST_PUBLIC_BYTES = 4 << 20
HEAD_BYTES = 1024
_COUNTER = struct.Struct("<Q")


def public_payload(secret: Secret, source: ByteSource) -> bytes:
    """Return the payload of a secret key's public key: a seed and the packed residues b, (5, PARTS, N)."""
    seed, factor = source(SEED_BYTES), spectrum(secret)
    noise = errors(source, PARTS, DEGREE)
    parts = -multiply(RING.polynomials(seed, b"key", PARTS), factor) - noise
    images = np.stack([turned(secret.astype(np.float64), element) for element in ELEMENTS])
    for index in range(len(PRIMES)):
        parts[index, 1 + index :: len(PRIMES)] += images
    return seed + RING.to_bytes(RING.reduced(parts))


class CkksPublicKey(PublicKey):
    """An encryption of zero, and the Galois keys for merging."""

    scheme = "ckks"
    encrypted_type, masked_type, opened_type = CkksEncrypted, CkksMasked, CkksOpened
    parameters = PARAMETERS

    def __init__(self, payload: bytes) -> None:
        """Take a seed and the packed residues b, (5, PARTS, N), or raise BadKey."""
        check_length("public key", payload, PUBLIC_BYTES, BadKey)
        try:
            parts = RING.from_bytes(memoryview(payload)[SEED_BYTES:], (PARTS, DEGREE))
        except FormatError as error:
            raise BadKey(f"public key: {error}") from None
        self.payload, self.key_id = payload, fingerprint(b"ckks", payload)
        self._parts = np.stack([parts, RING.polynomials(payload[:SEED_BYTES], b"key", PARTS)], axis=1)
        """(5, 2, PARTS, N)."""
        self._zero = spectrum(self._parts[:, :, 0])
        self._switching: dict[int, Spectra] = {}

    def to_bytes(self) -> bytes:
        return self.frame(Kind.PUBLIC_KEY, self.payload).to_bytes()

    @classmethod
    def from_frame(cls, frame: Frame) -> CkksPublicKey:
        frame.expect(cls.scheme, cls.parameters, frame.key)
        key = cls(frame.payload)
        frame.expect(cls.scheme, cls.parameters, key.key_id)
        return key

    def _encrypt(self, values: Floats, fixed: FixedPoint) -> CkksEncrypted:
        form, layout = fresh_form(values.shape, fixed, PUBLIC_TERMS), RowLayout(values.shape)
        residues = self.zeros(layout.units)
        residues[:, 0] += encoded(layout.polynomials(values), form.scale)
        return CkksEncrypted(self, form, RING.reduced(residues))

    def zeros(self, count: int) -> Floats:
        """Return fresh encryptions of zero, (5, 2, count, N): b u + e_0 and a u + e_1 with u ternary."""
        masks = ternary(secret_bytes(), count * DEGREE).astype(np.float64).reshape(count, DEGREE)
        result = np.empty((len(PRIMES), 2, count, DEGREE))
        result[:] = errors(secret_bytes(), 2, count, DEGREE)
        for i, factors in enumerate(self._zero):
            for side, factor in enumerate(factors):
                result[i, side] += multiply(masks, factor)
        return RING.reduced(result)

    def apply_galois(self, ciphertext: Floats, stride: int) -> Floats:
        """Turn a ciphertext, (5, 2, N), and switch it back to the key. The result is not reduced.

        The sum of five products errs by a deviation of 0.022 before it is rounded (docs/proofs.md).
        """
        image = RING.reduced(turned(ciphertext, galois_element(stride)))
        digits = spectrum(image[:, 1])
        image[:, 1] = 0.0
        image += inverse((self._switching_keys(GALOIS_STRIDES.index(stride)) * digits).sum(axis=2))
        return image

    def _switching_keys(self, place: int) -> Spectra:
        """Return the spectra of a Galois key, (5 primes, 2, 5 digits, N/2), made at first use."""
        if place not in self._switching:
            start = 1 + place * len(PRIMES)
            self._switching[place] = spectrum(self._parts[:, :, start : start + len(PRIMES)])
        return self._switching[place]


class CkksSecretKey(SecretKey):
    """A ternary polynomial s, its public key, both from one seed, and the number of openings answered."""

    public: CkksPublicKey
    most_replies = MOST_REPLIES

    def __init__(self, seed: bytes, replies: int = 0) -> None:
        source, self._seed, self.replies = key_stream(seed), seed, replies
        self._secret: Secret = ternary(source, DEGREE)
        self.public = CkksPublicKey(public_payload(self._secret, source))

    def encrypt(self, values: Floats, fixed: FixedPoint) -> CkksEncrypted:
        """Encrypt with c1 from a fresh public seed and c0 = m + e - c1 s: less noise, and half the bytes."""
        form, layout = fresh_form(values.shape, fixed, 1), RowLayout(values.shape)
        noise, seed = errors(secret_bytes(), layout.units, DEGREE), os.urandom(SEED_BYTES)
        c0 = encoded(layout.polynomials(values), form.scale) + noise
        c1 = RING.polynomials(seed, LABEL, layout.units)
        residues = np.stack([c0 - self._times(c1), c1], axis=1)
        return CkksEncrypted(self.public, form, RING.reduced(residues), seed)

    def _times(self, c1: Floats) -> Floats:
        """Return c1 s, (5, ciphertexts, N)."""
        return multiply(c1, spectrum(self._secret))

    def open(self, masked: CkksMasked) -> CkksOpened:
        if self.replies >= self.most_replies:
            raise OpeningRefused(
                f"this key has answered {self.replies} openings, at most {self.most_replies} are safe: "
                f"replace the key"
            )
        flooding = flood(masked.layout, masked.noise)
        self.replies += 1
        residues = RING.reduced(self._phase(masked) + flooding)
        return CkksOpened(self.public, masked.layout, masked.digest, residues)

    def receive(self, masked: CkksMasked, disclosure: bytes) -> Floats:
        frame = self.public.arrived_frame(disclosure, Kind.DISCLOSURE)
        if frame.shape != masked.shape or frame.numbers[3] != masked.layout.code:
            raise ShapeError(f"a disclosure for shape {frame.shape} given, {masked.shape} expected")
        answer = CkksOpened.from_frame(self.public, frame)
        if answer.digest != masked.digest:
            raise MaskError("this disclosure belongs to another masked block")
        scale = frame.numbers[0]
        if abs(scale) > MOST_SCALE:
            raise FormatError(f"scale {scale} given, at most {MOST_SCALE} is allowed")
        with np.errstate(over="ignore", invalid="ignore"):
            values = decode(masked.layout, RING.reduced(self._phase(masked) - answer.residues), scale)
        if not np.isfinite(values).all():
            raise FormatError(f"scale {scale} given: the values are too large for float64")
        return values

    def _phase(self, masked: CkksMasked) -> Floats:
        """Return c0 + c1 s at the layout's coefficients only."""
        return RING.reduced(masked.c0 + returned(masked.layout, self._times(masked.c1)))

    def to_bytes(self) -> bytes:
        payload = _COUNTER.pack(self.replies) + self._seed
        return self.public.frame(Kind.SECRET_KEY, payload).to_bytes()

    @classmethod
    def from_frame(cls, frame: Frame) -> CkksSecretKey:
        frame.expect("ckks", PARAMETERS, frame.key)
        check_length("secret key", frame.payload, _COUNTER.size + SEED_BYTES, BadKey)
        key = cls(frame.payload[_COUNTER.size :], _COUNTER.unpack_from(frame.payload)[0])
        frame.expect("ckks", PARAMETERS, key.public.key_id)
        return key


def strong_parameters() -> dict[str, str]:
    return {PARAMETERS.hex(): f"ckks, ring {DEGREE}, the pinned parameter set"}


def most_bytes(shape: tuple[int, ...], sums: int = 0) -> int:
    rows = RowLayout(shape)
    layout: CkksLayout = rows.contracted(sums) if sums else rows
    return HEAD_BYTES + max(encrypted_bytes(layout, False), masked_bytes(layout), answer_bytes(layout))


def generate_secret_key() -> CkksSecretKey:
    return CkksSecretKey(os.urandom(SEED_BYTES))
