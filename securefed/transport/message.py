"""A message between two parties: metadata and a payload of bytes.

The metadata say the run, round, local step and kind of the message. The receiver asks for exactly one kind
from exactly one sender at a time, and refuses everything else by name.

    TransportError
    |-- IllegalMessage    not what the protocol expects here
    |   |-- WrongKind, WrongRound, WrongSender, WrongRun
    |   `-- OutOfOrder    repeated, skipped or reordered
    `-- Deadlock          every party waits for a message that nobody will send
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from securefed.errors import SecurefedError
from securefed.transport.clock import Path

__all__ = [
    "Deadlock",
    "IllegalMessage",
    "Message",
    "OutOfOrder",
    "TransportError",
    "WrongKind",
    "WrongRound",
    "WrongRun",
    "WrongSender",
]


class TransportError(SecurefedError):
    """The root of the transport's errors."""


class IllegalMessage(TransportError):
    """A message that the protocol does not allow at this place."""


class WrongKind(IllegalMessage):
    """Another kind of message was due."""


class WrongRound(IllegalMessage):
    """Another round or local step was due."""


class WrongSender(IllegalMessage):
    """The message is from, or for, another party."""


class WrongRun(IllegalMessage):
    """The message belongs to another run, `run` if known."""

    def __init__(self, text: str, run: str = "") -> None:
        super().__init__(text)
        self.run = run


class OutOfOrder(IllegalMessage):
    """A message came twice, too early or too late."""


class Deadlock(TransportError):
    """No party can continue."""


@dataclass(frozen=True)
class Message:
    """One message. `sequence` counts the messages from this sender to this receiver, from 0."""

    kind: str
    run: str
    round: int
    step: int
    sender: str
    receiver: str
    sequence: int
    payload: bytes
    arrival: Path

    @property
    def size(self) -> int:
        """Bytes of payload, without the transport's envelope."""
        return len(self.payload)

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.payload).hexdigest()

    def __repr__(self) -> str:
        return (
            f"<{self.kind} {self.sender}->{self.receiver} round {self.round} step {self.step} "
            f"#{self.sequence} {self.size} bytes>"
        )
