"""What an encryptor gets out of a reply that it has prepared by a crafted key, seed or operand.

The ring is the real one. An attacker gets more than a run gives it: the multiplier's own shares, so that it
reads every number without a mask, as if scores had told all of it.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from research.attacks.blind import (
    NONCE,
    WHOLE,
    bodies,
    crafted_key,
    honest_keys,
    large_operand,
    reply,
    rows_of,
)
from securefed.crypto import shares
from securefed.crypto.blind import evaluation as evaluation_module
from securefed.crypto.blind.evaluation import PAIRS, Rerandomiser, nonce_polynomials
from securefed.crypto.blind.interface import Product
from securefed.crypto.blind.layout import FINE_BITS, kept_limbs
from securefed.crypto.blind.rlwe import RLWE, RlweKey
from securefed.crypto.lattice.ring import DEGREE, PRIMES, RING
from securefed.crypto.randomness import SEED_BYTES
from securefed.crypto.shares import LIMBS, Floats
from tests.audit.chance import chi_square, chi_square_range
from tests.audit.naive.blind import NoZero, OneZero, narrow_uniform

Maker = Callable[[bytes, Floats], Rerandomiser]
SECRET = 12_345_678


@pytest.mark.parametrize("maker", [OneZero, Rerandomiser])
def test_a_crafted_key_shows_multipliers_through_one_zero_and_not_through_ours(maker: Maker) -> None:
    """Every reading shows the randomness. With one zero that is all of it: c1 without it is V times a public
    polynomial. Ours keeps most of its randomness to itself.
    """
    fits, found = crafted_key(RlweKey(os.urandom(SEED_BYTES)), maker, SECRET)
    if maker is OneZero:
        assert np.abs(found[0]).max() == 1
        assert fits == [SECRET]
    else:
        assert np.abs(found).max() > 1_000_000  # the attacker has two of eight polynomials
        assert fits == []


@pytest.mark.parametrize("keys", ["zero", "huge", "equal", "honest"])
@pytest.mark.parametrize("right", [0.0, 3.0])
def test_replies_are_uniform_under_any_key(keys: str, right: float) -> None:
    key = RlweKey(os.urandom(SEED_BYTES))
    made = {
        "zero": np.zeros((len(PRIMES), PAIRS, DEGREE)),
        "huge": np.stack([np.full((PAIRS, DEGREE), float(p // 2)) for p in PRIMES]),
        "equal": nonce_polynomials(NONCE),
        "honest": honest_keys(key),
    }[keys]
    zero = bytes(SEED_BYTES) + RING.to_bytes(np.zeros((len(PRIMES), 1, DEGREE)))
    data, _ = reply(WHOLE, [zero], np.array([[right]]), made)
    low, high = chi_square_range(16)
    whole = bodies(data)
    for limb in range(kept_limbs(FINE_BITS)):
        for place in (0, 8, 17) if limb else (17,):
            assert low < chi_square((whole[limb] >> place) & 15, 16) < high
    masked = shares.from_bytes(data[-shares.size_in_bytes(DEGREE) :], (LIMBS, DEGREE, 1))
    for limb in range(LIMBS):
        assert low < chi_square((masked[limb, :, 0] >> 17) & 15, 16) < high
    if right == 0.0:
        bare, _ = reply(WHOLE, [zero], np.array([[right]]), made, NoZero)
        assert not bodies(bare).any()  # c1 of nothing, without a zero


def test_large_operands_show_nothing_above_masks_that_fill_the_modulus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """U = 2**85: with masks of 80 bits V stands above them."""
    key = RlweKey(os.urandom(SEED_BYTES))
    top = partial(large_operand, key, secret := 9_876)
    assert len(top()) == 8 and len(top() & top()) == 0
    monkeypatch.setattr(evaluation_module.shares, "uniform_from", narrow_uniform(80))
    assert top() == {secret}


@pytest.mark.parametrize("seed", [bytes(SEED_BYTES), NONCE], ids=["zero", "the nonce"])
def test_crafted_seeds_are_as_good_as_any(seed: bytes) -> None:
    """A seed of zeros, the multiplier's own nonce, the same seed twice: replies have nothing in common."""
    zero = seed + RING.to_bytes(np.zeros((len(PRIMES), 1, DEGREE)))
    keys = np.zeros((len(PRIMES), PAIRS, DEGREE))
    first, second = (bodies(reply(WHOLE, [zero], np.array([[7.0]]), keys)[0]) for _ in range(2))
    low, high = chi_square_range(16)
    for limb in range(kept_limbs(FINE_BITS)):
        assert low < chi_square(((first - second)[limb] >> 17) & 15, 16) < high


def test_another_c1_cannot_be_sent() -> None:
    """A block is a seed and c0, and has no room for more."""
    key = RlweKey(os.urandom(SEED_BYTES))
    (block,) = key.encrypt(WHOLE, [0], rows_of(np.zeros((1, DEGREE))))
    assert len(block) == SEED_BYTES + shares.size_in_bytes(DEGREE, len(PRIMES))
    for changed in (block + bytes(8), block[:-8], block + block[SEED_BYTES:]):
        with pytest.raises(Exception, match="bytes given"):
            reply(WHOLE, [changed], np.array([[7.0]]), honest_keys(key))


def test_zero_columns_take_the_same_path() -> None:
    """The same calls in the same order, and as many bytes. A naive multiplier leaves zero columns out."""
    key = RLWE.generate()
    product = Product(40, 5, 3, 51, 40)
    keys = honest_keys(key)  # type: ignore[arg-type]

    def path(right: Floats, naive: bool = False) -> tuple[list[str], int]:
        calls: list[str] = []
        used = right[:, right.any(axis=0)] if naive else right
        shape = replace(product, right=used.shape[1])
        # The same bytes each time: how often c1 is drawn again follows from its public seed.
        count = len(key.lengths.blocks(shape))
        blocks = key.encrypt(shape, range(count), rows_of(np.ones((40, 5))), repeatable=True)

        def note(frame: Any, event: str, argument: Any) -> None:
            if event in ("call", "c_call"):
                calls.append(f"{frame.f_code.co_name} {getattr(argument, '__name__', '')}")

        before = sys.getprofile()
        gc.collect()  # what other tests left behind would be among the calls
        gc.disable()
        sys.setprofile(note)
        try:
            data, _ = reply(shape, blocks, used, keys)
        finally:
            sys.setprofile(before)
            gc.enable()
        return calls, len(data)

    rng = np.random.default_rng(0)
    sparse = np.zeros((40, 3))
    sparse[3, 1] = 5.0
    path(sparse)  # tables are made once
    first = path(np.rint(rng.normal(size=(40, 3)) * 2**30))
    assert path(np.zeros((40, 3))) == first
    assert path(sparse) == first
    calls, size = path(sparse, naive=True)
    assert size < first[1] and calls != first[0]
