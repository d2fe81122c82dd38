"""What a key-holder prepares ahead is used once; operands are cut where that is cheapest."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from securefed.crypto.hidden import PlainMatrix, Range
from securefed.crypto.rlwe.keys import RlweSecretKey, generate_secret_key
from securefed.crypto.rlwe.layout import RlweLayout
from securefed.crypto.rlwe.ring import HIDDEN

VALUES = Range(30, 40)


@pytest.fixture(scope="module")
def secret() -> RlweSecretKey:
    return generate_secret_key()


def concealed(secret: RlweSecretKey) -> Any:
    return secret.conceal(np.array([[5], [7]], dtype=object), VALUES, 1)


def read_once(secret: RlweSecretKey) -> Any:
    sums = PlainMatrix(np.eye(2), 0, 1) @ concealed(secret)
    block, masks = sums.within(Range(30, 43), 60).hide()
    return secret.read(block) - masks


def test_a_prepared_c1_serves_one_array(secret: RlweSecretKey) -> None:
    found = read_once(secret)
    assert np.abs(found.astype(float) - [[5], [7]]).max() < 2.0**30  # noise
    ready = secret._prepared[0][1]
    seeds = [concealed(secret)._seed for _ in range(3)]
    assert seeds[0] == ready and len(set(seeds)) == 3


def test_a_copy_in_another_process_draws_its_own_c1(
    secret: RlweSecretKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_once(secret)
    ready = secret._prepared[0][1]
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert concealed(secret)._seed != ready


@pytest.mark.parametrize(
    ("size", "rows", "blocks", "rough"),
    [
        (50, 512, 1, 1),
        (50, 8192, 2, 1),
        (8192, 50, 2, 1),
        (300, 100_000, 32, 8),
        (50, 1_000_000, 32, 16),
        (1, 1, 1, 1),
    ],
)
def test_pieces_of_an_operand_follow_key_switches(size: int, rows: int, blocks: int, rough: int) -> None:
    assert RlweLayout().blocks_for(size, rows) == blocks
    assert RlweLayout().blocks_for(size, rows, rough=True) == rough


@pytest.mark.parametrize("bits", [0, 1, 53, 54, 75, 106])
def test_the_largest_of_many_is_found_without_making_integers_of_all(bits: int) -> None:
    for sign in (1, -1):
        values = np.array([0, 1, -1, sign * (2**bits - 1)], dtype=object)
        expected = max(abs(int(value)) for value in values).bit_length()
        assert HIDDEN.most_bits(HIDDEN.from_wide(values)) == expected
        values[2] = sign * 2**120
        assert HIDDEN.most_bits(HIDDEN.from_wide(values)) == HIDDEN.modulus.bit_length()
