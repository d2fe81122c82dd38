"""The examples run, and show what they say."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    if spec is None or spec.loader is None:
        pytest.fail(f"no example {name}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_credit_scoring(capsys: pytest.CaptureFixture[str]) -> None:
    table = load("credit_scoring").main(rows=400, rounds=4, key_bits=2048)
    assert table["both, blind"] > table["the bank alone"]
    assert table["both, blind"] > table["both, all data in one place"] - 0.03
    printed = capsys.readouterr().out
    assert "what shop saw" in printed
    assert "in the clear" not in printed


@pytest.mark.slow
def test_five_hospitals(capsys: pytest.CaptureFixture[str]) -> None:
    table = load("five_hospitals").main()
    assert table["five departments, encrypted"] > 0.98
    assert table["five departments, encrypted"] > table["the registry alone"]
    printed = capsys.readouterr().out
    assert "uniform to the key-holder" in printed


def test_every_example_is_tested() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {"credit_scoring", "five_hospitals"}
