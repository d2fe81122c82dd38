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


@pytest.mark.slow
def test_three_classes() -> None:
    table = load("three_classes").main()
    assert table["both, blind"] > max(table["colour alone"], 0.9) - 0.02


@pytest.mark.slow
def test_insurance_costs(capsys: pytest.CaptureFixture[str]) -> None:
    for table in load("insurance_costs").main():
        assert table["both, blind"] > table["the insurer alone"] + 0.1
        assert table["both, blind"] > table["all data in one place"] - 0.02


@pytest.mark.slow
def test_transfer(capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = load("transfer").main().values()
    assert found > 0.85
    printed = capsys.readouterr().out
    assert "what the shop saw" in printed
    assert "gradient" not in printed


@pytest.mark.slow
def test_audit_walkthrough() -> None:
    found = load("audit_walkthrough").main()
    assert found["both"].failed == []
    assert found["tampered"].failed
    assert found["one side"].failed == []
    assert len(found["one side"].not_checked) > len(found["both"].not_checked)


def test_every_example_is_tested() -> None:
    tested = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert {path.stem for path in EXAMPLES.glob("*.py")} == tested - {"every_example_is_tested"}
