"""Ciphertexts that were damaged on the way, or on purpose."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from securefed.crypto import FixedPoint, KeyHolder, load_public_key
from securefed.errors import CryptoError
from tests.audit.naive.ckks import Chain, FloatHolder

FLIPS = 150
FIXED = FixedPoint(bound=4.0, fraction_bits=32)


def accepted_after_a_flip(
    blob: bytes, load: Callable[[bytes], object], refusal: type[Exception], margin: int = 0
) -> int:
    """Whoever is on the wire flips one bit. Returns how many of FLIPS damaged blobs are loaded all the same.

    `margin` leaves out so many bytes at either end; without it, half of the flips go into the first 128
    bytes. The positions are the same in every run, the blob is random.
    """
    generator = random.Random(20240)
    positions = [generator.randrange(margin, len(blob) - margin) for _ in range(FLIPS)]
    if not margin:
        positions[::2] = [generator.randrange(min(128, len(blob))) for _ in positions[::2]]
    accepted = 0
    for place in positions:
        damaged = bytearray(blob)
        damaged[place] ^= 1 << (place % 8)
        try:
            load(bytes(damaged))
        except refusal:
            continue
        accepted += 1
    return accepted


def test_tenseal_loads_damaged_bytes_and_decrypts_garbage() -> None:
    holder = FloatHolder(Chain((60, 40, 60), 40))
    values = np.arange(1.0, 5.0)
    garbage = 0

    def load(blob: bytes) -> None:
        nonlocal garbage
        garbage += not np.allclose(holder.open(blob)[:4], values, atol=1e-3)

    # Near the ends are the lengths; flipped ones there crash the whole process (seen with TenSEAL 0.3.18).
    accepted = accepted_after_a_flip(holder.encrypt(values), load, RuntimeError, margin=4096)
    assert accepted >= FLIPS // 4
    assert garbage >= FLIPS // 4


@pytest.mark.parametrize("scheme", ["paillier", "ckks"])
@pytest.mark.parametrize("kind", ["public key", "encrypted", "masked", "opened", "disclosure"])
def test_ours_loads_none(scheme: str, kind: str, request: pytest.FixtureRequest) -> None:
    holder: KeyHolder = request.getfixturevalue(scheme)
    public = holder.public
    encrypted = public.encrypt([1.0, 2.0, 3.0, 4.0], FIXED)
    (masked, _), (hidden, mask) = encrypted.mask(), encrypted.mask()
    cases: dict[str, tuple[bytes, Callable[[bytes], object]]] = {
        "public key": (public.to_bytes(), load_public_key),
        "encrypted": (encrypted.to_bytes(), public.load),
        "masked": (masked.to_bytes(), public.load_masked),
        "opened": (holder.open(masked).to_bytes(), public.load_opened),
        "disclosure": (mask.disclose(), partial(holder._secret.receive, hidden)),
    }
    blob, load = cases[kind]
    load(blob)
    assert accepted_after_a_flip(blob, load, CryptoError) == 0
