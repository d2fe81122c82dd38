"""The planner: the ledger ahead of time, rounds by Q, and a clock that agrees with the real one."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from time import thread_time
from typing import Any

import pytest

from securefed import Blind, OwnGradient, Plain
from securefed.errors import SettingError
from securefed.plan.planner import (
    Estimate,
    RoundsModel,
    best,
    check_memory,
    estimates,
    peak_memory,
)
from securefed.plan.rehearsal import Scenario
from securefed.protocols.own_gradient.ledger import LedgerWarning
from securefed.protocols.own_gradient.openings import ledger_after, refusal
from securefed.protocols.schedules import FedBCD
from securefed.settings import LinearSettings, TransferSettings
from tests.report.runs import run

CLEAR = Plain(like="own-gradient")
OPEN: dict[str, Any] = {"protection": CLEAR, "refit": False, "rounds": 4}


def test_the_ledger_is_known_before_the_first_round() -> None:
    scenario = Scenario(LinearSettings(algorithm=FedBCD(2), **OPEN), {"shop": 3, "bank": 2}, 20)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LedgerWarning)
        _, done = run(scenario)
    found = {(e.party, e.block): e for o in done.outcomes.values() for e in o.ledger.entries}
    assert {(e.party, e.block): e for e in ledger_after(scenario.agreement, 4)} == found
    assert refusal(scenario.agreement) is None


def test_a_refusal_is_foreseen() -> None:
    few = replace(CLEAR, batch_size=3)
    tight = Scenario(LinearSettings(**{**OPEN, "protection": few}), {"shop": 3, "bank": 2}, 20)
    entry = refusal(tight.agreement)
    assert entry is not None and entry.verdict == "determined"
    freely = replace(few, allow_determined=True)
    allowed = Scenario(LinearSettings(**{**OPEN, "protection": freely}), {"shop": 3, "bank": 2}, 20)
    assert refusal(allowed.agreement) is None
    # The paper's own setting: 100 shared rows, h = 32, Q = 10.
    paper = Scenario(
        TransferSettings(algorithm=FedBCD(10), protection=OwnGradient()), {"b": 15, "a": 18}, 100
    )
    assert refusal(paper.agreement) is not None
    assert refusal(paper.with_steps(1).agreement) is None


def test_blind_training_opens_nothing() -> None:
    blind = Scenario(LinearSettings(protection=Blind(scheme="paillier")), {"shop": 3, "bank": 2}, 20)
    assert ledger_after(blind.agreement, 9) == [] and refusal(blind.agreement) is None


def test_rounds_fall_with_q_and_not_below_the_floor() -> None:
    model = RoundsModel(100, floor=0.15)
    found = [model.rounds(q) for q in (1, 2, 5, 10, 50, 500)]
    assert found == [100, 58, 28, 16, 15, 15]
    assert RoundsModel.through(28, 5).rounds(5) == 28
    assert RoundsModel.through(30, 50).rounds(1) == 200
    # The paper's Table 2: 46, 13, 7 rounds at Q = 1, 5, 10.
    paper = RoundsModel(46, floor=0.04)
    assert abs(paper.rounds(5) - 13) <= 1 and abs(paper.rounds(10) - 7) <= 1


def test_the_fastest_is_the_fastest_that_may_be_run() -> None:
    row = Estimate("ckks", "own-gradient", 1, 10, 4, 100, 1.0, 0.5, 2.0)
    quick = Estimate("ckks", "own-gradient", 5, 2, 4, 100, 1.0, 0.5, 2.0)
    refused = Estimate("ckks", "own-gradient", 50, 1, 4, 100, 0.1, 0.1, 0.0, "no")
    assert (
        row.total == pytest.approx(17.0)
        and row.total_bytes == 1000
        and row.computation + row.communication == 1.5
    )
    assert best([row, quick, refused]) is quick
    assert best([refused]) is None
    equal = Estimate("ckks", "own-gradient", 20, 2, 4, 100, 0.99, 0.5, 2.0)
    assert equal.total < quick.total and best([equal, quick]) is quick, "fewer local steps for the same time"


@pytest.mark.slow
def test_an_estimate_of_each_scheme() -> None:
    """Real rounds, small: positive times, exact sizes; local steps send more where they open."""
    linear = Scenario(
        LinearSettings(protection=OwnGradient(scheme="paillier"), rounds=4), {"shop": 3, "bank": 2}, 20, 2048
    )
    rows = estimates(linear, [1, 20], rounds=RoundsModel(10))
    assert rows[0].bytes == rows[1].bytes and rows[0].ciphertexts == rows[1].ciphertexts == 20 * 2 + 2
    assert rows[0].computation > 0 and rows[1].rounds < rows[0].rounds
    assert all(math.isfinite(row.total) and row.communication > 0 for row in rows)
    transfer = Scenario(TransferSettings(hidden=4, protection=OwnGradient()), {"b": 3, "a": 2}, 50)
    steps = estimates(transfer, [1, 4], rounds=RoundsModel(10))
    assert steps[1].bytes > steps[0].bytes and steps[1].computation > 0


def test_a_blind_run_is_forecast_for_the_rounds_that_it_will_have() -> None:
    scenario = Scenario(LinearSettings(rounds=4), {"shop": 3, "bank": 2}, 60, holdout_rows=12)
    rows = estimates(scenario, [1, 20], rounds=RoundsModel(10))
    assert [row.rounds for row in rows] == [2 * 7 + 3, 2]
    for row in rows:
        assert 0 < row.computation + row.communication < row.setup < 10 and row.setup_communication > 0
        assert row.total_bytes == row.setup_bytes + row.rounds * row.bytes and row.setup_bytes > 1000
        assert not row.refused and row.reveal == "nothing" and row.ciphertexts == 0
        assert row.memory > 40 * 6**2


def test_a_forecast_is_near_a_real_run() -> None:
    """`python -m bench forecast` has a closer look at the times."""
    scenario = Scenario(LinearSettings(rounds=4), {"shop": 20, "bank": 20}, 600)
    planned = estimates(scenario)[0]
    _, done = run(scenario, timer=thread_time)
    sent = sum(entry.bytes for link in done.links.values() for entry in link.transcript.of("sent"))
    assert planned.total_bytes == sent and planned.rounds == 4
    assert planned.total_computation > 0.0


def test_tables_that_are_too_wide_are_refused_with_figures() -> None:
    wide = Scenario(LinearSettings(), {"shop": 3000, "bank": 2999}, 100).agreement
    due = peak_memory(wide)
    assert 40 * 6000**2 * 3 < due < 40 * 6000**2 * 5
    with pytest.raises(
        SettingError, match=r"6,000 in all given; .* take 6\.4 GB .* this machine has 4\.0 GB"
    ):
        check_memory(wide, 4 * 10**9)
    check_memory(wide, 8 * 10**9)
    held = Scenario(LinearSettings(), {"shop": 3000, "bank": 2999}, 100, holdout_rows=20).agreement
    assert peak_memory(held) > due, "all rows and the training rows have a matrix each"
