"""The attempt that a greeting belongs to, and the answers about attempts that are over.

A party's process makes one attempt after the other. A peer may still be in the one before: it has not heard
how that ended, or its answer was lost. So a finished attempt continues to answer its participants. A failed
one answers until there is a new one, whose hello says that all must begin again. A process that does not know
an attempt answers with its current one. From that a peer learns that the process was replaced.
"""

from __future__ import annotations

import threading
import time

from securefed.transport.message import TransportError
from securefed.transport.network.attempt import Attempt
from securefed.transport.network.codec import ABSENT, FINISHED, Hello

__all__ = ["Register"]

REMEMBERED = 8
"""Finished attempts that are kept. No party can be more than one behind: the next one needs all."""


class Register:
    """The attempts of one party's process: the current one and finished ones."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.attempt: Attempt | None = None
        self._last: Attempt | None = None
        self._finished: list[Attempt] = []
        self._lock = threading.Lock()

    def begin(self, attempt: Attempt) -> None:
        with self._lock:
            if self.attempt is not None:
                raise TransportError(f"{self.name} is already in run {self.attempt.run!r}")
            self.attempt = attempt

    def end(self) -> None:
        with self._lock:
            last, self.attempt = self.attempt, None
            self._last = last
            if last is not None and last.state == FINISHED:
                self._finished = [*self._finished, last][-REMEMBERED:]

    @property
    def done(self) -> frozenset[str]:
        """The runs that this process has completed."""
        with self._lock:
            return frozenset(attempt.run for attempt in self._finished)

    def answer(self, hello: Hello) -> Hello:
        """Return the answer to a hello."""
        with self._lock:
            attempt, last = self.attempt, self._last
            over = next((past for past in self._finished if past.knew(hello)), None)
        if over is not None:
            if attempt is not None:
                attempt.is_late(hello)
            return over.hello(hello.sender)
        if attempt is not None:
            return attempt.answer(hello)
        if last is not None and last.knew(hello):
            return last.hello(hello.sender)  # how it ended, for those who have not heard
        return Hello("", self.name, hello.sender, b"", ABSENT, b"", b"", {}, time.time())
