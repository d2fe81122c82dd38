"""Paillier keys: generation and its checks, keys from elsewhere, their binary form, weak keys refused."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from math import gcd

import gmpy2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from securefed.crypto import FixedPoint, generate, load_public_key
from securefed.crypto.paillier.keys import (
    PaillierPublicKey,
    PaillierSecretKey,
    generate_secret_key,
    roots_needed,
)
from securefed.crypto.paillier.primes import FactoredPrime, PrimePair, small_factor
from securefed.crypto.wire import Frame, Kind, fingerprint
from securefed.errors import BadKey, CryptoError, FormatError, WrongKey
from tests.crypto.paillier_cases import key_of

P = 0xC57665EF6AE364F4555607AB86494D25
Q = 0xC27125374415D6E0F4C8B66AD09ED491
P_COFACTOR, Q_COFACTOR = 936702, 1449080


def stream(seed: str) -> Callable[[int], bytes]:
    """A reproducible source."""
    calls = count()
    return lambda size: hashlib.shake_256(f"{seed}/{next(calls)}".encode()).digest(size)


def secret_frame(key: PaillierSecretKey) -> Frame:
    return Frame.from_bytes(key.to_bytes(), Kind.SECRET_KEY)


def public_frame(n: int) -> Frame:
    """What a sender of any n would write, with a proof of the right form that proves nothing."""
    size = (n.bit_length() + 7) // 8
    raw, roots = n.to_bytes(size, "big"), (1).to_bytes(size, "big") * roots_needed(n.bit_length())
    parameters = fingerprint(b"paillier", b"g = n + 1", n.bit_length().to_bytes(4, "little"))
    key = fingerprint(b"paillier", raw)
    return Frame(Kind.PUBLIC_KEY, "paillier", parameters, key, raw + roots, (), (size, 0, 0, 0))


@pytest.fixture(scope="module")
def big() -> PaillierSecretKey:
    return generate_secret_key(2048)


def test_generation_from_a_given_source_has_a_known_answer() -> None:
    pair = PrimePair.generate(256, stream("paillier key"))
    assert (pair.p.p, pair.p.cofactor) == (P, P_COFACTOR)
    assert (pair.q.p, pair.q.cofactor) == (Q, Q_COFACTOR)


@pytest.mark.parametrize("bits", [16, 17, 40, 64, 127, 256, 512])
def test_generated_primes_have_the_form_and_the_size(bits: int) -> None:
    for round_ in range(5):
        pair = PrimePair.generate(bits, stream(f"{bits}/{round_}"))
        assert pair.n.bit_length() == bits
        assert gcd(int(pair.n), int((pair.p.p - 1) * (pair.q.p - 1))) == 1
        for prime in (pair.p, pair.q):
            rest, remainder = divmod(prime.p - 1, 2 * prime.cofactor)
            assert remainder == 0 and gmpy2.is_prime(prime.p) and gmpy2.is_prime(rest)


def test_two_keys_differ() -> None:
    assert (
        generate_secret_key(64, allow_small=True).public.n
        != generate_secret_key(64, allow_small=True).public.n
    )


@pytest.mark.parametrize("bits", [2048, pytest.param(3072, marks=pytest.mark.slow)])
def test_real_sizes_work_from_generation_to_opening(bits: int) -> None:
    secret = generate_secret_key(bits)
    assert secret.public.bits == bits
    assert abs(secret._primes.p.p - secret._primes.q.p).bit_length() > bits // 2 - 100
    values = np.array([1.5, -2.25, 0.0])
    masked, mask = secret.encrypt(values, FixedPoint(4.0, 20)).mask()
    assert mask.remove(secret.open(masked)).tolist() == values.tolist()


def test_the_default_is_3072_bits() -> None:
    assert generate("paillier").public.bits == 3072


@pytest.mark.parametrize("bits", [0, 1024, 2047, 8193, 2048.0, True])
def test_sizes_outside_the_range_are_refused(bits: int) -> None:
    with pytest.raises(BadKey, match="2048 to 8192"):
        generate_secret_key(bits)


def test_the_test_switch_has_a_floor_too() -> None:
    with pytest.raises(BadKey, match="16 to 8192"):
        generate_secret_key(15, allow_small=True)


def test_a_generator_is_found_for_every_factored_prime() -> None:
    for seed in range(10):
        prime = PrimePair.generate(20, stream(f"root {seed}")).p
        root, p = int(prime.primitive_root()), int(prime.p)
        assert len({pow(root, exponent, p) for exponent in range(p - 1)}) == p - 1


def test_a_prime_without_factors_has_no_generator() -> None:
    with pytest.raises(BadKey, match="not known"):
        FactoredPrime(gmpy2.mpz(P)).primitive_root()


class TestGivenPrimes:
    def test_they_make_a_working_key(self) -> None:
        secret = key_of(P, Q, allow_small=True)
        assert secret.public.n == P * Q
        masked, mask = secret.encrypt(np.array([0.5, -0.25]), FixedPoint(1.0, 16)).mask()
        assert mask.remove(secret.open(masked)).tolist() == [0.5, -0.25]

    def test_small_ones_need_the_switch(self) -> None:
        with pytest.raises(BadKey, match="256 bits given"):
            key_of(P, Q)

    def test_the_same_prime_twice(self) -> None:
        with pytest.raises(BadKey, match="same"):
            key_of(P, P, allow_small=True)

    def test_a_composite(self) -> None:
        with pytest.raises(BadKey, match="not prime"):
            key_of(P * 3, Q, allow_small=True)

    @pytest.mark.parametrize("p", [0, 1, -7])
    def test_no_primes_at_all(self, p: int) -> None:
        with pytest.raises(BadKey):
            key_of(p, Q, allow_small=True)

    def test_near_primes(self, big: PaillierSecretKey) -> None:
        p = big._primes.p.p
        with pytest.raises(BadKey, match="differ by"):
            key_of(p, gmpy2.next_prime(p))

    def test_unequal_primes(self, big: PaillierSecretKey) -> None:
        with pytest.raises(BadKey, match="128 and 1024 bits"):
            key_of(P, big._primes.p.p)

    def test_n_and_phi_with_a_common_factor(self) -> None:
        p = gmpy2.next_prime(1 << 40)
        while not gmpy2.is_prime(2 * p + 1):
            p = gmpy2.next_prime(p)
        with pytest.raises(BadKey, match="common factor"):
            key_of(p, 2 * p + 1, allow_small=True)

    def test_a_cofactor_that_does_not_fit(self) -> None:
        with pytest.raises(BadKey, match="cofactor"):
            FactoredPrime(gmpy2.mpz(P), P_COFACTOR + 1)


class TestPublicForm:
    def test_round_trip(self, big: PaillierSecretKey) -> None:
        public = load_public_key(big.public.to_bytes())
        assert isinstance(public, PaillierPublicKey)
        assert (public.n, public.key_id, public.parameters) == (
            big.public.n,
            big.public.key_id,
            big.public.parameters,
        )

    def test_small_keys_need_the_switch(self) -> None:
        blob = generate_secret_key(512, allow_small=True).public.to_bytes()
        with pytest.raises(BadKey, match="512 bits given"):
            load_public_key(blob)
        assert load_public_key(blob, allow_small=True).to_bytes() == blob

    def test_weak_forms_are_refused(self, big: PaillierSecretKey) -> None:
        p, q = int(big._primes.p.p), int(big._primes.q.p)
        prime = int(gmpy2.next_prime(1 << 2047))
        square = p * p if (p * p).bit_length() >= 2048 else q * q
        weak = {
            2 * prime: "small factor",
            prime: "is prime",
            square: "perfect power",
            int(gmpy2.next_prime(1 << 683)) ** 3: "perfect power",
            65521 * prime: "small factor",
            p * q: "proof is wrong",  # a good key, and somebody who does not know its factors
        }
        for n, why in weak.items():
            with pytest.raises(BadKey, match=why):
                load_public_key(public_frame(n).to_bytes())

    def test_small_factors_are_found(self) -> None:
        prime = gmpy2.next_prime(1 << 2047)
        assert small_factor(prime * 65521) == 65521
        assert small_factor(prime) == 1

    def test_leading_zeros_and_lengths(self, big: PaillierSecretKey) -> None:
        frame = Frame.from_bytes(big.public.to_bytes(), Kind.PUBLIC_KEY)
        for payload in (b"\x00" + frame.payload, b"", b"\x01" * 1025):
            with pytest.raises(BadKey):
                load_public_key(replace(frame, payload=payload).to_bytes())
        for numbers in ((1, 0, 0, 0), (255, 0, 0, 0), (257, 0, 0, 0), (1 << 30, 0, 0, 0)):
            with pytest.raises(BadKey):
                load_public_key(replace(frame, numbers=numbers).to_bytes())
        for numbers in ((256, 1, 0, 0), (-256, 0, 0, 0)):
            with pytest.raises(FormatError):
                load_public_key(replace(frame, numbers=numbers).to_bytes())
        with pytest.raises(FormatError):
            load_public_key(replace(frame, shape=(1,)).to_bytes())

    def test_a_fingerprint_of_another_key(self, big: PaillierSecretKey) -> None:
        frame = Frame.from_bytes(big.public.to_bytes(), Kind.PUBLIC_KEY)
        with pytest.raises(WrongKey):
            load_public_key(replace(frame, key=bytes(16)).to_bytes())

    @settings(deadline=None, max_examples=60)
    @given(st.binary(max_size=80))
    def test_any_payload_is_a_key_or_a_named_error(self, payload: bytes) -> None:
        frame = replace(public_frame(P * Q), payload=payload)
        with pytest.raises(CryptoError):  # a key by chance would not match the fingerprint
            load_public_key(frame.to_bytes(), allow_small=True)


class TestSecretForm:
    def test_round_trip_keeps_the_fast_sampler(self) -> None:
        secret = generate_secret_key(512, allow_small=True)
        again = PaillierSecretKey.from_frame(secret_frame(secret), allow_small=True)
        assert again._primes == secret._primes
        assert again._primes.p.cofactor and again._primes.q.cofactor
        assert again.to_bytes() == secret.to_bytes()

    def test_round_trip_of_given_primes(self) -> None:
        secret = key_of(P, Q, allow_small=True)
        again = PaillierSecretKey.from_frame(secret_frame(secret), allow_small=True)
        assert (again._primes.p.p, again._primes.q.p) == (P, Q)
        assert not again._primes.p.cofactor

    def test_small_keys_need_the_switch(self) -> None:
        secret = key_of(P, Q, allow_small=True)
        with pytest.raises(BadKey):
            PaillierSecretKey.from_frame(secret_frame(secret))

    def test_another_keys_primes_do_not_pass(self) -> None:
        mine, other = (generate_secret_key(128, allow_small=True) for _ in range(2))
        frame = replace(secret_frame(mine), payload=secret_frame(other).payload)
        with pytest.raises(WrongKey):
            PaillierSecretKey.from_frame(frame, allow_small=True)

    @settings(deadline=None, max_examples=100)
    @given(st.data())
    def test_altered_payloads_are_named_errors(self, data: st.DataObject) -> None:
        frame = secret_frame(key_of(P, Q, allow_small=True))
        place = data.draw(st.integers(0, len(frame.payload) - 1))
        flip = data.draw(st.integers(1, 255))
        payload = bytearray(frame.payload)
        payload[place] ^= flip
        with pytest.raises(CryptoError):
            PaillierSecretKey.from_frame(replace(frame, payload=bytes(payload)), allow_small=True)

    @pytest.mark.parametrize("size", [0, 5, 12, 30])
    def test_cut_payloads(self, size: int) -> None:
        frame = secret_frame(key_of(P, Q, allow_small=True))
        with pytest.raises(FormatError):
            PaillierSecretKey.from_frame(replace(frame, payload=frame.payload[:size]), allow_small=True)


def test_reprs_show_no_secret() -> None:
    secret = key_of(P, Q, allow_small=True)
    shown = repr(secret) + repr(secret._primes) + repr(secret.public)
    for number in (P, Q):
        assert str(number) not in shown and hex(number)[2:] not in shown


def test_the_public_side_has_no_way_to_decrypt() -> None:
    secret = key_of(P, Q, allow_small=True)
    encrypted = secret.encrypt(np.array([0.5]), FixedPoint(1.0, 16))
    masked, _ = encrypted.mask()
    for thing in (secret.public, encrypted, masked):
        assert not [name for name in dir(thing) if "decrypt" in name or name in ("open", "receive")]
        secrets = [
            value for value in vars(thing).values() if isinstance(value, PaillierSecretKey | PrimePair)
        ]
        assert not secrets
