"""The planner: the ledger ahead of time, rounds by Q, and a clock that agrees with the real one."""

from __future__ import annotations

import math
import warnings
from pathlib import Path as FilePath
from typing import Any

import pytest

from securefed.errors import SettingError
from securefed.measure import calibration, lattice, stopwatch
from securefed.measure.calibration import CkksCosts, PaillierCosts, PlainCosts
from securefed.measure.forecast import ledger_after, refusal
from securefed.measure.lattice import MOST_ROWS, RlweCosts
from securefed.measure.meter import Operation
from securefed.measure.plan import Estimate, RoundsModel, best, estimate
from securefed.measure.scenario import Scenario
from securefed.protocols.ledger import LedgerWarning
from securefed.protocols.recipe import LinearRecipe
from securefed.protocols.schedules import FedBCD
from securefed.protocols.transfer_recipe import TransferRecipe
from securefed.transport import get_network
from tests.measure.runs import run

OPEN: dict[str, Any] = {"reveal": "own-gradient", "loss_form": "taylor", "scheme": "plain", "rounds": 4}


def test_the_ledger_is_known_before_the_first_round() -> None:
    scenario = Scenario(LinearRecipe(**OPEN, algorithm=FedBCD(2)), {"shop": 3, "bank": 2}, 20)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LedgerWarning)
        _, done = run(scenario)
    found = {(e.party, e.block): e for o in done.outcomes.values() for e in o.ledger.entries}
    assert {(e.party, e.block): e for e in ledger_after(scenario.agreement, 4)} == found
    assert refusal(scenario.agreement) is None


def test_a_refusal_is_foreseen() -> None:
    tight = Scenario(LinearRecipe(**{**OPEN, "batch_size": 3}), {"shop": 3, "bank": 2}, 20)
    entry = refusal(tight.agreement)
    assert entry is not None and entry.verdict == "determined"
    allowed = Scenario(
        LinearRecipe(**{**OPEN, "batch_size": 3}, allow_determined=True), {"shop": 3, "bank": 2}, 20
    )
    assert refusal(allowed.agreement) is None
    # The paper's own setting: 100 shared rows, h = 32, Q = 10.
    paper = Scenario(
        TransferRecipe(scheme="ckks", reveal="own-gradient", algorithm=FedBCD(10)), {"b": 15, "a": 18}, 100
    )
    assert refusal(paper.agreement) is not None
    assert refusal(paper.with_steps(1).agreement) is None


def test_blind_training_opens_nothing() -> None:
    blind = Scenario(LinearRecipe(scheme="paillier", batch_size=3), {"shop": 3, "bank": 2}, 20)
    assert ledger_after(blind.agreement, 9) == [] and refusal(blind.agreement) is None


def test_rounds_fall_with_q_and_not_below_the_floor() -> None:
    model = RoundsModel(100, alpha=0.8, floor=0.15)
    found = [model.rounds(q) for q in (1, 2, 5, 10, 50, 500)]
    assert found == [100, 58, 28, 16, 15, 15]
    assert RoundsModel.through(28, 5).rounds(5) == 28
    assert RoundsModel.through(30, 50).rounds(1) == 200
    # The paper's Table 2: 46, 13, 7 rounds at Q = 1, 5, 10.
    paper = RoundsModel(46, floor=0.04)
    assert abs(paper.rounds(5) - 13) <= 1 and abs(paper.rounds(10) - 7) <= 1


@pytest.mark.parametrize("wrong", [{"at_one": 0}, {"at_one": 9, "floor": 2}, {"at_one": 9, "alpha": -1}])
def test_a_model_that_makes_no_sense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(SettingError):
        RoundsModel(**wrong)


def test_the_fastest_is_the_fastest_that_may_be_run() -> None:
    row = Estimate("ckks", "own-gradient", 1, 10, 4, 100, 1.0, 0.5, 2.0)
    quick = Estimate("ckks", "own-gradient", 5, 2, 4, 100, 1.0, 0.5, 2.0)
    refused = Estimate("ckks", "own-gradient", 50, 1, 4, 100, 0.1, 0.1, 0.0, "no")
    assert row.total == pytest.approx(17.0) and row.total_bytes == 1000 and row.seconds == 1.5
    assert best([row, quick, refused]) is quick
    assert best([refused]) is None
    equal = Estimate("ckks", "own-gradient", 20, 2, 4, 100, 0.99, 0.5, 2.0)
    assert equal.total < quick.total and best([equal, quick]) is quick, "fewer local steps for the same time"


def test_an_estimate_of_each_scheme() -> None:
    """Real calibrations, small: positive times, exact sizes; local steps cost more where they open."""
    network = get_network("lan")
    linear = Scenario(LinearRecipe(**{**OPEN, "scheme": "paillier"}), {"shop": 3, "bank": 2}, 40, 1024)
    paillier = PaillierCosts(1024, allow_small=True)
    rows = [estimate(linear.with_steps(q), paillier, network, RoundsModel(10)) for q in (1, 20)]
    assert rows[0].bytes == rows[1].bytes and rows[0].ciphertexts == rows[1].ciphertexts == 40 * 2 + 2
    assert rows[0].computation > 0 and rows[1].rounds < rows[0].rounds
    assert all(math.isfinite(row.total) and row.communication > 0 for row in rows)
    blind = Scenario(LinearRecipe(scheme="paillier", rounds=4), {"shop": 3, "bank": 2}, 40, 1024)
    hidden = estimate(blind, paillier, network, RoundsModel(10))
    assert hidden.computation > rows[0].computation
    assert hidden.setup_bytes > 0
    assert hidden.total_bytes == hidden.setup_bytes + hidden.rounds * hidden.bytes
    transfer = Scenario(TransferRecipe(scheme="ckks", reveal="own-gradient", hidden=4), {"b": 3, "a": 2}, 50)
    ckks = CkksCosts()
    steps = [estimate(transfer.with_steps(q), ckks, network, RoundsModel(10)) for q in (1, 4)]
    assert steps[1].bytes > steps[0].bytes and steps[1].computation > 2 * steps[0].computation


def test_workers_share_the_work() -> None:
    """Four workers take less time than one for what can be shared, and the same for what cannot."""
    alone = PaillierCosts(1024, allow_small=True)
    shared = PaillierCosts(1024, allow_small=True)
    shared.__dict__.update(alone.__dict__)
    shared.workers, shared.efficiency = 4, 1.0
    for work in (
        Operation("encrypt", (400,), 400),
        Operation("draw", (400,), 400),
        Operation("open", (400,), 400),
        Operation("contract", (16, 8), 128, inner=64, terms=16 * 8 * 64),
    ):
        assert shared.seconds(work) == pytest.approx(alone.seconds(work) / 4, rel=0.05)
    for work in (Operation("encrypt", (8,), 8), Operation("draw", (1,), 1), Operation("load", (400,), 400)):
        assert shared.seconds(work) == alone.seconds(work)


def test_a_blind_run_under_rlwe_is_forecast_for_the_rounds_that_it_will_have() -> None:
    costs = RlweCosts()
    scenario = Scenario(LinearRecipe(scheme="ckks", rounds=4), {"shop": 3, "bank": 2}, 60)
    rows = [estimate(scenario.with_steps(q), costs, get_network("lan"), RoundsModel(10)) for q in (1, 20)]
    assert [row.rounds for row in rows] == [10, 2]
    for row in rows:
        assert 0 < row.computation < 10 and row.communication > 0 and row.setup_communication > 0
        assert row.setup_bytes > 0 and not row.refused and row.reveal == "nothing"
    # Two margins, conversions, refreshes there and back: a ciphertext each.
    assert rows[0].ciphertexts == rows[1].ciphertexts == 8


def test_each_shape_is_measured_once_and_rows_beyond_many_count_in_proportion(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    costs = RlweCosts()
    measured: list[str] = []

    def measure(self: RlweCosts, operation: Operation) -> None:
        measured.append(operation.name)
        self._known[operation] = 3.0

    monkeypatch.setattr(RlweCosts, "_measure", measure)
    small, large = Operation("read", (MOST_ROWS, 2), 4), Operation("read", (4 * MOST_ROWS, 2), 16)
    assert (costs.seconds(small), costs.seconds(large)) == (3.0, 12.0)
    tall = Operation("multiply", (2 * MOST_ROWS, 1), inner=8)
    wide = Operation("multiply", (8, 1), inner=2 * MOST_ROWS)
    assert (costs.seconds(tall), costs.seconds(wide), costs.seconds(tall)) == (6.0, 6.0, 6.0)
    assert measured == ["read", "multiply", "multiply"]


def test_encodings_that_do_not_fit_into_memory_are_made_again() -> None:
    costs = RlweCosts()
    assert costs._kept(Operation("multiply", (10**5, 1), inner=20))
    assert not costs._kept(Operation("multiply", (10**6, 1), inner=100))


def test_costs_of_one_kind_say_nothing_about_the_other() -> None:
    blind = Scenario(LinearRecipe(scheme="ckks"), {"shop": 3, "bank": 2}, 40)
    open_ = Scenario(LinearRecipe(scheme="ckks", reveal="own-gradient"), {"shop": 3, "bank": 2}, 40)
    with pytest.raises(SettingError, match="unprotected"):
        estimate(blind, PlainCosts(), get_network("lan"), RoundsModel(10))
    with pytest.raises(SettingError, match="'encrypt' takes under RLWE"):
        estimate(open_, RlweCosts(), get_network("lan"), RoundsModel(10))


def test_a_busy_machine_is_not_a_slow_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calibrations go by the processor's clock: on it a neighbour takes no time."""
    now = [0.0]

    def work() -> None:
        now[0] += 2.0

    monkeypatch.setattr(stopwatch, "thread_time", lambda: now[0])
    assert stopwatch.timed(work) == 2.0
    for module in (calibration, lattice, stopwatch):
        assert module.__file__ is not None
        assert "perf_counter" not in FilePath(module.__file__).read_text()
