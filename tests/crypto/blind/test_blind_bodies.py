"""c1 of replies in 71 or 42 bits: rounding, packing, refusals."""

from __future__ import annotations

import numpy as np
import pytest

from securefed.crypto.blind.layout import (
    COARSE_BITS,
    FINE_BITS,
    bodies_from_bytes,
    bodies_to_bytes,
    body_bytes,
    kept_limbs,
)
from securefed.errors import FormatError

BITS = [FINE_BITS, COARSE_BITS]


def numbers(limbs: np.ndarray) -> list[int]:
    """Limbs as Python integers."""
    flat = limbs.reshape(len(limbs), -1).tolist()
    return [sum(limb << (21 * i) for i, limb in enumerate(each)) for each in zip(*flat, strict=True)]


def limbs_of(integers: list[int], shape: tuple[int, int]) -> np.ndarray:
    result = [[number >> (21 * limb) & 0x1FFFFF for number in integers] for limb in range(4)]
    return np.array(result, dtype=np.int64).reshape(4, *shape)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("shape", [(1, 1), (1, 2), (2, 3), (3, 4), (5, 4096)], ids=str)
def test_what_comes_back_is_rounded(shape: tuple[int, int], bits: int) -> None:
    rng = np.random.default_rng(0)
    limbs = rng.integers(0, 1 << 21, (kept_limbs(bits), *shape))
    before, spare = numbers(limbs), 21 * len(limbs) - bits
    data = bodies_to_bytes(limbs.copy(), bits)
    assert len(data) == shape[0] * body_bytes(shape[1], bits)
    result = bodies_from_bytes(data, shape, bits)
    assert result.shape == limbs.shape
    half = 1 << spare >> 1
    due = [((number + half) >> spare << spare) % (1 << 21 * len(limbs)) for number in before]
    assert numbers(result) == due
    assert bodies_to_bytes(result.copy(), bits) == data


def test_rounding_at_the_ends() -> None:
    """One half goes up, and the largest numbers become 0 modulo 2**84."""
    integers = [0, (1 << 12) - 1, 1 << 12, (1 << 84) - 1, (1 << 84) - (1 << 12) - 1, (1 << 42) - 1]
    result = numbers(
        bodies_from_bytes(bodies_to_bytes(limbs_of(integers, (2, 3)), FINE_BITS), (2, 3), FINE_BITS)
    )
    assert result == [0, 0, 1 << 13, 0, (1 << 84) - (1 << 13), 1 << 42]


@pytest.mark.parametrize("bits", BITS)
def test_polynomials_stand_one_after_the_other(bits: int) -> None:
    limbs = np.random.default_rng(1).integers(0, 1 << 21, (kept_limbs(bits), 3, 10))
    parts = [bodies_to_bytes(limbs[:, place : place + 1].copy(), bits) for place in range(3)]
    assert bodies_to_bytes(limbs.copy(), bits) == b"".join(parts)


def test_a_response_takes_63_bits_a_word_and_a_byte() -> None:
    assert body_bytes(4096, FINE_BITS) == 9 * 4096
    assert body_bytes(4096, COARSE_BITS) == 21848


@pytest.mark.parametrize("bits", BITS)
def test_other_bytes_are_refused(bits: int) -> None:
    data = bodies_to_bytes(np.zeros((kept_limbs(bits), 1, 4), dtype=np.int64), bits)
    for wrong in (data[:-1], data + bytes(8), b""):
        with pytest.raises(FormatError, match="bytes given"):
            bodies_from_bytes(wrong, (1, 4), bits)
    with pytest.raises(FormatError, match="a bit is set"):
        bodies_from_bytes(b"\xff" * 8 + data[8:], (1, 4), bits)
