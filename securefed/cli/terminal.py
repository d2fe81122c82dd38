"""What a person sees and types: lines, colours, one line of progress, and the passphrase of the keys.

Results go to stdout, everything else to stderr. Colours and the renewed line appear only where stderr is a
terminal, and colours not with NO_COLOR or TERM=dumb; into a file or a pipe go plain lines, a few of them.
The passphrase comes from a file, the environment or a prompt, in this order.
"""

from __future__ import annotations

import argparse
import getpass
import json
import logging
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from securefed.errors import SettingError, plain_text
from securefed.files import Closing


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
    """Tell warnings and log lines at the terminal, and take SIGTERM for a Ctrl-C.

    A thread that dies ends the process, with a line: without it the process would live on and answer nobody.
    """

    def died(arguments: threading.ExceptHookArgs) -> None:
        if arguments.exc_type is not SystemExit:
            name = arguments.thread.name if arguments.thread is not None else "unknown"
            terminal.error(f"thread {name} failed ({plain_text(arguments.exc_value)}); this party stops")
            os.kill(os.getpid(), signal.SIGTERM)

    logger, handler = logging.getLogger("securefed"), _LogLines(terminal)
    level, propagate, hook = logger.level, logger.propagate, threading.excepthook
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate, threading.excepthook = False, died
    with warnings.catch_warnings(), interruptible():
        warnings.simplefilter("once")
        warnings.showwarning = lambda message, *_: terminal.warn(str(message))
        try:
            yield
        finally:
            logger.removeHandler(handler)
            logger.setLevel(level)
            logger.propagate, threading.excepthook = propagate, hook


@contextmanager
def interruptible() -> Iterator[None]:
    """Whoever stops this process with SIGTERM gets the same clean end as with Ctrl-C."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


VARIABLE, NEW_VARIABLE = "SECUREFED_PASSPHRASE", "SECUREFED_NEW_PASSPHRASE"
LEAST = 8


def add_passphrase(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--passphrase-file",
        type=Path,
        metavar="FILE",
        help=f"file whose first line is the passphrase of the keys; else ${VARIABLE}, else a prompt",
    )


def read_passphrase(file: Path | None, *, new: bool = False, replaces: bool = False) -> str:
    """Return the passphrase of the keys.

    `new`: ask twice at a prompt, and refuse a short one. `replaces`: it takes the place of another one.
    """
    variable, option = VARIABLE, "--passphrase-file"
    if replaces:
        variable, option = NEW_VARIABLE, "--new-passphrase-file"
    passphrase, where = os.environ.get(variable), variable
    if file is not None:
        try:
            passphrase, where = (file.read_text(encoding="utf-8").splitlines() or [""])[0], str(file)
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not text"
            raise SettingError(f"passphrase: cannot read {file}: {reason}") from None
    if passphrase is None:
        if not sys.stdin.isatty():
            raise SettingError(
                f"passphrase: none given; set {variable}, give {option}, or run this at a terminal"
            )
        prompt = "New passphrase of the keys: " if replaces else "Passphrase of the keys: "
        passphrase, where = getpass.getpass(prompt), "what was typed"
        if new and getpass.getpass("Once more: ") != passphrase:
            raise SettingError("passphrase: the two entries differ")
    if not passphrase:
        raise SettingError(f"passphrase: {where} is empty")
    if new and len(passphrase) < LEAST:
        raise SettingError(
            f"passphrase: {len(passphrase)} characters in {where}, at least {LEAST} are needed"
        )
    return passphrase


COLOURS = {"bold": "1", "soft": "2", "red": "31", "green": "32", "yellow": "33"}
PLAIN_EVERY = 10.0
"""Seconds between two lines of progress where there is no terminal."""
TICK = 0.5
MOST_LINE = 2000
"""Characters of a line; what others say comes through, and must not fill a disk."""


class Terminal(Closing):
    """Where a command writes: results to stdout, everything else to stderr."""

    def __init__(
        self,
        *,
        quiet: bool = False,
        verbose: bool = False,
        json_lines: bool = False,
        out: TextIO | None = None,
        err: TextIO | None = None,
    ) -> None:
        self.quiet, self.verbose, self._json_lines = quiet, verbose, json_lines
        self.labels: dict[str, str] = {}
        """Party and run, in every line of JSON."""
        self.facts: Mapping[str, Any] | None = None
        """The result for machines: what --json writes."""
        self._out, self.err = out or sys.stdout, err or sys.stderr
        self.shown: Progress | None = None
        """The line of progress, if there is one."""
        self.lock = threading.RLock()

    @property
    def live(self) -> bool:
        """A line can be renewed in place."""
        renewable = self.err.isatty() and os.environ.get("TERM") != "dumb"
        return renewable and not self._json_lines and not self.quiet

    def result(self, text: str, *, colour: str | None = None) -> None:
        """Print the result of the command to stdout, quiet or not."""
        self._print(_harmless(text), self._out, colour, needed=True)

    def say(self, text: str, *, colour: str | None = None) -> None:
        """Print what happens to stderr, unless quiet."""
        if not self.quiet:
            self._write(text, colour)

    def detail(self, text: str) -> None:
        """Print to stderr what happens in detail, with --verbose."""
        if self.verbose:
            self._write(text, "soft")

    def warn(self, text: str) -> None:
        self._write(text if self._json_lines else f"note: {text}", "yellow", "warning")

    def error(self, text: str) -> None:
        """Print an error as the last word, and end the line of progress."""
        if self.shown is not None:
            self.shown.close()
        self._write(text, "red", "error")

    def _write(self, text: str, colour: str | None = None, level: str = "info") -> None:
        shown = _harmless(text)
        if self._json_lines:
            moment = datetime.now(UTC).isoformat(timespec="milliseconds")
            shown, colour = json.dumps({"time": moment, "level": level, **self.labels, "text": shown}), None
        self._print(shown, self.err, colour)

    def _print(self, text: str, stream: TextIO, colour: str | None, *, needed: bool = False) -> None:
        """Print above the line of progress; in colour where a person looks at it.

        Whoever read the output and left does not end a run: further lines go nowhere. A full disk ends a run
        only where the line is `needed`. A log line that failed in a thread of the transport would end that
        thread.
        """
        plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not stream.isatty()
        if colour and not plain:
            text = f"\x1b[{COLOURS[colour]}m{text}\x1b[0m"
        with self.lock, self.shown.hidden() if self.shown is not None and self.live else nullcontext():
            try:
                print(text, file=stream, flush=True)
            except OSError as error:
                left = isinstance(error, BrokenPipeError)
                if left or needed:
                    nowhere = os.open(os.devnull, os.O_WRONLY)
                    with suppress(OSError, ValueError):
                        os.dup2(nowhere, stream.fileno())  # what is still in the buffer goes there too
                    os.close(nowhere)
                if needed and not left:
                    raise

    def progress(self, total: int, what: str) -> Progress:
        """A line of progress over `total` rounds; one at a time."""
        self.shown = Progress(self, total, what)
        return self.shown

    def close(self) -> None:
        if self.shown is not None:
            self.shown.close()
        with suppress(OSError, ValueError):
            self._out.flush()


def _harmless(text: str) -> str:
    """Return the text without terminal escapes, each line bounded: file names and peers' words are in it."""
    lines = ("".join(c if c.isprintable() else "?" for c in line[:MOST_LINE]) for line in text.split("\n"))
    return "\n".join(lines)


class Progress:
    """One line: how far, what it took, and how long it will take.

    At a terminal it is a bar at the lower edge, renewed twice a second so that a long round is seen to live.
    Bars of long operations inside a round (securefed.crypto.scheme) find their place below it.
    """

    def __init__(self, terminal: Terminal, total: int, what: str) -> None:
        from tqdm import tqdm

        self._terminal, self._total, self._what = terminal, total, what
        self._done = self._from = 0
        self._began = self._shown = time.monotonic()
        self._note = ""
        tqdm.monitor_interval = 0  # ours is the only thread that renews it
        self._bar = tqdm(
            total=total,
            file=terminal.err,
            desc=what,
            bar_format="{desc} {bar} {n_fmt}/{total_fmt}{postfix}",
            dynamic_ncols=True,
            disable=not terminal.live,
        )
        self._ended = threading.Event()
        # Another name than those of threads that a party cannot live without (securefed.cli.metrics).
        self._thread = threading.Thread(target=self._tick, name="progress", daemon=True)
        if terminal.live:
            self._thread.start()

    def begin(self, done: int, total: int | None = None) -> None:
        """Rounds that were there before this process: not part of the estimate."""
        self._total = self._bar.total = total or self._total
        self._done = self._from = done
        self._began = time.monotonic()
        self._renew()

    def step(self, done: int, note: str) -> None:
        """`done` rounds are over; `note` says what they took."""
        self._done, self._note = done, note
        self._renew()
        if self._terminal.verbose or self._due() or (done == self._total and not self._terminal.live):
            self._terminal.say(f"{self._what} {done}/{self._total}  {note}{self._left()}")

    def note(self, text: str) -> None:
        """Something instead of the figures: who is waited for, and how long yet."""
        self._note = text
        self._renew()
        if self._due():
            self._terminal.say(text)

    def _due(self) -> bool:
        """Whether it is time for a line where there is no bar."""
        now = time.monotonic()
        if self._terminal.live or now - self._shown < PLAIN_EVERY:
            return False
        self._shown = now
        return True

    def _left(self) -> str:
        done = self._done - self._from
        if done < 1 or self._done >= self._total:
            return ""
        each = (time.monotonic() - self._began) / done
        return f"  left ~{clock(each * (self._total - self._done))}"

    def _renew(self) -> None:
        with self._terminal.lock:
            self._bar.n = self._done
            passed = clock(time.monotonic() - self._began)
            # What a narrow terminal cuts off is at the end.
            self._bar.set_postfix_str(f"{passed}{self._left()}  {self._note}")

    def _tick(self) -> None:
        while not self._ended.wait(TICK):
            self._renew()

    def hidden(self) -> Any:
        """Hide the line of progress while a line is printed above it."""
        return self._bar.external_write_mode(file=self._terminal.err)

    def close(self) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        with self._terminal.lock:
            self._bar.close()
        if self._terminal.shown is self:
            self._terminal.shown = None


def clock(seconds: float) -> str:
    """Time as a person reads it while waiting."""
    whole = round(seconds)
    if whole < 100:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"
