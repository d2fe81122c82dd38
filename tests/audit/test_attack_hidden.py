"""Attacks of a key-holder on hidden arrays under RLWE: each succeeds on a naive variant and fails on ours.

The key-holder knows s, and c1 of everything that it has encrypted. It gets c1 of the results and, at the
places of the entries, value + noise + mask.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from research.attacks.battery import different, found, words
from securefed.crypto import KeyHolder, generate, load_public_key
from securefed.crypto import hidden as hidden_arrays
from securefed.crypto.hidden import PlainMatrix, Range, to_integers
from securefed.crypto.rlwe.packing import reversed_bits
from securefed.crypto.rlwe.ring import HIDDEN
from securefed.crypto.rlwe.sealed import sealed

ROWS, COLUMNS, SLACK = 12, 5, 52
PARAMETERS, MARGINS = Range(40, 54), Range(66, 84)


@pytest.fixture(scope="module")
def holder() -> KeyHolder:
    return generate("rlwe")


def product(holder: KeyHolder, features: Any, theta: Any) -> tuple[Any, Any]:
    """[[theta]] as the key-holder made it, and [[X theta]] as computed; so few rows take no merge."""
    public: Any = load_public_key(holder.public.to_bytes())
    made: Any = holder.conceal(to_integers(theta, 40), PARAMETERS)
    array = public.load_array(made.to_bytes(), theta.shape, PARAMETERS)
    return made, (PlainMatrix(features, 26, 32) @ array).within(MARGINS, SLACK)


def multipliers(made: Any, sums: Any) -> Any:
    """The polynomial that c1 was multiplied by: c1 of the result over c1 of what was sent, at every root."""
    ring, prime = HIDDEN, HIDDEN.data_primes[0]
    before, after = (sealed(ring).to_ntt(c1)[0] for c1 in (made._words()[1], sums.words[1]))
    inverse = np.array([pow(int(v), -1, prime) for v in before[0]], dtype=np.uint64)
    ratio = np.stack([inverse, *before[1:]])
    quotient = ring.multiply(after, ratio)
    found = sealed(ring).from_ntt(quotient[None])[0][0].astype(object)
    return np.where(found > prime // 2, found - prime, found)


def features_in(polynomial: Any) -> Any:
    """X, from the places where a product's multipliers stand (securefed.crypto.rlwe.packing)."""
    stride = HIDDEN.degree // 16
    places = [int(place) * stride for place in reversed_bits(16)[:ROWS]]
    grid = [[polynomial[(place - j) % HIDDEN.degree] for j in range(COLUMNS)] for place in places]
    signs = np.ones((ROWS, COLUMNS))
    signs[0, 1:] = -1.0
    return np.array(grid, dtype=np.float64) * signs / 2.0**26


def test_multipliers_from_c1(holder: KeyHolder) -> None:
    """Without an encryption of zero the key-holder divides, and has the columns of the party it serves."""
    rng = np.random.default_rng(0)
    features, theta = rng.normal(size=(ROWS, COLUMNS)), rng.normal(size=(COLUMNS, 1))
    made, sums = product(holder, features, theta)
    assert np.abs(features_in(multipliers(made, sums)) - features).max() < 2.0**-26
    for ours in (sums.rerandomise(), sums.hide()[0]._sums):
        guessed = features_in(multipliers(made, ours))
        assert np.abs(guessed).min() > 2.0**4  # numbers modulo a prime of 54 bits, and no features
        assert np.corrcoef(guessed.ravel(), features.ravel())[0, 1] ** 2 < 0.5


def read(holder: KeyHolder, sums: Any) -> Any:
    block, masks = sums.hide()
    block.public = holder.public
    return holder.read(block), masks


def test_differences_under_masks_used_twice(holder: KeyHolder, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    features, theta = rng.normal(size=(ROWS, COLUMNS)), rng.normal(size=(COLUMNS, 2))
    pairs = [product(holder, features, theta[:, [k]])[1] for k in (0, 1)]
    due = features @ (theta[:, [1]] - theta[:, [0]])

    def seen() -> Any:
        first, second = (read(holder, sums)[0] for sums in pairs)
        return (second - first).astype(np.float64) / 2.0**66

    assert np.abs(seen()).min() > 2.0**10  # what is left of two masks of 136 bits at 66 fraction bits
    kept = hidden_arrays._sums_from(os.urandom, ROWS, 136)
    monkeypatch.setattr(hidden_arrays, "_sums_from", lambda source, count, bits: kept[:count])
    assert np.abs(seen() - due).max() < 1e-5


def test_noise_below_the_mask(holder: KeyHolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mask in whole units of the value leaves the low bits bare, noise and all: they tell secrets apart."""
    draw = hidden_arrays._sums_from
    rows = 400

    def low_bits(theta: float) -> Any:
        public: Any = load_public_key(holder.public.to_bytes())
        made: Any = holder.conceal(to_integers(np.full((1, 1), theta), 40), PARAMETERS)
        array = public.load_array(made.to_bytes(), (1, 1), PARAMETERS)
        ones = PlainMatrix(np.full((rows, 1), 1.0), 26, 32)
        seen, _ = read(holder, (ones @ array).within(MARGINS, SLACK))
        return words([int(v) % (1 << 66) for v in seen.ravel()], 1 << 66)

    secrets = (0.25 + 2.0**-20, 0.75 + 2.0**-21)
    assert found(different(*map(low_bits, secrets))) == []

    def in_units(*drawn: Any) -> list[int]:
        return [v >> 66 << 66 for v in draw(*drawn)]

    monkeypatch.setattr(hidden_arrays, "_sums_from", in_units)
    assert found(different(*map(low_bits, secrets))) != []
