"""CKKS as it is usually put together on TenSEAL and SEAL: correct, and each time one protection too few."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import tenseal as ts
import tenseal.sealapi as seal
from numpy.typing import NDArray

from tests.audit.ring import Residues, ntt_inverse, read, scratch

DEGREE = 8192
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Chain:
    """A coefficient chain and the scale that goes with it."""

    bits: tuple[int, ...]
    scale_bits: int

    @property
    def scale(self) -> float:
        return float(2.0**self.scale_bits)

    @property
    def context(self) -> seal.SEALContext:
        return _context(self.bits)

    @cached_property
    def primes(self) -> tuple[int, ...]:
        """Those of fresh ciphertexts: the last of the chain is for keys alone."""
        return tuple(m.value() for m in seal.CoeffModulus.Create(DEGREE, list(self.bits)))[:-1]


@lru_cache(maxsize=4)
def _context(bits: tuple[int, ...]) -> seal.SEALContext:
    parameters = seal.EncryptionParameters(seal.SCHEME_TYPE.CKKS)
    parameters.set_poly_modulus_degree(DEGREE)
    parameters.set_coeff_modulus(seal.CoeffModulus.Create(DEGREE, list(bits)))
    return seal.SEALContext(parameters, True, seal.SEC_LEVEL_TYPE.TC128)


@dataclass(frozen=True)
class Block:
    """A ciphertext as its holder sees it: c0 and c1, residues in SEAL's NTT order, one row a prime."""

    c0: Residues
    c1: Residues

    @classmethod
    def of(cls, ciphertext: seal.Ciphertext) -> Block:
        levels = ciphertext.coeff_modulus_size()
        return cls(*read(ciphertext.dyn_array(), 2, levels, DEGREE))


class FloatHolder:
    """TenSEAL's own API at the key-holder. Missing: flooding; `decrypt()` shows the noise."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self._context = ts.context(ts.SCHEME_TYPE.CKKS, DEGREE, coeff_mod_bit_sizes=list(chain.bits))
        self._context.global_scale = chain.scale
        self.public = self._context.copy()
        self.public.make_context_public()

    def encrypt(self, values: Floats) -> bytes:
        return bytes(ts.ckks_vector(self._context, values.tolist()).serialize())

    def open(self, masked: bytes) -> Floats:
        return np.array(ts.ckks_vector_from(self._context, masked).decrypt())

    def true_key(self) -> Residues:
        """For the verdict only: the secret key, coefficients -1, 0 and 1."""
        with scratch() as path:
            self._context.secret_key().data.save(path)
            key = seal.SecretKey()
            key.load(self.chain.context, path)
        prime = self.chain.primes[0]
        residues = ntt_inverse(read(key.data().dyn_array(), len(self.chain.bits), DEGREE)[0], prime)
        return np.where(residues > prime // 2, residues - prime, residues)

    def masked_product(self, blob: bytes, factors: Floats, most: float) -> tuple[bytes, Block, Floats]:
        """The requester's part: multiply, rescale, add a float mask. Bytes, their residues, and the mask."""
        mask = np.array([secrets.SystemRandom().uniform(-most, most) for _ in factors])
        vector = ts.ckks_vector_from(self.public, blob) * factors.tolist() + mask.tolist()
        sent = bytes(vector.serialize())
        return sent, self.read(sent), mask

    def read(self, blob: bytes) -> Block:
        """What anybody reads from a ciphertext's bytes."""
        vector = ts.ckks_vector_from(self.public, blob)
        with scratch() as path:
            vector.ciphertext()[0].save(path)
            ciphertext = seal.Ciphertext()
            ciphertext.load(self.chain.context, path)
        return Block.of(ciphertext)


class Lab:
    """SEAL's own API, for what TenSEAL's hides: one key, and the requester's ways to mask a result."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.context = chain.context
        generator = seal.KeyGenerator(self.context)
        self.secret = generator.secret_key()
        public = seal.PublicKey()
        generator.create_public_key(public)
        self.encoder = seal.CKKSEncoder(self.context)
        self.encryptor = seal.Encryptor(self.context, public)
        self.evaluator = seal.Evaluator(self.context)
        self.decryptor = seal.Decryptor(self.context, self.secret)

    def encode(self, values: Sequence[float] | Floats, scale: float) -> seal.Plaintext:
        plaintext = seal.Plaintext()
        self.encoder.encode([float(v) for v in values], scale, plaintext)
        return plaintext

    def encode_at(self, values: Floats, like: seal.Ciphertext) -> seal.Plaintext:
        plaintext = seal.Plaintext()
        self.encoder.encode([float(v) for v in values], like.parms_id(), like.scale, plaintext)
        return plaintext

    def encrypt(self, values: Floats) -> seal.Ciphertext:
        ciphertext = seal.Ciphertext()
        self.encryptor.encrypt(self.encode(values, self.chain.scale), ciphertext)
        return ciphertext

    def product(self, ciphertext: seal.Ciphertext, factors: Floats, scale: float) -> seal.Ciphertext:
        result = seal.Ciphertext()
        self.evaluator.multiply_plain(ciphertext, self.encode(factors, scale), result)
        return result

    def add_float_mask(self, ciphertext: seal.Ciphertext, most: float) -> None:
        """Missing: bits. A float has 53, the scaled coefficients of the mask are longer, the rest is zero."""
        mask = [secrets.SystemRandom().uniform(-most, most) for _ in range(DEGREE // 2)]
        self.evaluator.add_plain_inplace(ciphertext, self.encode(mask, ciphertext.scale))

    def add_encrypted_zero(self, ciphertext: seal.Ciphertext) -> None:
        zero = seal.Ciphertext()
        self.encryptor.encrypt_zero(ciphertext.parms_id(), zero)
        zero.scale = ciphertext.scale
        self.evaluator.add_inplace(ciphertext, zero)

    def phase(self, ciphertext: seal.Ciphertext) -> Residues:
        """The key-holder's view: coefficients of c0 + c1 s, one row a prime."""
        plaintext = seal.Plaintext()
        self.decryptor.decrypt(ciphertext, plaintext)
        levels = ciphertext.coeff_modulus_size()
        rows = read(plaintext.dyn_array(), levels, DEGREE)
        return np.array(
            [ntt_inverse(r, p) for r, p in zip(rows, self.chain.primes, strict=False)], dtype=object
        )

    def decode(self, ciphertext: seal.Ciphertext) -> Floats:
        plaintext = seal.Plaintext()
        self.decryptor.decrypt(ciphertext, plaintext)
        return np.array(self.encoder.decode_double(plaintext))
