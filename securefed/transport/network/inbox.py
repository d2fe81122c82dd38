"""Messages that arrived from one peer and wait for the program: in order, each once, within limits.

A sender delivers one message at a time and repeats it until it has a receipt. So exactly two sequence numbers
are legal: the one that is due, and the one before it if its receipt was lost. Everything else is refused by
name. An older one, which an abandoned connection can still bring, is refused alone. A gap, a reordering or
other content under a taken number ends the whole attempt.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from securefed.transport.message import Message, OutOfOrder
from securefed.transport.network.codec import Envelope
from securefed.transport.network.errors import LimitExceeded, Malformed, Repeated
from securefed.transport.network.limits import Limits

__all__ = ["Inbox", "Parcel"]


class Parcel:
    """An arriving message."""

    def __init__(self, sender: str, envelope: Envelope, cancel: Callable[[], None], before: int = 0) -> None:
        """Begin a message. `before` counts earlier bytes from this sender."""
        self.sender, self.envelope, self.cancel, self._before = sender, envelope, cancel, before
        self.parts: list[bytes] = []
        self.size = 0
        self.moved: float | None = None
        """When the last piece came; None while it waits for room here."""

    def arrived(self, now: int) -> int:
        """Return its bytes so far, partial pieces included, when `now` bytes have come from this sender."""
        return min(self.envelope.size, max(self.size, now - self._before))

    def add(self, part: Envelope | bytes) -> None:
        if isinstance(part, Envelope):
            raise Malformed(f"{self.sender} sent a second envelope inside message {self.envelope.sequence}")
        if not part:
            raise Malformed(f"{self.sender} sent an empty piece of message {self.envelope.sequence}")
        self.size += len(part)
        if self.size > self.envelope.size:
            raise LimitExceeded(
                f"{self.sender} sent more than the {self.envelope.size} bytes that it announced "
                f"for message {self.envelope.sequence}"
            )
        self.parts.append(part)

    def payload(self) -> bytes:
        if self.size != self.envelope.size:
            raise Malformed(
                f"{self.sender} sent {self.size} of the {self.envelope.size} bytes that it announced "
                f"for message {self.envelope.sequence}"
            )
        return self.parts[0] if len(self.parts) == 1 else b"".join(self.parts)


class Inbox:
    """One peer's messages. The attempt's condition guards it."""

    def __init__(self, sender: str, limits: Limits) -> None:
        self.sender, self._limits = sender, limits
        self._messages: deque[tuple[Message, float]] = deque()
        self._bytes = 0
        self._due = 0
        self._last: tuple[object, ...] | None = None
        self.current: Parcel | None = None

    def expects(self, envelope: Envelope) -> bool:
        """Return True for the due message, False for a repeat of the one before. Raises for others."""
        if envelope.sequence == self._due:
            return True
        if envelope.sequence == self._due - 1 and envelope.identity == self._last:
            return False
        due = f"message {self._due} is due"
        if envelope.sequence < self._due - 1:
            raise Repeated(f"{self.sender} sent message {envelope.sequence} again; {due}")
        word = "again, with another content" if envelope.sequence < self._due else "too early"
        raise OutOfOrder(f"{self.sender} sent message {envelope.sequence} {word}; {due}")

    def begin(self, parcel: Parcel) -> None:
        """Begin a parcel. A new try of the same message replaces the one before."""
        self.drop()
        self.current = parcel

    def drop(self) -> None:
        if self.current is not None:
            self.current.cancel()
            self.current = None

    def has_room(self, size: int) -> bool:
        """Return whether the message fits. An empty inbox has room for any legal message."""
        if not self._messages:
            return True
        few = len(self._messages) < self._limits.queued_messages
        return few and self._bytes + size <= self._limits.queued_bytes

    def put(self, envelope: Envelope, message: Message, now: float) -> None:
        self.current = None
        self._messages.append((message, now))
        self._bytes += message.size
        self._due += 1
        self._last = envelope.identity

    def take(self) -> tuple[Message, float] | None:
        """Return the next message and the time of its arrival."""
        if not self._messages:
            return None
        message, moment = self._messages.popleft()
        self._bytes -= message.size
        return message, moment
