"""CKKS keys.

The public key encrypts and merges; the secret key is held by a KeyHolder. Nothing reachable from a public key
can open anything: SEAL's Encryptor, which could be given a secret key, is made for each call.
"""

from __future__ import annotations

import os
import struct
from typing import Any, ClassVar

import numpy as np
import tenseal.sealapi as seal

from securefed.crypto.ckks.embedding import coefficients
from securefed.crypto.ckks.encrypted import MOST_SCALE, CkksEncrypted, Seeded, fresh_form
from securefed.crypto.ckks.layout import Rows
from securefed.crypto.ckks.opening import CkksMasked, CkksOpened, decode, flood, read_answer
from securefed.crypto.ckks.parameters import (
    GALOIS_STRIDES,
    MOST_REPLIES,
    PARAMETERS,
    PRIMES,
    RING,
    engine,
    galois_element,
)
from securefed.crypto.ckks.residues import Words, add, centred, from_floats, from_pieces, multiply, subtract
from securefed.crypto.ckks.sampling import SEED_BYTES, expand, gaussian
from securefed.crypto.ckks.sealbytes import (
    check_residues,
    from_ntt,
    galois_keys,
    plaintext,
    public_key,
    read,
    to_ntt,
)
from securefed.crypto.errors import BadCiphertext, BadKey, FormatError, MaskError, OpeningRefused, ShapeError
from securefed.crypto.fixed import FixedPoint
from securefed.crypto.scheme import Floats, PublicKey, SecretKey
from securefed.crypto.wire import Frame, Kind, Scheme, fingerprint

__all__ = ["CkksPublicKey", "CkksSecretKey", "generate_secret_key"]

_ELEMENTS = tuple(galois_element(stride) for stride in GALOIS_STRIDES)
_KEY_SHAPE = (2, len(PRIMES), RING)
_GALOIS_SHAPE = (len(_ELEMENTS), 2, *_KEY_SHAPE)
_KEY_WORDS = 2 * len(PRIMES) * RING
_PUBLIC_BYTES = 8 * _KEY_WORDS * (1 + 2 * len(_ELEMENTS))
_COUNTER = struct.Struct("<Q")
_ERROR = 3.2


class CkksPublicKey(PublicKey):
    """An encryption of zero, and the Galois keys for merging."""

    scheme: ClassVar[Scheme] = Scheme.CKKS
    parameters = PARAMETERS

    def __init__(self, payload: bytes) -> None:
        """From the residues of the key and of the Galois keys, validated here."""
        if len(payload) != _PUBLIC_BYTES:
            raise BadKey(f"public key: {len(payload)} bytes given, {_PUBLIC_BYTES} expected")
        words = np.frombuffer(payload, dtype="<u8").astype(np.uint64)
        try:
            self._residues = check_residues(words[:_KEY_WORDS].reshape(_KEY_SHAPE), "public key")
            switching = check_residues(words[_KEY_WORDS:].reshape(_GALOIS_SHAPE), "Galois keys")
        except BadCiphertext as error:
            raise BadKey(str(error)) from None
        if not self._residues.any(axis=-1).all() or not switching.any(axis=-1).all():
            raise BadKey("public key: a polynomial is zero")
        self._payload = payload
        self._key = public_key(self._residues)
        self.galois = galois_keys(dict(zip(_ELEMENTS, switching, strict=True)))
        self.key_id = fingerprint(b"ckks", payload)

    def to_bytes(self) -> bytes:
        return self.frame(Kind.PUBLIC_KEY, self._payload).to_bytes()

    @classmethod
    def from_frame(cls, frame: Frame) -> CkksPublicKey:
        frame.expect(cls.scheme, cls.parameters, frame.key)
        key = cls(frame.payload)
        frame.expect(cls.scheme, cls.parameters, key.key_id)
        return key

    def _encrypt(self, values: Floats, fixed: FixedPoint) -> CkksEncrypted:
        form = fresh_form(values.shape, fixed)
        encryptor = seal.Encryptor(engine().context, self._key)
        held: list[Any] = []
        for message in to_ntt(_messages(values, form.scale)):
            encrypted = seal.Ciphertext()
            encryptor.encrypt(plaintext(message), encrypted)
            held.append(encrypted)
        return CkksEncrypted(self, form, held=held)

    def zero(self) -> Any:
        """A fresh encryption of zero."""
        encrypted = seal.Ciphertext()
        seal.Encryptor(engine().context, self._key).encrypt_zero(encrypted)
        encrypted.scale = 1.0
        return encrypted

    def blinded(self, held: Any) -> Words:
        """(2, 2, N) coefficients of a ciphertext with an encryption of zero added."""
        total = seal.Ciphertext()
        evaluator = engine().evaluator
        evaluator.add(held, self.zero(), total)
        evaluator.transform_from_ntt_inplace(total)
        return read(total, total.dyn_array()).reshape(2, 2, RING)

    def _load(self, frame: Frame) -> CkksEncrypted:
        return CkksEncrypted.from_frame(self, frame)

    def _load_masked(self, frame: Frame) -> CkksMasked:
        return CkksMasked.from_frame(self, frame)

    def _load_opened(self, frame: Frame) -> CkksOpened:
        return CkksOpened.from_frame(self, frame)


def _messages(values: Floats, scale: int) -> Words:
    """(blocks, 2, N) residues of the polynomials that carry the values."""
    return from_floats(coefficients(Rows(values.shape).slots(values)), scale)


class CkksSecretKey(SecretKey):
    """A ternary polynomial s, and the number of openings that it has answered."""

    def __init__(
        self,
        ternary: np.ndarray[Any, np.dtype[np.int64]],
        public: CkksPublicKey,
        replies: int = 0,
        *,
        _most_replies: int = MOST_REPLIES,
    ) -> None:
        self.public: CkksPublicKey = public
        self.replies = replies
        self._ternary = ternary
        self._most_replies = _most_replies
        self._key = to_ntt(from_pieces(ternary[None], 0))[0]
        self._check()

    def _check(self) -> None:
        """The public key has to be an encryption of zero under this key."""
        b, a = self.public._residues[:, :2]
        error = centred(from_ntt(add(b, multiply(a, self._key))[None])[0])
        if float(np.abs(error).max()) > 64.0:
            raise BadKey("the secret key does not belong to the public key beside it")

    def encrypt(self, values: Floats, fixed: FixedPoint) -> CkksEncrypted:
        """c1 from a fresh public seed, c0 = m + e - c1 s: less noise than under the public key, half the bytes."""
        form = fresh_form(values.shape, fixed)
        messages = _messages(values, form.scale)
        errors = gaussian(messages.shape[0] * RING, _ERROR).reshape(2, -1, RING).transpose(1, 0, 2)
        seed = os.urandom(SEED_BYTES)
        mixed = multiply(expand(seed, len(messages)), np.broadcast_to(self._key, messages.shape))
        c0 = subtract(to_ntt(add(messages, errors)), mixed)
        return CkksEncrypted(self.public, form, seeded=Seeded(seed, c0))

    def open(self, masked: CkksMasked) -> CkksOpened:
        if self.replies >= self._most_replies:
            raise OpeningRefused(
                f"this key has answered {self.replies} openings, at most {self._most_replies} are safe: "
                f"replace the key"
            )
        drowning = flood(masked.layout, masked.noise)
        self.replies += 1
        return CkksOpened(self.public, masked.layout, masked.digest, add(self._phase(masked), drowning))

    def receive(self, masked: CkksMasked, disclosure: bytes) -> Floats:
        public = self.public
        frame = Frame.from_bytes(disclosure, Kind.DISCLOSURE).expect(
            public.scheme, public.parameters, public.key_id
        )
        if frame.shape != masked.shape or frame.numbers[3] != masked.layout.code:
            raise ShapeError(f"a disclosure for shape {frame.shape} given, {masked.shape} expected")
        digest, residues = read_answer(frame, masked.layout)
        if digest != masked.digest:
            raise MaskError("this disclosure belongs to another masked block")
        scale = frame.numbers[0]
        if abs(scale) > MOST_SCALE:
            raise FormatError(f"scale {scale} given, at most {MOST_SCALE} is allowed")
        return decode(masked.layout, subtract(self._phase(masked), residues), scale)

    def _phase(self, masked: CkksMasked) -> Words:
        """c0 + c1 s at the coefficients that the layout says, and at no others."""
        products = from_ntt(multiply(to_ntt(masked.c1), np.broadcast_to(self._key, masked.c1.shape)))
        chosen = [block[:, places] for block, places in zip(products, masked.layout.places, strict=True)]
        return add(masked.c0, np.concatenate(chosen, axis=1))

    def to_bytes(self) -> bytes:
        payload = _COUNTER.pack(self.replies) + self._ternary.astype(np.int8).tobytes() + self.public._payload
        return self.public.frame(Kind.SECRET_KEY, payload).to_bytes()

    @classmethod
    def from_frame(cls, frame: Frame) -> CkksSecretKey:
        frame.expect(Scheme.CKKS, PARAMETERS, frame.key)
        start = _COUNTER.size + RING
        if len(frame.payload) != start + _PUBLIC_BYTES:
            raise BadKey(f"secret key: {len(frame.payload)} bytes given, {start + _PUBLIC_BYTES} expected")
        ternary = np.frombuffer(frame.payload, dtype=np.int8, count=RING, offset=_COUNTER.size)
        if np.abs(ternary.astype(np.int64)).max() > 1:
            raise BadKey("secret key: a coefficient is not -1, 0 or 1")
        public = CkksPublicKey(frame.payload[start:])
        frame.expect(Scheme.CKKS, PARAMETERS, public.key_id)
        return cls(ternary.astype(np.int64), public, _COUNTER.unpack_from(frame.payload)[0])


def generate_secret_key() -> CkksSecretKey:
    """A fresh key pair from SEAL's generator."""
    generator = seal.KeyGenerator(engine().context)
    held = generator.secret_key()
    values = read(held, held.data().dyn_array()).reshape(len(PRIMES), RING)[:2]
    ternary = np.rint(centred(from_ntt(values[None])[0])).astype(np.int64)
    key, switching = seal.PublicKey(), seal.GaloisKeys()
    generator.create_public_key(key)
    generator.create_galois_keys(list(_ELEMENTS), switching)
    # Each key is kept alive while its ciphertext is read: `data` gives a reference into it.
    keys = [key, *(digit for element in _ELEMENTS for digit in switching.key(element))]
    payload = b"".join(read(item, item.data().dyn_array()).astype("<u8").tobytes() for item in keys)
    return CkksSecretKey(ternary, CkksPublicKey(payload))
