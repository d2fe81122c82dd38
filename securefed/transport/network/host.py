"""A party's machine (time, conditions, threads), and bounds on everything that arrives and on every wait.

The machine is a parameter everywhere. Tests run the same code on a simulated one, where time passes only when
all threads wait and the test chooses their order.

Bytes are per peer. A message that would overfill the queue waits outside: it is not read from the network
until the program has taken earlier ones. So a fast sender is slowed down instead of stored.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

from securefed.declare import check_integer, check_number
from securefed.errors import SettingError
from securefed.transport.message import TransportError

LOG = logging.getLogger("securefed.transport")


class Host:
    """This machine, the bounds that hold on it, and its log."""

    def __init__(
        self, limits: Limits | None = None, timeouts: Timeouts | None = None, log: logging.Logger = LOG
    ) -> None:
        self.limits, self.timeouts, self.log = limits or Limits(), timeouts or Timeouts(), log

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


LINES_A_MINUTE = 60


class FewLines(logging.LoggerAdapter[logging.Logger]):
    """A log for what callers cause. A flood of calls does not become a flood of lines."""

    def __init__(self, log: logging.Logger) -> None:
        super().__init__(log, {})
        self._lock = threading.Lock()
        self._recent: dict[int, list[float]] = {}
        """When lines of each level were written, in the last minute."""
        self._unsaid = 0

    def log(self, level: int, msg: object, *args: object, **_: Any) -> None:
        if not self.isEnabledFor(level):
            return
        now = time.monotonic()
        with self._lock:
            recent = [moment for moment in self._recent.get(level, ()) if now - moment < 60.0]
            self._recent[level] = recent
            if len(recent) >= LINES_A_MINUTE:
                self._unsaid += 1
                return
            recent.append(now)
            unsaid, self._unsaid = self._unsaid, 0
        more = f" ({unsaid} more lines before were left out)" if unsaid else ""
        self.logger.log(level, f"{msg}{more}", *args)


@contextmanager
def thread_starts() -> Iterator[None]:
    """Turn a failure to start a thread into the error that says what to do."""
    try:
        yield
    except RuntimeError as error:
        if "new thread" not in str(error):
            raise
        raise TransportError(
            "this process cannot start another thread; raise the limit of its user or container "
            "(ulimit -u, TasksMax in systemd, --pids-limit)"
        ) from None


MIB = 1 << 20


@dataclass(frozen=True)
class Limits:
    """Limits on sizes and counts."""

    message_bytes: int = 1024 * MIB
    """The largest accepted message."""
    queued_bytes: int = 2048 * MIB
    """Bytes per peer that have arrived but were not taken, or were sent but not delivered."""
    queued_messages: int = 4096
    chunk_bytes: int = 4 * MIB
    """The largest piece of a payload."""
    callers: int = 32
    """Connections without a certificate yet, besides the peers' own."""
    callers_per_address: int = 8
    """The same for one address, or one IPv6 network of 64 bits."""
    connections: int = 8
    """Connections for each peer."""

    def __post_init__(self) -> None:
        for field in fields(self):
            object.__setattr__(
                self, field.name, check_integer(field.name, getattr(self, field.name), least=1)
            )
        check_integer("chunk_bytes", self.chunk_bytes, least=1024, most=16 * MIB)
        if self.queued_bytes < self.message_bytes:
            raise SettingError(
                f"queued_bytes: {self.queued_bytes} given, "
                f"at least message_bytes ({self.message_bytes}) is needed"
            )

    @property
    def wire_bytes(self) -> int:
        """The largest question: a chunk with its envelope, or a hello."""
        return max(self.chunk_bytes, HELLO_BYTES) + 65536


HELLO_BYTES = MIB
MOST_REFUSAL = 300
"""Characters of a peer's refusal that are kept."""


@dataclass(frozen=True)
class Timeouts:
    """Time limits in seconds."""

    join: float = 600.0
    """For all peers to appear."""
    patience: float = 120.0
    """For an answer before a peer counts as lost."""
    beat: float = 2.0
    """Between two questions to an awaited peer."""
    answer: float = 10.0
    """For one such question."""
    silence: float = 86400.0
    """For a message of a peer that answers but does not send it."""
    handshake: float = 10.0
    """For a caller to show its certificate."""
    farewell: float = 2.0
    """For telling the others that this party ends."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = check_number(field.name, getattr(self, field.name), above=0.0)
            object.__setattr__(self, field.name, value)
