"""A Paillier key pair: generation, its proof, the owner's encryption, opening.

The owner opens only masked blocks and gets integers mod n that are uniform to it. Its own encryptions have
exactly the distribution of all others (residues.py).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from functools import lru_cache

import gmpy2
from gmpy2 import mpz

from securefed.crypto.errors import BadKey, FormatError, OpeningRefused, WrongKey
from securefed.crypto.fixed import FixedPoint
from securefed.crypto.paillier.encrypted import PaillierEncrypted
from securefed.crypto.paillier.masking import PaillierMasked, PaillierOpened, read_disclosure
from securefed.crypto.paillier.primes import FactoredPrime, PrimePair
from securefed.crypto.paillier.proof import prove
from securefed.crypto.paillier.public import (
    MOST_BITS,
    PaillierPublicKey,
    check_size,
    cut,
    encrypt_array,
)
from securefed.crypto.paillier.residues import OwnerResidues
from securefed.crypto.scheme import Floats, SecretKey
from securefed.crypto.wire import Frame, Kind

__all__ = ["PaillierSecretKey", "generate_secret_key"]

HEAD = struct.Struct("<2H2I")
WORTH_SHARING = 64
"""Fewer residues than this do not justify building tables in other processes."""


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
        self._residues = OwnerResidues(primes)
        self._opener = _Opener(primes.p.p, primes.q.p)

    @classmethod
    def from_primes(cls, p: int, q: int, *, allow_small: bool = False) -> PaillierSecretKey:
        """Return a key with these primes, for example phe's. Encryption is slower: p - 1 is not factored."""
        if min(p, q) < 2:
            raise BadKey("p, q: two different odd primes are allowed")
        return cls(PrimePair(FactoredPrime(mpz(p)), FactoredPrime(mpz(q))), allow_small=allow_small)

    def encrypt(self, values: Floats, fixed: FixedPoint) -> PaillierEncrypted:
        return encrypt_array(self.public, self, values, fixed)

    def draw(self, count: int) -> list[mpz]:
        """Draw uniform n-th residues mod n**2 (residues.py)."""
        mapper = self.public.mapper.local
        if mapper.workers == 1 or count < WORTH_SHARING:
            return self._residues.draw(count)
        size = -(-count // mapper.workers)
        pieces = [(self._factors(), min(size, count - done)) for done in range(0, count, size)]
        return [residue for piece in mapper.map(owner_draw, pieces) for residue in piece]

    def open(self, masked: PaillierMasked) -> PaillierOpened:
        """Return whole integers mod n. The key-holder does not know the layout of the values in them."""
        if not isinstance(masked, PaillierMasked):
            raise OpeningRefused(f"a {type(masked).__name__} given, a block under a uniform mask is allowed")
        if masked.public.key_id != self.public.key_id:
            raise WrongKey(f"masked under {masked.public!r}, this is {self!r}")
        # Once more, whatever way it came here: decrypting 0 or a multiple of p gives away the factors of n.
        ciphertexts = self.public.checked(masked._ciphertexts)
        self._admit(ciphertexts)
        mapper = self.public.mapper.local
        if mapper.workers == 1:
            plaintexts = self._opener.decrypt(ciphertexts)
        else:
            pieces = [(self._factors(), piece) for piece in cut(ciphertexts, mapper.workers)]
            plaintexts = [m for piece in mapper.map(owner_decrypt, pieces) for m in piece]
        return PaillierOpened(self.public, masked.shape, plaintexts)

    def _admit(self, ciphertexts: Sequence[mpz]) -> None:
        """Admit every ciphertext only once, in whatever block it is. An honest one is fresh."""
        width = self.public.ciphertext_bytes
        self.memory.admit([hashlib.sha256(c.to_bytes(width, "big")).digest() for c in ciphertexts])

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
        key = cls(
            PrimePair(FactoredPrime(p, cofactors[0]), FactoredPrime(q, cofactors[1])), allow_small=allow_small
        )
        frame.expect(key.public.scheme, key.public.parameters, key.public.key_id)
        return key

    def _factors(self) -> tuple[mpz, int, mpz, int]:
        return self._primes.p.p, self._primes.p.cofactor, self._primes.q.p, self._primes.q.cofactor


class _Opener:
    """Decryption by the Chinese remainder theorem: m mod p from c**(p - 1) mod p**2, and the same mod q."""

    def __init__(self, p: mpz, q: mpz) -> None:
        self._p, self._q = p, q
        self._p_square, self._q_square = p * p, q * q
        # c**(p-1) = 1 + m n (p-1) = 1 - m q p mod p**2, hence m = -(that - 1)/p / q mod p.
        self._p_factor = gmpy2.invert(-q, p)
        self._q_factor = gmpy2.invert(-p, q)
        self._lift = gmpy2.invert(q, p)

    def decrypt(self, ciphertexts: Sequence[mpz]) -> list[mpz]:
        p, q = self._p, self._q
        mod_p = gmpy2.powmod_base_list([c % self._p_square for c in ciphertexts], p - 1, self._p_square)
        mod_q = gmpy2.powmod_base_list([c % self._q_square for c in ciphertexts], q - 1, self._q_square)
        plaintexts = []
        for a, b in zip(mod_p, mod_q, strict=True):
            m_p = (a - 1) // p * self._p_factor % p
            m_q = (b - 1) // q * self._q_factor % q
            plaintexts.append(m_q + q * ((m_p - m_q) * self._lift % p))
        return plaintexts


# Work for this party's other processes. They get the primes, and are as trusted as this one.


@lru_cache(maxsize=4)
def _owner(p: mpz, p_cofactor: int, q: mpz, q_cofactor: int) -> OwnerResidues:
    return OwnerResidues(PrimePair(FactoredPrime(p, p_cofactor), FactoredPrime(q, q_cofactor)))


def owner_draw(item: tuple[tuple[mpz, int, mpz, int], int]) -> list[mpz]:
    return _owner(*item[0]).draw(item[1])


def owner_decrypt(item: tuple[tuple[mpz, int, mpz, int], list[mpz]]) -> list[mpz]:
    p, _, q, _ = item[0]
    return _Opener(p, q).decrypt(item[1])
