"""A party with traps: `python -m bench.chaos_launch FOLDER COMMAND ...` runs `securefed COMMAND ...`.

A file in FOLDER sets off the trap of its name once, at the next call of the trapped function:

    die-KEY         the process is killed (SIGKILL) where PLACES says
    threads         a thread cannot be started
    oversized       the next message has a payload that is far too long
    announced       the next message announces a gigabyte
    escapes         the next greeting has terminal escapes and a long text in its fields
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

from securefed.transport.network import codec

__all__ = ["ESCAPES", "PLACES", "resolve"]

PLACES = {
    "round": ("securefed.process.recording:RunRecorder.write", "before"),
    "booked": ("securefed.protocols.scoring.score_ledger:ScoreGuard.book", "after"),
    "mark": ("securefed.protocols.scoring.score_ledger:ScoreGuard._write_mark", "before"),
    "answer": ("securefed.protocols.blind.scoring:_tell", "before"),
    "shard": ("securefed.process.party_run:save_shard", "before"),
    "saved": ("securefed.process.party_run:save_shard", "after"),
    "result": ("securefed.cli.party:write_run", "after"),
    "over": ("securefed.cli.party:_report", "before"),
}
"""Where a party may be killed: before a function is called or after it has returned."""
ESCAPES = "\x1b]0;owned\x07\x1b[2J\x1b[31mred\r\n" + "x" * 5000
MEGABYTE = 1 << 20


def resolve(place: str) -> tuple[Any, str]:
    """Return the owner and the name of a function "module:name" or "module:Class.name"."""
    module, _, words = place.partition(":")
    owner = importlib.import_module(module)
    *path, name = words.split(".")
    for word in path:
        owner = getattr(owner, word)
    getattr(owner, name)
    return owner, name


class Traps:
    """The trap files of one party."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def sprung(self, name: str) -> bool:
        """Return whether the trap is set, and take it away."""
        try:
            os.unlink(self._folder / name)
        except OSError:
            return False
        return True

    def install(self) -> None:
        for key, (place, when) in PLACES.items():
            owner, name = resolve(place)
            setattr(owner, name, self._deadly(getattr(owner, name), f"die-{key}", when))
        threading.Thread.start = self._without_threads(threading.Thread.start)  # type: ignore[method-assign]
        codec.encode_letter = self._announced(self._oversized(codec.encode_letter))
        codec.encode_hello = self._escaped(codec.encode_hello)

    def _deadly(self, plain: Callable[..., Any], trap: str, when: str) -> Callable[..., Any]:
        @wraps(plain)
        def deadly(*arguments: Any, **named: Any) -> Any:
            if when == "before" and self.sprung(trap):
                os.kill(os.getpid(), signal.SIGKILL)
            result = plain(*arguments, **named)
            if when == "after" and self.sprung(trap):
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return deadly

    def _without_threads(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def start(thread: threading.Thread) -> None:
            if self.sprung("threads"):
                raise RuntimeError("can't start new thread")
            plain(thread)

        return start

    def _oversized(self, plain: Callable[..., bytes]) -> Callable[..., bytes]:
        def encode(envelope: codec.Envelope, data: bytes) -> bytes:
            if not self.sprung("oversized"):
                return plain(envelope, data)
            size = 3 * MEGABYTE if envelope.sequence % 2 else MEGABYTE - 1000
            return plain(replace(envelope, size=size), bytes(size))

        return encode

    def _announced(self, plain: Callable[..., bytes]) -> Callable[..., bytes]:
        def encode(envelope: codec.Envelope, data: bytes) -> bytes:
            return plain(replace(envelope, size=10**9) if self.sprung("announced") else envelope, data)

        return encode

    def _escaped(self, plain: Callable[..., bytes]) -> Callable[..., bytes]:
        def encode(hello: codec.Hello) -> bytes:
            data = plain(hello)
            if not self.sprung("escapes"):
                return data
            fields = json.loads(data[2:])
            fields |= {"run": fields["run"] + ESCAPES, "reason": ESCAPES, "refusal": ESCAPES}
            return data[:2] + json.dumps(fields).encode()

        return encode


if __name__ == "__main__":
    Traps(Path(sys.argv[1])).install()
    sys.argv[1:2] = []
    runpy.run_module("securefed", run_name="__main__")
