"""`python -m bench`: its parser and its exit codes."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

import bench.__main__ as dispatch
from bench import crypto
from securefed.errors import MissingExtra

ROOT = Path(__file__).parent.parent.parent


def test_every_listed_command_has_the_common_options(capsys: pytest.CaptureFixture[str]) -> None:
    for name in dispatch.COMMANDS:
        with pytest.raises(SystemExit) as left:
            dispatch.main([name, "--help"])
        assert left.value.code == 0
        text = capsys.readouterr().out
        for option in ("--quick", "--json FILE", "--seed"):
            assert option in text


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["crypto", "--seed", "x"], ["crypto", "--nonsense"]])
def test_what_the_user_got_wrong_is_exit_code_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        dispatch.main(arguments)
    assert left.value.code == 2
    assert "usage: python -m bench" in capsys.readouterr().err


@pytest.mark.parametrize(
    "error",
    [MissingExtra("matplotlib is not installed"), PermissionError(13, "Permission denied", "/x.json")],
)
def test_errors_of_the_surroundings_are_one_line(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(args: argparse.Namespace) -> int:
        raise error

    monkeypatch.setattr(crypto, "run", fail)
    assert dispatch.main(["crypto"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == f"bench crypto: {error}\n"


def test_arguments_reach_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[argparse.Namespace] = []
    monkeypatch.setattr(crypto, "run", lambda args: given.append(args) or 1)
    assert dispatch.main(["crypto", "--quick", "--seed", "7", "--json", "out.json"]) == 1
    assert (given[0].quick, given[0].seed, given[0].json) == (True, 7, Path("out.json"))


@pytest.mark.slow
def test_it_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "bench", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    assert "crypto" in done.stdout
