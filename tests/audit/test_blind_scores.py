"""A label party that asks for scores with rows of its own making: what it learns, and what is counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from research.attacks.blind_cheats import (
    BLUR_BITS,
    MUCH,
    SHOWN_BITS,
    Scored,
    ask_again,
    centred,
    people,
    rows_at,
    score_run,
)
from securefed.crypto import shares
from securefed.protocols.blind import scoring
from securefed.protocols.blind.statistics import ROW_BITS, SCORE_BITS, VALUE_BITS
from securefed.protocols.scoring.score_ledger import ScoreGuard, score_bits
from tests.protocols.told import told

Patch = pytest.MonkeyPatch
FEW = 1 << 50
PEOPLE = 12


@pytest.fixture
def done() -> Scored:
    columns, labels = people(PEOPLE, (3, 2))
    return score_run(columns, labels, evaluate_every=0)


def own_parameters(done: Scored) -> list[int]:
    """The truth: phi of the label party, in units of 2**-34."""
    parts = [done.programs[name].part.blocks["L"] for name in ("L", "p0")]
    return [centred(v, shares.WIDTH) for v in shares.to_integers(shares.add(*parts)[:, :, 0])]


def noises_by_model(self: ScoreGuard, rows: Any, context: bytes, outputs: int, **sizes: Any) -> Any:
    """Naive: the blur follows from the row and the model."""
    return ORIGINAL(self, rows, b"model 1", outputs, **sizes)


ORIGINAL = ScoreGuard.noises


@pytest.mark.parametrize("naive", [True, False])
def test_other_rows_of_the_label_party_for_the_same_people(
    done: Scored, naive: bool, monkeypatch: Patch
) -> None:
    """z_L and z_L + 1 in one column: the difference is a parameter of the label party, or blurred."""
    if naive:
        monkeypatch.setattr(ScoreGuard, "noises", noises_by_model)
    rows, theirs = rows_at(done, "L"), rows_at(done, "p0")
    moved = rows.copy()
    moved[:, 0] += 1.0
    first, second = (ask_again(done, [theirs, own]) for own in (rows, moved))
    found = [centred(b - a) / 2.0**ROW_BITS for a, b in zip(first, second, strict=True)]
    truth = own_parameters(done)[0]
    errors = np.abs(np.array(found) - truth)
    if naive:
        assert errors.max() < 1e4  # of 2**34: the rounding of z, which is the label party's own
        assert done.guards["p0"].total_bits == PEOPLE * score_bits(10)  # and asked once, it says
    else:
        # The difference of two blurs of width 2**-10 is that small for 3% of people: half of them, never.
        assert np.median(errors) > 2.0 ** (VALUE_BITS - 17)
        assert done.guards["p0"].total_bits == 2 * PEOPLE * score_bits(10)


def test_the_same_question_costs_nothing_and_shows_nothing(done: Scored) -> None:
    rows, theirs = rows_at(done, "L"), rows_at(done, "p0")
    first, second = (ask_again(done, [theirs, rows]) for _ in range(2))
    assert [abs(centred(a - b)) < FEW for a, b in zip(first, second, strict=True)] == [True] * PEOPLE
    assert done.guards["p0"].total_bits == PEOPLE * score_bits(10)


class ByName:
    """Naive: a ledger that knows questions by the name that they are asked under."""

    def __init__(self) -> None:
        self.booked: dict[str, int] = {}

    def book(self, name: str, bits: int) -> None:
        self.booked.setdefault(name, bits)

    @property
    def total_bits(self) -> int:
        return sum(self.booked.values())


def test_another_question_under_the_same_name_is_counted(done: Scored) -> None:
    """Five questions, and one name for all of them."""
    rows, theirs = rows_at(done, "L"), rows_at(done, "p0")
    naive = ByName()
    for number in range(5):
        ask_again(done, [theirs, rows * (1.0 + number)])
        naive.book("model of today", PEOPLE * score_bits(10))
    assert naive.total_bits == PEOPLE * score_bits(10)
    assert done.guards["p0"].total_bits == 5 * PEOPLE * score_bits(10)


# What one score can tell


@pytest.mark.parametrize(("naive", "bits"), [("no blur", SHOWN_BITS), ("no modulus", 20), ("", 16)])
def test_a_score_tells_p_plus_m_bits_and_no_more(
    done: Scored, naive: str, bits: int, monkeypatch: Patch
) -> None:
    """The label party makes what is scored as large as it likes. What it opens has `bits` bits more than the
    blur, so it tells as many values apart and no more.
    """
    if naive == "no blur":
        monkeypatch.setattr(scoring, "_noise_limbs", lambda noises: shares.zeros(len(noises[0]), len(noises)))
    if naive == "no modulus":
        monkeypatch.setattr(scoring, "SCORE_BITS", shares.WIDTH - scoring.RANGE_BITS)
    seen: list[int] = []
    reduce_bits, told = shares.reduce_bits, scoring._tell

    def telling(link: Any, peer: str, kind: str, total: Any, at: Any, facts: Any) -> None:
        found = reduce_bits(total, scoring.SCORE_BITS + scoring.RANGE_BITS)
        seen.extend(number.bit_length() for number in shares.to_integers(found))
        told(link, peer, kind, total, at, facts)

    monkeypatch.setattr(scoring, "_tell", telling)
    columns, labels = people(600, (2, 2))
    wide = score_run(columns, labels, rounds=1, evaluate_every=0)
    ask_again(wide, [rows_at(wide, "p0"), rows_at(wide, "L") * 64.0])
    blurred = 0 if naive == "no blur" else BLUR_BITS
    assert max(seen) - blurred == bits


def test_blurs_fill_their_width_and_differ(done: Scored) -> None:
    """What is below the precision is uniform."""
    columns, labels = people(400, (2, 2))
    wide = score_run(columns, labels, rounds=1, evaluate_every=0)
    rows, theirs = rows_at(wide, "L"), rows_at(wide, "p0")
    opened = np.array([float(v % (1 << BLUR_BITS)) for v in ask_again(wide, [theirs, rows])]) / 2.0**BLUR_BITS
    assert abs(opened.mean() - 0.5) < 7.0 / np.sqrt(12 * len(opened))  # 3e-12
    assert len(set(opened)) == len(opened)
    assert score_bits(10) == SHOWN_BITS - BLUR_BITS


# Somebody else


def test_a_person_can_be_aimed_at_through_others_and_the_total_says_so() -> None:
    """Must succeed. The label party has a column with one person in it; its parameter holds that person's
    columns, and scores of *other* people show it, as many bits deeper as the label party's rows are larger.
    """
    columns, labels = people(PEOPLE, (3, 2))
    aimed = 5
    columns[1][:, 1] = 0.0
    columns[1][aimed, 1] = 1.0
    done = score_run(columns, labels, evaluate_every=0)
    theirs = rows_at(done, "p0")[[0, 1]]
    ledger = done.guards["p0"]
    root = done.programs["L"]._own.root
    direction = root[1] / (root[1] @ root[1])  # z with this shows phi's part along the one person's column
    truth = float(np.array(own_parameters(done)) @ direction) * 2.0**-VALUE_BITS
    known, step = 0.0, 5
    for depth in range(0, 20, step):
        asked = np.vstack([direction * 2.0**depth, np.zeros(2)])
        alike = np.repeat(theirs[:1], 2, axis=0) + np.array([[0.0], [1e-9]])
        both = ask_again(done, [alike, asked])
        shown = centred(both[0] - both[1]) * 2.0**-SCORE_BITS
        coarse = known * 2.0**depth
        known = (shown + 64.0 * np.rint((coarse - shown) / 64.0)) * 2.0**-depth
    assert abs(known - truth) < 2.0**-20
    people_booked = len(told(ledger))
    assert people_booked == 2  # two others; of the person itself a count by person knows nothing
    assert ledger.total_bits == 4 * 2 * score_bits(10)


def test_a_total_outlives_models_and_guards() -> None:
    columns, labels = people(PEOPLE, (3, 2))
    guards = {name: ScoreGuard(party=name, column_bits=MUCH) for name in ("p0", "L")}
    for seed in range(2):
        score_run(columns, labels, rounds=1, guards=guards, seed=seed)
    kept = guards["p0"].to_bytes()
    later = ScoreGuard(guards["p0"].key, party="p0", column_bits=MUCH)
    later.restore(kept)
    assert later.total_bits == guards["p0"].total_bits == 2 * PEOPLE * score_bits(10)
