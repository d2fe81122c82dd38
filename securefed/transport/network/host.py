"""What a party's process takes from its machine: the time, something to wait on, and threads.

It is a parameter everywhere, so that tests run the same code on a machine of their own: there time passes
when nobody has anything to do, and threads take turns in an order that the test chooses.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable

from securefed.transport.message import TransportError

__all__ = ["Host"]


class Host:
    """This machine."""

    def now(self) -> float:
        """Seconds on a clock that is never set back."""
        return time.monotonic()

    def chance(self) -> float:
        """A number from 0 to 1, so that parties do not all do the same at the same moment."""
        return secrets.randbelow(1000) / 1000

    def condition(self, beside: threading.Condition | None = None) -> threading.Condition:
        """A reentrant lock that can be waited on; `beside` another one, it has the same lock."""
        return threading.Condition(None if beside is None else beside._lock)  # type: ignore[attr-defined]

    def start(self, work: Callable[[], None], name: str) -> threading.Thread:
        """Do that beside everything else; `join` waits for its end."""
        thread = threading.Thread(target=work, name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError:
            raise too_many_threads() from None
        return thread


def too_many_threads() -> TransportError:
    return TransportError(
        "this process cannot start another thread; raise the limit of its user or container "
        "(ulimit -u, TasksMax in systemd, --pids-limit)"
    )
