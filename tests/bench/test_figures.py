"""`python -m bench figures`: what is read off runs, what titles claim, and drawings that are not blank."""

from __future__ import annotations

import json
import os
from math import inf
from pathlib import Path
from typing import Any

import pytest

import bench.__main__ as dispatch
from bench.figures_runs import (
    Case,
    Curve,
    Sweep,
    curve_cases,
    curves_of,
    median_curve,
    mimic_sweep,
    optimum,
    party_cases,
    proximal_cases,
    rounds_by_steps,
)
from bench.runs import Record, Spec
from bench.tasks import build
from securefed.assembly import LinearAssembly

pytestmark = pytest.mark.slow

matplotlib = pytest.importorskip("matplotlib")
NAMED = os.environ.get("SECUREFED_DATA")
CREDIT = bool(NAMED) and (Path(NAMED or "") / "UCI_Credit_Card.csv").exists()


def record(*aucs: float, **other: float) -> Record:
    points = [{"auc": auc, **other} for auc in aucs]
    return Record({}, points, "made", {}, [], [], {"sources": "", "load": 0.0})


def curve(panel: str, label: str, *aucs: float) -> Curve:
    return Curve(panel, label, list(aucs), [1.0 - auc for auc in aucs])


def test_a_curve_is_the_median_as_long_as_all_runs_go_on() -> None:
    runs = [record(0.1, 0.2, 0.3), record(0.3, 0.1), record(0.2, 0.6, 0.9)]
    assert median_curve(runs, "auc") == [0.2, 0.2]


def test_curves_take_the_metric_that_is_there() -> None:
    looked = Record({}, [{"overlap_auc": 0.7, "loss": 0.5}], "made", {}, [], [], {})
    specs = (Spec("mimic", seed=1), Spec("mimic", seed=2))
    cases = [Case("one", "a", specs[:1]), Case("two", "b", specs[1:])]
    found = curves_of(cases, {specs[0]: record(0.6), specs[1]: looked})
    assert found == [Curve("one", "a", [0.6], []), Curve("two", "b", [0.7], [0.5])]


def test_rounds_are_medians_over_the_seeds_and_infinite_where_most_do_not_arrive() -> None:
    aucs = {(1, 0): (0.5, 0.6, 0.7), (1, 1): (0.7,), (1, 2): (0.6, 0.7), (9, 0): (0.1,), (9, 1): (0.2,),
            (9, 2): (0.9,)}  # fmt: skip
    specs = {key: Spec("mimic", key[0], seed=key[1]) for key in aucs}
    made = {specs[key]: record(*values) for key, values in aucs.items()}
    assert rounds_by_steps(Sweep("made", specs, (0.7,)), made, 0.7) == {1: 2, 9: inf}


@pytest.mark.parametrize(
    ("rounds", "best"),
    [
        ({1: 30, 5: 9, 10: 7, 50: 12}, 10),
        ({1: 30, 5: 7, 10: 7, 50: inf}, 5),
        ({1: inf, 5: inf}, None),
        ({1: 3}, 1),
    ],
)
def test_the_optimum_is_the_smallest_of_the_best(rounds: dict[int, float], best: int | None) -> None:
    assert optimum(rounds) == best


def test_one_step_for_every_number_of_parties_is_one_step() -> None:
    """And the paper's is smaller by sqrt(K / 2)."""
    rates: dict[str, list[float]] = {}
    for case in party_cases(quick=True):
        assembly = build(case.specs[0]).assembly
        assert isinstance(assembly, LinearAssembly)
        rate = assembly.settings.learning_rate
        assert callable(rate)
        rates.setdefault(case.panel.split(", ", 1)[1], []).append(rate(3))
    same, papers = rates.values()
    assert same == pytest.approx([same[0]] * 6)
    ratios = [1.0, (2 / 5) ** 0.5, (2 / 17) ** 0.5]
    assert papers == pytest.approx([same[0] * ratio for ratio in ratios] * 2)


def test_runs_of_the_tables_are_used_again() -> None:
    from bench import table1, table2
    from bench.figures_runs import credit_sweep, table2_plan

    sweep = mimic_sweep(quick=False)
    assert sweep.specs[5, 3] == table1.FULL[0].spec("parallel", 5, 3)
    plan = table2_plan(False, "ckks")
    assert set(credit_sweep(quick=False).specs.values()) & set(plan.plain_specs())
    assert plan.steps == (1, 5, 10)
    assert {q for q, _ in credit_sweep(quick=False).specs} >= set(table2.GRID["overlap"])


def test_pairs_of_the_proximal_figure_differ_in_the_term_alone() -> None:
    cases = proximal_cases(quick=False)
    for without, with_term in zip(cases[::2], cases[1::2], strict=True):
        for first, second in zip(without.specs, with_term.specs, strict=True):
            assert first.proximal == 0 < second.proximal
            assert (first.task, first.local_steps, first.seed, first.rounds, first.options) == (
                second.task,
                second.local_steps,
                second.seed,
                second.rounds,
                second.options,
            )


def quick(tmp_path: Path, names: list[str]) -> dict[str, Any]:
    given = ["figures", "--quick", "--jobs", "1", "--out", str(tmp_path), "--only", *names]
    assert dispatch.main(given) == 0
    report: dict[str, Any] = json.loads((tmp_path / "figures-quick.json").read_text())
    assert list(report["figures"]) == names
    for name in names:
        for end in ("png", "svg"):
            assert (tmp_path / f"figure-{name}-quick.{end}").stat().st_size > 10_000
    return report


def test_quick_figures_of_generated_data(tmp_path: Path) -> None:
    names = ["curves", "parties", "nus"]
    first = quick(tmp_path, names)
    assert len(first["figures"]["curves"]["curves"]) == len(curve_cases(quick=True))
    for name in names:
        assert "generated" in (tmp_path / f"figure-{name}-quick.svg").read_text()
    kept = sorted(path.stat().st_mtime_ns for path in (tmp_path / "runs").iterdir())
    again = quick(tmp_path, names)
    assert again["figures"] == first["figures"]
    assert sorted(path.stat().st_mtime_ns for path in (tmp_path / "runs").iterdir()) == kept


@pytest.mark.skipif(not CREDIT, reason="needs the Default-Credit table in SECUREFED_DATA")
def test_quick_figures_of_credit_data(tmp_path: Path) -> None:
    report = quick(tmp_path, ["optimum", "proximal", "minutes"])
    networks = report["figures"]["minutes"]["networks"]
    assert [entry["network"] for entry in networks] == ["paper", "lan", "wan"]
    for entry in networks:
        assert entry["measured"][str(entry["best"])] == min(entry["measured"].values())
        assert entry["guessed"][str(entry["guess"])] == min(entry["guessed"].values())
