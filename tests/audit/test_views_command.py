"""`python -m bench attacks --quick`, whole: what has to succeed succeeds, what has to fail fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import bench.__main__ as dispatch
from bench.attack_variants import BLIND, CKKS, PAILLIER, PLAIN, SINGLE

OURS = (PAILLIER, CKKS)
SUCCEED = {
    "labels from gradient directions": (PLAIN, SINGLE),
    "labels over the rounds, transfer": (PLAIN, SINGLE, *OURS),
    "hidden representations": (PLAIN, SINGLE),
    "Phi Phi', Q = 2": (PLAIN, SINGLE),
    "labels from one exchange, past the line": (PLAIN, *OURS),
    "labels from the first exchange, below the line": (PLAIN, *OURS),
    "labels over the rounds, new batches": (PLAIN, *OURS),
    "features, a few rows known": (PLAIN,),
    "labels of people alone in a category": OURS,
    "which of 8 data sets, from ciphertexts": (PLAIN, SINGLE),
}
FAIL = {
    "Phi Phi', Q = 2": OURS,
    "labels over the rounds, full batch": (*OURS, BLIND),
    "labels from the first exchange, below the line": (BLIND,),
    "labels over the rounds, new batches": (BLIND,),
    "features, a few rows known": (*OURS, BLIND),
    "which of 8 data sets, from ciphertexts": OURS,
}


def excess(row: dict[str, Any]) -> float:
    """How far a score lies above chance and design, in standard errors.

    What is masked and encrypted is drawn anew in every run. One 95 % interval in forty then lies above
    chance by luck, and five standard errors are one run in three million.
    """
    base = max(row["chance"], row["by_design"] if row["by_design"] is not None else 0.0)
    error = max((row["high"] - row["low"]) / 3.92, 1e-9)
    return float((row["score"] - base) / error)


def test_an_attack_that_works_is_many_errors_above_chance() -> None:
    row = {"score": 0.9, "low": 0.86, "high": 0.94, "chance": 0.5, "by_design": None}
    assert excess(row) == pytest.approx(0.4 / (0.08 / 3.92))
    assert excess(row | {"by_design": 0.85}) == pytest.approx(0.05 / (0.08 / 3.92))
    assert excess(row | {"score": 0.57, "low": 0.51, "high": 0.64}) < 5, "luck"


@pytest.mark.slow
def test_the_whole_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "attacks.json"
    assert dispatch.main(["attacks", "--quick", "--json", str(path)]) == 0
    rows = {(row["attack"], row["variant"]): row for row in json.loads(path.read_text())["rows"]}
    for attack, variants in SUCCEED.items():
        for variant in variants:
            assert rows[attack, variant]["succeeded"], rows[attack, variant]
    for attack, variants in FAIL.items():
        assert excess(rows[attack, PLAIN]) > 10, "else the next line could not fail"
        for variant in variants:
            assert excess(rows[attack, variant]) < 5, rows[attack, variant]
    # A chance and an interval for every one of them, and the table of the documentation.
    for row in rows.values():
        assert 0.0 <= row["low"] <= row["score"] <= row["high"] <= 1.0 or row["metric"] == "cosine"
        assert 0.0 <= row["chance"] < 1.0
    assert "| labels over the rounds, transfer |" in capsys.readouterr().out


def test_directories_that_are_not_there_are_found_before_minutes_of_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dispatch.main(["attacks", "--json", str(tmp_path / "nowhere" / "a.json")]) == 2
    assert "there is no directory" in capsys.readouterr().err
