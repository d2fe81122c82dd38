"""One party's account of a run: result.json and timing.json, from its own link and what it knew before.

A party has its own transcript and nobody else's. What its peers took, and whether their transcripts fit,
they tell each other at the end (`peers`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from securefed.crypto import protects
from securefed.crypto.blind.shares import LIMBS
from securefed.protocols.agreement import Agreement
from securefed.protocols.messages import KINDS
from securefed.protocols.own_gradient.ledger import LedgerEntry
from securefed.protocols.own_gradient.privacy import label_privacy
from securefed.report.timeline import Timeline, bytes_by_kind
from securefed.transport import Path, Transcript
from securefed.versions import versions

__all__ = ["PartyAccount", "saw"]

NOTHING = "only ciphertexts and masked numbers"
NOTHING_BLIND = "only ciphertexts and random shares"


@dataclass(frozen=True)
class PartyAccount:
    """What a party has to tell of a run."""

    party: str
    run: str
    instance: str
    agreement: Agreement
    rounds: int
    reason: str
    rows: int
    timeline: Timeline
    transcript: Transcript
    path: Path
    evaluation: Path
    alignment: Path
    activities: Mapping[str, float]
    ledger: Sequence[LedgerEntry] = ()
    metric_name: str = "AUC"
    holdout: Mapping[str, Any] | None = None
    """At the label party: how good the model is on rows that were held out (securefed.labels.quality)."""
    score_bits: int | None = None
    """At a party that is scored: what scores have told of its people at most, over all runs of its folder."""
    interruptions: int = 0
    finished: str = ""
    wall: float = 0.0
    """Seconds of this process from its start to the end of the run: meeting, alignment and waiting too."""
    peers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def protected(self) -> bool:
        return protects(self.agreement.scheme)

    def result(self) -> dict[str, Any]:
        history, privacy = self.timeline.history, label_privacy(self.agreement)
        sent, received = (bytes_by_kind(self.transcript, event) for event in ("sent", "received"))
        return {
            "party": self.party,
            "run": self.run,
            "instance": self.instance,
            "finished": self.finished,
            "settings": self.agreement.to_dict(),
            "protected": self.protected,
            "rounds": self.rounds,
            "reason": self.reason,
            "rows": self.rows,
            "metric_name": self.metric_name,
            "metric": history[-1][1] if history else None,
            "history": [list(point) for point in history],
            "holdout": None if self.holdout is None else dict(self.holdout),
            "sent": sent,
            "received": received,
            "bytes_sent": sum(kind["bytes"] for kind in sent.values()),
            "bytes_received": sum(kind["bytes"] for kind in received.values()),
            "saw": saw(self.transcript, protected=self.protected, blind=self.agreement.reveal == "nothing"),
            "seen": self._seen(received),
            "ledger": [_entry(entry) for entry in self.ledger if self._shows(entry.party)],
            "ledger_of_all": [_entry(entry) for entry in self.ledger],
            "score_bits": self.score_bits,
            "determined": any(entry.verdict == "determined" for entry in self.ledger),
            "privacy": None if privacy is None else privacy.to_dict(),
            "interruptions": self.interruptions,
            "versions": versions(),
            "transcript": {"entries": len(self.transcript), "head": self.transcript.head},
            "peers": {name: dict(peer) for name, peer in self.peers.items()},
        }

    def _shows(self, party: str) -> bool:
        """Whether this party's own transcript shows that party's openings: its own, and those it answered."""
        answers = self.agreement.mutual or self.party == self.agreement.key_holder
        return answers or party == self.party

    def timing(self) -> dict[str, Any]:
        return {
            "party": self.party,
            "run": self.run,
            **_path(self.path),
            "wall_seconds": self.wall,
            "evaluation": _path(self.evaluation),
            "alignment": _path(self.alignment),
            "activities": dict(self.activities),
            "rounds": self.timeline.to_list(),
            "each_round": [asdict(point) for point in self.timeline.each()],
            "parties": {self.party: _path(self.path)}
            | {name: dict(peer["timing"]) for name, peer in self.peers.items() if peer.get("timing")},
        }

    def _seen(self, received: Mapping[str, Mapping[str, int]]) -> list[dict[str, Any]]:
        rows = []
        for kind, amount in received.items():
            known = KINDS[kind]
            clear = not self.protected and known.protection != "public"
            rows.append(
                {
                    "kind": kind,
                    **amount,
                    "protection": "none" if clear else known.protection,
                    "reveals": f"{known.carries}, in the clear" if clear else known.reveals,
                }
            )
        return rows


def saw(transcript: Transcript, *, protected: bool, blind: bool = False) -> str:
    """Say in one line what a party saw of the others. `blind`: the run revealed nothing."""
    if not protected:
        return "everything that was sent to it, in the clear (scheme plain)"
    nothing = NOTHING_BLIND if blind else NOTHING
    gradients: list[int] = []
    scores = released = 0
    for entry in transcript.of("received"):
        count = 1
        for dimension in entry.parts[0].shape if entry.parts else ():
            count *= dimension
        if entry.kind == "opening" and entry.phase == "release":
            released += count
        elif entry.kind == "opening":
            gradients.append(count)
        elif entry.kind == "score-opening":
            scores += count
        elif entry.kind == "score":
            scores += _shared_numbers(entry.bytes)
        elif entry.kind == "released":
            released += _shared_numbers(entry.bytes)
        elif entry.kind == "scores":
            (shape,) = [part.shape for part in entry.parts if part.frame == "masked"] or [(0,)]
            scores += shape[0] if shape else 0
    found = []
    if gradients:
        found.append(f"its own gradients ({len(gradients)} openings of {max(gradients):,} numbers)")
    if released:
        found.append(f"its own {released:,} parameters at the end")
    if scores:
        found.append(f"{scores:,} scores")
    return f"{' and '.join(found)}; else {nothing}" if found else nothing


def _shared_numbers(size: int) -> int:
    """How many numbers a message of shares holds: three limbs in eight bytes."""
    return size // 8 * 3 // LIMBS


def _path(path: Path) -> dict[str, float]:
    return {
        "computation_seconds": path.computation,
        "communication_seconds": path.communication,
        "total_seconds": path.total,
    }


def _entry(entry: LedgerEntry) -> dict[str, Any]:
    return {**asdict(entry), "ratio": entry.ratio, "verdict": entry.verdict}
