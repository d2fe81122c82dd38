"""Paillier keys: the proof of a modulus, the public side, and the owner's side.

Arrivals are validated before any arithmetic: keys for known weak forms and by their proof, ciphertexts for
being units mod n**2, blocks for their announced length.

The proof comes with every public key: gcd(n, phi(n)) = 1, and n has no small factor. Otherwise an owner could
read multipliers past any mask (docs/proofs.md). A proof may be bound to a context, such as a nonce of the
verifier. The roots are unique, so key files have the primes only.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from math import ceil, isfinite, log2, prod

import gmpy2
from gmpy2 import mpz

from securefed.crypto.fixed import FixedPoint, Floats
from securefed.crypto.keyholder import SecretKey
from securefed.crypto.paillier import primes as prime_numbers
from securefed.crypto.paillier.arrays import (
    Extent,
    PaillierEncrypted,
    PaillierMasked,
    PaillierOpened,
    read_disclosure,
    split_integers,
)
from securefed.crypto.paillier.primes import FactoredPrime, Owner, PrimePair, combined
from securefed.crypto.randomness import ByteSource, unit_from
from securefed.crypto.scheme import Mapper, PublicKey, progress
from securefed.crypto.wire import Frame, Kind, fingerprint
from securefed.errors import BadCiphertext, BadKey, CapacityError, FormatError

DOMAIN = b"securefed: n-th roots for a Paillier modulus, version 1"
CONTEXT = b" with context"
TRIED_MODULI_BITS = 128
FAILURE_BITS = 80
LEAST_BITS = 2048
"""About 112 bits of security; the default of 3072 gives about 128."""
LEAST_TEST_BITS = 16
MOST_BITS = 8192
BLOCK = 512
"""Ciphertexts between two ticks of a progress bar, and the unit of encoding long arrays."""
MOST_PUBLIC_BYTES = 1 << 16
"""A modulus, and the roots that prove it."""
HEAD = struct.Struct("<2H2I")
WORTH_SHARING, WORTH_TABLES_ELSEWHERE = 64, 2048
"""Residues for each process from which drawing there saves time: with tables that it has, and without."""


def roots_needed(bits: int) -> int:
    """Return how many roots a modulus takes: 13; more for toy keys, where trial division ends sooner."""
    return ceil((TRIED_MODULI_BITS + FAILURE_BITS) / log2(prime_numbers.small_primes_below(bits)))


def challenges(n: mpz, context: bytes = b"") -> list[mpz]:
    """Hash n and the context to units mod n: SHAKE-256, anew for what is not a unit below n."""
    size, bits = (n.bit_length() + 7) // 8, n.bit_length()
    candidates: list[mpz] = []
    attempt = 0
    while len(candidates) < roots_needed(bits):
        hashed = hashlib.shake_256(DOMAIN)
        if context:
            hashed.update(CONTEXT + len(context).to_bytes(4, "big") + context)
        hashed.update(size.to_bytes(4, "big") + n.to_bytes(size, "big") + attempt.to_bytes(4, "big"))
        candidate = mpz.from_bytes(hashed.digest(size), "big") >> (8 * size - bits)
        if 0 < candidate < n and gmpy2.gcd(candidate, n) == 1:
            candidates.append(candidate)
        attempt += 1
    return candidates


def prove(p: mpz, q: mpz, context: bytes = b"") -> tuple[mpz, ...]:
    """Return the n-th roots of the challenges, for checked primes."""
    n = p * q
    listed = challenges(n, context)
    mod_p, mod_q = (
        gmpy2.powmod_base_list([x % prime for x in listed], gmpy2.invert(n, prime - 1), prime)
        for prime in (p, q)
    )
    return tuple(combined(mod_p, mod_q, p, q))


def verify(n: mpz, roots: tuple[mpz, ...], context: bytes = b"") -> None:
    """Raise BadKey unless the roots are those of the challenges of n, which has no small factor."""
    if any(not 0 < root < n for root in roots):
        raise BadKey("a root of the key's proof is not between 0 and n")
    if gmpy2.powmod_base_list(list(roots), n, n) != challenges(n, context):
        raise BadKey(
            "the key's proof is wrong: n may have factors in common with phi(n), and then its maker could"
            " read what it is sent under masks"
        )


def check_size(bits: int, allow_small: bool) -> None:
    least = LEAST_TEST_BITS if allow_small else LEAST_BITS
    if not isinstance(bits, int) or isinstance(bits, bool) or not least <= bits <= MOST_BITS:
        raise BadKey(f"a modulus of {bits} bits given, {least} to {MOST_BITS} are allowed")


class PaillierPublicKey(PublicKey):
    """The modulus n and its owner's proof, which `from_frame` checks where a key arrives."""

    scheme = "paillier"
    encrypted_type, masked_type, opened_type = PaillierEncrypted, PaillierMasked, PaillierOpened

    def __init__(self, n: int, proof: tuple[mpz, ...], *, allow_small: bool = False) -> None:
        self.n = mpz(n)
        self.bits: int = self.n.bit_length() if self.n > 0 else 0
        check_size(self.bits, allow_small)
        if prime_numbers.small_factor(self.n) != 1:
            raise BadKey("n has a small factor; a product of two large primes is allowed")
        if gmpy2.is_power(self.n):
            raise BadKey("n is a perfect power; a product of two different primes is allowed")
        if prime_numbers.is_prime(self.n):
            raise BadKey("n is prime; a product of two primes is allowed")
        self._proof = proof
        self.square: mpz = self.n * self.n
        self.plaintext_bytes = (self.bits + 7) // 8
        self.ciphertext_bytes = 2 * self.plaintext_bytes
        self.parameters = _parameters(self.bits)
        self.key_id = fingerprint(b"paillier", self.n.to_bytes(self.plaintext_bytes, "big"))

    def to_bytes(self) -> bytes:
        """Return a frame of n and the roots, each as long as n. Its first number is that length."""
        size = self.plaintext_bytes
        payload = b"".join(number.to_bytes(size, "big") for number in (self.n, *self._proof))
        return self.frame(Kind.PUBLIC_KEY, payload, numbers=(size, 0, 0, 0)).to_bytes()

    @classmethod
    def from_frame(
        cls, frame: Frame, *, allow_small: bool = False, context: bytes = b""
    ) -> PaillierPublicKey:
        """Parse a key that arrived. Raises BadKey for a weak n, or without a valid proof for this context."""
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

    def draw(self, count: int, source: ByteSource = os.urandom, mapper: Mapper | None = None) -> list[mpz]:
        """Draw `count` values r**n mod n**2, with r uniform in Z_n*."""
        mapper = mapper or self.mapper
        units = [unit_from(source, self.n) for _ in range(count)]
        pieces = [(self.n, piece) for piece in cut(units, mapper.workers)]
        return [power for piece in mapper.map(unit_powers, pieces) for power in piece]

    def _encrypt(
        self, values: Floats, fixed: FixedPoint, draw: Callable[[int], list[mpz]] | None = None
    ) -> PaillierEncrypted:
        """Encrypt one value per ciphertext. The public side or, with `draw`, the owner draws the residues."""
        extent = self.admit(Extent.fresh(fixed))
        integers = fixed.encode(values).ravel()
        ciphertexts: list[mpz] = []
        starts = range(0, integers.size, BLOCK * self.mapper.workers)
        for start in progress(starts, "encrypting", len(starts)):
            block = integers[start : start + starts.step].tolist()
            ciphertexts += self.combine(block, (draw or self.draw)(len(block)))
        return PaillierEncrypted(self, values.shape, ciphertexts, extent)

    def combine(self, plaintexts: Iterable[int], residues: Iterable[mpz]) -> list[mpz]:
        """Return (1 + n m) * residue mod n**2 of each: encryptions, or sums of ciphertexts and plaintexts."""
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


def unit_powers(item: tuple[mpz, list[mpz]]) -> list[mpz]:
    """Return r**n mod n**2 for the units r of (n, units). It is a top-level function for other processes."""
    n, units = item
    return list(gmpy2.powmod_base_list(units, n, n * n))


def cut(items: Sequence[mpz], workers: int) -> list[list[mpz]]:
    """Split into one piece for one worker, else into about four for each."""
    size = max(1, -(-len(items) // (4 * workers if workers > 1 else 1)))
    return [list(items[i : i + size]) for i in range(0, len(items), size)]


def _parameters(bits: int) -> bytes:
    return fingerprint(b"paillier", b"g = n + 1", bits.to_bytes(4, "little"))


def strong_parameters() -> dict[str, str]:
    return {_parameters(bits).hex(): f"paillier {bits} bits" for bits in range(LEAST_BITS, MOST_BITS + 1)}


def most_bytes(shape: tuple[int, ...], sums: int = 0) -> int:
    columns = shape[1] if len(shape) == 2 else 1
    return 1024 + 2 * (MOST_BITS // 8) * (sums * columns if sums else prod(shape))


def generate_secret_key(bits: int = 3072, *, allow_small: bool = False) -> PaillierSecretKey:
    """Return a new key with a modulus of exactly that many bits; below 2048 only with `allow_small`."""
    check_size(bits, allow_small)
    return PaillierSecretKey(PrimePair.generate(bits), allow_small=allow_small)


class PaillierSecretKey(SecretKey):
    """The primes of a key. Only a KeyHolder has them."""

    public: PaillierPublicKey

    def __init__(self, primes: PrimePair, *, allow_small: bool = False) -> None:
        self._primes = primes
        check_size(primes.n.bit_length(), allow_small)  # before any work on it
        self.public = PaillierPublicKey(primes.n, prove(primes.p.p, primes.q.p), allow_small=allow_small)
        self._owner = Owner(primes)

    def encrypt(self, values: Floats, fixed: FixedPoint) -> PaillierEncrypted:
        return self.public._encrypt(values, fixed, self.draw)

    def draw(self, count: int, mapper: Mapper | None = None, *, keep: bool = True) -> list[mpz]:
        """Draw uniform n-th residues mod n**2.

        `keep`: many will follow, so every process builds tables and keeps them. Else only many draws do.
        """
        mapper = mapper or self.public.mapper.local
        workers = min(mapper.workers, count // (WORTH_SHARING if keep else WORTH_TABLES_ELSEWHERE))
        if workers < 2:
            return self._owner.draw(count, keep=keep)
        size = -(-count // workers)
        pieces = [(self._primes, min(size, count - done), keep) for done in range(0, count, size)]
        return [residue for piece in mapper.map(owner_draw, pieces) for residue in piece]

    def proven(self, context: bytes) -> bytes:
        """Return the public key with a proof for this context."""
        proof = prove(self._primes.p.p, self._primes.q.p, context)
        return PaillierPublicKey(self.public.n, proof, allow_small=True).to_bytes()

    def open(self, masked: PaillierMasked) -> PaillierOpened:
        """Return whole integers mod n. The key-holder does not know the layout of the values in them."""
        # Once more, whatever way it came here: decrypting 0 or a multiple of p gives away the factors of n.
        ciphertexts = self.public.checked(masked.integers)
        mapper = self.public.mapper.local
        pieces = [(self._primes, piece) for piece in cut(ciphertexts, mapper.workers)]
        plaintexts = [m for piece in mapper.map(owner_decrypt, pieces) for m in piece]
        return PaillierOpened(self.public, masked.shape, plaintexts)

    def receive(self, masked: PaillierMasked, disclosure: bytes) -> Floats:
        return read_disclosure(masked, disclosure).remove(self.open(masked))

    def to_bytes(self) -> bytes:
        p, q = self._primes.p, self._primes.q
        sizes = [(int(prime.p).bit_length() + 7) // 8 for prime in (p, q)]
        head = HEAD.pack(*sizes, p.cofactor, q.cofactor)
        payload = head + p.p.to_bytes(sizes[0], "big") + q.p.to_bytes(sizes[1], "big")
        return self.public.frame(Kind.SECRET_KEY, payload).to_bytes()

    @classmethod
    def from_frame(cls, frame: Frame, *, allow_small: bool = False) -> PaillierSecretKey:
        """Parse a key from a key file. The primes are tested again and must match the named key."""
        payload = frame.payload
        if len(payload) < HEAD.size:
            raise FormatError(f"{len(payload)} bytes of secret key given, at least {HEAD.size} expected")
        p_size, q_size, *cofactors = HEAD.unpack_from(payload)
        if len(payload) != HEAD.size + p_size + q_size or not 0 < p_size + q_size <= MOST_BITS // 8 + 1:
            raise FormatError(
                f"{len(payload)} bytes of secret key given, {HEAD.size + p_size + q_size} announced"
            )
        p = mpz.from_bytes(payload[HEAD.size : HEAD.size + p_size], "big")
        q = mpz.from_bytes(payload[HEAD.size + p_size :], "big")
        primes = PrimePair(FactoredPrime(p, cofactors[0]), FactoredPrime(q, cofactors[1]))
        key = cls(primes, allow_small=allow_small)
        frame.expect(key.public.scheme, key.public.parameters, key.public.key_id)
        return key


# Work for this party's other processes. They get the primes, and are as trusted as this one.


_owner = lru_cache(maxsize=4)(Owner)


def owner_draw(item: tuple[PrimePair, int, bool]) -> list[mpz]:
    primes, count, keep = item
    return (_owner if keep else Owner)(primes).draw(count)


def owner_decrypt(item: tuple[PrimePair, list[mpz]]) -> list[mpz]:
    return Owner(item[0]).decrypt(item[1])
