"""`python -m bench scale`: exponents and projection by arithmetic, and the command whole."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import bench.__main__ as dispatch
from bench import scale_parties
from bench.scale import bars, cases, exponent, growth, projection
from bench.scale_case import Case, Row, Watched
from bench.scale_parties import Matrix


def row(
    sweep: str, seconds: float, rows: int = 10_000, columns: tuple[int, ...] = (50, 50), **more: int
) -> Row:
    return Row(Case(sweep, "ckks", rows, columns, **more), seconds, seconds, rows * 10, 8, 500.0, 0.0)


def test_growth_is_the_exponent_between_neighbours() -> None:
    first = row("rows", 1.0, 100)
    assert growth(first, row("rows", 4.0, 400)) == 1.0
    assert growth(first, row("rows", 16.0, 400)) == 2.0
    assert growth(row("parties", 1.0, columns=(5, 5)), row("parties", 2.0, columns=(5,) * 8)) == 0.5
    assert growth(row("columns", 1.0, columns=(5, 5)), row("columns", 2.0, columns=(10, 10))) == 1.0
    assert growth(row("classes", 1.0), row("classes", 6.0, classes=6)) == 1.0
    # Rows of different sweeps have nothing to do with each other.
    assert growth(first, row("parties", 4.0)) is None
    assert growth(row("workers", 1.0), row("workers", 0.5, workers=2)) is None
    assert exponent([row("rows", 2.0 * n, n) for n in (10, 100, 1000)]) == 1.0


def test_the_projection_follows_the_fits_and_says_what_it_is() -> None:
    found = [row("rows", n / 1e4, n) for n in (1_000, 10_000, 100_000)]
    found += [row("columns", n / 10, columns=(n, n)) for n in (50, 100)]
    found += [row("workers", 5.0, workers=1), row("workers", 5.0, workers=2)]
    made = projection(found)
    assert made is not None and "not measured" in made["what"]
    # A thousand times the rows and twice the columns, at half the efficiency, on 128 cores.
    assert made["cpu_hours"] == pytest.approx(10 * 1000 * 2 / 3600, abs=0.06)
    assert made["hours"] == pytest.approx(10 * 1000 * 2 / 3600 / 128 / 0.5, abs=0.01)


def test_engines_are_compared_by_the_pass_on_the_critical_path() -> None:
    """A busy machine's wall times say nothing about processes; Ray is compared by wall time."""
    one, two = (row("workers", 9.0, workers=count) for count in (1, 2))
    ray = replace(two, case=replace(two.case, engine="ray"), wall_s=15.0)
    processes, beside = bars([replace(one, critical_s=3.0), replace(two, critical_s=1.5, wall_s=10.0), ray])
    assert (processes.value, processes.met) == (2.0, True)
    assert (beside.name, beside.value, beside.met) == ("Ray beside processes, ckks", 1.5, False)
    with Watched(2) as engine:
        assert engine.map(abs, range(-4, 0)) == [4, 3, 2, 1]
        assert 0 < engine.longest < 1


def test_a_party_file_and_its_bars(tmp_path: Path) -> None:
    Matrix(20, 3, seed=1, label="3").write(tmp_path / "whole.npy")
    made = np.load(tmp_path / "whole.npy")
    assert made.shape == (20, 4) and set(made[:, 3]) == {0.0, 1.0} and np.abs(made[:, :3]).max() <= 1
    found = {"rows": 1_000_000, "columns": [50, 50], "seconds": 50.0, "cpu_seconds": 90.0, "mb_sent": 1001.0}
    found |= {"peak_mib": {"a": 900.0, "b": 5000.0}}
    assert [bar.met for bar in scale_parties.bars(found)] == [True, False, False]
    assert scale_parties.bars({**found, "rows": 10}) == []


@pytest.mark.parametrize("quick", [True, False])
def test_every_sweep_has_something_to_compare(quick: bool) -> None:
    found = list(cases(quick))
    assert {case.sweep for case in found} >= {"rows", "columns", "classes", "parties", "workers"}
    for sweep, scheme in {(case.sweep, case.scheme) for case in found if case.sweep != "shape"}:
        assert len([case for case in found if (case.sweep, case.scheme) == (sweep, scheme)]) >= 2
    assert max(case.rows for case in cases(quick, 5_000)) <= 5_000


@pytest.mark.slow
def test_the_whole_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "scale.json"
    assert dispatch.main(["scale", "--quick", "--rows", "1000", "--json", str(path)]) == 0
    report = json.loads(path.read_text())
    assert len(report["rows"]) == len(list(cases(True, 1000)))
    assert all(
        found["cpu_s"] > 0 and found["bytes"] > 0 and found["peak_mib"] > 50 for found in report["rows"]
    )
    assert all(set(bar) == {"name", "value", "bar", "better", "met", "note"} for bar in report["bars"])
    assert "fitted exponents" in capsys.readouterr().out
