"""How much and how long: bounds on everything that arrives and on every wait.

Bytes are per peer. A message that would overfill the queue waits outside: it is not read from the network
until the program has taken what is there, so that a fast sender is slowed down and not stored.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from securefed.checks import check_integer, check_number
from securefed.errors import SettingError

__all__ = ["Limits", "Timeouts"]

MIB = 1 << 20


@dataclass(frozen=True)
class Limits:
    """Sizes and counts."""

    message_bytes: int = 1024 * MIB
    """The largest message that is taken."""
    queued_bytes: int = 2048 * MIB
    """Arrived and not yet taken by the program, or sent by it and not yet delivered; for each peer."""
    queued_messages: int = 4096
    chunk_bytes: int = MIB
    """How a payload is cut. That it moves is seen by the byte, whatever its pieces."""
    callers: int = 32
    """Connections that have not yet shown who they are, beside the peers' own."""
    callers_per_address: int = 8
    """The same from one address (or one IPv6 network of 64 bits)."""
    connections: int = 8
    """Connections for each peer."""

    def __post_init__(self) -> None:
        for field in fields(self):
            object.__setattr__(
                self, field.name, check_integer(field.name, getattr(self, field.name), least=1)
            )
        check_integer("chunk_bytes", self.chunk_bytes, least=1024, most=3 * MIB)
        if self.queued_bytes < self.message_bytes:
            raise SettingError(
                f"queued_bytes: {self.queued_bytes} given, "
                f"at least message_bytes ({self.message_bytes}) is needed"
            )

    @property
    def wire_bytes(self) -> int:
        """The largest piece that grpc has to take: a chunk or a hello."""
        return max(self.chunk_bytes, HELLO_BYTES) + 65536


HELLO_BYTES = MIB
MOST_REFUSAL = 300
"""Characters of what a peer says when it refuses."""


@dataclass(frozen=True)
class Timeouts:
    """Seconds."""

    join: float = 600.0
    """Until all peers have to be there."""
    patience: float = 120.0
    """A peer that does not answer is lost after this."""
    beat: float = 2.0
    """How often a peer that is waited for is asked whether it is still there."""
    answer: float = 10.0
    """For one such question."""
    silence: float = 86400.0
    """A peer that answers and whose message still does not come."""
    handshake: float = 10.0
    """A caller shows who it is within this, or is sent away."""
    farewell: float = 2.0
    """For telling the others that this party ends."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = check_number(field.name, getattr(self, field.name), above=0.0)
            object.__setattr__(self, field.name, value)
