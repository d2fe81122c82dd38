"""Attacks on recorded views of blind transfer learning: masks that can be foreseen give everything, ours
nothing.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import lru_cache
from typing import Any

import pytest

from bench.scenes import SharesScene, shares_scene
from bench.transfer_attacks import blind_scores
from research.attacks.battery import found, uniform, words
from research.attacks.scores import area_under_curve, r_squared
from research.attacks.shares import careless, columns_from_cross, labels_from_steps
from securefed.crypto.shares import SHARE_BITS
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
