"""Receipts: two parties compare their transcripts and see that both describe one run.

Each party sums up a link in two hashes (securefed.transport.transcript, `Roots`): over everything that it
sent there and over everything that it received from there, in order. What one sent must be what the other
received. The roots are short and reveal nothing, so two organisations can compare them over any channel. A
receipt says that both saw the same messages, under these settings, this scheme and these keys.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

from securefed.audit.recorded import Recorded
from securefed.transport import Transcript
from securefed.transport.transcript import Roots

__all__ = ["Receipt", "compare", "receipts"]


@dataclass(frozen=True)
class Receipt:
    """The comparison of one pair of parties."""

    first: Roots
    second: Roots | None
    messages: int
    scheme: str
    keys: tuple[str, ...]
    problems: tuple[str, ...]

    @property
    def compared(self) -> bool:
        return self.second is not None

    @property
    def good(self) -> bool:
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "compared": self.compared, "good": self.good}

    def __str__(self) -> str:
        pair = f"{self.first.party} and {self.first.peer}"
        if not self.compared:
            return f"{pair}: not compared, the transcript of {self.first.peer} is not here"
        if self.problems:
            return f"{pair}: {'; '.join(self.problems)}"
        keys = ", ".join(key[:8] for key in self.keys) or "none"
        return f"{pair}: the same {self.messages} messages, {self.scheme}, keys {keys}"


def compare(first: Roots, second: Roots) -> list[str]:
    """Return the differences of two parties' roots, in words."""
    problems = []
    if first.agreement != second.agreement:
        problems.append("they ran by different agreements")
    for sender, receiver in ((first, second), (second, first)):
        if sender.sent != receiver.received:
            problems.append(f"what {sender.party} sent is not what {receiver.party} received")
    return problems


def receipts(recorded: Recorded) -> list[Receipt]:
    """Return a receipt for each pair that has a transcript here."""
    pairs = []
    for one, other in combinations(recorded.everybody, 2):
        if one not in recorded.transcripts:
            one, other = other, one
        if one in recorded.transcripts:
            pairs.append(_receipt(recorded, one, other))
    return pairs


def _receipt(recorded: Recorded, one: str, other: str) -> Receipt:
    first = recorded.transcripts[one].roots(other)
    second = recorded.transcripts[other].roots(one) if other in recorded.transcripts else None
    problems = [] if second is None else compare(first, second)
    if second is not None and problems:
        problems += _where(recorded.transcripts[one], recorded.transcripts[other])
    messages = sum(e.event in ("sent", "received") and e.peer == other for e in recorded.transcripts[one])
    keys = tuple(key for key, owner in recorded.owners.items() if owner in (one, other, recorded.key_holder))
    return Receipt(first, second, messages, str(recorded.settings["scheme"]), keys, tuple(problems))


def _where(one: Transcript, other: Transcript) -> list[str]:
    """Return the first message of each direction on which two transcripts differ."""
    differences = []
    for sender, receiver in ((one, other), (other, one)):
        sent = [e for e in sender.of("sent") if e.peer == receiver.party]
        received = [e for e in receiver.of("received") if e.peer == sender.party]
        for place in range(max(len(sent), len(received))):
            if place >= len(sent) or place >= len(received):
                longer, word = (sent, "sent") if len(sent) > len(received) else (received, "received")
                differences.append(f"message {place} ({longer[place].kind}) was {word} by one of them only")
                break
            if sent[place].digest != received[place].digest or sent[place].kind != received[place].kind:
                differences.append(f"message {place} from {sender.party} ({sent[place].kind}) differs")
                break
    return differences
