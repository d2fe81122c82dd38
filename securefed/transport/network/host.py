"""A party's machine: time, conditions and threads.

It is a parameter everywhere. Tests run the same code on a simulated machine, where time passes only when all
threads wait and the test chooses their order.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from securefed.transport.message import TransportError

__all__ = ["Host"]


class Host:
    """This machine."""

    def now(self) -> float:
        """Return seconds on a monotonic clock."""
        return time.monotonic()

    def chance(self) -> float:
        """Return a random number from 0 to 1, so that parties do not act in step."""
        return secrets.randbelow(1000) / 1000

    def condition(self, beside: threading.Condition | None = None) -> threading.Condition:
        """Return a condition with a reentrant lock, or with the lock of `beside`."""
        return threading.Condition(None if beside is None else beside._lock)  # type: ignore[attr-defined]

    def start(self, work: Callable[[], None], name: str) -> threading.Thread:
        """Start a thread. `join` waits for its end."""
        thread = threading.Thread(target=work, name=name, daemon=True)
        with thread_starts():
            thread.start()
        return thread


@contextmanager
def thread_starts() -> Iterator[None]:
    """Turn a failure to start a thread, also inside grpc, into the error that says what to do."""
    try:
        yield
    except RuntimeError as error:
        if "new thread" not in str(error):
            raise
        raise too_many_threads() from None


def too_many_threads() -> TransportError:
    return TransportError(
        "this process cannot start another thread; raise the limit of its user or container "
        "(ulimit -u, TasksMax in systemd, --pids-limit)"
    )
