"""Attempts that get nowhere end, and what a peer says at the end is checked."""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Iterator
from io import StringIO
from typing import Any

import pytest

from securefed.cli.terminal import Terminal, in_foreground
from securefed.errors import plain_text
from securefed.process.attempts import Attempts, _timing, may_return, why_it_ended
from securefed.transport.message import PeerLeft, PeerLost

GONE = PeerLost("shop", "shop at h:7 (nothing of a message arrived for 60 s) could not be reached for 120 s")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_attempts_without_progress_end_after_the_wait() -> None:
    clock = Clock()
    attempts = Attempts(600.0, clock)
    for _ in range(4):
        attempts.interrupted(GONE, (True, 3))
        clock.now += 150.0
    with pytest.raises(
        PeerLost, match="5 attempts in 600 s came no further; the last one: shop at h:7"
    ) as end:
        attempts.interrupted(GONE, (True, 3))
    assert end.value.peer == "shop"


def test_progress_and_single_interruptions_of_long_rounds_do_not_end_a_run() -> None:
    clock = Clock()
    attempts = Attempts(600.0, clock)
    for round_ in range(10):
        attempts.interrupted(GONE, (True, round_))
        clock.now += 5000.0
    attempts.interrupted(GONE, (True, 9))


def test_a_reason_names_the_missing_party_and_no_class() -> None:
    left = PeerLeft("shop", "shop left the run: it lost another party (mill)", "PeerLost mill")
    assert may_return(left) and why_it_ended(left) == str(left)
    assert not may_return(PeerLeft("shop", "x", "DataError"))


@pytest.mark.parametrize(
    "seconds", [math.nan, math.inf, -1.0, 10**400, "7", None, True, [1]], ids=lambda value: str(value)[:8]
)
def test_times_of_a_peer_that_no_run_takes_are_left_out(seconds: Any) -> None:
    good = dict.fromkeys(("computation_seconds", "communication_seconds", "total_seconds"), 1.5)
    assert _timing(good) == good
    found = _timing({**good, "total_seconds": seconds})
    assert found is None or found["total_seconds"] == 1.0, "true is a number in Python"


def test_what_a_peer_says_is_one_harmless_bounded_line() -> None:
    assert plain_text("a\x1b]0;title\x07b\r\nc\u202ed") == "a?]0;title?b c?d"
    assert plain_text("x" * 10_000_000) == "x" * 297 + "..."
    assert plain_text("x" * 300) == "x" * 300


@pytest.fixture
def screen() -> Iterator[tuple[Terminal, StringIO]]:
    text = StringIO()
    yield Terminal(err=text, out=text), text


def test_nothing_brings_terminal_escapes_or_endless_lines_to_the_terminal(
    screen: tuple[Terminal, StringIO],
) -> None:
    terminal, text = screen
    for say in (terminal.say, terminal.warn, terminal.error, terminal.result):
        say("evil \x1b[2J" + "y" * 10_000)
    assert "\x1b" not in text.getvalue()
    assert max(map(len, text.getvalue().split("\n"))) <= 2010


def test_a_thread_that_dies_stops_the_party_with_a_line(screen: tuple[Terminal, StringIO]) -> None:
    terminal, text = screen

    def fails() -> None:
        raise RuntimeError("out of luck")

    with pytest.raises(KeyboardInterrupt), in_foreground(terminal):
        thread = threading.Thread(target=fails, name="securefed-door")
        thread.start()
        thread.join()
        signal.sigtimedwait([signal.SIGUSR1], 5.0)  # the interrupt ends this
    assert text.getvalue() == "thread securefed-door failed (out of luck); this party stops\n"
