"""The owner's randomness is exactly everybody's: exhaustively at toy sizes, by known answers at others."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from itertools import count, product
from math import gcd

import pytest
from gmpy2 import mpz

from securefed.crypto.paillier.keys import PaillierSecretKey, generate_secret_key, unit_powers
from securefed.crypto.paillier.primes import (
    WORTH_TABLES,
    FactoredPrime,
    Owner,
    PrimePair,
    invert_all,
)

P = 0xC57665EF6AE364F4555607AB86494D25
Q = 0xC27125374415D6E0F4C8B66AD09ED491
P_COFACTOR, Q_COFACTOR = 936702, 1449080
FACTORED = PrimePair(FactoredPrime(mpz(P), P_COFACTOR), FactoredPrime(mpz(Q), Q_COFACTOR))
BARE = PrimePair(FactoredPrime(mpz(P)), FactoredPrime(mpz(Q)))
TINY = {
    "fixed base": PrimePair(FactoredPrime(mpz(229), 6), FactoredPrime(mpz(239), 7)),
    "power": PrimePair(FactoredPrime(mpz(229)), FactoredPrime(mpz(239))),
}


def stream(seed: str) -> Callable[[int], bytes]:
    """A reproducible source."""
    calls = count()
    return lambda size: hashlib.shake_256(f"{seed}/{next(calls)}".encode()).digest(size)


@pytest.mark.parametrize("sampler", TINY)
def test_every_nth_residue_has_exactly_one_pair_of_choices(sampler: str) -> None:
    """With uniform choices that makes the owner's draws uniform over the n-th residues, as r**n is."""
    primes, owner = TINY[sampler], Owner(TINY[sampler])
    p, q = int(primes.p.p), int(primes.q.p)
    n = p * q
    standard = {pow(r, n, n * n) for r in range(1, n) if gcd(r, n) == 1}
    assert len(standard) == (p - 1) * (q - 1)  # r -> r**n is one to one
    first = 0 if sampler == "fixed base" else 1  # exponents start at 0, residues to be raised at 1
    choices = product(range(first, p - 1 + first), range(first, q - 1 + first))
    residues = owner._residues([(mpz(x), mpz(y)) for x, y in choices], owner.tables)
    assert Counter(map(int, residues)) == Counter(standard)


@pytest.mark.parametrize("sampler", TINY)
def test_choices_are_uniform_over_their_whole_range(sampler: str) -> None:
    at_p = Owner(TINY[sampler]).tables[0]
    source = stream(sampler)
    counts = Counter(int(at_p.choose(source)) for _ in range(228 * 100))
    first = 0 if sampler == "fixed base" else 1
    assert set(counts) == set(range(first, 228 + first))
    statistic = sum((seen - 100) ** 2 / 100 for seen in counts.values())
    assert abs(statistic - 227) < 6 * (2 * 227) ** 0.5


@pytest.mark.parametrize("sampler", TINY)
def test_draws_are_uniform_end_to_end(sampler: str) -> None:
    """A chi-square test of draws mod p**2 against the p - 1 residues that r**n takes there."""
    primes = TINY[sampler]
    p, owner = int(primes.p.p), Owner(primes)
    draws = owner.draw_from(stream(f"draws {sampler}"), (p - 1) * 50, owner.tables)
    counts = Counter(int(residue) % (p * p) for residue in draws)
    assert set(counts) <= {pow(y, p, p * p) for y in range(1, p)}
    statistic = sum((counts[pow(y, p, p * p)] - 50) ** 2 / 50 for y in range(1, p))
    assert abs(statistic - (p - 2)) < 6 * (2 * (p - 2)) ** 0.5


def test_owner_draws_have_a_known_answer() -> None:
    owner = Owner(FACTORED)
    assert [hex(residue) for residue in owner.draw_from(stream("residues"), 2, owner.tables)] == [
        "0x128c49d3883fe7226160f9857a637fdbe1ee8fc04db4aadef023a6f65f58ea8a49b2905d4c71bb4b7ba455b7"
        "3e1999c0c12d30e5cfe8ac8e75cd471a3519b56c",
        "0x217604d47115985c7d03a7fae3d21e1f3b209f923d735da64cbd67ab7b7709a4c37214537c3d9bf438931a95"
        "6a9e3e51c2a5789556abc7e441dfed098540ce12",
    ]


def test_fixed_base_powers_are_powers() -> None:
    """Against Python's own pow."""
    owner = Owner(FACTORED)
    source = stream("choices")
    at_p, at_q = owner.tables
    choices = [(at_p.choose(source), at_q.choose(source)) for _ in range(20)]
    n = P * Q
    for (x, y), residue in zip(choices, owner._residues(choices, owner.tables), strict=True):
        for prime, exponent, factored in ((P, x, FACTORED.p), (Q, y, FACTORED.q)):
            base = pow(int(factored.primitive_root()), prime, prime * prime)
            assert residue % (prime * prime) == pow(base, int(exponent), prime * prime)
        assert 0 < residue < n * n


def test_the_ends_of_the_exponent_range() -> None:
    owner = Owner(FACTORED)
    zero, last = owner._residues([(mpz(0), mpz(0)), (mpz(P - 2), mpz(Q - 2))], owner.tables)
    roots = [pow(int(f.primitive_root()), int(f.p), int(f.p) ** 2) for f in (FACTORED.p, FACTORED.q)]
    assert zero == 1
    assert [last * roots[0] % P**2, last * roots[1] % Q**2] == [1, 1]  # the order is p - 1


@pytest.mark.parametrize("primes", [FACTORED, BARE], ids=["fixed base", "power"])
def test_draws_are_nth_residues_and_differ(primes: PrimePair) -> None:
    n, order = P * Q, (P - 1) * (Q - 1)
    draws = [residue for count in (40, WORTH_TABLES) for residue in Owner(primes).draw(count, keep=False)]
    assert all(pow(int(residue), order, n * n) == 1 for residue in draws)
    assert len(set(draws)) == 40 + WORTH_TABLES


def test_public_draws_are_nth_powers_of_units() -> None:
    n = P * Q
    assert unit_powers((mpz(n), [mpz(2), mpz(n - 1)])) == [pow(2, n, n * n), pow(n - 1, n, n * n)]
    draws = PaillierSecretKey(FACTORED, allow_small=True).public.draw(5)
    assert all(pow(int(residue), (P - 1) * (Q - 1), n * n) == 1 for residue in draws)
    assert len(set(draws)) == 5


def test_tables_wait_until_they_are_worth_it() -> None:
    secret = generate_secret_key(256, allow_small=True)
    before, at_p = secret.to_bytes(), secret._owner.tables[0]
    secret.draw(WORTH_TABLES - 1, keep=False)
    assert at_p._factors == []
    secret.draw(1, keep=False)
    assert at_p._factors != []
    assert secret.to_bytes() == before


def test_no_draws() -> None:
    assert Owner(FACTORED).draw(0) == []
    assert PaillierSecretKey(FACTORED, allow_small=True).public.draw(0) == []


def test_batched_inverses() -> None:
    units = [mpz(unit) for unit in range(1, 200) if unit % 7 and unit % 11]
    assert invert_all(units, mpz(77)) == [pow(int(unit), -1, 77) for unit in units]
    assert invert_all([], mpz(77)) == []
    with pytest.raises(ZeroDivisionError):
        invert_all([mpz(3), mpz(7)], mpz(77))
