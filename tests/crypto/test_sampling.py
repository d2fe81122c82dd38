"""Distributions of the lattice scheme: known answers, moments and tails.

Thresholds are six deviations or more of the statistic, so that one fails by chance less than once in 10**8.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from securefed.crypto.lattice.ring import uniform_residues
from securefed.crypto.randomness import (
    ERROR_DEVIATION,
    NORMAL_DEVIATION,
    errors,
    key_stream,
    normals,
    secret_bytes,
    ternary,
)

SEED = bytes(range(32))
MANY = 1 << 18


def digest(values: np.ndarray) -> str:
    return hashlib.sha256(values.astype("<i8").tobytes()).hexdigest()[:16]


def test_the_key_stream_is_aes_256_in_counter_mode() -> None:
    """Block number i is the cipher of the label and i."""
    cipher = Cipher(algorithms.AES(SEED), modes.ECB()).encryptor()  # noqa: S305
    blocks = [cipher.update(b"label\0\0\0" + number.to_bytes(8, "big")) for number in range(3)]
    assert key_stream(SEED, b"label")(40) == b"".join(blocks)[:40]
    assert key_stream(SEED)(48) == b"".join([(source := key_stream(SEED))(16), source(32)])
    assert key_stream(SEED, b"a")(16) != key_stream(SEED, b"b")(16)
    assert secret_bytes()(32) != secret_bytes()(32)


@pytest.mark.parametrize(
    ("draw", "known"),
    [
        (lambda: errors(key_stream(SEED), 1000), "dcdeee6e21c92f87"),
        (lambda: ternary(key_stream(SEED), 1000), "d99ae5dc6df4f870"),
        (lambda: normals(key_stream(SEED), 1000), "54e13cfefd059dae"),
        (lambda: uniform_residues(key_stream(SEED), 1843201, 1000), "3a3f5f32795278bb"),
    ],
    ids=["errors", "ternary", "normals", "uniform"],
)
def test_known_answers(draw: object, known: str) -> None:
    assert digest(draw()) == known  # type: ignore[operator]


def test_normals_by_their_definition() -> None:
    """The first piece's words are radii and then angles, of 64 bits each."""
    data = key_stream(SEED)(16 * 500)
    words = [int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data), 8)]
    radii = [
        NORMAL_DEVIATION * math.sqrt(-2 * math.log(((word >> 1) + 0.5) * 2.0**-63)) for word in words[:500]
    ]
    angles = [
        2 * math.pi * ((word >> 52) / 2**12 + ((word + (1 << 51)) % (1 << 52) - (1 << 51)) / 2**64)
        for word in words[500:]
    ]
    pairs = list(zip(radii, angles, strict=True))
    due = [round(r * math.cos(a)) for r, a in pairs] + [round(r * math.sin(a)) for r, a in pairs]
    assert normals(key_stream(SEED), 1000).tolist() == due


def test_errors_by_counting_bits() -> None:
    words = [0, (1 << 42) - 1, 1, 1 << 63, (1 << 21) - 1]
    data = b"".join(word.to_bytes(8, "little") for word in words)
    assert errors(lambda count: data[:count], 5).tolist() == [-21, 21, -20, -21, 0]


def test_moments_of_errors() -> None:
    drawn = errors(secret_bytes(), MANY).astype(float)
    assert abs(drawn.mean()) < 7 * ERROR_DEVIATION / math.sqrt(MANY)
    assert abs(drawn.var() / ERROR_DEVIATION**2 - 1) < 7 * math.sqrt(2 / MANY)


def test_secrets_are_uniform_on_three_values() -> None:
    counts = np.bincount(ternary(secret_bytes(), MANY) + 1, minlength=3)
    assert len(counts) == 3
    assert np.abs(counts - MANY / 3).max() < 7 * math.sqrt(MANY * 2 / 9)


def test_normals_follow_the_normal_law() -> None:
    drawn = normals(secret_bytes(), MANY)
    np.testing.assert_array_equal(drawn, np.rint(drawn))
    assert abs(drawn.mean()) < 7 * NORMAL_DEVIATION / math.sqrt(MANY)
    assert abs(drawn.var() / NORMAL_DEVIATION**2 - 1) < 7 * math.sqrt(2 / MANY)
    for limit in (0.1, 0.5, 1.0, 2.0, 3.0, 4.0):
        chance = math.erfc(limit / math.sqrt(2))
        result = int((np.abs(drawn) > limit * NORMAL_DEVIATION).sum())
        assert abs(result - MANY * chance) < 7 * math.sqrt(MANY * chance) + 20
    # The two halves are the cosines and the sines of the same pairs.
    correlation = float(np.mean(drawn[: MANY // 2] * drawn[MANY // 2 :])) / NORMAL_DEVIATION**2
    assert abs(correlation) < 7 / math.sqrt(MANY / 2)
    squares = float(np.mean(drawn[: MANY // 2] ** 2 * drawn[MANY // 2 :] ** 2)) / NORMAL_DEVIATION**4
    assert abs(squares - 1) < 7 * math.sqrt(8 / (MANY / 2))


def test_normals_at_the_ends_of_their_source() -> None:
    """The largest radius is 9.35 deviations; the smallest is 0; an angle of 0 has no sine."""
    assert np.abs(normals(lambda count: bytes(count), 2)).tolist() == [
        round(NORMAL_DEVIATION * math.sqrt(2 * 64 * math.log(2))),
        0,
    ]
    assert normals(lambda count: b"\xff" * count, 2).tolist() == [0, 0]


@pytest.mark.parametrize(
    "word", [1 << 52, (3 << 52) + 12345, (4095 << 52) + (1 << 51) - 1, (7 << 52) + (1 << 51), (1 << 64) - 1]
)
def test_the_angle_has_all_its_bits(word: int) -> None:
    """Against the cosine of the whole angle. The lower 52 bits have a sign."""
    low = word % (1 << 52)
    angle = 2 * math.pi * ((word >> 52) / 2**12 + (low - (low >> 51 << 52)) / 2**64)
    radius = math.sqrt(-2 * math.log((2**62 + 0.5) * 2.0**-63)) * NORMAL_DEVIATION
    data = (1 << 63).to_bytes(8, "little") + word.to_bytes(8, "little")
    assert normals(lambda count: data, 2).tolist() == [
        round(radius * math.cos(angle)),
        round(radius * math.sin(angle)),
    ]


def test_the_series_of_the_rest_is_accurate() -> None:
    """It moves the outermost pair by less than 2**-23 of a unit."""
    rest = math.pi / 4096
    cosine, sine = 1 - rest**2 / 2, rest * (1 - rest**2 / 6)
    largest = math.sqrt(2 * 64 * math.log(2)) * NORMAL_DEVIATION
    assert largest * math.hypot(cosine - math.cos(rest), sine - math.sin(rest)) < 2**-23


def test_residues_are_replaced_when_they_lie_outside() -> None:
    prime = 1843201
    turns = (2**32 // prime - 1) // 2 * 2 + 1
    most = (turns * prime - 1) // 2
    words = [most, -most, most + 1, -(2**31), 5, 2**31 - 1, prime + 2, -9]
    data = b"".join(word.to_bytes(4, "little", signed=True) for word in words)
    taken = iter([data[:16], data[16:24], data[24:28], b""])
    result = uniform_residues(lambda count: next(taken), prime, 4)
    assert result.tolist() == [(prime - 1) / 2, -(prime - 1) / 2, 5, 2]


def test_residues_are_uniform() -> None:
    prime = 1843201
    drawn = uniform_residues(secret_bytes(), prime, MANY)
    counts = np.bincount(((drawn + prime // 2) * 64 // prime).astype(int), minlength=64)
    degrees, x = 63, 24.0
    assert ((counts - MANY / 64) ** 2).sum() / (MANY / 64) < degrees + 2 * math.sqrt(degrees * x) + 2 * x
