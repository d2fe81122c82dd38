"""A requester that sends something else than a ciphertext, and gets the key for it."""

from __future__ import annotations

from collections.abc import Callable

import gmpy2
import phe
import pytest
from gmpy2 import mpz

from securefed.crypto import FixedPoint, KeyHolder
from securefed.crypto.paillier.arrays import PaillierMasked
from securefed.crypto.wire import Kind
from securefed.errors import BadCiphertext
from tests.audit.naive.paillier import PheHolder
from tests.audit.views import paillier_factors, paillier_public, with_ciphertexts

FIXED = FixedPoint(bound=1.0, fraction_bits=24)


def factors_from_opening_zero(n: int, open_ciphertext: Callable[[int], int]) -> tuple[int, int] | None:
    """The requester has n and one opening. It gets p and q.

    Decrypting c = 0 by CRT gives q^-1 mod p and p^-1 mod q, so the answer m has m (p + q) = 1 mod n. Sum and
    product of the primes are a quadratic equation. None when the answer is no such m, or none at all.
    """
    try:
        answer = open_ciphertext(0)
    except BadCiphertext:
        return None
    if gmpy2.gcd(answer, n) != 1:
        return None
    total = int(gmpy2.invert(answer, n))
    root, rest = gmpy2.isqrt_rem(max(0, total * total - 4 * n))
    return None if rest else (int((total - root) // 2), int((total + root) // 2))


def test_opening_zero(phe_key: phe.PaillierPrivateKey, paillier: KeyHolder) -> None:
    naive = PheHolder(phe_key)
    assert factors_from_opening_zero(naive.n, naive.open) == (phe_key.p, phe_key.q)

    public = paillier_public(paillier)
    template = paillier.encrypt([0.5], FIXED).mask()[0].to_bytes()

    def over_the_wire(ciphertext: int) -> int:
        masked = public.load_masked(with_ciphertexts(paillier, template, Kind.MASKED, [ciphertext]))
        return paillier.open(masked).integers[0]  # type: ignore[attr-defined, no-any-return]

    def past_the_wire(ciphertext: int) -> int:
        masked = PaillierMasked(public, (1,), [mpz(ciphertext)])
        return paillier.open(masked).integers[0]  # type: ignore[attr-defined, no-any-return]

    assert factors_from_opening_zero(int(public.n), over_the_wire) is None
    assert factors_from_opening_zero(int(public.n), past_the_wire) is None


def not_units(holder: KeyHolder) -> list[int]:
    p, q = paillier_factors(holder)
    n = p * q
    beyond = (1 << 8 * paillier_public(holder).ciphertext_bytes) - 1
    return [0, n, 7 * n, p, q, 5 * p * p, n * (n - 1), n * n, n * n + 1, beyond]


@pytest.mark.parametrize("kind", [Kind.ENCRYPTED, Kind.MASKED], ids=["encrypted", "masked"])
def test_what_is_not_a_unit_is_refused_on_arrival(paillier: KeyHolder, kind: Kind) -> None:
    public = paillier_public(paillier)
    load = public.load if kind is Kind.ENCRYPTED else public.load_masked
    template = paillier.encrypt([0.5, 0.5], FIXED)
    blob = template.to_bytes() if kind is Kind.ENCRYPTED else template.mask()[0].to_bytes()
    count = 2 if kind is Kind.ENCRYPTED else 1
    good = int(public.square) - 1
    load(with_ciphertexts(paillier, blob, kind, [good] * count))
    for bad in not_units(paillier):
        with pytest.raises(BadCiphertext):
            load(with_ciphertexts(paillier, blob, kind, [good] * (count - 1) + [bad]))


def test_what_is_not_a_unit_is_refused_by_the_key_holder(paillier: KeyHolder) -> None:
    holder = KeyHolder(
        paillier._secret
    )  # one that has seen nothing yet: a repetition is refused for being one
    for bad in not_units(paillier):
        with pytest.raises(BadCiphertext):
            holder.open(PaillierMasked(paillier_public(paillier), (1,), [mpz(bad)]))
