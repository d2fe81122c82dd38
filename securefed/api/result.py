"""What a run leaves for its user: how well, how long, how much was sent, who saw what."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from securefed.api.party import Party
from securefed.labels.quality import Holdout
from securefed.protocols.agreement import Agreement
from securefed.protocols.loop import Outcome
from securefed.protocols.messages import KINDS
from securefed.report.summary import RunAccount, received_kinds, seconds_of
from securefed.transport.link import LocalRun
from securefed.transport.message import Path
from securefed.transport.transcript import Transcript


@dataclass(frozen=True, kw_only=True)
class RunResult(RunAccount):
    """The outcome of training with all parties in this process. Computation + communication = total."""

    paths: dict[str, Path]
    activities: dict[str, dict[str, float]]
    """Seconds of work by party and activity."""
    transcripts: dict[str, Transcript] = field(repr=False)
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
            agreement=agreement,
            rounds=last.rounds,
            reason=last.reason,
            history=list(last.history),
            path=run.critical,
            paths={name: link.path for name, link in run.links.items()},
            evaluation=paused,
            activities={name: dict(link.activities) for name, link in run.links.items()},
            transcripts={name: link.transcript for name, link in run.links.items()},
            ledger=sorted(entries.values(), key=lambda e: (e.advisory, -e.ratio)),
            holdout=holdout,
        )

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

    def seen(self, party: str) -> list[str]:
        """What a party received, a line for each kind of message."""
        rows = received_kinds(self.transcripts[party], self.protected)
        return [f"{r['messages']} x {r['kind']} ({r['bytes']:,} bytes): {r['reveals']}" for r in rows]

    def to_dict(self) -> dict[str, Any]:
        """Everything but the transcripts, ready for JSON."""
        return {
            **self.facts(),
            "holdout": None if self.holdout is None else self.holdout.to_dict(),
            **seconds_of(self.path),
            "evaluation_seconds": self.evaluation.total,
            "messages": dict(self.messages(None)),
            "bytes": dict(self.bytes(None)),
            "bytes_exchange": self.bytes_exchange,
            "bytes_open": self.bytes_open,
            "ledger": [entry.to_dict() for entry in self.ledger],
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


def by_id(values: NDArray[Any], rows: Party, name: str, columns: NDArray[Any] | None = None) -> Any:
    """Return one answer a row as a pandas Series or DataFrame with the rows' ids as index.

    It is the array as it is where rows have no ids, or where pandas is not installed.
    """
    if rows.ids is None:
        return values
    try:
        import pandas as pd
    except ModuleNotFoundError:
        return values
    index = pd.Index(rows.ids, name=rows.id_name)
    if values.ndim == 1:
        return pd.Series(values, index=index, name=name)
    return pd.DataFrame(values, index=index, columns=columns)
