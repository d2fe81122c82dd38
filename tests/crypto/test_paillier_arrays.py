"""Encrypted arrays: exact against an integer oracle; what cannot be right is refused by name."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from fractions import Fraction
from multiprocessing import get_context

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from securefed.crypto import FixedPoint, load_public_key
from securefed.crypto.paillier.arrays import PaillierEncrypted
from securefed.crypto.paillier.keys import PaillierPublicKey, PaillierSecretKey, generate_secret_key
from securefed.crypto.wire import Frame, Kind
from securefed.errors import (
    BadCiphertext,
    CapacityError,
    CryptoError,
    FormatError,
    RangeError,
    ShapeError,
    WrongKey,
)
from tests.crypto.quantising import quantise

FIXED = FixedPoint(bound=4.0, fraction_bits=20)
WHOLE = FixedPoint(1.0, 0)
"""The scale of 1 and -1, which are not secret."""


@pytest.fixture(scope="module")
def secret() -> PaillierSecretKey:
    return generate_secret_key(256, allow_small=True)


@pytest.fixture(scope="module")
def public(secret: PaillierSecretKey) -> PaillierPublicKey:
    loaded = load_public_key(secret.public.to_bytes(), allow_small=True)
    assert isinstance(loaded, PaillierPublicKey)
    return loaded


def integers_in(secret: PaillierSecretKey, encrypted: PaillierEncrypted) -> list[int]:
    """The signed plaintexts, by the definition of decryption rather than by the code under test."""
    p, q = (int(prime) for prime in (secret._primes.p.p, secret._primes.q.p))
    n, order = p * q, (p - 1) * (q - 1)
    plain = [(pow(c, order, n * n) - 1) // n * pow(order, -1, n) % n for c in encrypted.integers]
    return [m - n if 2 * m > n else m for m in plain]


def values_in(secret: PaillierSecretKey, encrypted: PaillierEncrypted) -> list[Fraction]:
    scale = Fraction(2) ** encrypted.fraction_bits
    return [integer / scale for integer in integers_in(secret, encrypted)]


def opened(secret: PaillierSecretKey, encrypted: PaillierEncrypted) -> np.ndarray:
    masked, mask = encrypted.mask()
    return mask.remove(secret.open(masked))


def arrays(*shape: int, bound: float = 4.0) -> st.SearchStrategy[np.ndarray]:
    number = st.one_of(
        st.floats(-bound, bound, allow_nan=False), st.sampled_from([0.0, bound, -bound, 1.0, -1.0])
    )
    size = int(np.prod(shape))
    return st.lists(number, min_size=size, max_size=size).map(lambda flat: np.array(flat).reshape(shape))


class TestEncryption:
    @settings(deadline=None, max_examples=20)
    @given(values=arrays(3, 2))
    def test_owner_and_public_encrypt_the_encoded_integers(
        self, secret: PaillierSecretKey, public: PaillierPublicKey, values: np.ndarray
    ) -> None:
        expected = FIXED.encode(values).ravel().tolist()
        for encrypted in (secret.encrypt(values, FIXED), public.encrypt(values, FIXED)):
            assert integers_in(secret, encrypted) == expected
            assert (encrypted.shape, encrypted.ciphertexts, encrypted.bound) == ((3, 2), 6, 4.0)

    def test_combine_is_the_textbook_formula(self, public: PaillierPublicKey) -> None:
        n = int(public.n)
        for m in (0, 1, -1, 12345, -(1 << 60)):
            residue = pow(7, n, n * n)
            assert public.combine([m], [residue]) == [pow(1 + n, m % n, n * n) * residue % (n * n)]

    def test_no_two_ciphertexts_are_the_same(self, secret: PaillierSecretKey) -> None:
        encrypted = secret.encrypt(np.zeros(50), FIXED)
        assert len(set(encrypted.integers)) == 50

    @pytest.mark.parametrize(
        ("values", "error"),
        [
            ([np.nan], RangeError),
            ([np.inf], RangeError),
            ([4.001], RangeError),
            ([-4.001], RangeError),
            ([], ShapeError),
            ([[]], ShapeError),
            (3.0, ShapeError),
            (np.zeros((2, 2, 2)), ShapeError),
            (["a"], ShapeError),
        ],
    )
    def test_what_is_not_an_array_of_declared_numbers(
        self, public: PaillierPublicKey, values: object, error: type[CryptoError]
    ) -> None:
        with pytest.raises(error):
            public.encrypt(values, FIXED)

    def test_a_range_that_the_key_cannot_hold(self) -> None:
        tiny = generate_secret_key(40, allow_small=True)
        with pytest.raises(CapacityError, match="key of 40"):
            tiny.encrypt(np.array([1.0]), FixedPoint(1.0, 40))


class TestArithmetic:
    @settings(deadline=None, max_examples=20)
    @given(a=arrays(4), b=arrays(4), plain=arrays(4, bound=8.0))
    def test_sums(self, secret: PaillierSecretKey, a: np.ndarray, b: np.ndarray, plain: np.ndarray) -> None:
        x, y = secret.encrypt(a, FIXED), secret.encrypt(b, FIXED)
        i, j = FIXED.encode(a), FIXED.encode(b)
        k = np.rint(plain * FIXED.scale).astype(np.int64)
        assert integers_in(secret, x + y) == (i + j).tolist()
        assert integers_in(secret, x + y + plain) == (i + j + k).tolist()
        assert (x + y).bound == 8.0 and (x + y + plain).bound == 16.0

    @settings(deadline=None, max_examples=15)
    @given(a=arrays(5, 2), t=arrays(2 * 3, 5, bound=3.0))
    def test_contractions(self, secret: PaillierSecretKey, a: np.ndarray, t: np.ndarray) -> None:
        multipliers = t.reshape(2, 3, 5)
        integers, exponent = quantise(multipliers)
        exact = np.einsum("jai,ij->aj", integers.astype(object), FIXED.encode(a).astype(object))
        scale = Fraction(2) ** (FIXED.fraction_bits + exponent)
        result = secret.encrypt(a, FIXED).contract(multipliers)
        assert result.shape == (3, 2)
        assert values_in(secret, result) == [int(value) / scale for value in exact.ravel()]
        assert opened(secret, result).ravel().tolist() == [float(int(v) / scale) for v in exact.ravel()]
        fixed = FixedPoint(3.0, 18)
        public_scale = secret.encrypt(a, FIXED).contract(multipliers, fixed)
        encoded = fixed.encode(t).reshape(2, 3, 5).astype(object)
        exact = np.einsum("jai,ij->aj", encoded, FIXED.encode(a).astype(object))
        assert integers_in(secret, public_scale) == exact.ravel().tolist()
        assert (public_scale.fraction_bits, public_scale.bound) == (38, 4.0 * 3.0 * 5)

    def test_vectors_sums_and_scalars(self, secret: PaillierSecretKey) -> None:
        values = np.array([0.5, -1.25, 2.0])
        encrypted = secret.encrypt(values, FIXED)
        assert opened(secret, np.array([[1.0, 2.0, -4.0]]) @ encrypted).tolist() == [0.5 - 2.5 - 8.0]
        total = encrypted.contract(np.ones((1, 1, 3)), WHOLE)
        assert (total.shape, total.fraction_bits, total.bound) == ((1,), FIXED.fraction_bits, 12.0)
        assert opened(secret, total).tolist() == [1.25]
        assert opened(secret, 0.25 * np.eye(3) @ encrypted + 1.0).tolist() == (values / 4 + 1).tolist()
        assert opened(secret, np.zeros((3, 3)) @ encrypted).tolist() == [0.0, 0.0, 0.0]

    def test_two_scales_are_brought_to_the_finer_one(self, secret: PaillierSecretKey) -> None:
        coarse = secret.encrypt(np.array([1.5, -2.0]), FixedPoint(4.0, 10))
        fine = secret.encrypt(np.array([0.25, 1 / 1024]), FixedPoint(1.0, 30))
        for total in (coarse + fine, fine + coarse):
            assert total.fraction_bits == 30
            assert opened(secret, total).tolist() == [1.75, -2.0 + 1 / 1024]

    def test_extents_are_those_of_the_declaration_not_of_the_values(self, secret: PaillierSecretKey) -> None:
        """Of binary, zero and arbitrary multipliers alike; a public scale is known to be that."""
        small, large = (secret.encrypt(np.full(3, value), FIXED) for value in (0.001, 4.0))
        rng = np.random.default_rng(0)
        normal = rng.normal(size=(1, 2, 3))
        for t in (normal, 1e-6 * normal, np.ones((1, 2, 3)), np.zeros((1, 2, 3)), np.eye(3)[None, :2]):
            for left in (small, large):
                assert left.contract(t).extent.magnitude == (4 << 20) * (1 << 24) * 3
        assert small.contract(np.ones((1, 1, 3)), WHOLE).extent.magnitude == (4 << 20) * 3

    def test_a_private_scale_shows_as_a_power_of_two_at_most(self, secret: PaillierSecretKey) -> None:
        encrypted = secret.encrypt(np.ones(3), FIXED)
        for largest in (5.1, 6.7, 7.9):
            assert encrypted.contract(np.full((1, 1, 3), largest)).bound == 8.0 * 3 * FIXED.bound

    def test_huge_multipliers_are_refused_by_name(self, secret: PaillierSecretKey) -> None:
        with pytest.raises(CapacityError):
            np.array([[1.7e308]]) @ secret.encrypt(np.array([1.0]), FIXED)

    def test_capacity_is_refused_before_it_is_needed(self, secret: PaillierSecretKey) -> None:
        """Multiply by public 62-bit numbers until the 256 bits are full: exact up to there, then refused."""
        fixed = FixedPoint(1.0, 61)
        encrypted = secret.encrypt(np.array([-4.0]), FIXED)
        steps = 0
        with pytest.raises(CapacityError, match="key of 256"):
            while True:
                encrypted = encrypted.contract(np.ones((1, 1, 1)), fixed)
                steps += 1
        assert steps == 3 and opened(secret, encrypted).tolist() == [-4.0]
        with pytest.raises(CapacityError):
            # To be brought to 260 fraction bits.
            encrypted + np.array([[2.0**-240]]) @ secret.encrypt(np.array([1.0]), FIXED)

    def test_sums_at_the_very_edge(self) -> None:
        """Doubling reaches the edge of the signed plaintext space and stops there."""
        secret = generate_secret_key(64, allow_small=True)
        encrypted, expected = secret.encrypt(np.array([1.0, -1.0]), FixedPoint(1.0, 50)), 1 << 50
        with pytest.raises(CapacityError):
            while True:
                encrypted, expected = encrypted + encrypted, 2 * expected
                assert integers_in(secret, encrypted) == [expected, -expected]
        assert 2 * 2 * expected >= secret.public.n > 2 * expected

    @pytest.mark.parametrize(
        ("operation", "error"),
        [
            (lambda e: e + np.ones(1), ShapeError),
            (lambda e: e + np.array([np.nan, 0.0, 0.0]), RangeError),
            (lambda e: e + 4.5, RangeError),
            (lambda e: e.contract([[[3.0, 0.0, 0.0]]], FixedPoint(2.0, 10)), RangeError),
            (lambda e: e.contract(np.ones((1, 2, 4))), ShapeError),
            (lambda e: e.contract(np.ones((2, 2, 3))), ShapeError),
            (lambda e: e.contract(np.ones((1, 0, 3))), ShapeError),
            (lambda e: e.contract(np.full((1, 1, 3), np.nan)), RangeError),
            (lambda e: np.ones((2, 4)) @ e, ShapeError),
        ],
    )
    def test_what_does_not_fit(
        self, secret: PaillierSecretKey, operation: object, error: type[CryptoError]
    ) -> None:
        assert callable(operation)
        with pytest.raises(error):
            operation(secret.encrypt(np.array([1.0, 2.0, 3.0]), FIXED))

    def test_two_keys_do_not_mix(self, secret: PaillierSecretKey) -> None:
        other = generate_secret_key(256, allow_small=True).encrypt(np.array([1.0]), FIXED)
        with pytest.raises(WrongKey):
            secret.encrypt(np.array([1.0]), FIXED) + other


class TestBytes:
    def test_round_trip(self, secret: PaillierSecretKey, public: PaillierPublicKey) -> None:
        encrypted = secret.encrypt(np.arange(6.0).reshape(3, 2) / 2, FIXED) + 1.0
        loaded = public.load(encrypted.to_bytes(), shape=(3, 2))
        assert loaded.integers == encrypted.integers
        assert (loaded.shape, loaded.bound, loaded.fraction_bits) == ((3, 2), 8.0, FIXED.fraction_bits)
        assert loaded.extent.magnitude.bit_length() == encrypted.extent.magnitude.bit_length()
        assert loaded.to_bytes() == encrypted.to_bytes()

    def test_sizes_are_fixed_by_shape_and_key(self, secret: PaillierSecretKey) -> None:
        sizes = {len(secret.encrypt(np.full(5, value), FIXED).to_bytes()) for value in (0.0, 4.0, -4.0)}
        assert len(sizes) == 1

    def altered(self, secret: PaillierSecretKey, place: int, value: int) -> bytes:
        """A whole frame, checksum and all, in which one ciphertext is another number."""
        frame = Frame.from_bytes(secret.encrypt(np.ones(4), FIXED).to_bytes(), Kind.ENCRYPTED)
        width = secret.public.ciphertext_bytes
        payload = bytearray(frame.payload)
        payload[place * width : (place + 1) * width] = value.to_bytes(width, "big")
        return replace(frame, payload=bytes(payload)).to_bytes()

    @pytest.mark.parametrize("place", [0, 2, 3])
    def test_ciphertexts_that_no_honest_party_sends(
        self, secret: PaillierSecretKey, public: PaillierPublicKey, place: int
    ) -> None:
        p, q, n = int(secret._primes.p.p), int(secret._primes.q.p), int(public.n)
        for value in (0, n, p, 5 * q, n * n - n, n * n, n * n + 1):
            with pytest.raises(BadCiphertext, match=f"ciphertext {place} of 4"):
                public.load(self.altered(secret, place, value))
        assert public.load(self.altered(secret, place, 1)).ciphertexts == 4

    def test_frames_that_are_not_what_they_announce(
        self, secret: PaillierSecretKey, public: PaillierPublicKey
    ) -> None:
        frame = Frame.from_bytes(secret.encrypt(np.ones((2, 2)), FIXED).to_bytes(), Kind.ENCRYPTED)
        f, sizes, low, high = frame.numbers
        wrong: list[tuple[Frame, type[CryptoError]]] = [
            (replace(frame, payload=frame.payload[:-1]), FormatError),
            (replace(frame, payload=frame.payload + b"\x01"), FormatError),
            (replace(frame, payload=b""), FormatError),
            (replace(frame, shape=(2, 3)), FormatError),
            (replace(frame, shape=(0, 3)), ShapeError),
            (replace(frame, shape=()), ShapeError),
            (replace(frame, key=bytes(16)), WrongKey),
            (replace(frame, parameters=bytes(16)), WrongKey),
            (replace(frame, numbers=(1 << 20, sizes, low, high)), FormatError),
            (replace(frame, numbers=(f, 0, low, high)), FormatError),
            (replace(frame, numbers=(f, 300, low, high)), FormatError),
            (replace(frame, numbers=(f, sizes | 60 << 16, low, high)), FormatError),
            (replace(frame, numbers=(f, -1, low, high)), FormatError),
            (replace(frame, numbers=(f, sizes, 0, 0)), FormatError),
            (replace(frame, numbers=(f, sizes, low, 0x7FF00000)), FormatError),
            (replace(frame, numbers=(f + 10, sizes, low, high)), FormatError),
        ]
        for bad, error in wrong:
            with pytest.raises(error):
                public.load(bad.to_bytes())
        with pytest.raises(ShapeError):
            public.load(frame.to_bytes(), shape=(4,))

    @settings(deadline=None, max_examples=100)
    @given(data=st.data())
    def test_flipped_bytes(
        self, secret: PaillierSecretKey, public: PaillierPublicKey, data: st.DataObject
    ) -> None:
        blob = bytearray(secret.encrypt(np.ones(3), FIXED).to_bytes())
        blob[data.draw(st.integers(0, len(blob) - 1))] ^= data.draw(st.integers(1, 255))
        with pytest.raises(CryptoError):
            public.load(bytes(blob))

    @settings(deadline=None, max_examples=100)
    @given(
        st.tuples(*[st.integers(-(1 << 31), (1 << 31) - 1)] * 4),
        st.lists(st.integers(0, 1 << 32), max_size=2).map(
            lambda sizes: tuple(min(s, 1 << 20) for s in sizes)
        ),
        st.binary(max_size=400),
    )
    def test_any_frame_under_the_right_key_is_loaded_or_a_named_error(
        self,
        public: PaillierPublicKey,
        numbers: tuple[int, int, int, int],
        shape: tuple[int, ...],
        payload: bytes,
    ) -> None:
        for kind, read in (
            (Kind.ENCRYPTED, public.load),
            (Kind.MASKED, public.load_masked),
            (Kind.OPENED, public.load_opened),
        ):
            try:
                read(public.frame(kind, payload, shape, numbers).to_bytes())
            except CryptoError:
                continue


class InTurn:
    """A mapper that claims several workers, so that work is cut up, and does it here."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.pieces = 0

    def map(self, function, items):  # type: ignore[no-untyped-def]
        results = [function(item) for item in items]
        self.pieces += len(results)
        return results


class Processes:
    """A mapper of two real processes, in which nothing is there but what is sent."""

    workers = 2

    def __init__(self) -> None:
        self.pool = ProcessPoolExecutor(2, mp_context=get_context("spawn"))

    @property
    def local(self) -> Processes:
        return self

    def map(self, function, items):  # type: ignore[no-untyped-def]
        return list(self.pool.map(function, items))


class TestWorkers:
    @pytest.mark.parametrize("workers", [2, 3, 8])
    def test_products_are_the_same_bit_for_bit(
        self, secret: PaillierSecretKey, public: PaillierPublicKey, workers: int
    ) -> None:
        rng = np.random.default_rng(workers)
        encrypted = secret.encrypt(rng.uniform(-4, 4, (20, 3)), FIXED)
        multipliers = rng.normal(size=(3, 5, 20))
        many = load_public_key(public.to_bytes(), allow_small=True)
        many.mapper = InTurn(workers)
        shared = many.load(encrypted.to_bytes())
        assert shared.contract(multipliers).integers == encrypted.contract(multipliers).integers
        column = many.load(secret.encrypt(np.ones(20), FIXED).to_bytes())
        assert opened(secret, column.contract(np.ones((1, 4, 20)))).tolist() == [20.0] * 4
        assert many.mapper.pieces > 3 + workers

    def test_everything_works_in_other_processes(self) -> None:
        secret = generate_secret_key(512, allow_small=True)
        mapper = Processes()
        values = np.linspace(-4, 4, 130).reshape(65, 2)
        here = secret.encrypt(values, FIXED)
        secret.public.mapper = mapper
        with mapper.pool:
            encrypted = secret.encrypt(values, FIXED)
            assert len(set(encrypted.integers)) == 130
            multipliers = np.random.default_rng(0).normal(size=(2, 3, 65))
            contracted = here.contract(multipliers)
            masked, mask = encrypted.mask()
            result = mask.remove(secret.open(masked))
            public_too = secret.public.encrypt(values[:4], FIXED)
        secret.public.mapper = InTurn(1)
        assert np.abs(result - values).max() <= 2.0**-21
        assert contracted.integers == here.contract(multipliers).integers
        assert integers_in(secret, public_too) == FIXED.encode(values[:4]).ravel().tolist()


@pytest.mark.parametrize("bits", [2048, pytest.param(3072, marks=pytest.mark.slow)])
def test_real_keys_agree_with_the_oracle(bits: int) -> None:
    secret = generate_secret_key(bits)
    rng = np.random.default_rng(bits)
    values, multipliers = rng.uniform(-4, 4, (24, 2)), rng.normal(size=(2, 3, 24))
    encrypted = secret.public.load(secret.encrypt(values, FIXED).to_bytes())
    integers, exponent = quantise(multipliers)
    exact = np.einsum("jai,ij->aj", integers.astype(object), FIXED.encode(values).astype(object)).ravel()
    scale = Fraction(2) ** (FIXED.fraction_bits + exponent)
    contracted = encrypted.contract(multipliers)
    assert opened(secret, contracted).ravel().tolist() == [float(int(value) / scale) for value in exact]
    expected = (FIXED.encode(values) / FIXED.scale - 1.0).tolist()
    assert opened(secret, encrypted + -1.0).tolist() == expected
