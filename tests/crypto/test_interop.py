"""Interoperability with phe: same primes, same ciphertexts, in both directions."""

from __future__ import annotations

import subprocess
import sys
from secrets import randbelow

import gmpy2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from phe import EncodedNumber
from phe.paillier import generate_paillier_keypair

from securefed.crypto import load_public_key
from securefed.crypto.errors import BadCiphertext, BadKey, RangeError, WrongKey
from securefed.crypto.interop import (
    from_phe_number,
    from_phe_private,
    to_phe_number,
    to_phe_private,
    to_phe_public,
)
from securefed.crypto.paillier import PaillierPublicKey, PaillierSecretKey

# Two 512-bit primes: interoperability does not depend on the size, and the tests stay quick.
P = int(gmpy2.next_prime(1 << 511))
Q = int(gmpy2.next_prime((1 << 511) + (1 << 509)))
N = P * Q


def textbook_encrypt(integer: int) -> int:
    """Paillier's own formula, from no library: (1 + n)**m * r**n mod n**2."""
    r = 1 + randbelow(N - 1)
    return pow(1 + N, integer % N, N * N) * pow(r, N, N * N) % (N * N)


def textbook_decrypt(ciphertext: int) -> int:
    phi = (P - 1) * (Q - 1)
    value = (pow(ciphertext, phi, N * N) - 1) // N * pow(phi, -1, N) % N
    return value if value <= N // 2 else value - N


@settings(deadline=None, max_examples=25)
@given(st.integers(-(2**60), 2**60), st.sampled_from([0, 4, 32, 48]))
def test_phe_opens_a_textbook_ciphertext(integer: int, fraction_bits: int) -> None:
    number = to_phe_number(textbook_encrypt(integer), N, fraction_bits)
    opened = to_phe_private(N, P, Q).decrypt_encoded(number)
    assert opened.exponent == -fraction_bits // 4
    assert to_phe_private(N, P, Q).decrypt(number) == integer / 2**fraction_bits


@settings(deadline=None, max_examples=25)
@given(st.floats(-1e6, 1e6, width=32))
def test_a_number_of_phe_opens_by_the_textbook(value: float) -> None:
    ciphertext, fraction_bits = from_phe_number(to_phe_public(N).encrypt(value), N)
    assert textbook_decrypt(ciphertext) / 2**fraction_bits == value


def test_sums_of_both_kinds_agree() -> None:
    encoded = EncodedNumber.encode(to_phe_public(N), 1.5, precision=2**-32)
    ours = to_phe_number(textbook_encrypt(-int(0.25 * 2**32)), N, 32)
    assert to_phe_private(N, P, Q).decrypt(ours + to_phe_public(N).encrypt(encoded)) == 1.25


def test_what_phe_computed_is_rerandomised_on_the_way_out() -> None:
    number = to_phe_public(N).encrypt(1)
    moved = number + 3
    naive = moved.ciphertext(be_secure=False)
    assert naive == number.ciphertext() * (1 + 3 * N) % (N * N), "the leak that phe documents"
    ciphertext, _ = from_phe_number(moved, N)
    assert ciphertext != naive
    assert textbook_decrypt(ciphertext) == 4


def test_private_keys_both_ways() -> None:
    assert from_phe_private(to_phe_private(N, Q, P)) == (P, Q)
    public, private = generate_paillier_keypair(n_length=512)
    p, q = from_phe_private(private)
    assert p * q == public.n
    assert to_phe_private(public.n, p, q) == private


@pytest.mark.parametrize(("p", "q"), [(P, P), (P, Q + 2), (1, N), (N, 1), (-P, -Q)])
def test_primes_that_are_not_those_of_n(p: int, q: int) -> None:
    with pytest.raises(BadKey, match="p, q"):
        to_phe_private(N, p, q)


@pytest.mark.parametrize("n", [0, -N, 4, N + 1])
def test_a_modulus_that_is_none(n: int) -> None:
    with pytest.raises(BadKey, match="n:"):
        to_phe_public(n)


@pytest.mark.parametrize("ciphertext", [0, -1, N * N, N * N + 1, P, Q * 5, N])
def test_ciphertexts_that_no_honest_party_makes(ciphertext: int) -> None:
    with pytest.raises(BadCiphertext):
        to_phe_number(ciphertext, N, 32)
    hostile = to_phe_number(1, N, 32)
    hostile._EncryptedNumber__ciphertext = ciphertext
    with pytest.raises(BadCiphertext):
        from_phe_number(hostile, N)


def test_wrong_types_scales_and_keys() -> None:
    with pytest.raises(RangeError, match="fraction_bits: 30"):
        to_phe_number(textbook_encrypt(1), N, 30)
    with pytest.raises(BadCiphertext, match="int given"):
        from_phe_number(5, N)
    with pytest.raises(BadKey, match="tuple given"):
        from_phe_private((P, Q))
    public, _ = generate_paillier_keypair(n_length=512)
    with pytest.raises(WrongKey):
        from_phe_number(public.encrypt(1), N)


@pytest.mark.slow
def test_everything_but_this_module_works_without_phe() -> None:
    """In a process that cannot import it: every module, a training and a prediction under Paillier."""
    program = """
import importlib, pkgutil, sys, warnings
sys.modules["phe"] = None
import numpy as np
import securefed
from securefed.crypto import interop
from securefed.errors import MissingExtra
for module in pkgutil.walk_packages(securefed.__path__, "securefed."):
    if not module.name.endswith(("__main__", ".torch", ".generate")):
        importlib.import_module(module.name)
generator = np.random.default_rng(0)
columns = generator.normal(size=(40, 4))
shop = securefed.Party("shop", columns[:, :2])
bank = securefed.Party("bank", columns[:, 2:], labels=columns.sum(axis=1) > 0)
model = securefed.GeneralisedLinear(
    scheme="paillier", reveal="own-gradient", key_bits=2048, batch_size=40, rounds=1, progress=False
)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    model.fit([shop, bank])
print(model.predict([shop, bank]).shape)
try:
    interop.to_phe_public(15)
except MissingExtra as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "(40,)",
        "phe (GPLv3) is not installed and is needed here: pip install phe",
    ]


def test_a_key_of_phe_gets_its_proof_when_its_owner_loads_it() -> None:
    public, private = generate_paillier_keypair(n_length=2048)
    secret = PaillierSecretKey.from_primes(*from_phe_private(private))
    arrived = load_public_key(secret.public.to_bytes())
    assert isinstance(arrived, PaillierPublicKey) and arrived.n == public.n
