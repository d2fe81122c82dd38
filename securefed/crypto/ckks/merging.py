"""Merging many units into few ciphertexts before an opening (Chen, Dai, Kim and Song 2020).

Two ciphertexts a and b with useful coefficients at multiples of s become one with useful coefficients at
multiples of s/2:

    merge(a, b) = (a + X^(s/2) b) + sigma(a - X^(s/2) b),   sigma: X -> X^(1 + 2N/s)

sigma keeps X^(s k) and negates X^(s/2 + s k). So the useful coefficients are doubled and the others at their
places cancel. Each merge is one key switch. The doubling is undone in advance: a unit with m merges is
multiplied by the inverse of 2^m modulo q. That is exact where the coefficients double and harmless elsewhere.
A unit without a partner moves up unchanged: the key-holder never returns the missing partner's places.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from securefed.crypto.ckks.parameters import DATA_PRIMES, RING, galois_element
from securefed.crypto.lattice.seal_bridge import apply, engine, plaintext, to_ntt

__all__ = ["constant", "merge", "merges_of"]


@cache
def _monomial(exponent: int) -> Any:
    polynomial = np.zeros((1, 2, RING), dtype=np.uint64)
    polynomial[..., exponent] = 1
    return plaintext(to_ntt(polynomial, structured=True)[0])


def constant(number: int) -> Any:
    """Return an integer as a SEAL plaintext: the same residue at every point."""
    residues = np.array([number % prime for prime in DATA_PRIMES], dtype=np.uint64)
    return plaintext(np.broadcast_to(residues[:, None], (2, RING)))


@cache
def _halving(times: int) -> Any:
    q = DATA_PRIMES[0] * DATA_PRIMES[1]
    return constant(pow(pow(2, times, q), -1, q))


def merges_of(member: int, count: int) -> int:
    """Return the number of merges of one of `count` units."""
    merges = 0
    while count > 1:
        merges += (member ^ 1) < count
        member, count = member >> 1, (count + 1) >> 1
    return merges


def merge(units: Sequence[Any], stride: int, galois_keys: Any) -> Any:
    """Return one ciphertext with the useful coefficients of all units, at `SumLayout.places`."""
    evaluator = engine().evaluator
    if len(units) == 1:
        return units[0]
    nodes = [
        apply("multiply_plain", unit, _halving(merges_of(member, len(units))))
        for member, unit in enumerate(units)
    ]
    while len(nodes) > 1:
        joined: list[Any] = []
        for a, b in zip(nodes[::2], nodes[1::2], strict=False):
            evaluator.multiply_plain_inplace(b, _monomial(stride // 2))
            turned = apply("sub", a, b)
            evaluator.add_inplace(a, b)
            evaluator.apply_galois_inplace(turned, galois_element(stride), galois_keys)
            evaluator.add_inplace(a, turned)
            joined.append(a)
        if len(nodes) % 2:
            joined.append(nodes[-1])
        nodes, stride = joined, stride // 2
    return nodes[0]
