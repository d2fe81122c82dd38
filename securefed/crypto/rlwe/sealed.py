"""SEAL objects from residues and residues from SEAL objects, through SEAL's serialised form.

The binding gives no access to coefficients except one at a time; it saves to a path and loads from one. A
memfd under /proc/self/fd is such a path (elsewhere a temporary file of mode 0600 is), and the form is simple:

    object      header, parameter id (4 u64), [fields], array
    header      magic u16, header size u8, version u8 u8, compression u8, reserved u16, size u64
    array       header, count u64, words u64
    ciphertext  fields: NTT form u8, polynomials u64, N u64, primes u64, scale f64, correction u64
    plaintext   fields: coefficients u64, scale f64
    Galois keys fields: count u64, then for each index a u64 count and that many ciphertexts

Everything is written uncompressed, from residues that the caller has validated. Saving always compresses
(zstd), which is undone here. SEAL's own scales are set to 1 throughout: the scales are ours to track.
"""

from __future__ import annotations

import atexit
import os
import struct
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, cached_property
from typing import Any

import numpy as np
import tenseal.sealapi as seal
import zstandard
from numpy.typing import NDArray

from securefed.crypto.errors import BadKey, FormatError
from securefed.crypto.rlwe.ring import Ring, Words

__all__ = ["EXACT_BITS", "Linear", "Sealed", "sealed"]

# Where the count of words stands: after the id (32), the fields (41) and the array's header (16).
_WORDS_AT = 89
_MOST_POLYNOMIALS = 16
EXACT_BITS = 36
"""Coefficients below 2^this go through floating point unharmed."""


class _Scratch(threading.local):
    """One file in memory for each thread of each process, at a path that SEAL can open."""

    def __init__(self) -> None:
        self._owner = 0
        self._handle = -1
        self._path = ""

    def file(self) -> tuple[int, str]:
        if self._owner != os.getpid():  # a forked child must not share its parent's file
            if hasattr(os, "memfd_create"):
                self._handle = os.memfd_create("securefed")
                self._path = f"/proc/self/fd/{self._handle}"
            else:
                self._handle, self._path = tempfile.mkstemp(prefix="securefed-")
                atexit.register(_remove, self._path)
            self._owner = os.getpid()
        return self._handle, self._path


def _remove(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)


_SCRATCH = _Scratch()


class _Context:
    """SEAL's objects for a chain of primes."""

    def __init__(self, name: str, degree: int, primes: Sequence[int], security: Any) -> None:
        chosen = seal.EncryptionParameters(seal.SCHEME_TYPE.CKKS)
        chosen.set_poly_modulus_degree(degree)
        chosen.set_coeff_modulus([seal.Modulus(prime) for prime in primes])
        self.context = seal.SEALContext(chosen, True, security)
        if not self.context.parameters_set():
            raise BadKey(f"SEAL refuses the parameter set {name}: {self.context.parameters_error_message()}")
        self.evaluator = seal.Evaluator(self.context)
        self.data_id = tuple(self.context.first_parms_id())
        self.key_id = tuple(self.context.key_parms_id())


class Sealed:
    """SEAL for one ring: conversions, transforms, and the operations on ciphertexts."""

    def __init__(self, ring: Ring) -> None:
        self.ring = ring
        self._data = _Context(ring.name, ring.degree, ring.primes, seal.SEC_LEVEL_TYPE.TC128)
        self.context, self.evaluator = self._data.context, self._data.evaluator

    @cached_property
    def _wide(self) -> _Context:
        """Data modulo all primes, for transforming the parts of a key: nothing is encrypted in it."""
        ring = self.ring
        spare = _prime_below(min(ring.primes), ring.degree)
        return _Context(ring.name, ring.degree, (*ring.primes, spare), seal.SEC_LEVEL_TYPE.NONE)

    def evaluator_of(self, item: Any) -> Any:
        """SEAL's evaluator for a ciphertext, by its primes."""
        return self._chain(item.coeff_modulus_size()).evaluator

    def _chain(self, primes: int) -> _Context:
        return self._data if primes == len(self.ring.data_primes) else self._wide

    # Objects from residues

    def ciphertext(self, residues: Words, ntt: bool = True) -> Any:
        """A SEAL ciphertext of validated residues, (polynomials, primes, N)."""
        used = self._chain(residues.shape[1])
        return _load(seal.Ciphertext(), self._parts(residues, ntt, used.data_id), used.context)

    def plaintext(self, residues: Words) -> Any:
        """A SEAL plaintext in NTT form of validated residues, (data primes, N)."""
        words = np.ascontiguousarray(residues)
        array = _header(8 + words.nbytes) + struct.pack("<Q", words.size)
        front = _identity(self._data.data_id) + struct.pack("<Qd", words.size, 1.0) + array
        parts: list[bytes | memoryview] = [_header(len(front) + words.nbytes) + front, words.data.cast("B")]
        return _load(seal.Plaintext(), parts, self.context)

    def plaintexts(self, polynomials: NDArray[np.int64]) -> list[Any]:
        """SEAL plaintexts in NTT form of (k, N) integers below every prime in magnitude.

        Small ones go in through SEAL's encoder, which takes values at the roots and rounds what it makes of
        them to whole coefficients: they arrive exactly, and nothing comes back through a file. The bound: a
        transform of length N errs by at most 5 log2(N) 2^-53 of the Euclidean norm, there are two, and a norm
        is at most sqrt(N) times the largest; below 2^EXACT_BITS that is less than 1/4.
        """
        if polynomials.size and max(-int(polynomials.min()), int(polynomials.max())) >> EXACT_BITS:
            return [self.plaintext(words) for words in self.to_ntt(self.ring.from_small(polynomials))]
        turns, places = _roots(self.ring.degree)
        values = np.fft.ifft(polynomials * turns, norm="forward")[:, places]
        return [self._encoded(each) for each in values]

    def _encoded(self, values: NDArray[np.complex128]) -> Any:
        made = seal.Plaintext()
        self._encoder.encode(values.tolist(), self._data.data_id, 1.0, made)
        return made

    @cached_property
    def _encoder(self) -> Any:
        return seal.CKKSEncoder(self.context)

    def public_key(self, residues: Words) -> Any:
        """A SEAL public key of validated residues, (2, primes, N)."""
        return _load(seal.PublicKey(), self._parts(residues, True, self._data.key_id), self.context)

    def galois_keys(self, keys: Mapping[int, Words]) -> Any:
        """From element -> (digits, 2, primes, N) residues: for each data prime, a ciphertext at key level."""
        count = (max(keys) - 1) // 2 + 1
        parts: list[bytes | memoryview] = [_identity(self._data.key_id) + struct.pack("<Q", count)]
        by_index = {(element - 1) // 2: residues for element, residues in keys.items()}
        for index in range(count):
            found = by_index.get(index)
            parts.append(struct.pack("<Q", 0 if found is None else len(found)))
            if found is not None:
                for digit in found:
                    parts.extend(self._parts(digit, True, self._data.key_id))
        joined = b"".join(parts)
        return _load(seal.GaloisKeys(), [_header(len(joined)), joined], self.context)

    def _parts(self, residues: Words, ntt: bool, parameters: Sequence[int]) -> list[bytes | memoryview]:
        polynomials, primes, degree = residues.shape
        words = np.ascontiguousarray(residues)
        fields = struct.pack("<BQQQdQ", ntt, polynomials, degree, primes, 1.0, 1)
        array = _header(8 + words.nbytes) + struct.pack("<Q", words.size)
        front = _identity(parameters) + fields + array
        return [_header(len(front) + words.nbytes) + front, words.data.cast("B")]

    # Residues from objects

    def read(self, held: Any) -> Words:
        """(polynomials, primes, N) residues of a SEAL ciphertext."""
        handle, path = _SCRATCH.file()
        held.save(path)
        blob = os.pread(handle, os.fstat(handle).st_size, 0)
        os.ftruncate(handle, 0)
        body = blob[16:]
        if blob[5]:
            body = zstandard.ZstdDecompressor().decompressobj().decompress(body)
        shape = (held.size(), held.coeff_modulus_size(), held.poly_modulus_degree())
        words = np.frombuffer(body, dtype="<u8", offset=_WORDS_AT + 8)
        if words.size != shape[0] * shape[1] * shape[2]:
            raise FormatError(f"SEAL saved {words.size} words of a ciphertext of shape {shape}")
        return words.astype(np.uint64, copy=False).reshape(shape)

    # Operations on polynomials

    def to_ntt(self, polynomials: Words) -> Words:
        """(k, primes, N) coefficients to values at the roots, in SEAL's order."""
        return self._transform(True, polynomials.shape[1])(polynomials)

    def from_ntt(self, polynomials: Words) -> Words:
        """The inverse of `to_ntt`."""
        return self._transform(False, polynomials.shape[1])(polynomials)

    @cache  # noqa: B019  # there is one of these for each ring, for ever
    def _transform(self, forward: bool, primes: int) -> Linear:
        evaluator = self._chain(primes).evaluator
        change = evaluator.transform_to_ntt_inplace if forward else evaluator.transform_from_ntt_inplace
        return Linear(self, change, before=not forward, after=forward)

    def multiplication(self, factor: Words) -> Linear:
        """By one polynomial, (data primes, N) in NTT form: coefficients to coefficients."""
        plain, evaluator = self.plaintext(factor), self.evaluator

        def work(held: Any) -> None:
            evaluator.transform_to_ntt_inplace(held)
            evaluator.multiply_plain_inplace(held, plain)
            evaluator.transform_from_ntt_inplace(held)

        return Linear(self, work, before=False, after=False)

    # Operations on ciphertexts

    def apply(self, operation: str, *operands: Any) -> Any:
        result = seal.Ciphertext()
        getattr(self.evaluator, operation)(*operands, result)
        return result

    def zero(self, public_key: Any) -> Any:
        """A fresh encryption of zero."""
        encrypted = seal.Ciphertext()
        seal.Encryptor(self.context, public_key).encrypt_zero(encrypted)
        encrypted.scale = 1.0
        return encrypted


@cache
def sealed(ring: Ring) -> Sealed:
    """Built once in each process."""
    return Sealed(ring)


class Linear:
    """A linear operation on polynomials, (k, primes, N), done by SEAL on ciphertexts made of them.

    SEAL takes two polynomials at least and refuses to work where all but the first are zero, so a polynomial
    by itself gets a companion. What becomes of that one is taken off again: saving compresses, which takes
    longest for numbers that are neither random nor constant.
    """

    def __init__(self, held: Sealed, work: Callable[[Any], None], *, before: bool, after: bool) -> None:
        """`before` and `after`: whether polynomials are in NTT form."""
        self._held, self._work, self._before, self._after = held, work, before, after
        self._companion: Any = None

    def __call__(self, polynomials: Words) -> Words:
        found = [
            self._some(polynomials[start : start + _MOST_POLYNOMIALS - 1])
            for start in range(0, len(polynomials), _MOST_POLYNOMIALS - 1)
        ]
        return np.concatenate(found) if len(found) > 1 else found[0]

    def _some(self, polynomials: Words) -> Words:
        held, ones = self._held, _ones(*polynomials.shape[1:])
        if len(polynomials) > 1:
            whole = polynomials if polynomials[1:].any() else np.concatenate([polynomials, ones])
            item = held.ciphertext(whole, self._before)
            self._work(item)
            return held.read(item)[: len(polynomials)]
        item = held.ciphertext(np.concatenate([polynomials, ones]), self._before)
        self._work(item)
        if self._companion is None:
            rest = held.ring.subtract(held.read(item)[1:], ones)
            self._companion = held.ciphertext(np.concatenate([np.zeros_like(rest), rest]), self._after)
        held.evaluator_of(item).sub_inplace(item, self._companion)
        return held.read(item)[:1]


@cache
def _ones(primes: int, degree: int) -> Words:
    return np.ones((1, primes, degree), dtype=np.uint64)


@cache
def _roots(degree: int) -> tuple[NDArray[np.complex128], NDArray[np.intp]]:
    """zeta^k for each k, with zeta of order 2N; and the odd powers of zeta in the order of SEAL's encoder."""
    powers = [1]
    while len(powers) < degree // 2:
        powers.append(powers[-1] * 3 % (2 * degree))
    turns = np.exp(1j * np.pi * np.arange(degree) / degree)
    return turns, (np.array(powers) - 1) // 2


def _prime_below(start: int, degree: int) -> int:
    """The next smaller prime that is 1 modulo 2N."""
    from gmpy2 import is_prime

    found = start - 2 * degree
    while not is_prime(found):
        found -= 2 * degree
    return found


def _load(target: Any, parts: Sequence[bytes | memoryview], context: Any) -> Any:
    handle, path = _SCRATCH.file()
    os.lseek(handle, 0, os.SEEK_SET)
    due = sum(len(part) for part in parts)
    written = os.writev(handle, parts)
    if written != due:
        raise OSError(f"{due - written} bytes of a SEAL object could not be written to {path}")
    target.load(context, path)
    os.ftruncate(handle, 0)
    return target


@cache
def _version() -> bytes:
    """The first five bytes of a header, from the library in use."""
    handle, path = _SCRATCH.file()
    seal.Plaintext().save(path)
    found = os.pread(handle, 5, 0)
    os.ftruncate(handle, 0)
    return found


def _header(size: int) -> bytes:
    return _version() + bytes(3) + struct.pack("<Q", 16 + size)


def _identity(parameters: Sequence[int]) -> bytes:
    return struct.pack("<4Q", *parameters)
