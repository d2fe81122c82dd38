"""RLWE keys for hidden arrays.

The public key encrypts zero and switches keys for merges; a KeyHolder has the secret key, a ternary
polynomial. The keys for merging depend on the sizes of a run: the
key-holder makes those that its agreed sizes need (`switching`), and they travel apart from the public key.

Every part is b = -(a s + e) modulo all primes with a uniform and e of deviation 3.2; the a come from one
public seed. In the key that leads from sigma(s) back to s, digit i also carries p * sigma(s) in its residue
modulo prime i, p the switching prime (SEAL's form).
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar, Never

import numpy as np

from securefed.crypto.ckks.generation import automorphism
from securefed.crypto.ckks.sampling import errors, ternary
from securefed.crypto.errors import BadCiphertext, BadKey, OpeningRefused
from securefed.crypto.fixed import FixedPoint
from securefed.crypto.hidden import Range, Wide, draw_masks
from securefed.crypto.rlwe.arrays import (
    RlweArray,
    RlweBlock,
    RlweMask,
    RlweMasked,
    RlweOpened,
    RlweSum,
    coefficients,
    flat,
    unflat,
)
from securefed.crypto.rlwe.layout import RlweLayout
from securefed.crypto.rlwe.packing import Packing, operand_length
from securefed.crypto.rlwe.ring import HIDDEN, SEED_BYTES, Ring, Words
from securefed.crypto.rlwe.sealed import Linear, sealed
from securefed.crypto.scheme import Floats, Mapper, PublicKey, SecretKey, Shared
from securefed.crypto.wire import Frame, Kind, Scheme, fingerprint

__all__ = ["FLOOD_BITS", "RlwePublicKey", "RlweSecretKey", "generate_secret_key"]

FLOOD_BITS = 96
"""An opening carries noise of up to 2^43 (docs/security.md). It is flooded like values are masked, by sums of
three numbers uniform below this power of two: T opened entries are within 1.07 sqrt(T) 2^-53 of ones without
noise."""
NOISE_FLOOD_BITS = 72
"""Of zeros that are opened to check a key: 2^15 coefficients below 2^16 a run, so 2^-43 for 2^10 runs."""
MOST_OPENED = 1 << 26
"""Entries that one key opens, which makes that 2^-40; then it has to be replaced."""
MANY_ZEROS = 4
"""From which on other processes are asked."""
_COUNTER = struct.Struct("<Q")
_MOST_ERROR = 64


class RlwePublicKey(RlweLayout, PublicKey):
    """An encryption of zero, and the switching keys once they have arrived."""

    scheme: ClassVar[Scheme] = Scheme.RLWE

    def __init__(self, seed: bytes, part: Words, ring: Ring = HIDDEN) -> None:
        """From the seed of a and the (primes, N) residues b, validated."""
        self.ring, self.parameters = ring, ring.parameters
        self._seed, self._part = seed, part
        self.key_id = fingerprint(b"rlwe", ring.parameters, seed, part.astype("<u8").tobytes())
        a = ring.expand(seed, 1, len(ring.primes))[0]
        self._key = sealed(ring).public_key(np.stack([part, a]))
        self.galois: Any = None
        self.strides: tuple[int, ...] = ()
        self._switching = b""
        self._shared: tuple[Mapper, Shared[RlwePublicKey]] | None = None

    def shared(self) -> Shared[RlwePublicKey]:
        """This key, placed where other processes of this party get it."""
        if self._shared is None or self._shared[0] is not self.mapper:
            self._shared = self.mapper, self.mapper.share(self)
        return self._shared[1]

    def __reduce__(self) -> tuple[Any, ...]:
        """For a party's own workers: what is public, and nothing that SEAL made of it."""
        frame = np.frombuffer(self._switching, dtype=np.uint8)
        return _rebuilt, (self._seed, self._part, self.ring, frame, self.strides)

    def payload(self) -> bytes:
        return self._seed + self.ring.to_bytes(self._part)

    def to_bytes(self) -> bytes:
        return self.frame(Kind.PUBLIC_KEY, self.payload()).to_bytes()

    @classmethod
    def from_payload(cls, payload: bytes, ring: Ring = HIDDEN) -> RlwePublicKey:
        try:
            shape = (len(ring.primes), ring.degree)
            part = ring.from_bytes(memoryview(payload)[SEED_BYTES:], shape, "public key")
        except BadCiphertext as error:
            raise BadKey(str(error)) from None
        return cls(bytes(payload[:SEED_BYTES]), part, ring)

    @classmethod
    def from_frame(cls, frame: Frame) -> RlwePublicKey:
        frame.expect(cls.scheme, HIDDEN.parameters, frame.key)
        key = cls.from_payload(frame.payload)
        frame.expect(cls.scheme, HIDDEN.parameters, key.key_id)
        return key

    def load_switching(self, blob: bytes, strides: Sequence[int]) -> None:
        """The keys for merging at these strides, from the key-holder."""
        frame = self._frame(blob, Kind.SWITCHING)
        ring = self.ring
        digits, primes = len(ring.data_primes), len(ring.primes)
        if not strides:
            return
        body = memoryview(frame.payload)
        count = len(strides) * digits
        try:
            parts = ring.from_bytes(body[SEED_BYTES:], (count, primes, ring.degree), "switching keys")
        except BadCiphertext as error:
            raise BadKey(str(error)) from None
        a = ring.expand(bytes(body[:SEED_BYTES]), count, primes)
        pairs = np.stack([parts, a], axis=1).reshape(len(strides), digits, 2, primes, ring.degree)
        elements = [ring.galois_element(stride) for stride in strides]
        self.galois = sealed(ring).galois_keys(dict(zip(elements, pairs, strict=True)))
        self.strides = tuple(strides)
        self._switching, self._shared = blob, None

    def encrypts_zero_under(self, secret: Words) -> bool:
        """Whether a secret key, in NTT form modulo all primes, is the one that this key was made from."""
        ring = self.ring
        a = ring.expand(self._seed, 1, len(ring.primes))[0]
        error = sealed(ring).from_ntt(ring.add(self._part, ring.multiply(a, secret))[None])[0]
        distance = np.minimum(error, ring.moduli(error).view(np.uint64) - error)
        return bool(distance.max() <= _MOST_ERROR)

    def zero(self) -> Any:
        """A fresh encryption of zero, in SEAL's form."""
        return sealed(self.ring).zero(self._key)

    def zeros(self, count: int) -> list[Any]:
        """Fresh encryptions of zero; where they are many, from processes of this party on this machine, and
        no others: SEAL takes a new seed from the operating system for every one.
        """
        mapper = self.mapper
        if count < MANY_ZEROS or mapper.local is not mapper or mapper.workers == 1:
            return [self.zero() for _ in range(count)]
        found = mapper.map(_zero, [self.shared()] * count)
        return [sealed(self.ring).ciphertext(words) for words in found]

    # Checks of this key (securefed.protocols.key_check)

    def zero_chains(self, seed: bytes) -> tuple[RlweMasked, RlweMask]:
        """Encryptions of zero, each through all switching keys, under the mask of that seed."""
        ring, held = self.ring, sealed(self.ring)
        items = [self.zero() for _ in range(self.chains)]
        for item in items:
            for stride in self.strides:
                held.evaluator.apply_galois_inplace(item, ring.galois_element(stride), self.galois)
        packing, range_ = Packing(*self.chain_shape, ring.degree), Range(0, 0)
        fresh, mask = RlweSum(self, packing, range_, held=items).rerandomise(), self._chain_mask(seed)
        c0, c1 = fresh.words
        masked = RlweMasked(self, packing, ring.add(c0, mask), c1)
        masked.origin = fresh.origin
        return masked, RlweMask(self, packing, range_, mask)

    def noise_bits(self, opened: RlweOpened, seed: bytes) -> int:
        """Of the largest coefficient under the mask of that seed."""
        if opened.shape != self.chain_shape:
            raise BadCiphertext(f"an opening of shape {opened.shape} given, {self.chain_shape} is due")
        return self.ring.most_bits(self.ring.subtract(opened.residues, self._chain_mask(seed)))

    def _chain_mask(self, seed: bytes) -> Words:
        """(data primes, coefficients of all chains), uniform."""
        return np.concatenate(list(self.ring.expand(seed, self.chains)), axis=1)

    # Hidden arrays

    def hidden_zeros(self, shape: tuple[int, int], range_: Range, blocks: int = 1) -> RlweArray:
        held = [self.zero() for _ in range(self.array_ciphertexts(shape, blocks))]
        array = RlweArray(self, shape, range_, blocks, held=held)
        array.origin = "fresh"
        return array

    def load_array(self, blob: bytes, shape: tuple[int, int], range_: Range, blocks: int = 1) -> RlweArray:
        array = RlweArray.from_frame(self, self._frame(blob, Kind.ENCRYPTED), shape, range_, blocks)
        array.origin = "arrived"
        return array

    def load_sum(self, blob: bytes, shape: tuple[int, int], range_: Range, slack: int) -> RlweSum:
        sums = RlweSum.from_frame(self, self._frame(blob, Kind.ENCRYPTED), shape, range_, slack)
        sums.origin = "arrived"
        return sums

    def load_block(self, blob: bytes, shape: tuple[int, int], range_: Range, slack: int) -> RlweBlock:
        return RlweBlock(RlweSum.from_frame(self, self._frame(blob, Kind.MASKED), shape, range_, slack))

    @property
    def modulus(self) -> int:
        return self.ring.modulus

    def unmasked(self, opened: RlweOpened, material: bytes) -> Wide:
        ring, residues = self.ring, opened.residues
        if len(material) != residues.size * 8:
            raise BadCiphertext(f"a mask of {len(material)} bytes given, {residues.size * 8} are due")
        mask = np.frombuffer(material, dtype="<u8").astype(np.uint64).reshape(residues.shape)
        if (mask >= ring.moduli(mask).view(np.uint64)).any():
            raise BadCiphertext("a mask with residues that are not reduced")
        packing = Packing(opened.shape[0], opened.shape[1], ring.degree)
        return unflat(packing, ring.to_limbs(ring.subtract(residues, mask))).wide()

    def without(self, opened: RlweOpened, integers: Wide, range_: Range, slack: int) -> RlweOpened:
        packing = Packing(opened.shape[0], opened.shape[1], self.ring.degree)
        lent = self.ring.from_wide(flat(packing, integers))
        return RlweOpened(self, opened.shape, self.ring.subtract(opened.residues, lent))

    # What arrays under the other schemes do, and hidden ones do not

    def _encrypt(self, values: Floats, fixed: FixedPoint) -> Never:
        raise BadKey("a key for hidden arrays encrypts no values to be opened")

    def _load(self, frame: Frame) -> Never:
        raise BadKey("a key for hidden arrays reads hidden arrays only")

    def _load_masked(self, frame: Frame) -> RlweMasked:
        return RlweMasked.from_frame(self, frame)

    def _load_opened(self, frame: Frame) -> RlweOpened:
        return RlweOpened.from_frame(self, frame)


def _zero(public: Shared[RlwePublicKey]) -> Words:
    """A top-level function, for other processes."""
    key = public.get()
    return sealed(key.ring).read(key.zero())


def _rebuilt(
    seed: bytes, part: Words, ring: Ring, switching: np.ndarray[Any, Any], strides: tuple[int, ...]
) -> RlwePublicKey:
    key = RlwePublicKey(seed, part, ring)
    if len(switching):
        key.load_switching(switching.tobytes(), strides)
    return key


class RlweSecretKey(SecretKey):
    """A ternary polynomial s."""

    def __init__(self, secret: np.ndarray[Any, Any], public: RlwePublicKey, opened: int = 0) -> None:
        self.public: RlwePublicKey = public
        self.opened = opened
        """Entries that were opened to others: scores and released parameters."""
        ring = public.ring
        self._secret = secret
        self._key = sealed(ring).to_ntt(ring.from_small(secret[None], len(ring.primes)))[0]
        self._prepared: list[tuple[int, bytes, Words]] = []
        """A process, a fresh seed, and c1 s for the c1 that it gives: used there, once."""

    @cached_property
    def _times_secret(self) -> Linear:
        """Products by s; SEAL's classes for secret keys and decryption are not used."""
        return sealed(self.public.ring).multiplication(self._key[: len(self.public.ring.data_primes)])

    def switching(self, strides: Sequence[int]) -> bytes:
        """Fresh keys for merging at these strides; a frame of kind SWITCHING."""
        ring, seed = self.public.ring, os.urandom(SEED_BYTES)
        primes = len(ring.primes)
        count = len(strides) * len(ring.data_primes)
        noise = np.stack([errors(ring.degree) for _ in range(count)]) if count else np.zeros((0, ring.degree))
        parts = []
        for at, stride in enumerate(strides):
            turned = automorphism(self._secret, ring.galois_element(stride))
            image = sealed(ring).to_ntt(ring.from_small(turned[None], primes))[0]
            carried = ring.scaled(image, ring.primes[-1])
            for digit in range(len(ring.data_primes)):
                index = at * len(ring.data_primes) + digit
                a = ring.expand(seed, 1, primes, first=index)[0]
                error = sealed(ring).to_ntt(ring.from_small(noise[index][None], primes))[0]
                part = ring.subtract(np.zeros_like(a), ring.add(ring.multiply(a, self._key), error))
                own = np.zeros_like(part)
                own[digit] = carried[digit]
                part = ring.add(part, own)
                parts.append(part)
        payload = seed + (ring.to_bytes(np.stack(parts)) if parts else b"")
        return self.public.frame(Kind.SWITCHING, payload).to_bytes()

    def conceal(self, integers: Wide, range_: Range, blocks: int) -> RlweArray:
        """c1 from a fresh public seed, c0 = m + e - c1 s."""
        ring, seed = self.public.ring, os.urandom(SEED_BYTES)
        shape = (integers.shape[0], integers.shape[1])
        messages = coefficients(ring, integers, operand_length(shape[0], blocks, ring.degree))
        prepared = self._prepared.pop() if len(messages) == 1 and self._prepared else None
        if prepared is not None and prepared[0] == os.getpid():  # a copy in another process has it too
            _, seed, products = prepared
        else:
            products = self._times_secret(ring.expand(seed, len(messages)))
        noise = np.stack([errors(ring.degree) for _ in messages])
        noisy = ring.add(messages, ring.from_small(noise))
        c0 = ring.subtract(noisy, products)
        array = RlweArray(self.public, shape, range_, blocks, c0=c0, seed=seed)
        array.origin = "fresh"
        return array

    def read(self, block: RlweBlock) -> Wide:
        """value + noise + mask of every entry."""
        self._admit(block.c1)
        return unflat(
            block.packing, self.public.ring.to_limbs(self._phase(block.packing, block.c0, block.c1))
        )

    def open(self, masked: RlweMasked) -> RlweOpened:
        """Flooded, so that what is opened shows no noise; still under its requester's mask."""
        if not isinstance(masked, RlweMasked):
            raise OpeningRefused("a key for hidden arrays opens masked blocks of sums")
        if self.opened + masked.packing.entries > MOST_OPENED:
            raise OpeningRefused(
                f"this key has opened {self.opened:,} values, at most {MOST_OPENED:,} are safe: "
                "replace the key"
            )
        return self.open_twice(masked, 0)[1]

    def open_twice(self, masked: RlweMasked, width: int) -> tuple[RlweOpened, RlweOpened]:
        """With its noise, which stays here, and flooded."""
        self.opened += masked.packing.entries
        return self._flooded(masked, FLOOD_BITS)

    def open_noise(self, masked: RlweMasked) -> tuple[RlweOpened, RlweOpened]:
        """The same for zeros, whose noise is all there is: below 2^16, under a flood of 2^72."""
        return self._flooded(masked, NOISE_FLOOD_BITS)

    def _flooded(self, masked: RlweMasked, bits: int) -> tuple[RlweOpened, RlweOpened]:
        self._admit(masked.c1)
        ring = self.public.ring
        drawn = draw_masks((masked.packing.entries, 1), bits) - (3 << (bits - 1))
        flood = drawn.shaped(-1)
        phase = self._phase(masked.packing, masked.c0, masked.c1)
        flooded = RlweOpened(self.public, masked.shape, ring.add(phase, ring.from_wide(flood)))
        return RlweOpened(self.public, masked.shape, phase), flooded

    def _phase(self, packing: Packing, c0: Words, c1: Words) -> Words:
        """c0 + c1 s at the places of the entries, and at no others."""
        ring = self.public.ring
        if len(c1) == 1:
            # SEAL works on two polynomials at least: the second is c1 of the next array that is concealed.
            seed = os.urandom(SEED_BYTES)
            products = self._times_secret(np.concatenate([c1, ring.expand(seed, 1)]))
            self._prepared, products = [(os.getpid(), seed, products[1:])], products[:1]
        else:
            products = self._times_secret(c1)
        chosen = [
            product[:, block.places.ravel()] for product, block in zip(products, packing.blocks, strict=True)
        ]
        return ring.add(c0, np.concatenate(chosen, axis=1))

    def _admit(self, c1: Words) -> None:
        """Every c1 once, whatever stands beside it: an honest one is fresh."""
        self.memory.admit([hashlib.sha256(block.tobytes()).digest() for block in c1])

    # What keys of the other schemes do

    def encrypt(self, values: Floats, fixed: FixedPoint) -> Never:
        raise BadKey("a key for hidden arrays encrypts no values to be opened")

    def receive(self, masked: Any, disclosure: bytes) -> Never:
        raise OpeningRefused("nothing is disclosed to the holder of a key for hidden arrays")

    def to_bytes(self) -> bytes:
        payload = _COUNTER.pack(self.opened) + self._secret.astype(np.int8).tobytes() + self.public.payload()
        return self.public.frame(Kind.SECRET_KEY, payload).to_bytes()

    @classmethod
    def from_frame(cls, frame: Frame) -> RlweSecretKey:
        ring = HIDDEN
        frame.expect(Scheme.RLWE, ring.parameters, frame.key)
        start = _COUNTER.size + ring.degree
        if len(frame.payload) < start:
            raise BadKey(f"secret key: {len(frame.payload)} bytes given, more than {start} expected")
        found = np.frombuffer(frame.payload, dtype=np.int8, count=ring.degree, offset=_COUNTER.size)
        secret = found.astype(np.int64)
        if np.abs(secret).max() > 1:
            raise BadKey("secret key: a coefficient is not -1, 0 or 1")
        public = RlwePublicKey.from_payload(frame.payload[start:], ring)
        frame.expect(Scheme.RLWE, ring.parameters, public.key_id)
        key = cls(secret, public, _COUNTER.unpack_from(frame.payload)[0])
        if not public.encrypts_zero_under(key._key):
            raise BadKey("the secret key does not belong to the public key beside it")
        return key


def generate_secret_key(ring: Ring = HIDDEN) -> RlweSecretKey:
    """A fresh key pair; all randomness from the operating system."""
    secret, seed = ternary(ring.degree), os.urandom(SEED_BYTES)
    held = sealed(ring)
    key = held.to_ntt(ring.from_small(secret[None], len(ring.primes)))[0]
    error = held.to_ntt(ring.from_small(errors(ring.degree)[None], len(ring.primes)))[0]
    a = ring.expand(seed, 1, len(ring.primes))[0]
    part = ring.subtract(np.zeros_like(a), ring.add(ring.multiply(a, key), error))
    return RlweSecretKey(secret, RlwePublicKey(seed, part, ring))
