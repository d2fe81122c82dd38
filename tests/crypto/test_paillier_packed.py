"""Packed arrays: sums, one integer factor, masks; and the plan that stops before slots overflow."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from securefed.crypto import FixedPoint
from securefed.crypto.errors import (
    BadCiphertext,
    CapacityError,
    FormatError,
    RangeError,
    ShapeError,
    WrongKey,
)
from securefed.crypto.paillier import PaillierPacked, PaillierSecretKey, generate_secret_key
from securefed.crypto.paillier.public import BLOCK
from securefed.crypto.wire import Frame, Kind

FIXED = FixedPoint(bound=4.0, fraction_bits=20)


@pytest.fixture(scope="module")
def secret() -> PaillierSecretKey:
    return generate_secret_key(512, allow_small=True)


def opened(secret: PaillierSecretKey, packed: PaillierPacked) -> np.ndarray:
    masked, mask = packed.mask()
    return mask.remove(secret.open(secret.public.load_masked(masked.to_bytes())))


@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.floats(-4, 4), min_size=1, max_size=70),
    st.integers(-50, 50),
    st.lists(st.floats(-4, 4), min_size=70, max_size=70),
)
def test_arithmetic_is_exact(
    secret: PaillierSecretKey, values: list[float], factor: int, addends: list[float]
) -> None:
    a, b = np.array(values), np.array(addends[: len(values)])
    x = secret.encrypt_packed(a, FIXED, terms=3, multiplier=50)
    y = secret.public.encrypt_packed(b, FIXED, terms=3, multiplier=50)
    i, j = FIXED.encode(a), FIXED.encode(b)
    assert opened(secret, x).tolist() == (i / FIXED.scale).tolist()
    assert opened(secret, x * factor + y).tolist() == ((factor * i + j) / FIXED.scale).tolist()
    assert opened(secret, x + b).tolist() == ((i + j) / FIXED.scale).tolist()
    assert opened(secret, (x + y).rerandomise()).tolist() == ((i + j) / FIXED.scale).tolist()


def test_slots_and_blocks(secret: PaillierSecretKey) -> None:
    """More than one block of ciphertexts, the last one part full, and a matrix."""
    plan = secret.encrypt_packed([1.0], FIXED).plan
    assert (plan.width, plan.slots) == (25, 20)
    count = plan.slots * BLOCK + 7
    values = np.linspace(-4, 4, count)
    packed = secret.encrypt_packed(values, FIXED)
    assert packed.ciphertexts == BLOCK + 1
    assert len(set(packed.integers())) == BLOCK + 1
    few = packed._make(packed._ciphertexts[-2:], packed.extent)
    few.shape = (plan.slots + 7,)
    assert opened(secret, few).tolist() == (FIXED.encode(values) / FIXED.scale)[-27:].tolist()
    matrix = np.arange(6.0).reshape(2, 3) / 2
    assert opened(secret, secret.encrypt_packed(matrix, FIXED)).tolist() == matrix.tolist()


def test_the_plan_is_kept_to_the_last_term(secret: PaillierSecretKey) -> None:
    """Full-scale values of both signs, added and multiplied up to the limit and not beyond."""
    values = np.where(np.arange(40) % 2, 4.0, -4.0)
    packed = secret.encrypt_packed(values, FIXED, terms=4, multiplier=3)
    total = packed * 3
    for _ in range(3):
        total = total + packed * 3
    assert opened(secret, total).tolist() == (12 * values).tolist()
    assert total.bound == 48.0 and total.plan.terms_left(total.extent.magnitude) == 0
    for beyond in (lambda: total + packed, lambda: total * 2, lambda: packed * 13, lambda: total + 0.5):
        with pytest.raises(CapacityError, match="4 terms"):
            beyond()


def test_no_room_means_no_addition(secret: PaillierSecretKey) -> None:
    packed = secret.encrypt_packed(np.ones(3), FIXED)
    with pytest.raises(CapacityError):
        packed + packed
    with pytest.raises(CapacityError):
        secret.encrypt_packed(np.ones(3), FIXED, terms=1 << 500)


@pytest.mark.parametrize("options", [{"terms": 0}, {"multiplier": 0}, {"terms": 1.5}])
def test_senseless_headroom(secret: PaillierSecretKey, options: dict[str, int]) -> None:
    with pytest.raises(RangeError, match=next(iter(options))):
        secret.encrypt_packed(np.ones(3), FIXED, **options)


def test_what_does_not_fit_together(secret: PaillierSecretKey) -> None:
    packed = secret.encrypt_packed(np.ones(3), FIXED, terms=5)
    other = generate_secret_key(512, allow_small=True).encrypt_packed(np.ones(3), FIXED, terms=5)
    with pytest.raises(WrongKey):
        packed + other
    with pytest.raises(ShapeError):
        packed + secret.encrypt_packed(np.ones(4), FIXED, terms=5)
    with pytest.raises(ShapeError):
        packed + np.ones(4)
    with pytest.raises(CapacityError, match="do not add up"):
        packed + secret.encrypt_packed(np.ones(3), FIXED, terms=500)
    with pytest.raises(CapacityError, match="do not add up"):
        packed + secret.encrypt_packed(np.ones(3), FixedPoint(2.0, 21), terms=5)
    with pytest.raises(RangeError):
        packed + 4.5
    with pytest.raises(RangeError):
        packed + np.array([np.nan, 0.0, 0.0])
    for factor in (0.5, True):
        with pytest.raises(RangeError, match="factor"):
            packed * factor


def test_bytes(secret: PaillierSecretKey) -> None:
    packed = secret.encrypt_packed(np.linspace(-4, 4, 50), FIXED, terms=6, multiplier=7)
    blob = packed.to_bytes()
    loaded = secret.public.load_packed(blob, shape=(50,))
    assert loaded.integers() == packed.integers()
    assert (loaded.bound, loaded.plan.width, loaded.plan.slots) == (4.0, packed.plan.width, packed.plan.slots)
    expected = 3 * FIXED.encode(np.linspace(-4, 4, 50)) / FIXED.scale
    assert opened(secret, loaded * 2 + packed).tolist() == expected.tolist()
    with pytest.raises(ShapeError):
        secret.public.load_packed(blob, shape=(51,))
    with pytest.raises(FormatError, match="packed block"):
        secret.public.load(blob)
    with pytest.raises(FormatError):
        secret.public.load_packed(secret.encrypt(np.ones(3), FIXED).to_bytes())
    frame = Frame.from_bytes(blob, Kind.ENCRYPTED)
    width = secret.public.ciphertext_bytes
    for payload, error in (
        (frame.payload[width:], FormatError),
        (frame.payload + frame.payload, FormatError),
        (bytes(width) + frame.payload[width:], BadCiphertext),
    ):
        bad = Frame(
            frame.kind, frame.scheme, frame.parameters, frame.key, payload, frame.shape, frame.numbers
        )
        with pytest.raises(error):
            secret.public.load_packed(bad.to_bytes())


def test_a_real_key_packs_as_planned() -> None:
    secret = generate_secret_key(2048)
    fixed = FixedPoint(1.0, 23)
    values = np.linspace(-1, 1, 100)
    packed = secret.encrypt_packed(values, fixed, terms=1024, multiplier=1 << 24)
    assert packed.plan.slots == 34 and packed.ciphertexts == 3
    expected = fixed.encode(values) * 1000 / fixed.scale
    assert opened(secret, packed * 1000).tolist() == expected.tolist()


MILLION = """
import numpy as np
from securefed.crypto import FixedPoint
from securefed.crypto.paillier import generate_secret_key
secret = generate_secret_key(2048)
values = np.linspace(-1, 1, 1_000_000)
packed = secret.encrypt_packed(values, FixedPoint(1.0, 23), terms=1024, multiplier=1 << 24)
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(packed.ciphertexts, status["VmHWM"].split()[0])
"""
"""The peak is this process's own: ru_maxrss would start from that of the process it was forked from."""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's account of a process")
@pytest.mark.nightly
def test_a_million_values_stay_under_a_gibibyte() -> None:
    done = subprocess.run([sys.executable, "-c", MILLION], capture_output=True, text=True, check=True)
    ciphertexts, resident = map(int, done.stdout.split())
    assert ciphertexts == -(-1_000_000 // 34)
    assert resident * 1024 < 1 << 30
    assert done.stderr == ""  # no bar where there is no terminal
