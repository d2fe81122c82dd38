"""CKKS keys.

The secret key never becomes a SEAL object: opening is one multiplication in numpy.

A public key is an encryption of zero and the Galois keys for merging. Every part is b = -(a s + e) modulo
p0 p1 p2. In the key that leads from sigma(s) back to s, digit i also carries p2 sigma(s) in its residue
modulo p_i, as SEAL has it. All the a come from one public seed, so a public key is a seed and the b.
"""

from __future__ import annotations

import os
import struct
from typing import Any, ClassVar

import numpy as np

from securefed.crypto.ckks.arrays import (
    CkksEncrypted,
    CkksMasked,
    CkksOpened,
    answer_bytes,
    decode,
    encrypted_bytes,
    flood,
    masked_bytes,
    read_answer,
)
from securefed.crypto.ckks.form import MOST_REPLIES, MOST_SCALE, fresh_form
from securefed.crypto.ckks.layout import (
    GALOIS_STRIDES,
    PARAMETERS,
    RING,
    CkksLayout,
    RowLayout,
    coefficients,
    galois_element,
)
from securefed.crypto.fixed import FixedPoint, Floats
from securefed.crypto.keyholder import SecretKey
from securefed.crypto.lattice import seal_ring as ring
from securefed.crypto.lattice.seal_ring import DATA_PRIMES, PRIMES, Words
from securefed.crypto.randomness import SEED_BYTES, Integers, errors, secret_bytes, ternary
from securefed.crypto.scheme import PublicKey, progress
from securefed.crypto.wire import Frame, Kind, Scheme, fingerprint
from securefed.errors import BadCiphertext, BadKey, FormatError, MaskError, OpeningRefused, ShapeError

ELEMENTS = tuple(galois_element(stride) for stride in GALOIS_STRIDES)
PARTS = 1 + len(DATA_PRIMES) * len(ELEMENTS)
"""The encryption of zero, then for each Galois element one part for each data prime."""
PUBLIC_BYTES = SEED_BYTES + 8 * PARTS * len(PRIMES) * RING
"""Size of a public key's payload."""
MOST_PUBLIC_BYTES = 8 << 20
HEAD_BYTES = 1024
_COUNTER = struct.Struct("<Q")
_MOST_ERROR = 64.0
_CHUNK = 15
"""Blocks per transform."""


def automorphism(polynomial: Integers, element: int) -> Integers:
    """Return p(X^element) modulo X^N + 1."""
    exponents = np.arange(RING) * element % (2 * RING)
    result = np.zeros_like(polynomial)
    result[exponents % RING] = np.where(exponents < RING, polynomial, -polynomial)
    return result


def _small(count: int) -> Integers:
    """Draw fresh errors."""
    return errors(secret_bytes(), count).astype(np.int64)


def public_parts(secret: Integers) -> tuple[bytes, Words]:
    """Return a fresh seed and a secret key's (PARTS, 3, N) residues b in NTT form."""
    seed = os.urandom(SEED_BYTES)
    images = [secret, *(automorphism(secret, element) for element in ELEMENTS)]
    key, *turned = ring.to_ntt(ring.from_pieces(np.stack(images), 0, primes=len(PRIMES)))
    zero = np.zeros_like(key)
    small = _small(PARTS * RING).reshape(PARTS, RING)
    noise = ring.to_ntt(ring.from_pieces(small, 0, primes=len(PRIMES)))
    masks = ring.expand(seed, PARTS, len(PRIMES))
    pairs = zip(masks, noise, strict=True)
    parts = [ring.subtract(zero, ring.add(ring.multiply(a, key), e)) for a, e in pairs]
    special = np.array([[PRIMES[-1] % prime] for prime in PRIMES], dtype=np.uint64)
    for i, image in enumerate(turned):
        scaled = ring.multiply(image, np.broadcast_to(special, image.shape))
        for digit in range(len(DATA_PRIMES)):
            place, carried = 1 + len(DATA_PRIMES) * i + digit, np.zeros_like(zero)
            carried[digit] = scaled[digit]
            parts[place] = ring.add(parts[place], carried)
    return seed, np.stack(parts)


class CkksPublicKey(PublicKey):
    """An encryption of zero, and the Galois keys for merging."""

    scheme: ClassVar[Scheme] = Scheme.CKKS
    encrypted_type, masked_type, opened_type = CkksEncrypted, CkksMasked, CkksOpened
    parameters = PARAMETERS

    def __init__(self, seed: bytes, parts: Words) -> None:
        """Take the seed of the a and the validated (PARTS, 3, N) residues b."""
        self._seed, self._parts = seed, parts
        self.key_id = fingerprint(b"ckks", seed, parts.astype("<u8").tobytes())
        pairs = np.stack([parts, ring.expand(seed, PARTS, len(PRIMES))], axis=1)
        self._key = ring.public_key(pairs[0])
        switching = pairs[1:].reshape(len(ELEMENTS), len(DATA_PRIMES), 2, len(PRIMES), RING)
        self.galois = ring.galois_keys(dict(zip(ELEMENTS, switching, strict=True)))

    def payload(self) -> bytes:
        return self._seed + self._parts.astype("<u8").tobytes()

    def to_bytes(self) -> bytes:
        return self.frame(Kind.PUBLIC_KEY, self.payload()).to_bytes()

    @classmethod
    def from_payload(cls, payload: bytes) -> CkksPublicKey:
        if len(payload) != PUBLIC_BYTES:
            raise BadKey(f"public key: {len(payload)} bytes given, {PUBLIC_BYTES} expected")
        words = np.frombuffer(payload, dtype="<u8", offset=SEED_BYTES).astype(np.uint64)
        try:
            parts = ring.check_residues(words.reshape(PARTS, len(PRIMES), RING), "public key")
        except BadCiphertext as error:
            raise BadKey(str(error)) from None
        return cls(payload[:SEED_BYTES], parts)

    @classmethod
    def from_frame(cls, frame: Frame) -> CkksPublicKey:
        frame.expect(cls.scheme, cls.parameters, frame.key)
        key = cls.from_payload(frame.payload)
        frame.expect(cls.scheme, cls.parameters, key.key_id)
        return key

    def encrypts_zero_under(self, secret: Words) -> bool:
        """Return whether this key belongs to a secret key in NTT form."""
        a = ring.expand(self._seed, 1, len(PRIMES))[0, :2]
        phase = ring.add(self._parts[0, :2], ring.multiply(a, secret))
        error = ring.centred(ring.from_ntt(phase[None])[0])
        return bool(np.abs(error).max() <= _MOST_ERROR)

    def _encrypt(self, values: Floats, fixed: FixedPoint) -> CkksEncrypted:
        form = fresh_form(values.shape, fixed)
        slots = RowLayout(values.shape).slots(values)
        words = np.empty((len(slots), 2, 2, RING), dtype=np.uint64)
        for block, c in zip(progress(slots, "encrypting", len(slots)), words, strict=True):
            c[:] = ring.read_ciphertext(self.zero())
            message = ring.to_ntt(ring.from_floats(coefficients(block), form.scale)[None])[0]
            c[0] = ring.add(c[0], message)
        return CkksEncrypted(self, form, words=words)

    def zero(self) -> Any:
        """Return a fresh encryption of zero."""
        return ring.encrypt_zero(self._key)

    def blinded(self, ciphertext: Any) -> Words:
        """Return the (2, 2, N) coefficients of a ciphertext plus an encryption of zero."""
        total = ring.apply("add", ciphertext, self.zero())
        ring.engine().evaluator.transform_from_ntt_inplace(total)
        return ring.read_ciphertext(total)


class CkksSecretKey(SecretKey):
    """A ternary polynomial s, and the number of openings that it has answered."""

    public: CkksPublicKey
    most_replies = MOST_REPLIES

    def __init__(self, secret: Integers, public: CkksPublicKey, replies: int = 0) -> None:
        self.public, self.replies, self._secret = public, replies, secret
        self._key = ring.to_ntt(ring.from_pieces(secret[None], 0))[0]

    def encrypt(self, values: Floats, fixed: FixedPoint) -> CkksEncrypted:
        """Encrypt with c1 from a fresh public seed and c0 = m + e - c1 s: less noise, and half the bytes."""
        form, seed = fresh_form(values.shape, fixed), os.urandom(SEED_BYTES)
        slots = RowLayout(values.shape).slots(values)
        words = np.empty((len(slots), 2, 2, RING), dtype=np.uint64)
        starts = range(0, len(slots), _CHUNK)
        for start in progress(starts, "encrypting", len(starts)):
            chunk = coefficients(slots[start : start + _CHUNK])
            messages = np.stack([ring.from_floats(p, form.scale, _small(RING)) for p in chunk])
            for i, message in enumerate(ring.to_ntt(messages), start):
                words[i, 1] = ring.expand(seed, 1, first=i)[0]
                words[i, 0] = ring.subtract(message, ring.multiply(words[i, 1], self._key))
        return CkksEncrypted(self.public, form, words=words, seed=seed)

    def open(self, masked: CkksMasked) -> CkksOpened:
        if self.replies >= self.most_replies:
            raise OpeningRefused(
                f"this key has answered {self.replies} openings, at most {self.most_replies} are safe: "
                f"replace the key"
            )
        flooding = flood(masked.layout, masked.noise)
        self.replies += 1
        return CkksOpened(self.public, masked.layout, masked.digest, ring.add(self._phase(masked), flooding))

    def receive(self, masked: CkksMasked, disclosure: bytes) -> Floats:
        frame = self.public.arrived_frame(disclosure, Kind.DISCLOSURE)
        if frame.shape != masked.shape or frame.numbers[3] != masked.layout.code:
            raise ShapeError(f"a disclosure for shape {frame.shape} given, {masked.shape} expected")
        digest, residues = read_answer(frame, masked.layout)
        if digest != masked.digest:
            raise MaskError("this disclosure belongs to another masked block")
        scale = frame.numbers[0]
        if abs(scale) > MOST_SCALE:
            raise FormatError(f"scale {scale} given, at most {MOST_SCALE} is allowed")
        return decode(masked.layout, ring.subtract(self._phase(masked), residues), scale)

    def _phase(self, masked: CkksMasked) -> Words:
        """Return c0 + c1 s at the layout's coefficients only."""
        products = ring.from_ntt(np.stack([ring.multiply(c1, self._key) for c1 in ring.to_ntt(masked.c1)]))
        chosen = [block[:, places] for block, places in zip(products, masked.layout.places, strict=True)]
        return ring.add(masked.c0, np.concatenate(chosen, axis=1))

    def to_bytes(self) -> bytes:
        payload = _COUNTER.pack(self.replies) + self._secret.astype(np.int8).tobytes() + self.public.payload()
        return self.public.frame(Kind.SECRET_KEY, payload).to_bytes()

    @classmethod
    def from_frame(cls, frame: Frame) -> CkksSecretKey:
        frame.expect(Scheme.CKKS, PARAMETERS, frame.key)
        start = _COUNTER.size + RING
        if len(frame.payload) != start + PUBLIC_BYTES:
            raise BadKey(f"secret key: {len(frame.payload)} bytes given, {start + PUBLIC_BYTES} expected")
        digits = np.frombuffer(frame.payload, dtype=np.int8, count=RING, offset=_COUNTER.size)
        secret = digits.astype(np.int64)
        if np.abs(secret).max() > 1:
            raise BadKey("secret key: a coefficient is not -1, 0 or 1")
        public = CkksPublicKey.from_payload(frame.payload[start:])
        frame.expect(Scheme.CKKS, PARAMETERS, public.key_id)
        key = cls(secret, public, _COUNTER.unpack_from(frame.payload)[0])
        if not public.encrypts_zero_under(key._key):
            raise BadKey("the secret key does not belong to the public key beside it")
        return key


def strong_parameters() -> dict[str, str]:
    """Return the parameter set of documented strength (docs/security.md), by fingerprint."""
    return {PARAMETERS.hex(): f"ckks, ring {RING}, the pinned parameter set"}


def most_bytes(shape: tuple[int, ...], sums: int = 0) -> int:
    """Return the most bytes of a frame with an array, or with so many sums over its rows."""
    rows = RowLayout(shape)
    layout: CkksLayout = rows.contracted(sums) if sums else rows
    return HEAD_BYTES + max(encrypted_bytes(layout, False), masked_bytes(layout), answer_bytes(layout))


def generate_secret_key() -> CkksSecretKey:
    """Return a new key pair, with the operating system's randomness."""
    secret = ternary(secret_bytes(), RING).astype(np.int64)
    return CkksSecretKey(secret, CkksPublicKey(*public_parts(secret)))
