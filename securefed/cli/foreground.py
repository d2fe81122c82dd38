"""A party's process at a terminal: log lines, warnings, SIGTERM as Ctrl-C, the countdown while it waits."""

from __future__ import annotations

import logging
import os
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from securefed.cli.terminal import MOST_LINE, Terminal, clock
from securefed.errors import plain_text
from securefed.report.page import size
from securefed.transport.network import Waiting


class _LogLines(logging.Handler):
    """Log lines of the transport, one by one, where a person sees them."""

    def __init__(self, terminal: Terminal) -> None:
        super().__init__()
        self._terminal = terminal

    def emit(self, record: logging.LogRecord) -> None:
        text = plain_text(record.getMessage(), MOST_LINE)
        if record.levelno >= logging.WARNING:
            self._terminal.warn(text)
        else:
            self._terminal.detail(text)


@contextmanager
def in_foreground(terminal: Terminal) -> Iterator[None]:
    """Warnings and log lines go to the terminal, and SIGTERM is a Ctrl-C."""
    logger = logging.getLogger("securefed")
    handler, level, propagate = _LogLines(terminal), logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    with warnings.catch_warnings(), interruptible(), _threads_that_die(terminal):
        warnings.simplefilter("once")
        warnings.showwarning = lambda message, *_: terminal.warn(str(message))
        try:
            yield
        finally:
            logger.removeHandler(handler)
            logger.setLevel(level)
            logger.propagate = propagate


@contextmanager
def _threads_that_die(terminal: Terminal) -> Iterator[None]:
    """End the process, with a line, when one of its threads dies: it would live on and answer nobody."""

    def died(arguments: threading.ExceptHookArgs) -> None:
        if arguments.exc_type is SystemExit:
            return
        name = arguments.thread.name if arguments.thread is not None else "unknown"
        terminal.error(f"thread {name} failed ({plain_text(arguments.exc_value)}); this party stops")
        os.kill(os.getpid(), signal.SIGTERM)

    before, threading.excepthook = threading.excepthook, died
    try:
        yield
    finally:
        threading.excepthook = before


@contextmanager
def interruptible() -> Iterator[None]:
    """Whoever stops this process with SIGTERM gets the same clean end as with Ctrl-C."""

    def stop(_: int, __: FrameType | None) -> Any:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def waiting_note(waiting: Waiting) -> str:
    """A countdown; or, while a large message is on its way, how much of it has come."""
    if waiting.moved is not None:
        part, whole = waiting.moved
        way = f"to {waiting.peer}" if waiting.outgoing else f"from {waiting.peer}"
        return f"{size(part)} of {size(whole)} {way}"
    left = clock(max(0.0, waiting.left))
    trouble = f" ({waiting.trouble})" if waiting.trouble else ""
    return f"waiting for {waiting.peer}, {left} left{trouble}"
