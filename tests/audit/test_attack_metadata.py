"""What the envelope of a ciphertext says about its content: exponents, bounds, counts, lengths, headers."""

from __future__ import annotations

import secrets
import struct
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

import numpy as np
import phe
import pytest

from securefed.crypto import FixedPoint, KeyHolder, load_public_key
from securefed.crypto.wire import HEADER
from securefed.errors import CryptoError
from tests.audit.chance import most_by_luck

FIXED = FixedPoint(bound=1.0, fraction_bits=32)
TRIALS = 24
S = TypeVar("S")


def guesses_from_metadata(metadata: Callable[[S], Hashable], kinds: Sequence[S]) -> int:
    """Anybody on the wire has the public key and envelopes. They get which of `kinds` a secret is.

    The observer makes the same message of each kind itself, and takes a kind whose envelope looks like the
    one it sees; where that does not decide, it guesses. Returns how many of TRIALS guesses are right.
    """
    profile = [metadata(kind) for kind in kinds]
    right = 0
    for _ in range(TRIALS):
        truth = secrets.randbelow(len(kinds))
        seen = metadata(kinds[truth])
        matching = [i for i, envelope in enumerate(profile) if envelope == seen]
        right += secrets.choice(matching or range(len(kinds))) == truth
    return right


def envelope(blob: bytes) -> Hashable:
    """Length and header. The checksum at the header's end belongs to the payload, which is random."""
    return len(blob), blob[: HEADER.size - 16]


def test_phe_shows_the_magnitude(phe_key: phe.PaillierPrivateKey) -> None:
    def metadata(value: float) -> Hashable:
        return int(phe_key.public_key.encrypt(value).exponent)

    assert guesses_from_metadata(metadata, (1.0, 0.001)) == TRIALS


@pytest.fixture(params=["paillier", "ckks"])
def holder(request: pytest.FixtureRequest) -> KeyHolder:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, KeyHolder)
    return found


@pytest.mark.slow
def test_values_of_ours_do_not_show(holder: KeyHolder) -> None:
    """Fresh from anybody or from the owner, moved, masked, opened, disclosed."""
    public = load_public_key(holder.public.to_bytes())

    def metadata(value: float) -> Hashable:
        owned, moved = holder.encrypt([value], FIXED), public.encrypt([value], FIXED) + value
        (masked, mask), (other, _) = moved.mask(), owned.mask()
        messages = (owned, moved, masked, other, holder.open(masked))
        return tuple(envelope(message.to_bytes()) for message in messages), envelope(mask.disclose())

    assert guesses_from_metadata(metadata, (1.0, 0.001)) <= most_by_luck(TRIALS, 0.5)
    assert len({metadata(value) for value in (0.0, 2.0**-32, -0.001, -1.0, 1.0)}) == 1


ROWS, OUTPUTS = 12, 40
"""Forty outputs: their number of ciphertexts depends on the width of a slot."""
MULTIPLIERS = {
    "large": np.random.default_rng(11).normal(size=(1, OUTPUTS, ROWS)) * 1e3,
    "small": np.random.default_rng(12).normal(size=(1, OUTPUTS, ROWS)) * 1e-3,
    "binary": np.random.default_rng(13).integers(0, 2, (1, OUTPUTS, ROWS)).astype(float),
    "ones": np.ones((1, OUTPUTS, ROWS)),
    "zeros": np.zeros((1, OUTPUTS, ROWS)),
    "one row": np.eye(ROWS)[:1].repeat(OUTPUTS, axis=0)[None],
}


def test_multipliers_of_ours_do_not_show_in_masked_blocks(holder: KeyHolder) -> None:
    """B's matrix at a private scale: its size, its sparsity, or that its columns are binary."""
    encrypted = holder.encrypt(np.full(ROWS, 0.5), FIXED)

    def metadata(name: str) -> Hashable:
        masked, _ = encrypted.contract(MULTIPLIERS[name]).mask()
        return envelope(masked.to_bytes()), masked.ciphertexts

    assert len({metadata(name) for name in (*MULTIPLIERS, *MULTIPLIERS)}) == 1, "an envelope tells them apart"


def test_multipliers_of_ours_do_not_show_in_what_is_passed_on(holder: KeyHolder) -> None:
    """At a public scale, in a value disclosed to the key-holder."""
    encrypted = holder.encrypt(np.full(ROWS, 0.5), FIXED)

    def metadata(name: str) -> Hashable:
        product = encrypted.contract(MULTIPLIERS[name][:, :2], FixedPoint(bound=1e4, fraction_bits=16))
        masked, mask = product.mask()
        return envelope(masked.to_bytes()), envelope(mask.disclose())

    assert len({metadata(name) for name in (*MULTIPLIERS, *MULTIPLIERS)}) == 1, "an envelope tells them apart"


def numbers_in(blob: bytes) -> set[float]:
    """Every float64 that stands anywhere in the header or in the payload's beginning."""
    places = (*range(8, HEADER.size - 7), *range(HEADER.size, min(HEADER.size + 32, len(blob) - 7)))
    return {struct.unpack_from("<d", blob, place)[0] for place in places}


def largest_from_bound(blob: bytes, candidates: Sequence[float]) -> list[float]:
    """Anybody on the wire gets B's largest multiplier, to the last digit, from a bound derived from it."""
    seen = numbers_in(blob)
    return [value for value in candidates if value * ROWS * FIXED.bound in seen]


def test_the_largest_multiplier_of_ours_does_not_show(holder: KeyHolder) -> None:
    """A private scale is private: what leaves either does not show it, or does not leave."""
    encrypted = holder.encrypt(np.full(ROWS, 0.5), FIXED)
    largest = float(np.abs(MULTIPLIERS["large"][:, :2]).max())
    try:
        blob = encrypted.contract(MULTIPLIERS["large"][:, :2]).to_bytes()
    except CryptoError:
        return
    assert largest_from_bound(blob, [largest]) == []
