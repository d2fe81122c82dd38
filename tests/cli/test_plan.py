"""`securefed plan`: what it offers, and that it recommends nothing that can diverge."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from securefed.cli import main
from securefed.cli.plan import _scenario
from securefed.errors import SettingError
from securefed.plan.planner import Estimate
from securefed.plan.rehearsal import Scenario
from securefed.settings.describe import party_toml
from securefed.settings.party import read_party_file
from securefed.settings.run import RunSettings
from tests.process.parties import Fleet

TWO = {"name": "r", "parties": ["shop", "bank"]}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["blind", "own-gradient"])
def test_a_plan_for_a_file(
    kind: str, fleet: Callable[..., Fleet], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reveal = "nothing" if kind == "blind" else kind
    made = fleet({"shop": 3, "bank": 2}, scheme="ckks", reveal=reveal, rounds=9, local_steps=1)
    report, file = tmp_path / "plan.json", str(made.folder / "bank" / "party.toml")
    assert main(["plan", file, "--rows", "60", "--scheme", "ckks", "--json", str(report)]) == 0
    said = capsys.readouterr()
    assert "Likely fastest: ckks" in said.out and "2 columns at shop, as many as here" in said.err
    assert ("reveals nothing" in said.out) == ("Local steps cost nothing" in said.out) == (kind == "blind")
    assert ("of memory at each of the two parties that hold shares" in said.out) == (kind == "blind")
    assert ("the peers must be trusted" in said.out) == (kind == "own-gradient")
    rows = json.loads(report.read_text())["estimates"]
    assert {row["reveal"] for row in rows} == {reveal}
    if kind == "blind":
        # Few rows: models of five folds in 6 rounds, again on other targets, then 3 rounds of all rows.
        assert [(row["local_steps"], row["rounds"]) for row in rows] == [(1, 15)]
    else:
        assert [row["local_steps"] for row in rows] == [1, 2, 5, 10, 20, 50]
    for row in rows:
        assert row["total_bytes"] == row["setup_bytes"] + row["rounds"] * row["bytes"] > 0
        assert row["total"] > row["computation"] > 0


def test_all_schemes_that_fit_are_planned(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def noted(scenario: Scenario, *_: object) -> list[Estimate]:
        asked.append(scenario.settings.scheme)
        return [Estimate(asked[-1], "nothing", 20, 24, 0, 100, 1e-3, 1e-3, 2.0)]

    monkeypatch.setattr("securefed.cli.plan.estimates", noted)
    assert main(["plan", "--rows", "60", "--columns", "a=3,b=3,c=2"]) == 0
    assert asked == ["ckks", "paillier"] and "Likely fastest: ckks, Q = 20" in capsys.readouterr().out


def test_a_plan_needs_no_certificate_of_a_peer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A party plans before it has met anybody; what else is wrong with the file is still refused."""
    one = Estimate("ckks", "nothing", 20, 24, 0, 100, 1e-3, 1e-3, 2.0)
    monkeypatch.setattr("securefed.cli.plan.estimates", lambda *_: [one])
    (tmp_path / "bank.csv").write_text("id,age,late\n1,30,0\n2,40,1\n3,50,0\n")
    text = party_toml("bank", key_holder=False, listen="127.0.0.1:7001", parties=("shop", "bank"))
    file = tmp_path / "party.toml"
    file.write_text(text.replace('label = "label"', 'label = "late"'))
    assert main(["plan", str(file), "--columns", "shop=2"]) == 0
    assert "3 people in common; columns: shop 2, bank 1" in capsys.readouterr().out
    with pytest.raises(SettingError, match=r"peers/shop\.pem"):
        read_party_file(file)
    file.write_text(file.read_text().replace('label = "late"', ""))
    assert main(["plan", str(file)]) == 2
    assert "label: missing" in capsys.readouterr().err


def test_blind_runs_are_planned_with_the_rows_that_are_held_out() -> None:
    columns = {"shop": 3, "bank": 2}
    shared = RunSettings.of({**TWO, "holdout": 0.25, "seed": 3})
    scenario = _scenario(shared.settings, shared, columns, 80)
    assert scenario.holdout_rows == 20
    assert scenario.agreement.holdout == scenario.agreement.batches.holdout_rows == 80
    shared = RunSettings.of({**TWO, "protection": {"kind": "own-gradient"}})
    assert _scenario(shared.settings, shared, columns, 80).agreement.holdout == 0


def test_a_table_that_is_too_wide_is_refused_with_figures(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("securefed.plan.planner.machine_memory", lambda: 100 << 20)
    assert main(["plan", "--rows", "60", "--columns", "shop=600,bank=2"]) == 2
    told = capsys.readouterr()
    assert "columns: 603 in all given; shares of 603 x 603 numbers take 0.6 GB" in told.err
