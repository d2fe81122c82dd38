"""`securefed plan`: what it offers, and that it recommends nothing that can diverge."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from securefed.cli import main
from securefed.cli.plan import _scenario, _variants, _why
from securefed.plan.planner import Estimate, RoundsModel
from securefed.settings.run import RunSettings
from tests.process.parties import Fleet

TWO = {"name": "r", "parties": ["shop", "bank"]}


def test_both_schemes_are_offered_blind_and_ckks_first() -> None:
    titles = [title for title, _ in _variants(RunSettings.of(TWO), None)]
    assert titles == [
        "ckks, reveals nothing",
        "ckks, own gradients",
        "paillier, reveals nothing",
        "paillier, own gradients",
    ]


@pytest.mark.parametrize("objective", ["linear", "transfer"])
def test_several_classes_are_planned_for_blind_runs_alone(objective: str) -> None:
    shared = RunSettings.of({**TWO, "objective": objective, "classes": 4})
    titles = [title for title, variant in _variants(shared, None) if variant.outputs == 4]
    assert titles == ["ckks, reveals nothing", "paillier, reveals nothing"]


@pytest.mark.parametrize(
    "settings", [{"local_model": "network"}, {"optimiser": "adam"}, {"exchange": "pairwise"}]
)
def test_what_blind_training_does_not_take_is_offered_open_only(settings: dict[str, str]) -> None:
    shared = RunSettings.of({**TWO, "protection": {"kind": "own-gradient", **settings}})
    assert [title for title, _ in _variants(shared, ["ckks"])] == ["ckks, own gradients"]


@pytest.mark.slow
def test_a_plan_for_the_defaults(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "plan.json"
    words = ["plan", "--rows", "60", "--columns", "shop=3,bank=2", "--scheme", "ckks", "--engine", "serial"]
    assert main([*words, "--rounds", "9", "--local-steps", "1", "--json", str(file)]) == 0
    text = capsys.readouterr().out
    assert "ckks, reveals nothing" in text and "Likely fastest" in text
    assert "of memory at each of the two parties that hold shares" in text
    assert "learning_rate = 'auto'" in text
    assert ("the peers must be trusted" in text) == ("own gradients: ckks" in text)
    found = json.loads(file.read_text())["estimates"]
    blind, *open_ = found
    # Few rows: models of five folds in 6 rounds, again on other targets, then 3 rounds of all rows.
    assert (blind["reveal"], blind["local_steps"], blind["rounds"]) == ("nothing", 1, 15)
    assert [row["local_steps"] for row in open_] == [1, 2, 5, 10, 20, 50]
    assert {row["reveal"] for row in open_} == {"own-gradient"}
    for row in found:
        assert row["total_bytes"] == row["setup_bytes"] + row["rounds"] * row["bytes"] > 0
        assert row["total"] > row["computation"] > 0


def test_blind_runs_are_planned_with_the_rows_that_are_held_out() -> None:
    shared = RunSettings.of({**TWO, "holdout": 0.25, "seed": 3})
    scenario = _scenario(shared, {"shop": 3, "bank": 2}, 80, 3072)
    assert scenario.holdout_rows == 20
    assert scenario.agreement.holdout == scenario.agreement.batches.holdout_rows == 80
    open_ = _scenario(
        RunSettings.of({**TWO, "protection": {"kind": "own-gradient"}}), {"shop": 3, "bank": 2}, 80, 3072
    )
    assert open_.agreement.holdout == 0


def test_why_local_steps_cost_nothing_in_blind_training() -> None:
    row = Estimate("ckks", "nothing", 20, 24, 0, 100, 1e-3, 1e-3, 2.0)
    assert "local steps cost nothing: keep Q = 20 or more" in _why(row, [row], RoundsModel(100))


def test_a_table_that_is_too_wide_is_refused_with_figures(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("securefed.plan.planner.machine_memory", lambda: 100 << 20)
    monkeypatch.setattr("securefed.cli.plan.LOCAL_STEPS", (1,))
    words = ["plan", "--rows", "60", "--columns", "shop=600,bank=2", "--scheme", "ckks", "--engine", "serial"]
    assert main(words) == 0
    told = capsys.readouterr()
    assert "reveals nothing: columns: 603 in all given; shares of 603 x 603 numbers take 0.6 GB" in told.err
    assert "ckks, own gradients" in told.out and "ckks, reveals nothing" not in told.out


def test_a_rate_that_may_diverge_for_another_q_is_not_planned_with(
    fleet: Callable[..., Fleet], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"scheme": "plain", "reveal": "own-gradient", "learning_rate": 0.25, "decay": "sqrt"}
    file = fleet({"shop": 2, "bank": 2}, **settings).folder / "bank" / "party.toml"
    offered: list[RunSettings] = []

    def noted(shared: RunSettings, schemes: list[str] | None) -> list[tuple[str, RunSettings]]:
        offered.extend(variant for _, variant in _variants(shared, schemes))
        return _variants(shared, schemes)

    monkeypatch.setattr("securefed.cli.plan._variants", noted)
    assert main(["plan", str(file), "--scheme", "plain", "--engine", "serial"]) == 0
    line = "learning_rate 'auto', which diverges for no Q, instead of the file's 0.25"
    assert line in capsys.readouterr().err
    for shared in offered:
        assert shared.settings.learning_rate == "auto"
