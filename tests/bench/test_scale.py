"""`python -m bench scale`: growth by arithmetic, and the command whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import bench.__main__ as dispatch
from bench.scale import Row, cases, growth


def row(sweep: str, rows: int, parties: int, seconds: float) -> Row:
    return Row(sweep, "ckks", rows, parties, 1, seconds, 1, 1)


def test_growth_is_the_exponent_between_neighbours() -> None:
    first = row("rows", 100, 2, 1.0)
    assert growth(first, row("rows", 400, 2, 4.0)) == 1.0
    assert growth(first, row("rows", 400, 2, 16.0)) == 2.0
    assert growth(first, row("rows", 400, 2, 1.0)) == 0.0
    assert growth(row("parties", 100, 2, 1.0), row("parties", 100, 8, 2.0)) == 0.5
    # Rows of different sweeps have nothing to do with each other.
    assert growth(first, row("parties", 100, 2, 4.0)) is None
    assert growth(row("workers", 100, 2, 1.0), row("workers", 100, 2, 0.5)) is None


@pytest.mark.parametrize("quick", [True, False])
def test_every_sweep_has_something_to_compare(quick: bool) -> None:
    found = list(cases(quick))
    assert {case.sweep for case in found} == {"rows", "parties", "workers"}
    for sweep, form in {(case.sweep, case.form) for case in found if case.sweep != "workers"}:
        assert len([case for case in found if (case.sweep, case.form) == (sweep, form)]) >= 2


@pytest.mark.slow
def test_the_whole_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "scale.json"
    assert dispatch.main(["scale", "--quick", "--json", str(path)]) == 0
    report = json.loads(path.read_text())
    rows = report["rows"]
    assert len(rows) == len(list(cases(True)))
    assert all(found["computation_s"] > 0 and found["bytes"] > 0 for found in rows)
    # The paper's counts: K - 1 parts and K - 1 sums a round, and an opening's two messages for each party.
    stars = [found for found in rows if found["sweep"] == "parties" and found["form"] == "paillier"]
    for found in stars:
        assert found["messages"] == 2 * (found["parties"] - 1) + 2 * found["parties"]
    assert "largest growth with rows" in capsys.readouterr().out
