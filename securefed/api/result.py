"""What a run leaves for its user: how well, how long, how much was sent, who saw what."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from securefed.crypto import protects
from securefed.labels.quality import Holdout
from securefed.protocols.agreement import Agreement
from securefed.protocols.messages import KINDS
from securefed.protocols.own_gradient.ledger import LedgerEntry
from securefed.protocols.own_gradient.privacy import LabelPrivacy, label_privacy
from securefed.protocols.own_gradient.training import Outcome
from securefed.transport import LocalRun, Path, Transcript

__all__ = ["RunResult"]


@dataclass(frozen=True)
class RunResult:
    """The outcome of training. Times are on the critical path: computation + communication = total."""

    settings: dict[str, Any]
    rounds: int
    reason: str
    history: list[tuple[int, float]]
    """(round, metric) for each evaluation; rounds count from 0."""
    path: Path
    paths: dict[str, Path]
    evaluation: Path
    """Time of evaluations, kept apart from the training's."""
    activities: dict[str, dict[str, float]]
    """Seconds of work by party and activity."""
    transcripts: dict[str, Transcript] = field(repr=False)
    ledger: list[LedgerEntry]
    privacy: LabelPrivacy | None = None
    """What noise on opened gradients promises about each label; None where there was none."""
    holdout: Holdout | None = None
    """How good the model is on rows that were held out; None where that was not measured."""

    @classmethod
    def of(cls, agreement: Agreement, run: LocalRun, holdout: Holdout | None = None) -> RunResult:
        outcomes: dict[str, Outcome] = run.outcomes
        last: Outcome = outcomes[agreement.label_party]
        entries = {(e.party, e.block): e for o in outcomes.values() for e in o.ledger.entries}
        paused = Path()
        for link in run.links.values():
            paused = paused.later(link.paused)
        return cls(
            settings=agreement.to_dict(),
            rounds=last.rounds,
            reason=last.reason,
            history=list(last.history),
            path=run.critical,
            paths={name: link.path for name, link in run.links.items()},
            evaluation=paused,
            activities={name: dict(link.activities) for name, link in run.links.items()},
            transcripts={name: link.transcript for name, link in run.links.items()},
            ledger=sorted(entries.values(), key=lambda e: (e.advisory, -e.ratio)),
            privacy=label_privacy(agreement),
            holdout=holdout,
        )

    @property
    def scheme(self) -> str:
        return str(self.settings["scheme"])

    @property
    def protected(self) -> bool:
        """False for plain runs: there everybody sees everything."""
        return protects(self.scheme)

    @property
    def metric(self) -> float | None:
        """The last evaluation."""
        return self.history[-1][1] if self.history else None

    @property
    def computation(self) -> float:
        """Seconds of computation on the critical path."""
        return self.path.computation

    @property
    def communication(self) -> float:
        """Seconds of communication on the critical path."""
        return self.path.communication

    @property
    def total(self) -> float:
        return self.path.total

    def messages(self, phase: str | None = "training") -> Counter[str]:
        """Messages of the whole run by kind."""
        return sum((t.count("sent", phase) for t in self.transcripts.values()), Counter())

    def bytes(self, phase: str | None = "training") -> Counter[str]:
        """Bytes of the whole run by kind."""
        return sum((t.bytes("sent", phase) for t in self.transcripts.values()), Counter())

    @property
    def bytes_exchange(self) -> int:
        """Bytes of H and residuals; in blind runs of encrypted operands, replies and differences."""
        return self._bytes_for("exchange", "setup", "training")

    @property
    def bytes_open(self) -> int:
        """Bytes that go to a key-holder and back; blind runs have none."""
        return self._bytes_for("opening", "training")

    def _bytes_for(self, traffic: str, *phases: str) -> int:
        sizes = sum((self.bytes(phase) for phase in phases), Counter())
        return sum(size for kind, size in sizes.items() if kind in KINDS and KINDS[kind].traffic == traffic)

    @property
    def determined(self) -> bool:
        """Whether openings passed the ledger's line (possible only with allow_determined)."""
        return any(entry.verdict == "determined" for entry in self.ledger)

    def seen(self, party: str) -> list[str]:
        """What a party received, a line for each kind of message."""
        counts, sizes = (
            self.transcripts[party].count("received", None),
            self.transcripts[party].bytes("received", None),
        )
        lines = []
        for kind, count in counts.items():
            known = KINDS[kind]
            what = "in the clear" if not self.protected and known.protection != "public" else known.reveals
            lines.append(f"{count} x {kind} ({sizes[kind]:,} bytes): {what}")
        return lines

    def to_dict(self) -> dict[str, Any]:
        """Everything but the transcripts, ready for JSON."""
        return {
            "settings": self.settings,
            "protected": self.protected,
            "rounds": self.rounds,
            "reason": self.reason,
            "metric": self.metric,
            "holdout": None if self.holdout is None else self.holdout.to_dict(),
            "history": [list(point) for point in self.history],
            "computation_seconds": self.computation,
            "communication_seconds": self.communication,
            "total_seconds": self.total,
            "evaluation_seconds": self.evaluation.total,
            "messages": dict(self.messages(None)),
            "bytes": dict(self.bytes(None)),
            "bytes_exchange": self.bytes_exchange,
            "bytes_open": self.bytes_open,
            "ledger": [
                {
                    "party": e.party,
                    "block": e.block,
                    "equations": e.equations,
                    "unknowns": e.unknowns,
                    "ratio": e.ratio,
                    "verdict": e.verdict,
                }
                for e in self.ledger
            ],
            "determined": self.determined,
            "privacy": None if self.privacy is None else self.privacy.to_dict(),
        }

    def __str__(self) -> str:
        metric = "" if self.metric is None else f", metric {self.metric:.4f}"
        quality = "quality not measured" if self.holdout is None else str(self.holdout)
        guard = "" if self.protected else " (NOT PROTECTED)"
        early = "" if self.reason == "rounds" else f" ({self.reason})"
        return (
            f"{self.settings['algorithm']} {self.scheme}{guard}: {self.rounds} rounds{early}"
            f"{metric}, {self.computation:.2f} s computation + {self.communication:.2f} s communication; "
            f"{quality}"
        )
