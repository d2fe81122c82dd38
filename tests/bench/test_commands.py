"""Each command of the contract runs and writes its bars, on the smallest work that still goes the whole way.

What the figures are worth is for the commands' own tests, which are nightly ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench import attacks, blind, chaos, chaos_mutations, crypto, emulation, scale, wan
from bench.__main__ import main
from bench.scale_case import Case

pytestmark = pytest.mark.slow

BAR = {"name", "value", "bar", "better", "met", "note"}


def ran(tmp_path: Path, *words: str) -> dict[str, Any]:
    """Run a command and return what it wrote."""
    path = tmp_path / "rows.json"
    assert main([*words, "--quick", "--json", str(path)]) in (0, 1), "1: a bar is missed"
    written: dict[str, Any] = json.loads(path.read_text())
    for bar in written["bars"]:
        assert set(bar) >= BAR
        assert bar["better"] in ("less", "more")
    return written


@pytest.mark.parametrize(
    "words",
    [
        "peers --rows 20 --width 2 --local-steps 1",
        "quality --emulated --seeds 1 --hostile 1 --table",
        "table1 --only mimic --seeds 0 --target 0.6 --jobs 1 --out",
        "table2 --scheme plain --seeds 0 --plain-seeds 0 --Q 5 --jobs 1 --out",
    ],
)
def test_a_command_that_can_be_made_small(tmp_path: Path, words: str) -> None:
    command, *options = words.split()
    ends = {"--out": [str(tmp_path)], "--table": ["breast cancer"]}
    ran(tmp_path, command, *options, *ends.get(options[-1], []))


def test_figures(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    words = ["figures", "--quick", "--only", "optimum", "--jobs", "1", "--out", str(tmp_path)]
    assert main([*words, "--json", str(path)]) == 0
    assert (tmp_path / "figure-optimum-quick.svg").stat().st_size > 10_000
    assert "bars" in json.loads(path.read_text())


def test_crypto(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = crypto.Size(repeats=1, ciphertexts=2, matrix=(2, 4), matrix_repeats=1, million=1000)
    monkeypatch.setattr(crypto, "QUICK", small)
    ran(tmp_path, "crypto")


def test_scale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cases(quick: bool, most_rows: int = 0) -> Iterator[Case]:
        yield Case("rows", "ckks", 200, (3, 3))
        yield Case("parties", "ckks", 200, (3, 3, 3))

    monkeypatch.setattr(scale, "cases", cases)
    ran(tmp_path, "scale")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # sockets of a relay that ends
def test_wan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wan, "SCENE", replace(wan.SCENE, rows=60, columns=2))
    ran(tmp_path, "wan")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_chaos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (plain,) = (scene for scene in chaos.SCENES if scene.name == "plain")
    monkeypatch.setattr(chaos, "SCENES", [replace(plain, run={**plain.run, "rounds": 60})])
    written = ran(tmp_path, "chaos", "--scene", "plain", "--faults", "3", "--seed", "7")
    assert {row["verdict"] for row in written["rows"]} == {"survived"}


def test_fifty_mutations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chaos_mutations, "SCENES", chaos_mutations.SCENES[:2])
    written = ran(tmp_path, "chaos", "--mutations", "50", "--seed", "7")
    assert all(bar["met"] for bar in written["bars"]), written["rows"][0]["failures"]


def test_attacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = attacks.Size(
        rows=60,
        batch=30,
        rounds=4,
        full_rounds=3,
        shared=40,
        width=2,
        transfer_rounds=2,
        trials=2,
        blind_rounds=1,
    )
    monkeypatch.setattr(attacks, "QUICK", small)
    ran(tmp_path, "attacks")


def test_blind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*_: object) -> Iterator[Any]:
        raise OSError("no other release here")

    def fewer(plain: Callable[..., Any]) -> Callable[..., Any]:
        return lambda rows, *rest: plain(max(32, rows // 64), *rest)

    monkeypatch.setattr(blind, "beside_release", absent)
    for name in ("passed", "round_on_line", "generated"):
        monkeypatch.setattr(blind, name, fewer(getattr(blind, name)))
    few = [case for case in emulation.cases(quick=True) if case.scheme == "ckks"][:1]
    monkeypatch.setattr(emulation, "cases", lambda *, quick: few)
    ran(tmp_path, "blind")
