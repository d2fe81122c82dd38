"""Keys of real size, made once for each test process."""

from __future__ import annotations

import phe
import pytest

from securefed.crypto import KeyHolder
from tests.audit.naive import paillier as naive
from tests.protocols.federation import FULL_KEYS


@pytest.fixture(scope="session")
def paillier() -> KeyHolder:
    return FULL_KEYS.holder("paillier")


@pytest.fixture(scope="session")
def ckks() -> KeyHolder:
    return FULL_KEYS.holder("ckks")


@pytest.fixture(scope="session")
def naive_paillier() -> naive.Key:
    return naive.generate(2048)


@pytest.fixture(scope="session")
def phe_key() -> phe.PaillierPrivateKey:
    return phe.generate_paillier_keypair(n_length=2048)[1]
