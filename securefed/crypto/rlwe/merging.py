"""Many units into one ciphertext (Chen, Dai, Kim and Song 2020).

Two ciphertexts a and b with useful coefficients at multiples of s become one with useful coefficients at
multiples of s/2:

    merge(a, b) = (a + X^(s/2) b) + sigma(a - X^(s/2) b),   sigma: X -> X^(1 + 2N/s)

sigma keeps X^(s k) and negates X^(s/2 + s k), so the useful coefficients come out doubled and what stood in
their way is gone. Each merge is one key switch. The doubling is undone in advance, before key switches add
noise: a unit that will take part in m merges is divided by 2^m modulo q, which is exact where coefficients
double and harmless elsewhere. A unit without a partner moves up as it is: what stands at the places of the
missing partner is never sent to the key-holder.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from securefed.crypto.rlwe.ring import Ring
from securefed.crypto.rlwe.sealed import sealed

__all__ = ["merge", "merges_of"]


@cache
def _monomial(ring: Ring, exponent: int) -> Any:
    polynomial = np.zeros((1, ring.degree), dtype=np.int64)
    polynomial[:, exponent] = 1
    return sealed(ring).plaintexts(polynomial)[0]


def merges_of(present: Sequence[bool]) -> list[int]:
    """In how many merges each leaf takes part; leaves that are not there take part in none."""
    merges = [0] * len(present)
    members = [[leaf] if there else [] for leaf, there in enumerate(present)]
    while len(members) > 1:
        joined: list[list[int]] = []
        for at in range(0, len(members), 2):
            both = members[at : at + 2]
            if len(both) == 2 and both[0] and both[1]:
                for leaf in both[0] + both[1]:
                    merges[leaf] += 1
            joined.append([leaf for part in both for leaf in part])
        members = joined
    return merges


def merge(ring: Ring, leaves: Sequence[Any], stride: int, galois_keys: Any) -> Any:
    """One ciphertext with the useful coefficients of all the leaves (None where there is none)."""
    held = sealed(ring)
    evaluator, nodes = held.evaluator, list(leaves)
    while len(nodes) > 1:
        joined: list[Any] = []
        for at in range(0, len(nodes), 2):
            a, b = nodes[at], nodes[at + 1] if at + 1 < len(nodes) else None
            if b is None:
                joined.append(a)
                continue
            evaluator.multiply_plain_inplace(b, _monomial(ring, stride // 2))
            if a is not None:
                turned = held.apply("sub", a, b)
                evaluator.add_inplace(b, a)
                evaluator.apply_galois_inplace(turned, ring.galois_element(stride), galois_keys)
                evaluator.add_inplace(b, turned)
            joined.append(b)
        nodes, stride = joined, stride // 2
    return nodes[0]
