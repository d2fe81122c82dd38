"""The proof that comes with every public key: gcd(n, phi(n)) = 1, and n has no small factor.

Re-randomisation hides how a ciphertext was computed only if r -> r**n is a permutation of Z_n*. Whoever
makes n can break that: with n = p_1 ... p_45 q and q = 1 modulo all p_i, the n-th powers modulo q are a tiny
subgroup, and an "encryption" outside it carries multipliers past any mask
(tests/audit/test_attack_paillier_key.py). From outside such an n looks like every other, so the owner proves
that it is none (Goldberg, Reyzin, Sagga and Baldimtsi, "Efficient Noninteractive Certification of RSA Moduli
and Beyond", 2019).

The proof: challenges x_1, x_2, ... are hashed from n, uniform in Z_n*, and the owner shows the n-th root of
each modulo n. The verifier divides n by all primes below 2**16 and raises each root to the n-th power.

- Complete: n is prime to phi(n), so every x has a root, x**(1/n mod phi(n)).
- Sound: if a prime p divides n and phi(n), the n-th powers are at most 1/p of Z_n*, and p > 2**16. Then k
  challenges all have roots with probability 2**-16k. There are no commitments to grind on, only n itself: who
  tries 2**128 moduli (the strength that a 3072-bit key is chosen for) succeeds with at most 2**(128 - 16k),
  which is 2**-80 for k = 13. It follows that n has no square factor either (p**2 | n gives p | phi(n)).
- Zero-knowledge: the roots of uniform challenges are what anybody gets who draws roots and raises them.

It does not say that n has two prime factors and not more: more of them make the key weak, which harms what is
encrypted under it and not those who compute on it; a key-holder can as well publish its key.

A proof may be bound to a context, such as a nonce of the verifier. The challenges then depend on it too, so
that nobody can look for a fitting n before the nonce is known, and a proof for one nonce fails for another.

The roots are unique, so that the proof is a function of the key and the context. The owner makes it from the
primes whenever the key is made or loaded, in less time than a check takes; key files hold the primes only,
and a key of phe or of an older release gets its proof when its owner loads it.
"""

from __future__ import annotations

import hashlib
from math import ceil, log2

import gmpy2
from gmpy2 import mpz

from securefed.crypto.errors import BadKey
from securefed.crypto.paillier.primes import small_factor, small_primes_below

__all__ = ["challenges", "prove", "roots_needed", "verify"]

DOMAIN = b"securefed: n-th roots for a Paillier modulus, version 1"
CONTEXT = b" with context"
TRIED_MODULI_BITS = 128
FAILURE_BITS = 80


def roots_needed(bits: int) -> int:
    """How many roots a modulus takes: 13; more for toy keys, where trial division ends sooner."""
    return ceil((TRIED_MODULI_BITS + FAILURE_BITS) / log2(small_primes_below(bits)))


def challenges(n: mpz, context: bytes = b"") -> list[mpz]:
    """Uniform in Z_n*, from n and the context alone: SHAKE-256, anew for what is not a unit below n."""
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
    """The n-th roots of the challenges, by the Chinese remainder theorem. p, q: checked (primes.py)."""
    n = p * q
    listed = challenges(n, context)
    mod_p, mod_q = (
        gmpy2.powmod_base_list([x % prime for x in listed], gmpy2.invert(n, prime - 1), prime)
        for prime in (p, q)
    )
    lift = gmpy2.invert(q, p)
    return tuple(b + q * ((a - b) * lift % p) for a, b in zip(mod_p, mod_q, strict=True))


def verify(n: mpz, roots: tuple[mpz, ...], context: bytes = b"") -> None:
    """Raise BadKey unless n has no small factor and the roots are those of its challenges."""
    if small_factor(n) != 1:
        raise BadKey("n has a small factor; a product of two large primes is allowed")
    needed = roots_needed(n.bit_length())
    if len(roots) != needed:
        raise BadKey(f"a proof of {len(roots)} roots given, {n.bit_length()} bits of modulus take {needed}")
    if any(not 0 < root < n for root in roots):
        raise BadKey("a root of the key's proof is not between 0 and n")
    if gmpy2.powmod_base_list(list(roots), n, n) != challenges(n, context):
        raise BadKey(
            "the key's proof is wrong: n may have factors in common with phi(n), and then its maker could"
            " read what it is sent under masks"
        )
