"""Accounts of a run: round by round, what all have in common, and one party's result.json and timing.json.

A party has its own transcript and nobody else's. What its peers took, and whether their transcripts fit,
they tell each other at the end (`peers`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from securefed.crypto import protects
from securefed.crypto.shares import numbers_in
from securefed.files import versions
from securefed.protocols.agreement import Agreement
from securefed.protocols.loop import Round
from securefed.protocols.messages import KINDS
from securefed.protocols.own_gradient.ledger import LedgerEntry
from securefed.transport.message import Path
from securefed.transport.transcript import Transcript


@dataclass(frozen=True)
class RoundPoint:
    """After round `number` (from 0): totals since the run began."""

    number: int
    computation: float
    communication: float
    sent: int
    received: int
    metric: float | None = None


class Timeline:
    """A run's time, bytes and metric, round by round, as one party's clock has them.

    A run that was resumed goes on where its checkpoint stood: what a kill made it do twice counts once.
    """

    def __init__(self, points: Iterable[RoundPoint] = ()) -> None:
        self.points = list(points)
        self._base = self.points[-1] if self.points else RoundPoint(-1, 0.0, 0.0, 0, 0)
        self._read = 0
        self._bytes: Counter[str] = Counter()

    def add(self, state: Round) -> RoundPoint:
        """Add the end of a round. A second point of the same round takes the place of the first."""
        link = state.link
        link.settle()
        for entry in link.transcript.entries[self._read :]:
            if entry.phase == "training":
                self._bytes[entry.event] += entry.bytes
        self._read = len(link.transcript.entries)
        path, base = self.path(link.path), self._base
        sent, received = base.sent + self._bytes["sent"], base.received + self._bytes["received"]
        point = RoundPoint(state.number, path.computation, path.communication, sent, received, state.metric)
        if self.points and self.points[-1].number == point.number:
            self.points.pop()
        self.points.append(point)
        return point

    def resumed(self, transcript: Transcript) -> None:
        """Skip the entries that a transcript holds already: they are in the points."""
        self._read = len(transcript.entries)

    def path(self, link_path: Path) -> Path:
        """A path of this attempt as one of the whole run."""
        return Path(self._base.computation, self._base.communication).plus(link_path)

    @property
    def history(self) -> list[tuple[int, float]]:
        return [(point.number, point.metric) for point in self.points if point.metric is not None]


@dataclass(frozen=True, kw_only=True)
class RunAccount:
    """Facts of a run that every account of it has. Times are on the critical path."""

    agreement: Agreement
    rounds: int
    reason: str
    history: Sequence[tuple[int, float]] = ()
    """(round, metric) for each evaluation; rounds count from 0."""
    path: Path
    evaluation: Path
    """Time of evaluations, kept apart from the training's."""
    ledger: Sequence[LedgerEntry] = ()

    @property
    def settings(self) -> dict[str, Any]:
        return self.agreement.to_dict()

    @property
    def scheme(self) -> str:
        return self.agreement.scheme

    @property
    def protected(self) -> bool:
        """False for plain runs: there everybody sees everything."""
        return protects(self.scheme)

    @property
    def metric(self) -> float | None:
        return self.history[-1][1] if self.history else None

    @property
    def determined(self) -> bool:
        """Whether openings passed the ledger's line (possible only with allow_determined)."""
        return any(entry.verdict == "determined" for entry in self.ledger)

    def facts(self) -> dict[str, Any]:
        return {
            "settings": self.settings,
            "protected": self.protected,
            "rounds": self.rounds,
            "reason": self.reason,
            "metric": self.metric,
            "history": [list(point) for point in self.history],
            "determined": self.determined,
        }


@dataclass(frozen=True, kw_only=True)
class PartyAccount(RunAccount):
    """One party's account of a run: from its own link, and what it knew before."""

    party: str
    run: str
    instance: str
    rows: int
    timeline: Timeline
    transcript: Transcript
    alignment: Path
    activities: Mapping[str, float]
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

    def result(self) -> dict[str, Any]:
        """Return result.json."""
        sent, received = (bytes_by_kind(self.transcript, event) for event in ("sent", "received"))
        # The own transcript shows this party's openings, and those that it answered.
        answers = self.agreement.mutual or self.party == self.agreement.key_holder
        return {
            "party": self.party,
            "run": self.run,
            "instance": self.instance,
            "finished": self.finished,
            **self.facts(),
            "rows": self.rows,
            "metric_name": self.metric_name,
            "holdout": None if self.holdout is None else dict(self.holdout),
            "sent": sent,
            "received": received,
            "bytes_sent": sum(kind["bytes"] for kind in sent.values()),
            "bytes_received": sum(kind["bytes"] for kind in received.values()),
            "saw": saw(self.transcript, protected=self.protected, blind=self.agreement.reveal == "nothing"),
            "seen": received_kinds(self.transcript, self.protected),
            "ledger": [entry.to_dict() for entry in self.ledger if answers or entry.party == self.party],
            "ledger_of_all": [entry.to_dict() for entry in self.ledger],
            "score_bits": self.score_bits,
            "interruptions": self.interruptions,
            "versions": versions(),
            "transcript": {"entries": len(self.transcript), "head": self.transcript.head},
            "peers": {name: dict(peer) for name, peer in self.peers.items()},
        }

    def timing(self) -> dict[str, Any]:
        """Return timing.json."""
        own = seconds_of(self.path)
        return {
            "party": self.party,
            "run": self.run,
            **own,
            "wall_seconds": self.wall,
            "evaluation": seconds_of(self.evaluation),
            "alignment": seconds_of(self.alignment),
            "activities": dict(self.activities),
            "rounds": [dict(vars(point)) for point in self.timeline.points],
            "parties": {self.party: own}
            | {name: dict(peer["timing"]) for name, peer in self.peers.items() if peer.get("timing")},
        }


def received_kinds(transcript: Transcript, protected: bool) -> list[dict[str, Any]]:
    """Return a row for each kind of message that a party received: how many, and what they reveal."""
    rows = []
    for kind, amount in bytes_by_kind(transcript, "received").items():
        known = KINDS[kind]
        protection, reveals = known.protection, known.reveals
        if not protected and protection != "public":
            protection, reveals = "none", f"{known.carries}, in the clear"
        rows.append({"kind": kind, **amount, "protection": protection, "reveals": reveals})
    return rows


def saw(transcript: Transcript, *, protected: bool, blind: bool = False) -> str:
    """Say in one line what a party saw of the others. `blind`: the run revealed nothing."""
    if not protected:
        return "everything that was sent to it, in the clear (scheme plain)"
    nothing = f"only ciphertexts and {'random shares' if blind else 'masked numbers'}"
    gradients, scores, released = list[int](), Counter[int](), 0
    for entry in transcript.of("received"):
        count = prod(entry.parts[0].shape) if entry.parts else 1
        if entry.kind == "opening" and entry.phase == "release":
            released += count
        elif entry.kind == "opening":
            gradients.append(count)
        elif entry.kind == "score-opening":
            scores[entry.round] += count
        elif entry.kind == "score":
            scores[entry.round] += numbers_in(entry.bytes)
        elif entry.kind == "released":
            released += numbers_in(entry.bytes)
        elif entry.kind == "scores":
            scores[entry.round] += sum(p.shape[0] for p in entry.parts if p.frame == "masked" and p.shape)
    sights = []
    if gradients:
        sights.append(f"its own gradients ({len(gradients)} openings of {max(gradients):,} numbers)")
    if released:
        sights.append(f"its own {released:,} parameters at the end")
    if scores.total():
        times = f", in {len(scores)} evaluations" if len(scores) > 1 else ""
        sights.append(f"{scores.total():,} scores of held-out people{times}")
    return f"{' and '.join(sights)}; otherwise {nothing}" if sights else nothing


def seconds_of(path: Path) -> dict[str, float]:
    return {
        "computation_seconds": path.computation,
        "communication_seconds": path.communication,
        "total_seconds": path.total,
    }


def bytes_by_kind(transcript: Transcript, event: str) -> dict[str, dict[str, int]]:
    """Messages and bytes by kind, for "sent" or "received", whatever the phase."""
    counts, sizes = transcript.count(event), transcript.bytes(event)
    return {kind: {"messages": counts[kind], "bytes": sizes[kind]} for kind in sorted(counts)}
