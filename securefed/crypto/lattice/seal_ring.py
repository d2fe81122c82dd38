"""The ring Z_q[X]/(X**8192 + 1) of CKKS, q a product of primes of 60 bits: residues in numpy, and SEAL.

*Residues.* Every prime is 2**60 - delta with delta below 2**18. So 2**60 can be replaced by delta: products
and long integers are cut into pieces of 30 and 60 bits and folded. Arrays have the primes on their last axis
but one, (..., primes, coefficients), as SEAL stores them.

*SEAL* has the transforms and the arithmetic of ciphertexts. Its binding saves objects to a path and loads
from one: a memfd under /proc/self/fd. The form is simple:

    object      header, parameter id (4 u64), [fields], array
    header      magic u16, header size u8, version u8 u8, compression u8, reserved u16, size u64
    array       header, count u64, words u64
    ciphertext  fields: NTT form u8, polynomials u64, N u64, primes u64, scale f64, correction u64
    plaintext   fields: coefficients u64, scale f64
    Galois keys fields: count u64, then for each index a u64 count and that many ciphertexts

Objects are written uncompressed from validated residues. Saving always compresses (zstd). Residues do not
compress, so the frames consist of raw blocks, which are read here. Should a block be compressed after all,
the words are read one by one. SEAL's own scales are 1 throughout: the scales are ours to track.
"""

from __future__ import annotations

import errno
import hashlib
import os
import struct
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import tenseal.sealapi as seal
from numpy.typing import NDArray

from securefed.crypto.randomness import ByteSource, Integers, gaussian_integers
from securefed.errors import BadCiphertext, BadKey

Words = NDArray[np.uint64]

DEGREE = 8192
PRIMES = (0xFFFFFFFFFFD8001, 0xFFFFFFFFFFE8001, 0xFFFFFFFFFFFC001)
DATA_PRIMES = PRIMES[:2]
"""Those of q; the last prime serves key switching alone."""

_LOW30 = np.int64((1 << 30) - 1)
_LOW60 = np.int64((1 << 60) - 1)
_WORD = np.uint64((1 << 60) - 1)
_MODULI = np.array(PRIMES, dtype=np.int64)[:, None]
_DELTAS = (np.int64(1) << np.int64(60)) - _MODULI
# Bits that a float is rounded to before it is shifted: more than its own 53, and below every prime.
_MANTISSA = 59
_FOURTH_PRIME = 0xFFFFFFFFFFC4001
"""Makes a ring whose data live modulo all three primes."""
_MOST_POLYNOMIALS = 16
_ZSTD = 0xFD2FB528


def _moduli(like: NDArray[np.generic]) -> tuple[Integers, Integers]:
    count = like.shape[-2]
    return _MODULI[:count], _DELTAS[:count]


def _fold(high: Integers, low: Integers, moduli: Integers, deltas: Integers) -> Words:
    """Return high * 2^60 + low modulo each prime, for |high| < 2^62 and 0 <= low < 2^61 + 2^60."""
    upper = (high >> 30) * deltas  # below 2^50
    total = (upper >> 30) * deltas + ((upper & _LOW30) << 30) + (high & _LOW30) * deltas + low
    total += (total >> 63) & moduli
    total = (total & _LOW60) + (total >> 60) * deltas
    total -= np.where(total >= moduli, moduli, 0)
    return np.asarray(total.view(np.uint64))


def from_pieces(integers: Integers, shift: int, low: Integers | int = 0, primes: int = 2) -> Words:
    """Return residues of integers * 2^shift + low, (..., n) to (..., primes, n).

    shift <= 60, -2^59 < low < 2^60; |integers * 2^shift| < 2^121; without a shift |integers| < 2^59.
    """
    moduli, deltas = _MODULI[:primes], _DELTAS[:primes]
    if shift == 0:  # below every prime
        whole = (integers + low)[..., None, :]
        return np.asarray((whole + ((whole >> 63) & moduli)).view(np.uint64))
    expanded = integers[..., None, :]
    lower = low if isinstance(low, int) else low[..., None, :]
    bottom = ((expanded & ((1 << (60 - shift)) - 1)) << shift) + lower
    return _fold(expanded >> (60 - shift), bottom, moduli, deltas)


def from_floats(values: NDArray[np.float64], bits: int, errors: Integers | int = 0) -> Words:
    """Return residues of round(values * 2^bits) + errors, to float64's precision; below 2^118."""
    largest = int(np.frexp(np.max(np.abs(values), initial=0.0))[1])
    kept = min(bits, _MANTISSA - largest)
    return from_pieces(np.rint(np.ldexp(values, kept)).astype(np.int64), bits - kept, errors)


def add(a: Words, b: Words) -> Words:
    moduli = _moduli(a)[0].view(np.uint64)
    total = a + b
    total -= np.where(total >= moduli, moduli, np.uint64(0))
    return total


def subtract(a: Words, b: Words) -> Words:
    moduli = _moduli(a)[0].view(np.uint64)
    return a - b + np.where(a < b, moduli, np.uint64(0))


def multiply(a: Words, b: Words) -> Words:
    """Return products modulo each prime."""
    return _product(a.view(np.int64), b.view(np.int64), *_moduli(a))


def _product(x: Integers, y: Integers | np.int64, moduli: Integers, deltas: Integers) -> Words:
    """Multiply by schoolbook on 30-bit halves."""
    x1, x0, y1, y0 = x >> 30, x & _LOW30, y >> 30, y & _LOW30
    middle = x1 * y0 + x0 * y1
    return _fold(x1 * y1 + (middle >> 30), ((middle & _LOW30) << 30) + x0 * y0, moduli, deltas)


def check_residues(residues: Words, what: str) -> Words:
    """Return residues, (..., primes, n), whose words are all below their primes; else raise BadCiphertext."""
    wrong = int((residues >= _moduli(residues)[0].view(np.uint64)).sum())
    if wrong:
        raise BadCiphertext(f"{what}: {wrong} residues are not below their prime")
    return residues


def uniform(source: ByteSource, count: int, primes: int = 2) -> Words:
    """Draw (primes, count) residues: 60 random bits each, drawn again when not below the prime."""

    def draw(words: int) -> Words:
        return np.frombuffer(source(8 * words), dtype="<u8").astype(np.uint64) & _WORD

    residues = draw(primes * count).reshape(primes, count)
    while (again := residues >= _MODULI[:primes].view(np.uint64)).any():
        residues[again] = draw(int(again.sum()))
    return residues


def gaussian(source: ByteSource, count: int, deviation: float, primes: int = 2) -> Words:
    """Draw (primes, count) residues of one rounded Gaussian each, the same integer modulo every prime."""
    high, shift, low = gaussian_integers(source, count, deviation)
    return from_pieces(high, shift, low, primes)


def expand(seed: bytes, polynomials: int, primes: int = 2, first: int = 0) -> Words:
    """Expand (polynomials, primes, N) residues from a public seed: SHAKE-128, 60 bits of a word, rejection.

    Each polynomial and prime has a stream of its own. A word is refused with a probability below 2**-42, so 8
    spare words never run out (2**-300).
    """
    result = np.empty((polynomials, primes, DEGREE), dtype=np.uint64)
    for i in range(polynomials):
        for j in range(primes):
            label = (first + i).to_bytes(4, "little") + bytes([j])
            stream = hashlib.shake_128(seed + label).digest(8 * (DEGREE + 8))
            words = np.frombuffer(stream, dtype="<u8").astype(np.uint64) & _WORD
            result[i, j] = words[words < PRIMES[j]][:DEGREE]
    return result


def centred(residues: Words) -> NDArray[np.float64]:
    """Return the representatives nearest to 0 of (..., 2, n) residues, as float64: relative error 2^-52.

    With x = r0 + p0 * k and k = (r1 - r0) / p0 mod p1, the centred x has k centred; one rounding of k and one
    of the sum.
    """
    p0, p1 = DATA_PRIMES
    r0 = residues[..., 0, :].view(np.int64)
    difference = residues[..., 1, :].view(np.int64) - r0
    difference += (difference >> 63) & np.int64(p1)
    k = _product(difference, np.int64(pow(p0, -1, p1)), _MODULI[1], _DELTAS[1]).view(np.int64)
    negative = k > p1 // 2
    # One p0 moves from k to r0, so that small negative numbers have k = 0 and no cancellation.
    k = np.where(negative, k - (p1 - 1), k)
    rest = np.where(negative, r0 - p0, r0)
    result: NDArray[np.float64] = k.astype(np.float64) * float(p0) + rest.astype(np.float64)
    return result


class Engine:
    """SEAL's objects for a ring; nothing in them belongs to a key."""

    def __init__(self, primes: tuple[int, ...], security: Any) -> None:
        chosen = seal.EncryptionParameters(seal.SCHEME_TYPE.CKKS)
        chosen.set_poly_modulus_degree(DEGREE)
        chosen.set_coeff_modulus([seal.Modulus(prime) for prime in primes])
        self.context: Any = seal.SEALContext(chosen, True, security)
        if not self.context.parameters_set():
            raise BadKey(f"SEAL refuses a ring of {DEGREE}: {self.context.parameters_error_message()}")
        self.evaluator: Any = seal.Evaluator(self.context)
        self.encoder: Any = seal.CKKSEncoder(self.context)
        self.data_id, self.key_id = (
            struct.pack("<4Q", *each) for each in (self.context.first_parms_id(), self.context.key_parms_id())
        )


@cache
def engine() -> Engine:
    """Return SEAL's objects for the ring. Each process builds them once."""
    return Engine(PRIMES, seal.SEC_LEVEL_TYPE.TC128)


@cache
def _wide_engine() -> Engine:
    """Data modulo all three primes, for transforming the parts of a key: nothing is encrypted in it."""
    return Engine((*PRIMES, _FOURTH_PRIME), seal.SEC_LEVEL_TYPE.NONE)


def apply(operation: str, *operands: Any) -> Any:
    """Return the result of an operation of SEAL's evaluator as a new ciphertext."""
    result = seal.Ciphertext()
    getattr(engine().evaluator, operation)(*operands, result)
    return result


def encode(slots: list[float] | list[complex]) -> Any:
    """Encode slots, in SEAL's order, without a scale; None where all of them round to zero."""
    encoded = seal.Plaintext()
    engine().encoder.encode(slots, 1.0, encoded)
    return None if encoded.is_zero() else encoded


def encrypt_zero(key: Any) -> Any:
    """Encrypt zero under a public key.

    SEAL's Encryptor has a place for a secret key. So it is made for each call, and nothing keeps it.
    """
    encrypted = seal.Ciphertext()
    seal.Encryptor(engine().context, key).encrypt_zero(encrypted)
    encrypted.scale = 1.0
    return encrypted


def read_ciphertext(ciphertext: Any) -> Words:
    """Return the (2, 2, N) residues of a ciphertext."""
    return read(ciphertext.dyn_array()).reshape(2, 2, DEGREE)


class _Scratch(threading.local):
    """One file in memory for each thread of each process, at a path that SEAL can open."""

    def __init__(self) -> None:
        self._owner, self._handle = 0, -1

    def file(self) -> tuple[int, str]:
        if self._owner != os.getpid():  # a forked child must not share its parent's file
            self._handle, self._owner = os.memfd_create("securefed"), os.getpid()
        return self._handle, f"/proc/self/fd/{self._handle}"


_SCRATCH = _Scratch()


def _no_room(size: int) -> OSError:
    return OSError(
        errno.EFBIG,
        f"CKKS needs a file in memory of {size + 4096:,} bytes, and this process may not have one: raise its "
        "limit on file sizes (ulimit -f, LimitFSIZE=) or on memory",
    )


def _load(target: Any, parts: Sequence[bytes | memoryview], context: Any) -> Any:
    handle, path = _SCRATCH.file()
    os.lseek(handle, 0, os.SEEK_SET)
    size = sum(len(part) for part in parts)
    try:
        if os.writev(handle, parts) != size:
            raise _no_room(size)
    except OSError as error:
        raise _no_room(size) from error
    target.load(context, path)
    os.ftruncate(handle, 0)
    return target


def read(words: Any) -> Words:
    """Return the words of a SEAL array."""
    handle, path = _SCRATCH.file()
    try:
        words.save(path)
    except RuntimeError as error:
        raise _no_room(8 * words.size()) from error
    blob = os.pread(handle, os.fstat(handle).st_size, 0)
    os.ftruncate(handle, 0)
    body = blob[16:] if blob[5] == 0 else _raw_blocks(blob[16:])
    if body is None or len(body) != 8 + 8 * words.size():
        return np.fromiter(map(words.at, range(words.size())), dtype=np.uint64, count=words.size())
    return np.frombuffer(body, dtype=np.uint64, offset=8)


def _raw_blocks(frame: bytes) -> bytes | None:
    """Return the content of a zstd frame whose blocks are all raw or runs of one byte (RFC 8878, 3.1.1)."""
    descriptor = frame[4]
    single = descriptor >> 5 & 1
    at = 5 + (0 if single else 1) + (0, 1, 2, 4)[descriptor & 3] + (single, 2, 4, 8)[descriptor >> 6]
    if int.from_bytes(frame[:4], "little") != _ZSTD:
        return None
    last, blocks = False, list[bytes]()
    while not last:
        block = int.from_bytes(frame[at : at + 3], "little")
        last, run, size, at = bool(block & 1), block >> 1 & 3, block >> 3, at + 3
        if run > 1:
            return None
        blocks.append(frame[at : at + 1] * size if run else frame[at : at + size])
        at += 1 if run else size
    return b"".join(blocks)


@cache
def _version() -> bytes:
    """Return the first five bytes of a header, from the library in use."""
    handle, path = _SCRATCH.file()
    seal.Plaintext().save(path)
    return os.pread(handle, 5, 0)


def _header(size: int) -> bytes:
    return _version() + bytes(3) + struct.pack("<Q", 16 + size)


def _parts(front: bytes, residues: Words) -> list[bytes | memoryview]:
    """Return the pieces of an object: what stands before its array, and the array."""
    words = np.ascontiguousarray(residues)
    front += _header(8 + words.nbytes) + struct.pack("<Q", words.size)
    return [_header(len(front) + words.nbytes) + front, words.data.cast("B")]


def _ciphertext_parts(residues: Words, ntt: bool, parameters: bytes) -> list[bytes | memoryview]:
    polynomials, primes, _ = residues.shape
    return _parts(parameters + struct.pack("<BQQQdQ", ntt, polynomials, DEGREE, primes, 1.0, 1), residues)


def ciphertext(residues: Words, ntt: bool = True) -> Any:
    """Return a SEAL ciphertext of validated residues, (polynomials, primes, N)."""
    used = engine() if residues.shape[1] == 2 else _wide_engine()
    return _load(seal.Ciphertext(), _ciphertext_parts(residues, ntt, used.data_id), used.context)


def plaintext(residues: Words) -> Any:
    """Return a SEAL plaintext in NTT form of validated residues, (2, N)."""
    front = engine().data_id + struct.pack("<Qd", residues.size, 1.0)
    return _load(seal.Plaintext(), _parts(front, residues), engine().context)


def public_key(residues: Words) -> Any:
    """Return a SEAL public key of validated residues, (2, 3, N)."""
    parts = _ciphertext_parts(residues, True, engine().key_id)
    return _load(seal.PublicKey(), parts, engine().context)


def galois_keys(keys: Mapping[int, Sequence[Words]]) -> Any:
    """Return Galois keys from element -> (2, 2, 3, N) residues: a ciphertext for each data prime."""
    count = (max(keys) - 1) // 2 + 1
    parts: list[bytes | memoryview] = [engine().key_id + struct.pack("<Q", count)]
    for index in range(count):
        digits = keys.get(2 * index + 1, ())
        parts.append(struct.pack("<Q", len(digits)))
        for digit in digits:
            parts.extend(_ciphertext_parts(digit, True, engine().key_id))
    joined = b"".join(parts)
    return _load(seal.GaloisKeys(), [_header(len(joined)), joined], engine().context)


@cache
def _filler(primes: int, label: bytes = b"filler") -> Words:
    """Return a polynomial without structure that everybody may know."""
    return expand(label, 1, primes)


@cache
def _filler_transformed(primes: int) -> Words:
    return _transform(_filler(primes), True)


def _transform(polynomials: Words, forward: bool) -> Words:
    primes = polynomials.shape[1]
    evaluator = engine().evaluator if primes == 2 else _wide_engine().evaluator
    change = evaluator.transform_to_ntt_inplace if forward else evaluator.transform_from_ntt_inplace
    results: list[Words] = []
    for start in range(0, len(polynomials), _MOST_POLYNOMIALS - 1):
        chunk = polynomials[start : start + _MOST_POLYNOMIALS - 1]
        # SEAL takes two polynomials at least, and refuses to work when all but the first are zero.
        padded = chunk if chunk[1:].any() else np.concatenate([chunk, _filler(primes, b"padding")])
        block = ciphertext(padded, ntt=not forward)
        change(block)
        results.append(read(block.dyn_array()).reshape(padded.shape)[: len(chunk)])
    return np.concatenate(results) if len(results) > 1 else results[0]


def to_ntt(polynomials: Words) -> Words:
    """Transform (k, 2 or 3, N) coefficients to values at the roots, in SEAL's order.

    A random polynomial is added before and its transform subtracted afterwards. Constants and sparse
    polynomials have transforms that repeat themselves: SEAL would compress them, and they are read slowly.
    """
    filler, transformed = _filler(polynomials.shape[1]), _filler_transformed(polynomials.shape[1])
    shifted = add(polynomials, np.broadcast_to(filler, polynomials.shape))
    return subtract(_transform(shifted, True), np.broadcast_to(transformed, polynomials.shape))


def from_ntt(polynomials: Words) -> Words:
    """Invert `to_ntt`."""
    return _transform(polynomials, False)
