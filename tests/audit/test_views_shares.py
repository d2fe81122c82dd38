"""Attacks on recorded views of blind transfer learning: masks that can be foreseen, or none, give everything,
ours nothing; to the two parties, and to a key-holder party.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from bench.scenes import SharesScene, shares_scene
from bench.transfer_attacks import blind_scores
from research.attacks.battery import found, uniform, words
from research.attacks.scores import area_under_curve, r_squared
from research.attacks.shares import (
    careless,
    columns_from_cross,
    labels_from_steps,
    moments_from_cross,
    unmasked,
)
from securefed.crypto.shares import SHARE_BITS, scaled_back
from tests.protocols.federation import KEYS

pytestmark = pytest.mark.slow
SCHEMES = ["paillier", "ckks"]
COLUMNS = {"ckks": (20, 20), "paillier": (8, 12)}


@lru_cache(maxsize=8)
def scene(scheme: str, naive: bool, seed: int = 0) -> SharesScene:
    with careless() if naive else nullcontext() as guess:
        return shares_scene(
            scheme, KEYS, rows=24, width=2, rounds=1, columns=COLUMNS[scheme], more=30, seed=seed, guess=guess
        )


def sighted(made: SharesScene) -> Any:
    """Everything that either party read as a key-holder."""
    seen = [each.read for name in "AB" for each in made.seen[name] if each.read is not None]
    return words([int(v) for block in seen for v in block.ravel()], 1 << SHARE_BITS)


def columns(made: SharesScene) -> float:
    """How much of B's columns A finds."""
    a = made.parties["A"]
    read = made.seen["A"][0].read
    assert read is not None
    guessed = columns_from_cross(a._rows.shared, read[:, :-1], a._plan.row_bits)
    return r_squared(guessed, made.parties["B"]._rows.shared).score


@pytest.mark.parametrize("scheme", SCHEMES)
def test_masks_that_can_be_foreseen_give_labels_and_columns(scheme: str) -> None:
    naive = scene(scheme, True)
    labels = labels_from_steps(naive.seen["B"], naive.parties["B"]._rows.shared)
    assert area_under_curve(labels, naive.labels > 0).score > 0.85
    assert columns(naive) > 0.25
    assert found(uniform(sighted(naive))) != []


@pytest.mark.parametrize("scheme", SCHEMES)
def test_what_parties_hold_and_read_gives_nothing(scheme: str) -> None:
    made = scene(scheme, False)
    assert made.ledger == []
    # Shares are drawn anew in every run: five standard errors above chance are luck once in three million.
    for score in blind_scores(made, 1):
        assert not score.succeeded, score
    assert columns(made) < 0.05
    assert found(uniform(sighted(made))) == []


THIRD = {"ckks": (24, (20, 20)), "paillier": (12, (4, 6))}
"""Rows and columns with a key-holder party, under whose public key encryption is slow."""


@lru_cache(maxsize=8)
def third_scene(scheme: str, naive: str = "") -> SharesScene:
    """With a key-holder party."""
    rows, columns = THIRD[scheme]
    with {"unmasked": unmasked, "careless": careless}.get(naive, nullcontext)() as guess:
        sizes: dict[str, Any] = {"rows": rows, "columns": columns, "more": 30, "width": 1, "rounds": 1}
        return shares_scene(scheme, KEYS, **sizes, guess=guess, key_holder="C")


def moments(made: SharesScene) -> float:
    """How much a key-holder party finds of what B's columns have to do with the labels and A's columns."""
    assert made.third is not None
    a, b = made.parties["A"], made.parties["B"]
    found = moments_from_cross(made.third.public, made.third.readings[0], a._plan.row_bits)
    own = np.hstack([a._rows.shared, a._rows.targets().reshape(len(a._rows.shared), -1)])
    return r_squared(found, b._rows.shared.T @ own / len(own)).score


@pytest.mark.parametrize("scheme", SCHEMES)
def test_without_masks_a_key_holder_party_finds_moments_and_a_party_columns(scheme: str) -> None:
    naive = third_scene(scheme, "unmasked")
    assert moments(naive) > 0.99
    assert columns(naive) > 0.25
    assert found(uniform(third_sighted(naive))) != []


def test_masks_that_can_be_foreseen_give_labels_with_a_key_holder_party_too() -> None:
    naive = third_scene("ckks", "careless")
    labels = labels_from_steps(naive.seen["B"], naive.parties["B"]._rows.shared)
    assert area_under_curve(labels, naive.labels > 0).score > 0.85


@pytest.mark.parametrize("scheme", SCHEMES)
def test_what_a_key_holder_party_reads_gives_nothing_to_anybody(scheme: str) -> None:
    made = third_scene(scheme)
    assert made.ledger == []
    for score in blind_scores(made, 1):
        assert not score.succeeded, score
    assert moments(made) < 0.05 and columns(made) < 0.05
    assert found(uniform(third_sighted(made))) == []
    assert found(uniform(sighted(made))) == []


def third_sighted(made: SharesScene) -> Any:
    """Everything that a key-holder party read."""
    assert made.third is not None
    public: Any = made.third.public
    read = [scaled_back(public, block) for block in made.third.readings]
    return words([int(v) for block in read for v in block.ravel()], 1 << SHARE_BITS)
