"""SEAL with the primes of our ring: what it takes to compare the two.

SEAL keeps its last prime for key switching, so a sixth prime of 21 bits stands behind the five. Its CKKS
scheme with scale 1 is plain RLWE: c0 + c1 s is the message plus a small error. SEAL objects are written in
SEAL's serialised form, uncompressed:

    object      header, parameter id (4 u64), [fields], array
    header      magic u16, header size u8, version u8 u8, compression u8, reserved u16, size u64
    array       header, count u64, words u64
    ciphertext  fields: NTT form u8, polynomials u64, N u64, primes u64, scale f64, correction u64
    plaintext   fields: coefficients u64, scale f64
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import tenseal.sealapi as seal
from numpy.typing import NDArray

from securefed.crypto.lattice.ring import DEGREE, PRIMES
from tests.audit.ring import scratch

__all__ = ["Peer", "Words", "canonical", "read"]

SPARES = (1810433, 1794049)
"""The next primes that are 1 modulo 8192."""

Words = NDArray[np.uint64]


def canonical(residues: NDArray[np.float64]) -> Words:
    """Centred residues, (5, 4096), as SEAL has them."""
    moduli = np.array(PRIMES, dtype=np.int64)[:, None]
    return (residues.astype(np.int64) % moduli).astype(np.uint64)


def read(words: Any) -> Words:
    """The words of a SEAL array."""
    return np.fromiter(map(words.at, range(words.size())), dtype=np.uint64, count=words.size())


def _header(size: int) -> bytes:
    """A header, with the version of the library in use."""
    with scratch() as path:
        seal.Plaintext().save(path)
        with open(path, "rb") as file:
            version = file.read(5)
    return version + bytes(3) + struct.pack("<Q", 16 + size)


def _load(target: Any, parts: list[bytes], context: Any) -> Any:
    with scratch() as path:
        with open(path, "wb") as file:
            file.write(b"".join(parts))
        target.load(context, path)
    return target


class _Context:
    """SEAL for a chain of primes, without its security check: 126 bits are too many for this ring."""

    def __init__(self, primes: tuple[int, ...]) -> None:
        chosen = seal.EncryptionParameters(seal.SCHEME_TYPE.CKKS)
        chosen.set_poly_modulus_degree(DEGREE)
        chosen.set_coeff_modulus([seal.Modulus(prime) for prime in primes])
        self.context = seal.SEALContext(chosen, True, seal.SEC_LEVEL_TYPE.NONE)
        assert self.context.parameters_set(), self.context.parameters_error_message()
        self.evaluator = seal.Evaluator(self.context)
        self.data_id = struct.pack("<4Q", *self.context.first_parms_id())
        self.key_id = struct.pack("<4Q", *self.context.key_parms_id())


def _array(fields: bytes, words: Words) -> list[bytes]:
    """A saved object: its fields, then an array of words."""
    whole = np.ascontiguousarray(words)
    front = fields + _header(8 + whole.nbytes) + struct.pack("<Q", whole.size)
    return [_header(len(front) + whole.nbytes) + front, whole.tobytes()]


class Peer:
    """Keys, plaintexts and ciphertexts of SEAL, from residues (..., primes, 4096) below their primes."""

    def __init__(self) -> None:
        self._own = _Context((*PRIMES, SPARES[0]))
        self._wide = _Context((*PRIMES, *SPARES))
        self.context = self._own.context

    def _chain(self, primes: int) -> _Context:
        return self._own if primes == len(PRIMES) else self._wide

    def ciphertext(self, residues: Words, *, ntt: bool = True) -> Any:
        polynomials, primes, degree = residues.shape
        used = self._chain(primes)
        fields = used.data_id + struct.pack("<BQQQdQ", ntt, polynomials, degree, primes, 1.0, 1)
        return _load(seal.Ciphertext(), _array(fields, residues), used.context)

    def _plain(self, target: Any, parameters: bytes, residues: Words) -> Any:
        fields = parameters + struct.pack("<Qd", residues.size, 1.0)
        return _load(target, _array(fields, residues), self.context)

    def plaintext(self, residues: Words) -> Any:
        """A plaintext in NTT form, (5, 4096)."""
        return self._plain(seal.Plaintext(), self._own.data_id, residues)

    def secret_key(self, secret: NDArray[np.int8]) -> Any:
        """A secret key: s in NTT form modulo all six primes."""
        small = np.stack([secret.astype(np.int64) % prime for prime in (*PRIMES, SPARES[0])])
        words = self.to_ntt(small.astype(np.uint64)[None])[0]
        return self._plain(seal.SecretKey(), self._own.key_id, words)

    def read(self, block: Any) -> Words:
        """The residues of a ciphertext, (polynomials, primes, 4096)."""
        shape = (block.size(), block.coeff_modulus_size(), block.poly_modulus_degree())
        return read(block.dyn_array()).reshape(shape)

    def to_ntt(self, polynomials: Words) -> Words:
        """Coefficients to values at the roots, in SEAL's order."""
        return self._transform(polynomials, forward=True)

    def from_ntt(self, polynomials: Words) -> Words:
        return self._transform(polynomials, forward=False)

    def _transform(self, polynomials: Words, *, forward: bool) -> Words:
        evaluator = self._chain(polynomials.shape[1]).evaluator
        change = evaluator.transform_to_ntt_inplace if forward else evaluator.transform_from_ntt_inplace
        # SEAL takes two polynomials at least, and refuses to work where all but the first are zero.
        block = self.ciphertext(np.concatenate([polynomials, np.ones_like(polynomials[:1])]), ntt=not forward)
        change(block)
        return self.read(block)[: len(polynomials)]
