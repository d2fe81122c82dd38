"""The public side of a Paillier key: it encrypts, computes and parses what arrives.

Its owner's peers learn n and, of an encrypted array, its shape, scale and declared bound. Arrivals are
validated before any arithmetic. Keys are checked for known weak forms and by their proof (proof.py),
ciphertexts for being units mod n**2, and blocks for their announced length.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isfinite
from typing import ClassVar

import gmpy2
import numpy as np
from gmpy2 import mpz

from securefed.crypto.errors import BadCiphertext, BadKey, CapacityError, FormatError
from securefed.crypto.fixed import FixedPoint
from securefed.crypto.paillier.encrypted import PaillierEncrypted
from securefed.crypto.paillier.extent import Extent
from securefed.crypto.paillier.masking import PaillierMasked, PaillierOpened, split_integers
from securefed.crypto.paillier.primes import is_prime, small_factor
from securefed.crypto.paillier.proof import roots_needed, verify
from securefed.crypto.paillier.residues import PublicResidues, Residues
from securefed.crypto.progress import progress
from securefed.crypto.randomness import uniform_units
from securefed.crypto.scheme import Floats, PublicKey
from securefed.crypto.wire import Frame, Kind, Scheme, fingerprint

__all__ = [
    "LEAST_BITS",
    "PaillierPublicKey",
    "check_size",
    "encrypt_array",
    "strong_parameters",
]

LEAST_BITS = 2048
"""About 112 bits of security; the default of 3072 gives about 128."""
LEAST_TEST_BITS = 16
MOST_BITS = 8192
BLOCK = 512
"""Ciphertexts between two ticks of a progress bar, and the unit of encoding long arrays."""


def check_size(bits: int, allow_small: bool) -> None:
    least = LEAST_TEST_BITS if allow_small else LEAST_BITS
    if not isinstance(bits, int) or isinstance(bits, bool) or not least <= bits <= MOST_BITS:
        raise BadKey(f"a modulus of {bits} bits given, {least} to {MOST_BITS} are allowed")


class PaillierPublicKey(PublicKey):
    """The modulus n and its owner's proof.

    `from_frame` checks the proof where a key arrives. The constructor does not: the owner has just made it.
    """

    scheme: ClassVar[Scheme] = Scheme.PAILLIER

    def __init__(self, n: int, proof: tuple[mpz, ...], *, allow_small: bool = False) -> None:
        self.n = mpz(n)
        self.bits: int = self.n.bit_length() if self.n > 0 else 0
        check_size(self.bits, allow_small)
        if self.n % 2 == 0 or small_factor(self.n) != 1:
            raise BadKey("n has a small factor; a product of two large primes is allowed")
        if gmpy2.is_power(self.n):
            raise BadKey("n is a perfect power; a product of two different primes is allowed")
        if is_prime(self.n):
            raise BadKey("n is prime; a product of two primes is allowed")
        self._proof = proof
        self.square: mpz = self.n * self.n
        self.parameters = _parameters(self.bits)
        self.key_id = fingerprint(b"paillier", self._n_bytes())

    @property
    def plaintext_bytes(self) -> int:
        return (self.bits + 7) // 8

    @property
    def ciphertext_bytes(self) -> int:
        return 2 * self.plaintext_bytes

    def _n_bytes(self) -> bytes:
        return bytes(self.n.to_bytes(self.plaintext_bytes, "big"))

    def to_bytes(self) -> bytes:
        """Return a frame of n and the roots of its proof, each as long as n. Its first number is that
        length.
        """
        size = self.plaintext_bytes
        payload = self._n_bytes() + b"".join(root.to_bytes(size, "big") for root in self._proof)
        return self.frame(Kind.PUBLIC_KEY, payload, numbers=(size, 0, 0, 0)).to_bytes()

    @classmethod
    def from_frame(
        cls, frame: Frame, *, allow_small: bool = False, context: bytes = b""
    ) -> PaillierPublicKey:
        """Parse a key that arrived.

        Raises BadKey if n is even, short, a power, prime or has small factors, or without a valid proof for
        this context that n and phi(n) have no common factor.
        """
        size, *rest = frame.numbers
        if frame.shape or any(rest) or size < 0:
            raise FormatError("a public key with a shape or more than one number: neither belongs there")
        if size == 0:
            raise BadKey(
                "the key comes without a proof that gcd(n, phi(n)) = 1: its owner's securefed is older than"
                " this one"
            )
        if size > MOST_BITS // 8 or len(frame.payload) < size or frame.payload[0] == 0:
            raise BadKey(f"a modulus in {size} bytes given: too long, cut short or with leading zeros")
        n, roots = mpz.from_bytes(frame.payload[:size], "big"), frame.payload[size:]
        needed = roots_needed(n.bit_length())
        if len(roots) != needed * size:
            raise BadKey(f"a proof of {len(roots)} bytes given, {needed} roots of {size} bytes are due")
        key = cls(int(n), tuple(split_integers(roots, needed, size)), allow_small=allow_small)
        frame.expect(cls.scheme, key.parameters, key.key_id)
        verify(key.n, key._proof, context)
        return key

    # Encryption

    def draw(self, count: int) -> list[mpz]:
        """Draw `count` values r**n mod n**2, with r uniform in Z_n*."""
        return self._powers(uniform_units(self.n, count)) if count else []

    def _powers(self, units: Sequence[mpz]) -> list[mpz]:
        pieces = cut(units, self.mapper.workers)
        return [
            p for piece in self.mapper.map(unit_powers, [(self.n, piece) for piece in pieces]) for p in piece
        ]

    def _encrypt(self, values: Floats, fixed: FixedPoint) -> PaillierEncrypted:
        return encrypt_array(self, self, values, fixed)

    def combine(self, plaintexts: Iterable[int], residues: Iterable[mpz]) -> list[mpz]:
        """Return (1 + n m) * residue mod n**2 of each: encryption with drawn randomness. m is signed."""
        n, square = self.n, self.square
        return [(1 + n * m) * residue % square for m, residue in zip(plaintexts, residues, strict=True)]

    def admit(self, extent: Extent) -> Extent:
        """Return the extent. Raises CapacityError if its integers could leave the signed plaintext space."""
        if 2 * extent.magnitude >= self.n or not isfinite(extent.bound):
            raise CapacityError(
                f"integers of {extent.magnitude.bit_length()} bits, signed, do not fit a key of {self.bits}"
            )
        return extent

    # What arrives

    def checked(self, ciphertexts: list[mpz]) -> list[mpz]:
        """Return the ciphertexts. Raises BadCiphertext with the first index that is not a unit below n**2."""
        n, product = self.n, mpz(1)
        for index, c in enumerate(ciphertexts):
            if not 0 < c < self.square:
                raise BadCiphertext(f"ciphertext {index} of {len(ciphertexts)} is not between 0 and n**2")
            product = product * (c % n) % n
        if gmpy2.gcd(product, n) != 1:  # one of them; which one is worth n gcds only now
            index = next(i for i, c in enumerate(ciphertexts) if gmpy2.gcd(c, n) != 1)
            raise BadCiphertext(f"ciphertext {index} of {len(ciphertexts)} has a factor in common with n")
        return ciphertexts

    def read_ciphertexts(self, payload: bytes, count: int) -> list[mpz]:
        return self.checked(split_integers(payload, count, self.ciphertext_bytes))

    def _load(self, frame: Frame) -> PaillierEncrypted:
        extent = Extent.from_numbers(frame.numbers)
        if extent.magnitude.bit_length() > self.bits - 1:
            raise FormatError(f"integers of {extent.magnitude.bit_length()} bits announced for {self!r}")
        shape = frame.expect_array()
        return PaillierEncrypted(
            self, shape, self.read_ciphertexts(frame.payload, int(np.prod(shape))), extent
        )

    def _load_masked(self, frame: Frame) -> PaillierMasked:
        return PaillierMasked.from_frame(self, frame)

    def _load_opened(self, frame: Frame) -> PaillierOpened:
        return PaillierOpened.from_frame(self, frame)


def unit_powers(item: tuple[mpz, list[mpz]]) -> list[mpz]:
    """Return r**n mod n**2 for the units r of (n, units). It is a top-level function for other processes."""
    n, units = item
    return PublicResidues(n)._powers(units)


def cut(items: Sequence[mpz], workers: int) -> list[list[mpz]]:
    """Split into one piece for one worker, else into about four for each."""
    size = max(1, -(-len(items) // (4 * workers if workers > 1 else 1)))
    return [list(items[i : i + size]) for i in range(0, len(items), size)]


def encrypt_array(
    public: PaillierPublicKey, residues: Residues, values: Floats, fixed: FixedPoint
) -> PaillierEncrypted:
    """Encrypt one value per ciphertext, under residues from the public side or from the owner."""
    extent = public.admit(Extent.fresh(fixed))
    integers = fixed.encode(values).ravel()
    ciphertexts: list[mpz] = []
    starts = range(0, integers.size, BLOCK * public.mapper.workers)
    for start in progress(starts, "encrypting", len(starts)):
        block = integers[start : start + starts.step].tolist()
        ciphertexts += public.combine(block, residues.draw(len(block)))
    return PaillierEncrypted(public, values.shape, ciphertexts, extent)


def _parameters(bits: int) -> bytes:
    return fingerprint(b"paillier", b"g = n + 1", bits.to_bytes(4, "little"))


def strong_parameters() -> dict[str, str]:
    """Return the parameter sets of documented strength (docs/security.md), by fingerprint."""
    return {_parameters(bits).hex(): f"paillier {bits} bits" for bits in range(LEAST_BITS, MOST_BITS + 1)}
