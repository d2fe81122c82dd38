"""The bar: at a terminal only, and only for what takes long."""

from __future__ import annotations

import io
import sys

import pytest

from securefed.crypto import scheme as module
from securefed.crypto.scheme import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_into_a_pipe_nothing_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = io.StringIO()
    monkeypatch.setattr(sys, "stderr", pipe)
    monkeypatch.setattr(module, "PATIENCE", 0.0)
    assert list(progress(range(5), "counting", 5)) == [0, 1, 2, 3, 4]
    assert pipe.getvalue() == ""


def test_short_work_shows_nothing_at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert list(progress(range(5), "counting", 5)) == [0, 1, 2, 3, 4]
    assert "counting" not in terminal.getvalue()


def test_long_work_shows_a_bar_at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(module, "PATIENCE", 0.0)
    assert list(progress(range(5), "counting", 5)) == [0, 1, 2, 3, 4]
    assert "counting" in terminal.getvalue()


def test_the_patience_is_two_seconds() -> None:
    assert module.PATIENCE == 2.0
