"""`python -m bench attacks --quick`, whole: what has to succeed succeeds, what has to fail fails."""

from __future__ import annotations

import json
from pathlib import Path

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
    "columns of 100 levels, from scores": (PLAIN,),
}
FAIL = {
    "Phi Phi', Q = 2": OURS,
    "labels over the rounds, full batch": (*OURS, BLIND),
    "labels from the first exchange, below the line": (BLIND,),
    "labels over the rounds, new batches": (BLIND,),
    "features, a few rows known": (*OURS, BLIND),
    "which of 8 data sets, from ciphertexts": OURS,
    "columns of 100 levels, from scores": (*OURS, BLIND),
}


@pytest.mark.slow
@pytest.mark.nightly
def test_the_whole_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "attacks.json"
    assert dispatch.main(["attacks", "--quick", "--json", str(path)]) == 0
    rows = {(row["attack"], row["variant"]): row for row in json.loads(path.read_text())["rows"]}
    for attack, variants in SUCCEED.items():
        for variant in variants:
            assert rows[attack, variant]["succeeded"], rows[attack, variant]
    for attack, variants in FAIL.items():
        assert rows[attack, PLAIN]["succeeded"], "else the next line could not fail"
        for variant in variants:
            assert not rows[attack, variant]["succeeded"], rows[attack, variant]
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
