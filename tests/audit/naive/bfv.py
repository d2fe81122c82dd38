"""BFV with a perfect plaintext mask: the value is hidden, and each time the ciphertext around it is not."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import tenseal.sealapi as seal

from tests.audit.ring import Residues, from_residues, ntt_inverse, read

DEGREE = 4096
"""SEAL's default set for 128-bit security with two primes; more coefficients only help the attacks."""


@lru_cache(maxsize=1)
def _context() -> seal.SEALContext:
    parameters = seal.EncryptionParameters(seal.SCHEME_TYPE.BFV)
    parameters.set_poly_modulus_degree(DEGREE)
    parameters.set_coeff_modulus(seal.CoeffModulus.BFVDefault(DEGREE, seal.SEC_LEVEL_TYPE.TC128))
    parameters.set_plain_modulus(seal.PlainModulus.Batching(DEGREE, 20))
    return seal.SEALContext(parameters, True, seal.SEC_LEVEL_TYPE.TC128)


PRIMES = tuple(m.value() for m in seal.CoeffModulus.BFVDefault(DEGREE, seal.SEC_LEVEL_TYPE.TC128))[:-1]


class Holder:
    """The key-holder A, with the requester's two ways to mask as methods: they use the public half alone."""

    def __init__(self) -> None:
        self.context = _context()
        self.plain_modulus = int(seal.PlainModulus.Batching(DEGREE, 20).value())
        generator = seal.KeyGenerator(self.context)
        self._secret = generator.secret_key()
        public = seal.PublicKey()
        generator.create_public_key(public)
        self.encoder = seal.BatchEncoder(self.context)
        self.encryptor = seal.Encryptor(self.context, public)
        self.evaluator = seal.Evaluator(self.context)
        self._key = read(self._secret.data().dyn_array(), len(PRIMES) + 1, DEGREE)[:-1]

    def uniform(self) -> seal.Plaintext:
        """A polynomial uniform over the plaintext space: as data, or as a mask."""
        plaintext = seal.Plaintext()
        self.encoder.encode([secrets.randbelow(self.plain_modulus) for _ in range(DEGREE)], plaintext)
        return plaintext

    def encrypt(self, plaintext: seal.Plaintext) -> seal.Ciphertext:
        ciphertext = seal.Ciphertext()
        self.encryptor.encrypt(plaintext, ciphertext)
        return ciphertext

    def combination(
        self, ciphertexts: Sequence[seal.Ciphertext], multipliers: Sequence[int]
    ) -> seal.Ciphertext:
        terms = []
        for ciphertext, multiplier in zip(ciphertexts, multipliers, strict=True):
            term = seal.Ciphertext()
            self.evaluator.multiply_plain(ciphertext, seal.Plaintext(f"{multiplier:X}"), term)
            terms.append(term)
        total = seal.Ciphertext()
        self.evaluator.add_many(terms, total)
        return total

    def masked_by_addition(self, ciphertext: seal.Ciphertext) -> seal.Ciphertext:
        """Missing: c1 stays what the multipliers made of it."""
        masked = seal.Ciphertext()
        self.evaluator.add_plain(ciphertext, self.uniform(), masked)
        return masked

    def masked_by_encryption(self, ciphertext: seal.Ciphertext) -> seal.Ciphertext:
        """A fresh encryption of the mask: c1 is uniform. Missing: flooding, the noise stays as it is."""
        masked = seal.Ciphertext()
        self.evaluator.add(ciphertext, self.encrypt(self.uniform()), masked)
        return masked

    def c1(self, ciphertext: seal.Ciphertext) -> Residues:
        """Coefficients of c1 modulo the first prime: on the wire for all to see."""
        return np.asarray(read(ciphertext.dyn_array(), 2, len(PRIMES), DEGREE)[1, 0])

    def noise(self, ciphertext: seal.Ciphertext) -> Residues:
        """The key-holder's view. t * phase mod q is t times the noise: the message is a multiple of q/t."""
        in_ntt = seal.Ciphertext()
        self.evaluator.transform_to_ntt(ciphertext, in_ntt)
        c0, c1 = read(in_ntt.dyn_array(), 2, len(PRIMES), DEGREE)
        phase = [ntt_inverse((c0[i] + c1[i] * self._key[i]) % p, p) for i, p in enumerate(PRIMES)]
        scaled = np.array(
            [row * self.plain_modulus % p for row, p in zip(phase, PRIMES, strict=True)], dtype=object
        )
        return from_residues(scaled, PRIMES)
