"""Bounds on everything that arrives and on every wait.

Bytes are per peer. A message that would overfill the queue waits outside: it is not read from the network
until the program has taken earlier ones. So a fast sender is slowed down instead of stored.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from securefed.checks import check_integer, check_number
from securefed.errors import SettingError

__all__ = ["Limits", "Timeouts"]

MIB = 1 << 20


@dataclass(frozen=True)
class Limits:
    """Limits on sizes and counts."""

    message_bytes: int = 1024 * MIB
    """The largest accepted message."""
    queued_bytes: int = 2048 * MIB
    """Bytes per peer that have arrived but were not taken, or were sent but not delivered."""
    queued_messages: int = 4096
    chunk_bytes: int = MIB
    """Bytes of a piece of a payload. Progress is seen by the byte."""
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
