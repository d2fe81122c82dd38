"""The randomness pool: bounded, filled in the background, every value handed out once."""

from __future__ import annotations

import copy
import os
import pickle
import threading
from itertools import count

import numpy as np
import pytest
from gmpy2 import mpz

from securefed.crypto import FixedPoint
from securefed.crypto.errors import CapacityError, CryptoError, RangeError
from securefed.crypto.paillier import PaillierSecretKey, RandomnessPool, generate_secret_key
from securefed.crypto.paillier.residues import PublicResidues

FIXED = FixedPoint(bound=4.0, fraction_bits=20)


class Numbered:
    """Residues that can be told apart: 0, 1, 2, ..."""

    def __init__(self) -> None:
        self._next = count()
        self._lock = threading.Lock()

    def draw(self, count: int) -> list[mpz]:
        with self._lock:
            return [mpz(next(self._next)) for _ in range(count)]


@pytest.fixture(scope="module")
def secret() -> PaillierSecretKey:
    return generate_secret_key(512, allow_small=True)


def test_it_fills_to_its_capacity_and_no_further() -> None:
    with RandomnessPool(Numbered(), capacity=10, batch=3, background=False) as pool:
        assert len(pool) == 0
        pool.fill()
        assert len(pool) == 10
        pool.fill()
        assert len(pool) == 10


def test_values_come_out_once_and_missing_ones_are_computed() -> None:
    with RandomnessPool(Numbered(), capacity=10, background=False) as pool:
        pool.fill()
        assert [int(value) for value in pool.take(4)] == [0, 1, 2, 3]
        assert [int(value) for value in pool.take_ready(3)] == [4, 5, 6]
        assert [int(value) for value in pool.take(5)] == [7, 8, 9, 10, 11]
        assert len(pool) == 0
        assert pool.take_ready(5) == []
        assert pool.take(0) == []


def test_the_background_thread_fills_and_refills() -> None:
    with RandomnessPool(Numbered(), capacity=20) as pool:
        assert pool.wait_until_full(timeout=30)
        first = pool.take(15)
        assert pool.wait_until_full(timeout=30)
        second = pool.take(20)
    assert len({int(value) for value in first + second}) == 35


def test_no_value_is_handed_out_twice_across_threads() -> None:
    taken: list[list[mpz]] = [[] for _ in range(8)]
    with RandomnessPool(Numbered(), capacity=50, batch=7) as pool:

        def work(mine: list[mpz]) -> None:
            for size in range(200):
                mine.extend(pool.take(size % 5))

        threads = [threading.Thread(target=work, args=(mine,)) for mine in taken]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(pool) <= 50
    everything = [int(value) for mine in taken for value in mine]
    assert len(everything) == 8 * 400 and len(set(everything)) == len(everything)


def test_closing_stops_the_thread_and_forgets_the_values() -> None:
    pool = RandomnessPool(Numbered(), capacity=5)
    assert pool.wait_until_full(timeout=30)
    thread = pool._thread
    pool.close()
    pool.close()
    assert pool.closed and len(pool) == 0
    assert thread is not None and not thread.is_alive()
    assert pool.take_ready(3) == []
    pool.fill()
    assert len(pool) == 0
    with pytest.raises(CryptoError, match="closed"):
        pool.take(1)
    assert "closed" in repr(pool)


def test_it_cannot_be_copied() -> None:
    with RandomnessPool(Numbered(), capacity=5, background=False) as pool:
        for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="used twice"):
                duplicate(pool)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_gets_none_of_the_values() -> None:
    with RandomnessPool(Numbered(), capacity=5, background=False) as pool:
        pool.fill()
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(writer, bytes([len(pool), len(pool.take_ready(5))]))
            os._exit(0)
        os.waitpid(child, 0)
        assert os.read(reader, 2) == bytes([0, 0])
        os.close(reader)
        os.close(writer)
        assert len(pool) == 5


@pytest.mark.parametrize(
    ("options", "name"),
    [({"capacity": 0}, "capacity"), ({"capacity": 1 << 30}, "capacity"), ({"batch": 0}, "batch")],
)
def test_senseless_settings(options: dict[str, int], name: str) -> None:
    with pytest.raises(RangeError, match=name):
        RandomnessPool(Numbered(), **options)


def test_a_negative_count() -> None:
    with (
        RandomnessPool(Numbered(), capacity=5, background=False) as pool,
        pytest.raises(RangeError, match="count"),
    ):
        pool.take(-1)


class TestBehindAKey:
    def test_encryption_and_rerandomising_take_from_it(self, secret: PaillierSecretKey) -> None:
        public = secret.public
        order = int((secret._primes.p.p - 1) * (secret._primes.q.p - 1))
        with public.start_pool(capacity=12) as pool:
            assert pool.wait_until_full(timeout=60)
            values = np.array([1.0, -2.0, 3.5])
            encrypted = public.encrypt(values, FIXED)
            fresh = encrypted.rerandomise()
            masked, mask = fresh.mask()
            assert mask.remove(secret.open(masked)).tolist() == values.tolist()
            assert all(pow(int(r), order, int(public.square)) == 1 for r in pool.take(4))

    def test_what_it_holds_is_what_is_used(self, secret: PaillierSecretKey) -> None:
        public = secret.public
        with RandomnessPool(PublicResidues(public.n), capacity=4, background=False) as pool:
            pool.fill()
            held = [int(value) for value in pool._values]
            public.pool = pool
            ciphertexts = public.encrypt(np.zeros(3), FIXED).integers()
            assert ciphertexts == held[:3]  # an encryption of 0 is its r**n
            more = public.encrypt(np.zeros(3), FIXED).integers()
            assert more[0] == held[3] and len(pool) == 0
            assert len({*ciphertexts, *more}) == 6

    def test_a_closed_pool_is_passed_over(self, secret: PaillierSecretKey) -> None:
        secret.public.start_pool(capacity=2).close()
        masked, mask = secret.public.encrypt(np.ones(2), FIXED).mask()
        assert mask.remove(secret.open(masked)).tolist() == [1.0, 1.0]

    def test_one_pool_a_key(self, secret: PaillierSecretKey) -> None:
        with secret.public.start_pool(capacity=2), pytest.raises(CapacityError, match="already"):
            secret.public.start_pool()
