"""`python -m bench table1`: rows, bars and the choice of a step size on made runs; quick runs end to end."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from math import inf
from pathlib import Path
from typing import Any

import pytest

import bench.__main__ as dispatch
from bench import table1
from bench.runs import Record, Spec, Store
from bench.table1 import Experiment, Row, bars_of, choose, row_of

NAMED = os.environ.get("SECUREFED_DATA")
DIGITS = bool(NAMED) and (Path(NAMED or "") / "mnist10k.npz").exists()
SMALL = Experiment("mimic", "MIMIC-LR", 0.8, 50, (0, 1, 2), etas=(0.1, 0.2, 0.4))


def record(*aucs: float) -> Record:
    return Record({}, [{"auc": auc} for auc in aucs], "made", {}, [], [], {"sources": "", "load": 0.0})


def row(task: str, algorithm: str, steps: int, rounds: float | None) -> Row:
    return Row(task, "made", algorithm, steps, 0.84, 0.1, rounds is not None, rounds, None, 0.8, (0,), ())


def bench(*arguments: object) -> int:
    return dispatch.main(["table1", "--quick", *map(str, arguments)])


@pytest.mark.slow
def test_a_row_has_the_median_and_a_run_that_never_arrives_counts_as_a_long_one() -> None:
    late, soon, never = record(0.5, 0.6, 0.8), record(0.81), record(0.5, 0.79)
    found = row_of(SMALL, "parallel", 5, [late, soon, never])
    assert found.rounds_each == (3, 1, None)
    assert (found.rounds, found.reached) == (3, True)
    assert found.auc == 0.8
    assert (found.algorithm, found.Q) == ("FedBCD-p", 5)
    assert "generated" in found.data
    found = row_of(SMALL, "parallel", 1, [never, soon, never])
    assert (found.rounds, found.reached) == (None, False)


def test_no_step_size_is_chosen_where_fedsgd_never_arrives(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(table1, "make_all", lambda specs, *_, **__: dict.fromkeys(specs, record(0.5)))
    assert table1.tune(SMALL, Store(tmp_path), 1)["chosen"] is None
    assert "chosen: none" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("parallel", "turns", "verdicts"),
    [
        (100, 125, ["pass", "pass"]),
        (100, 126, ["pass", "MISSED"]),
        (100, None, ["pass", "MISSED"]),
    ],
)
def test_bars_are_a_third_on_mimic_and_a_quarter_between_the_orders(
    parallel: float | None, turns: float | None, verdicts: list[str]
) -> None:
    rows = [
        row("MIMIC-LR", "FedSGD", 1, 300),
        row("MIMIC-LR", "FedBCD-p", 5, parallel),
        row("MIMIC-LR", "FedBCD-s", 5, turns),
    ]
    assert [bar.verdict for bar in bars_of(rows)] == verdicts


def test_a_run_with_another_default_is_another_run(monkeypatch: pytest.MonkeyPatch) -> None:
    before = SMALL.spec("parallel", 5, 0)
    assert dict(before.options)["eta"] == table1.DEFAULTS["mimic"]["eta"]
    monkeypatch.setitem(table1.DEFAULTS, "mimic", {**table1.DEFAULTS["mimic"], "eta": 0.5})
    assert SMALL.spec("parallel", 5, 0).digest != before.digest


def test_fedsgd_decides_the_step_size_by_its_median_on_validation_rows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its rounds by eta0 and seed are made; at 0.2 one seed is far off, which the median does not mind."""
    made = {0.1: (900, 800, None), 0.2: (300, 360, None), 0.4: (100, 90, 80)}
    seen: list[Spec] = []

    def runs(specs: Iterable[Spec], *_: object, **__: object) -> dict[Spec, Record]:
        found = {}
        for spec in specs:
            seen.append(spec)
            rounds = made[dict(spec.options)["eta"]][spec.seed] if spec.local_steps == 1 else 7
            aucs = [0.5] * 950 if rounds is None else [0.5] * (rounds - 1) + [0.8]
            found[spec] = record(*aucs)
        return found

    monkeypatch.setattr(table1, "make_all", runs)
    found = table1.tune(SMALL, Store(tmp_path), 1)
    assert found["chosen"] == 0.2
    rounds = {(entry["eta0"], entry["Q"]): entry["rounds"] for entry in found["rounds"]}
    assert (rounds[0.1, 1], rounds[0.2, 1], rounds[0.4, 1]) == (900, 360, 90)
    assert {dict(spec.options)["split"] for spec in seen} == {"validation"}
    assert "FedSGD in the paper: 334" in capsys.readouterr().out


def test_a_step_beyond_the_fastest_is_not_chosen() -> None:
    rounds = {0.0005: 58, 0.001: 31, 0.002: 28, 0.005: 39, 0.01: inf}
    assert choose(rounds, 46) == 0.0005, "and not 0.005, whose 39 are nearer"
    assert choose(rounds, 30) == 0.001
    assert choose({0.1: inf}, 46) is None


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--target", "0.9"], "target and eta: of one task, name it with --only"),
        (["--json", "/no/such/rows.json"], "/no/such/rows.json: there is no directory /no/such"),
    ],
)
def test_bad_settings_are_one_clear_line(
    arguments: list[str], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench("--out", tmp_path, *arguments) == 2
    assert capsys.readouterr().err == f"bench table1: {line}\n"


def quick(tmp_path: Path, capsys: pytest.CaptureFixture[str], task: str) -> dict[str, Any]:
    assert bench("--only", task, "--out", tmp_path) == 0
    text = capsys.readouterr().out
    report: dict[str, Any] = json.loads((tmp_path / "table1-quick.json").read_text())
    assert (tmp_path / "table1-quick.md").read_text() in text
    assert [entry["algorithm"] for entry in report["rows"]] == [
        "FedSGD",
        *["FedBCD-p"] * 2,
        *["FedBCD-s"] * 3,
    ]
    return report


@pytest.mark.slow
def test_quick_mimic(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = {(entry["algorithm"], entry["Q"]): entry for entry in quick(tmp_path, capsys, "mimic")["rows"]}
    assert all("generated" in entry["data"] for entry in rows.values())
    assert rows["FedBCD-p", 5]["rounds"] < rows["FedSGD", 1]["rounds"]
    kept = sorted(path.stat().st_mtime_ns for path in (tmp_path / "runs").iterdir())
    quick(tmp_path, capsys, "mimic")
    assert sorted(path.stat().st_mtime_ns for path in (tmp_path / "runs").iterdir()) == kept


@pytest.mark.slow
@pytest.mark.skipif(not DIGITS, reason="needs MNIST digits in SECUREFED_DATA")
def test_quick_mnist(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    report = quick(tmp_path, capsys, "mnist")
    assert {entry["data"] for entry in report["rows"]} == {"MNIST, 8 channels"}
    assert all(0.5 < entry["auc"] <= 1 for entry in report["rows"])
