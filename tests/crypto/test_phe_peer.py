"""phe (python-paillier) as a second opinion on our arithmetic: same primes, same ciphertexts, both ways."""

from __future__ import annotations

import gmpy2
import numpy as np
import pytest
from phe import paillier as phe

from securefed.crypto import FixedPoint, KeyHolder, load_public_key
from securefed.crypto.paillier.arrays import Extent, PaillierEncrypted
from securefed.crypto.paillier.keys import PaillierPublicKey, PaillierSecretKey
from tests.crypto.paillier_cases import key_of

# Two 512-bit primes: agreement does not depend on the size, and the tests stay quick.
P = int(gmpy2.next_prime(1 << 511))
Q = int(gmpy2.next_prime((1 << 511) + (1 << 509)))
FIXED = FixedPoint(1024.0, 32)  # phe's exponents count powers of 16
VALUES = np.array([0.0, 1.0, -1.0, 1000.25, -0.0625, 3.5])


@pytest.fixture(scope="module")
def ours() -> PaillierSecretKey:
    return key_of(P, Q, allow_small=True)


@pytest.fixture(scope="module")
def theirs() -> phe.PaillierPrivateKey:
    return phe.PaillierPrivateKey(phe.PaillierPublicKey(P * Q), P, Q)


def test_phe_opens_what_we_encrypt_and_multiply(
    ours: PaillierSecretKey, theirs: phe.PaillierPrivateKey
) -> None:
    for encrypted in (ours.encrypt(VALUES, FIXED), ours.public.encrypt(VALUES, FIXED)):
        for array, truth in ((encrypted, VALUES), (encrypted + encrypted, 2 * VALUES)):
            assert isinstance(array, PaillierEncrypted)
            numbers = [phe.EncryptedNumber(theirs.public_key, c, -8) for c in map(int, array.integers)]
            assert [theirs.decrypt(number) for number in numbers] == truth.tolist()


def test_we_open_what_phe_encrypts(ours: PaillierSecretKey, theirs: phe.PaillierPrivateKey) -> None:
    encode = phe.EncodedNumber.encode
    numbers = [
        theirs.public_key.encrypt(encode(theirs.public_key, float(value), precision=2.0**-32))
        for value in VALUES
    ]
    assert {number.exponent for number in numbers} == {-8}
    ciphertexts = [gmpy2.mpz(number.ciphertext()) for number in numbers]
    array = PaillierEncrypted(ours.public, VALUES.shape, ciphertexts, Extent.fresh(FIXED))
    masked, mask = array.mask()
    assert mask.remove(KeyHolder(ours).open(masked)).tolist() == VALUES.tolist()


def test_a_key_of_phe_gets_its_proof_when_its_owner_loads_it() -> None:
    public, private = phe.generate_paillier_keypair(n_length=2048)
    secret = key_of(int(private.p), int(private.q))
    arrived = load_public_key(secret.public.to_bytes())
    assert isinstance(arrived, PaillierPublicKey) and arrived.n == public.n
