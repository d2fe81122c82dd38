"""What a person sees: colours at a terminal only, one line of progress, results on stdout."""

from __future__ import annotations

import errno
import io
import json
import os
import re
from datetime import datetime

import pytest

from securefed.cli.terminal import Terminal, clock


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")


def test_results_go_to_stdout_and_the_rest_to_stderr() -> None:
    out, err = io.StringIO(), io.StringIO()
    with Terminal(out=out, err=err) as terminal:
        terminal.result("42")
        terminal.say("working")
        terminal.detail("closely")
        terminal.warn("careful")
        terminal.error("broken")
    assert out.getvalue() == "42\n"
    assert err.getvalue().splitlines() == ["working", "note: careful", "broken"]


def test_quiet_and_verbose() -> None:
    err = io.StringIO()
    with Terminal(quiet=True, out=io.StringIO(), err=err) as terminal:
        terminal.say("working")
        terminal.error("broken")
    assert err.getvalue() == "broken\n"
    err = io.StringIO()
    with Terminal(verbose=True, out=io.StringIO(), err=err) as terminal:
        terminal.detail("closely")
    assert err.getvalue() == "closely\n"


class Full(io.StringIO):
    """A file on a full disk."""

    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_log_on_a_full_disk_ends_nothing_and_a_lost_result_does() -> None:
    out = io.StringIO()
    with Terminal(out=out, err=Full()) as terminal:
        terminal.warn("careful")
        terminal.error("broken")
        terminal.result("42")
    assert out.getvalue() == "42\n"
    with Terminal(out=Full(), err=io.StringIO()) as terminal, pytest.raises(OSError, match="No space left"):
        terminal.result("42")


def test_colours_appear_at_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def painted(stream: io.StringIO) -> str:
        with Terminal(out=io.StringIO(), err=stream) as terminal:
            terminal.error("red")
        return stream.getvalue()

    assert "\x1b[31m" in painted(Tty())
    assert "\x1b" not in painted(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in painted(Tty())
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b" not in painted(Tty())


def test_progress_at_a_terminal_is_one_line_that_renews_itself() -> None:
    err = Tty()
    with Terminal(out=io.StringIO(), err=err) as terminal:
        progress = terminal.progress(4, "bank: round")
        progress.begin(0)
        progress.step(1, "AUC 0.9  sent 1 MB")
        terminal.say("a line above")
        progress.step(4, "AUC 0.95  sent 4 MB")
        progress.close()
    text = err.getvalue()
    assert "\r" in text and "1/4" in text and "4/4" in text and "AUC 0.95" in text
    assert re.search(r"left ~\d", text)
    assert "a line above\n" in text


def test_progress_into_a_file_is_a_few_plain_lines() -> None:
    err = io.StringIO()
    with Terminal(out=io.StringIO(), err=err) as terminal:
        progress = terminal.progress(100, "round")
        progress.begin(0)
        for number in range(1, 101):
            progress.step(number, "sent 1 MB")
    assert err.getvalue().splitlines() == ["round 100/100  sent 1 MB"]
    err = io.StringIO()
    with Terminal(verbose=True, out=io.StringIO(), err=err) as terminal:
        progress = terminal.progress(3, "round")
        progress.begin(1)
        progress.step(2, "x")
        progress.step(3, "y")
    assert len(err.getvalue().splitlines()) == 2


def test_times_as_people_read_them() -> None:
    assert [clock(s) for s in (0.4, 99, 125, 7260)] == ["0 s", "99 s", "2 min 05 s", "2 h 01 min"]


def test_lines_of_json_have_time_level_party_and_run() -> None:
    err = io.StringIO()
    with Terminal(json_lines=True, verbose=True, out=io.StringIO(), err=err) as terminal:
        terminal.labels = {"party": "bank", "run": "first"}
        terminal.say("a\nb")
        terminal.warn("careful")
        terminal.error("broken")
    lines = [json.loads(line) for line in err.getvalue().splitlines()]
    assert [(line["level"], line["text"]) for line in lines] == [
        ("info", "a\nb"),
        ("warning", "careful"),
        ("error", "broken"),
    ]
    for line in lines:
        assert (line["party"], line["run"]) == ("bank", "first")
        assert datetime.fromisoformat(line["time"]).tzinfo is not None
