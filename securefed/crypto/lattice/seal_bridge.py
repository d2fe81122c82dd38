"""The bridge to SEAL: its objects from residues and back, through its serialised form.

The binding gives no access to coefficients except one at a time; it saves to a path and loads from one. A
memfd under /proc/self/fd is such a path (elsewhere a temporary file of mode 0600 is), and the form is simple:

    object      header, parameter id (4 u64), [fields], array
    header      magic u16, header size u8, version u8 u8, compression u8, reserved u16, size u64
    array       header, count u64, words u64
    ciphertext  fields: NTT form u8, polynomials u64, N u64, primes u64, scale f64, correction u64
    plaintext   fields: coefficients u64, scale f64
    Galois keys fields: count u64, then for each index a u64 count and that many ciphertexts

Everything is written uncompressed from residues that the caller has validated. Saving always compresses
(zstd); residues do not compress, so the frames consist of raw blocks, which are read here. Should a block be
compressed after all, the words are read one by one.

SEAL's own scales are set to 1 throughout: the scales are ours to track.
"""

from __future__ import annotations

import atexit
import errno
import os
import struct
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import tenseal.sealapi as seal

from securefed.crypto.errors import BadKey
from securefed.crypto.lattice.word_ring import DEGREE, PRIMES, Words, add, expand, subtract

__all__ = [
    "Engine",
    "apply",
    "ciphertext",
    "encode",
    "encrypt",
    "engine",
    "from_ntt",
    "galois_keys",
    "plaintext",
    "public_key",
    "read",
    "to_ntt",
]

_FOURTH_PRIME = 0xFFFFFFFFFFC4001
"""Makes a ring whose data live modulo all three primes."""
_MOST_POLYNOMIALS = 16
_ZSTD = 0xFD2FB528
# Where the count of words stands: after the id (32), the fields (41 or 16) and the array's header (16).
_CIPHERTEXT_COUNT, _PLAINTEXT_COUNT = 89, 64


@dataclass(frozen=True)
class Engine:
    """SEAL's objects for a ring; nothing in them belongs to a key."""

    context: Any
    evaluator: Any
    encoder: Any
    data_id: tuple[int, ...]
    key_id: tuple[int, ...]


@cache
def engine() -> Engine:
    """Return SEAL's objects for the ring of word_ring. Each process builds them once."""
    return _engine(PRIMES, seal.SEC_LEVEL_TYPE.TC128)


@cache
def _wide_engine() -> Engine:
    """Data modulo all three primes, for transforming the parts of a key: nothing is encrypted in it."""
    return _engine((*PRIMES, _FOURTH_PRIME), seal.SEC_LEVEL_TYPE.NONE)


def _engine(primes: tuple[int, ...], security: Any) -> Engine:
    chosen = seal.EncryptionParameters(seal.SCHEME_TYPE.CKKS)
    chosen.set_poly_modulus_degree(DEGREE)
    chosen.set_coeff_modulus([seal.Modulus(prime) for prime in primes])
    context = seal.SEALContext(chosen, True, security)
    if not context.parameters_set():
        raise BadKey(f"SEAL refuses a ring of {DEGREE}: {context.parameters_error_message()}")
    return Engine(
        context,
        seal.Evaluator(context),
        seal.CKKSEncoder(context),
        tuple(context.first_parms_id()),
        tuple(context.key_parms_id()),
    )


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


def encrypt(key: Any, message: Any = None) -> Any:
    """Encrypt a plaintext, or zero, under a public key.

    SEAL's Encryptor has a place for a secret key. So it is made for each call, and nothing keeps it.
    """
    encrypted, encryptor = seal.Ciphertext(), seal.Encryptor(engine().context, key)
    if message is None:
        encryptor.encrypt_zero(encrypted)
        encrypted.scale = 1.0
    else:
        encryptor.encrypt(message, encrypted)
    return encrypted


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


def read(saved: Any, words: Any) -> Words:
    """The words of a SEAL object: `saved` has save(path), `words` gives one word at a time."""
    handle, path = _SCRATCH.file()
    try:
        saved.save(path)
    except RuntimeError as error:
        raise _no_room(8 * words.size()) from error
    size = os.fstat(handle).st_size
    content = _uncompressed(os.pread(handle, size, 0))
    os.ftruncate(handle, 0)
    if content is None:
        return np.fromiter((words.at(i) for i in range(words.size())), dtype=np.uint64, count=words.size())
    return content


def _uncompressed(blob: bytes) -> Words | None:
    """The words at the end of a saved object, or None when they are compressed for real."""
    body = blob[16:] if blob[5] == 0 else _raw_blocks(blob[16:])
    if body is None:
        return None
    # The words are the last thing in every object read here; their count stands before them.
    for start in (_CIPHERTEXT_COUNT, _PLAINTEXT_COUNT):
        if len(body) >= start:
            count = struct.unpack_from("<Q", body, start)[0]
            if start + 8 + 8 * count == len(body):
                return np.frombuffer(body, dtype=np.uint64, offset=start + 8)
    return None


def _raw_blocks(frame: bytes) -> bytes | None:
    """The content of a zstd frame whose blocks are all raw or runs of one byte (RFC 8878, 3.1.1)."""
    descriptor = frame[4]
    single = descriptor >> 5 & 1
    at = 5 + (0 if single else 1) + (0, 1, 2, 4)[descriptor & 3] + (single, 2, 4, 8)[descriptor >> 6]
    blocks: list[bytes] = []
    if int.from_bytes(frame[:4], "little") != _ZSTD:
        return None
    while True:
        block = int.from_bytes(frame[at : at + 3], "little")
        last, kind, size = block & 1, block >> 1 & 3, block >> 3
        at += 3
        if kind == 0:
            blocks.append(frame[at : at + size])
            at += size
        elif kind == 1:
            blocks.append(frame[at : at + 1] * size)
            at += 1
        else:
            return None
        if last:
            return b"".join(blocks)


@cache
def _version() -> bytes:
    """The first five bytes of a header, from the library in use."""
    handle, path = _SCRATCH.file()
    seal.Plaintext().save(path)
    return os.pread(handle, 5, 0)


def _header(size: int) -> bytes:
    return _version() + bytes(3) + struct.pack("<Q", 16 + size)


def _identity(parameters: Sequence[int]) -> bytes:
    return struct.pack("<4Q", *parameters)


def _ciphertext_parts(residues: Words, ntt: bool, parameters: Sequence[int]) -> list[bytes | memoryview]:
    polynomials, primes, _ = residues.shape
    words = np.ascontiguousarray(residues)
    fields = struct.pack("<BQQQdQ", ntt, polynomials, DEGREE, primes, 1.0, 1)
    array = _header(8 + words.nbytes) + struct.pack("<Q", words.size)
    front = _identity(parameters) + fields + array
    return [_header(len(front) + words.nbytes) + front, words.data.cast("B")]


def ciphertext(residues: Words, ntt: bool = True) -> Any:
    """A SEAL ciphertext of validated residues, (polynomials, primes, N); with three primes for transforms."""
    used = engine() if residues.shape[1] == 2 else _wide_engine()
    return _load(seal.Ciphertext(), _ciphertext_parts(residues, ntt, used.data_id), used.context)


def plaintext(residues: Words) -> Any:
    """A SEAL plaintext in NTT form of validated residues, (2, N)."""
    words = np.ascontiguousarray(residues)
    array = _header(8 + words.nbytes) + struct.pack("<Q", words.size)
    front = _identity(engine().data_id) + struct.pack("<Qd", words.size, 1.0) + array
    parts: list[bytes | memoryview] = [_header(len(front) + words.nbytes) + front, words.data.cast("B")]
    return _load(seal.Plaintext(), parts, engine().context)


def public_key(residues: Words) -> Any:
    """A SEAL public key of validated residues, (2, 3, N)."""
    parts = _ciphertext_parts(residues, True, engine().key_id)
    return _load(seal.PublicKey(), parts, engine().context)


def galois_keys(keys: Mapping[int, Words]) -> Any:
    """From element -> (2, 2, 3, N) residues: for each data prime, a ciphertext at the key's level."""
    count = (max(keys) - 1) // 2 + 1
    parts: list[bytes | memoryview] = [_identity(engine().key_id) + struct.pack("<Q", count)]
    by_index = {(element - 1) // 2: residues for element, residues in keys.items()}
    for index in range(count):
        digits = by_index.get(index)
        parts.append(struct.pack("<Q", 0 if digits is None else len(digits)))
        if digits is not None:
            for digit in digits:
                parts.extend(_ciphertext_parts(digit, True, engine().key_id))
    joined = b"".join(parts)
    return _load(seal.GaloisKeys(), [_header(len(joined)), joined], engine().context)


@cache
def _filler(primes: int) -> Words:
    """A polynomial without structure that everybody may know."""
    return expand(b"filler", 1, primes)


@cache
def _padding(primes: int) -> Words:
    """Another one: what repeats itself is compressed."""
    return expand(b"padding", 1, primes)


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
        padded = chunk if chunk[1:].any() else np.concatenate([chunk, _padding(primes)])
        block = ciphertext(padded, ntt=not forward)
        change(block)
        results.append(read(block, block.dyn_array()).reshape(padded.shape)[: len(chunk)])
    return np.concatenate(results) if len(results) > 1 else results[0]


def to_ntt(polynomials: Words, *, structured: bool = False) -> Words:
    """(k, 2 or 3, N) coefficients to values at the roots, in SEAL's order.

    Structured polynomials (constants, sparse ones) have transforms that repeat themselves, are compressed and
    then read slowly; they are transformed with a random one added.
    """
    if not structured:
        return _transform(polynomials, True)
    filler, transformed = _filler(polynomials.shape[1]), _filler_transformed(polynomials.shape[1])
    shifted = add(polynomials, np.broadcast_to(filler, polynomials.shape))
    return subtract(_transform(shifted, True), np.broadcast_to(transformed, polynomials.shape))


def from_ntt(polynomials: Words) -> Words:
    """The inverse of `to_ntt`."""
    return _transform(polynomials, False)
