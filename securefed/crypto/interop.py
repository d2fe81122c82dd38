"""Paillier keys and ciphertexts to and from phe (python-paillier).

The same primes and the same g = n + 1 make the same cryptosystem: a ciphertext of ours opens under phe's
private key and the other way round. phe serves as a second opinion on our arithmetic, and for people who have
phe keys.

Licence: phe is GPLv3, this package Apache-2.0. This is the only module that imports phe, it does so when one
of its functions is called, and nothing else needs it: without phe everything but this module works.

What phe's form shows: an `EncryptedNumber` carries the exponent of its value in the clear, number =
integer * 16**exponent. phe picks it from the magnitude of each float (1.0 gets -13, 0.001 gets -16), so
whoever sees phe's numbers learns magnitudes. `to_phe_number` writes one exponent for all, that of the public
scale; numbers made by phe have that property only if they were encrypted with one `precision`.
"""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING, Any

from securefed.crypto.errors import BadCiphertext, BadKey, RangeError, WrongKey
from securefed.errors import MissingExtra

if TYPE_CHECKING:
    from phe.paillier import EncryptedNumber, PaillierPrivateKey, PaillierPublicKey

__all__ = ["from_phe_number", "from_phe_private", "to_phe_number", "to_phe_private", "to_phe_public"]

BITS_OF_BASE = 4  # phe's exponents count powers of 16


def to_phe_public(n: int) -> PaillierPublicKey:
    """phe's public key of modulus n."""
    if n < 6 or n % 2 == 0:
        raise BadKey("n: an odd product of two primes is allowed")
    return _phe().PaillierPublicKey(int(n))


def to_phe_private(n: int, p: int, q: int) -> PaillierPrivateKey:
    """phe's private key of n = p * q. From then on the secret is in phe's hands too."""
    if p * q != n or p == q or min(p, q) < 3:
        raise BadKey("p, q: two different primes whose product is n are allowed")
    return _phe().PaillierPrivateKey(to_phe_public(n), int(p), int(q))


def from_phe_private(key: PaillierPrivateKey) -> tuple[int, int]:
    """The primes (p, q) of phe's private key, p < q; as phe has them, which checks less than our keys do."""
    if not isinstance(key, _phe().PaillierPrivateKey):
        raise BadKey(f"key: a {type(key).__name__} given, phe's PaillierPrivateKey is allowed")
    return int(key.p), int(key.q)


def to_phe_number(ciphertext: int, n: int, fraction_bits: int) -> EncryptedNumber:
    """Our ciphertext, whose integer stands for integer * 2**-fraction_bits, as phe's number.

    It is passed on as it is: re-randomise what was computed before it leaves.
    """
    if fraction_bits % BITS_OF_BASE:
        raise RangeError(
            f"fraction_bits: {fraction_bits} given, multiples of {BITS_OF_BASE} are allowed "
            "(phe's exponents count powers of 16)"
        )
    public = to_phe_public(n)
    exponent = -(fraction_bits // BITS_OF_BASE)
    return _phe().EncryptedNumber(public, _checked(ciphertext, n), exponent)


def from_phe_number(number: EncryptedNumber, n: int) -> tuple[int, int]:
    """The ciphertext of phe's number under our modulus n, and the fraction bits of its integer.

    phe re-randomises here what it computed and had not re-randomised yet.
    """
    if not isinstance(number, _phe().EncryptedNumber):
        raise BadCiphertext(f"number: a {type(number).__name__} given, phe's EncryptedNumber is allowed")
    if number.public_key.n != n:
        raise WrongKey("number: encrypted under another modulus")
    # Judged first: phe would multiply a fresh r**n onto anything.
    _checked(number.ciphertext(be_secure=False), n)
    return int(number.ciphertext()), -BITS_OF_BASE * int(number.exponent)


def _checked(ciphertext: int, n: int) -> int:
    """A unit mod n**2. phe decrypts 0 and multiples of p too, and that tells the factors of n."""
    value = int(ciphertext)
    if not 0 < value < n * n or gcd(value, n) != 1:
        raise BadCiphertext("ciphertext: a unit between 0 and n**2 is allowed")
    return value


def _phe() -> Any:
    try:
        from phe import paillier
    except ModuleNotFoundError as error:
        if error.name != "phe":
            raise
        raise MissingExtra("phe (GPLv3) is not installed and is needed here: pip install phe") from None
    return paillier
