"""What parties conclude from where they stand: all of them the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from securefed.errors import SettingError
from securefed.process.checkpoints import ResumePlan, ResumeState, decide
from securefed.transport.message import Malformed

A, B = "0123456789abcdef", "fedcba9876543210"


def at(*rounds: int, instance: str | None = A, **more: Any) -> ResumeState:
    return ResumeState(3, True, 40 if instance else 0, instance, rounds, **more)


NEW = ResumeState(3, proposal=B)


def both(shop: ResumeState, bank: ResumeState) -> ResumePlan:
    return decide({"shop": shop, "bank": bank}, "bank", "psi")


def test_nobody_has_anything() -> None:
    assert both(ResumeState(3), NEW) == ResumePlan(B, None, 0, None)


@pytest.mark.parametrize(
    ("shop", "bank", "start"),
    [
        ((0, 4, 5, 6), (0, 4, 5, 6), 6),
        ((0, 4, 5, 6), (0, 5, 6, 7), 6),  # one was killed before it wrote the last one
        ((0, 5, 6, 7), (0, 4, 5, 6), 6),
        ((0,), (0, 1), 0),
        ((0,), (0,), 0),
    ],
)
def test_all_go_back_to_the_last_round_in_common(
    shop: tuple[int, ...], bank: tuple[int, ...], start: int
) -> None:
    assert both(at(*shop), at(*bank)) == ResumePlan(A, start, 40, None)


def test_a_party_that_died_before_its_first_checkpoint_costs_one_round_at_most() -> None:
    assert both(ResumeState(3), at(0, 1, proposal=B)) == ResumePlan(B, None, 40, None)
    assert both(at(0, 1), NEW).start is None


@pytest.mark.parametrize(
    ("shop", "bank"),
    [
        (ResumeState(3), at(0, 5, 6, 7)),
        (at(0, 5, 6), NEW),
        (at(0, 5, instance=B), at(0, 5)),
        (at(0, 3), at(0, 8, 9)),
    ],
)
def test_lost_checkpoints_are_not_passed_over(shop: ResumeState, bank: ResumeState) -> None:
    with pytest.raises(SettingError, match="no checkpoint that fits"):
        both(shop, bank)


def test_an_end_that_the_label_party_saw_is_the_end() -> None:
    assert both(at(0, 5, 6), at(0, 5, 6, ended="target")).ended == "target"
    # Somebody has to repeat the last round, and the label party will see the end again.
    assert both(at(0, 4, 5), at(0, 5, 6, ended="target")) == ResumePlan(A, 5, 40, None)


def test_a_helper_counts_like_a_party_with_data() -> None:
    helper = ResumeState(0, rows=40, instance=A, rounds=(0, 5, 6))
    known = {"shop": at(0, 5, 6, 7), "lab": at(0, 2), "bank": at(0, 6, 7)}
    found = decide({**known, "lab": at(0, 5, 6), "help": helper}, "bank", "psi", lockstep=False)
    assert found == ResumePlan(A, 6, 40, None)
    with pytest.raises(SettingError, match="help has no checkpoint that fits"):
        decide({**known, "lab": at(0, 6), "help": ResumeState(0)}, "bank", "psi", lockstep=False)


def test_without_lockstep_round_0_may_be_the_last_in_common() -> None:
    standings = {"shop": at(0), "bank": at(0, 8, 9)}
    assert decide(standings, "bank", "psi", lockstep=False).start == 0
    with pytest.raises(SettingError, match="no checkpoint that fits"):
        decide(standings, "bank", "psi")
    rows = {
        "shop": ResumeState(1, rows=4),
        "bank": ResumeState(1, rows=4, proposal=B),
        "help": ResumeState(0),
    }
    assert decide(rows, "bank", "rows", lockstep=False).start is None


def test_rows_in_order_have_to_be_equally_many() -> None:
    with pytest.raises(SettingError, match="shop has 4, bank has 5"):
        decide({"shop": ResumeState(1, rows=4), "bank": ResumeState(1, rows=5)}, "bank", "rows")


def test_what_is_said_comes_back() -> None:
    said = at(0, 3, 4, ended="rounds", proposal=B)
    assert ResumeState.from_facts("bank", said.to_facts()) == said


@pytest.mark.parametrize(
    "change",
    [
        {"parameters": -1},
        {"parameters": True},
        {"parameters": "9"},
        {"rows": 1 << 40},
        {"is_linear": 1},
        {"instance": "../x"},
        {"instance": 7},
        {"rounds": "12"},
        {"rounds": [1.5]},
        {"rounds": [0] * 1000},
        {"ended": "bored"},
        {"proposal": None},
    ],
)
def test_what_no_party_says_is_refused(change: dict[str, Any]) -> None:
    facts = {**replace(at(0, 3)).to_facts(), **change}
    with pytest.raises(Malformed, match="shop"):
        ResumeState.from_facts("shop", facts)
    with pytest.raises(Malformed):
        ResumeState.from_facts("shop", {})


@pytest.mark.parametrize("key", at(0, 3).to_facts())
def test_what_a_peer_leaves_out_is_refused_too(key: str) -> None:
    facts = at(0, 3).to_facts()
    del facts[key]
    with pytest.raises(Malformed, match="shop"):
        ResumeState.from_facts("shop", facts)
