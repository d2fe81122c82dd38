"""What has arrived from one peer and was not yet taken: in order, each once, and no more than is allowed.

A sender delivers one message at a time and repeats it until it has a receipt. So exactly two sequence
numbers are legal: the one that is due, and the one before it if its receipt was lost on the way. Everything
else is refused by name: an older one, which a connection that was given up can still bring, alone; a gap or
reordering (a later one), or another content under a number that was taken, with the whole attempt.
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
    """A message on its way in."""

    def __init__(self, sender: str, envelope: Envelope, cancel: Callable[[], None], before: int = 0) -> None:
        """`before`: bytes that had come from this sender before."""
        self.sender, self.envelope, self.cancel, self._before = sender, envelope, cancel, before
        self.parts: list[bytes] = []
        self.size = 0
        self.moved: float | None = None
        """When the last piece came; None while it waits for room here."""

    def arrived(self, now: int) -> int:
        """Bytes that are here, pieces that are not whole included, when `now` have come from this sender."""
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
    """One peer's messages. Not locked by itself: the attempt's condition guards it."""

    def __init__(self, sender: str, limits: Limits) -> None:
        self.sender, self._limits = sender, limits
        self._messages: deque[tuple[Message, float]] = deque()
        self._bytes = 0
        self._due = 0
        self._last: tuple[object, ...] | None = None
        self.current: Parcel | None = None

    def expects(self, envelope: Envelope) -> bool:
        """True for the message that is due, False for the one before it, sent again; else an error."""
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
        """A parcel is under way. A new try of the same message takes the place of the one before."""
        self.drop()
        self.current = parcel

    def drop(self) -> None:
        if self.current is not None:
            self.current.cancel()
            self.current = None

    def has_room(self, size: int) -> bool:
        """Any message fits into an empty inbox, since none is larger than the limit."""
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
        """The next message, and when it was put here."""
        if not self._messages:
            return None
        message, moment = self._messages.popleft()
        self._bytes -= message.size
        return message, moment
