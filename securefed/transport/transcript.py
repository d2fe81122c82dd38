"""What one party sent, received and opened, in order. Digests and sizes; never a value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from securefed.transport.message import Message

__all__ = ["Entry", "Transcript"]


@dataclass(frozen=True)
class Entry:
    """One event: `event` is sent, received, requested (an opening, by this party) or opened (for another)."""

    event: str
    kind: str
    peer: str
    round: int
    step: int
    bytes: int
    digest: str
    phase: str
    """training, evaluation, prediction or setup"""
    detail: dict[str, Any]


class Transcript:
    """The entries of one party."""

    def __init__(self, party: str) -> None:
        self.party = party
        self.entries: list[Entry] = []

    def message(self, event: str, message: Message, phase: str) -> None:
        peer = message.receiver if event == "sent" else message.sender
        self.entries.append(
            Entry(
                event,
                message.kind,
                peer,
                message.round,
                message.step,
                message.size,
                message.digest,
                phase,
                {"sequence": message.sequence},
            )
        )

    def note(
        self, event: str, kind: str, peer: str, round_: int, step: int, phase: str, **detail: Any
    ) -> None:
        """An event that is not a message: an opening requested or served."""
        self.entries.append(Entry(event, kind, peer, round_, step, 0, "", phase, detail))

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def count(self, event: str = "sent", phase: str | None = None) -> Counter[str]:
        """Messages by kind."""
        return Counter(e.kind for e in self.entries if e.event == event and phase in (None, e.phase))

    def bytes(self, event: str = "sent", phase: str | None = None) -> Counter[str]:
        """Bytes by kind."""
        sizes: Counter[str] = Counter()
        for entry in self.entries:
            if entry.event == event and phase in (None, entry.phase):
                sizes[entry.kind] += entry.bytes
        return sizes

    def rows(self) -> list[dict[str, Any]]:
        return [asdict(entry) for entry in self.entries]
