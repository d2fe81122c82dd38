"""c1 of replies in 70 bits: rounding, packing, refusals."""

from __future__ import annotations

import numpy as np
import pytest

from securefed.crypto.blind.bodies import CUT_BITS, KEPT_LIMBS, bodies_from_bytes, bodies_to_bytes, body_bytes
from securefed.crypto.errors import FormatError


def numbers(limbs: np.ndarray) -> list[int]:
    """Limbs of the highest 84 bits as Python integers."""
    flat = limbs.reshape(KEPT_LIMBS, -1).tolist()
    return [sum(limb << (21 * i) for i, limb in enumerate(each)) for each in zip(*flat, strict=True)]


def limbs_of(integers: list[int], shape: tuple[int, int]) -> np.ndarray:
    found = [[number >> (21 * limb) & 0x1FFFFF for number in integers] for limb in range(KEPT_LIMBS)]
    return np.array(found, dtype=np.int64).reshape(KEPT_LIMBS, *shape)


@pytest.mark.parametrize("shape", [(1, 1), (1, 2), (2, 3), (3, 4), (5, 4096)], ids=str)
def test_what_comes_back_is_rounded_to_70_bits(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    limbs = rng.integers(0, 1 << 21, (KEPT_LIMBS, *shape))
    before = numbers(limbs)
    data = bodies_to_bytes(limbs.copy())
    assert len(data) == shape[0] * body_bytes(shape[1])
    found = bodies_from_bytes(data, shape)
    assert found.shape == limbs.shape
    due = [((number + (1 << 13)) >> 14 << 14) % (1 << 84) for number in before]
    assert numbers(found) == due
    assert bodies_to_bytes(found.copy()) == data


def test_rounding_at_the_ends() -> None:
    """One half goes up, and the largest numbers become 0 modulo 2**84."""
    given = [0, (1 << 13) - 1, 1 << 13, (1 << 84) - 1, (1 << 84) - (1 << 13) - 1, (1 << 42) - 1]
    found = numbers(bodies_from_bytes(bodies_to_bytes(limbs_of(given, (2, 3))), (2, 3)))
    assert found == [0, 0, 1 << 14, 0, (1 << 84) - (1 << 14), 1 << 42]


def test_polynomials_stand_one_after_the_other() -> None:
    limbs = np.random.default_rng(1).integers(0, 1 << 21, (KEPT_LIMBS, 3, 10))
    parts = [bodies_to_bytes(limbs[:, place : place + 1].copy()) for place in range(3)]
    assert bodies_to_bytes(limbs.copy()) == b"".join(parts)


def test_a_response_takes_70_bits_a_coefficient() -> None:
    assert CUT_BITS == 105 - 70
    assert body_bytes(4096) == 36416  # 70 of 63 bits in a word of 64: 35,840 * 64 / 63, to whole words


def test_other_bytes_are_refused() -> None:
    data = bodies_to_bytes(np.zeros((KEPT_LIMBS, 1, 4), dtype=np.int64))
    for wrong in (data[:-1], data + bytes(8), b""):
        with pytest.raises(FormatError, match="bytes given"):
            bodies_from_bytes(wrong, (1, 4))
    with pytest.raises(FormatError, match="a bit is set"):
        bodies_from_bytes(b"\xff" * 8 + data[8:], (1, 4))
