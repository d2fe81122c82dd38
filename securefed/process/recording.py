"""What is kept of a run while it goes on: a checkpoint after each round, and the sums for the report.

A checkpoint holds counters and this party's part of the model: its own parameters, or shares that are uniform
by themselves where nothing is revealed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefed.errors import DataError
from securefed.process.checkpoints import Checkpoint, CheckpointStore
from securefed.process.transcripts import Events
from securefed.protocols.agreement import Agreement
from securefed.protocols.loop import Round
from securefed.protocols.schedules import Reason
from securefed.report.summary import Timeline
from securefed.transport import Link, Path

__all__ = ["RunRecorder", "RunTotals"]

Arrays = Mapping[str, NDArray[np.generic]]


@dataclass
class RunTotals:
    """Sums over all attempts at a run, up to a checkpoint."""

    timeline: Timeline = field(default_factory=Timeline)
    interruptions: int = 0
    alignment: Path = field(default_factory=Path)
    evaluation: Path = field(default_factory=Path)
    activities: Mapping[str, float] = field(default_factory=dict)

    def with_link(self, link: Link, paused: Path) -> RunTotals:
        """Together with what this attempt took so far; `paused` is where its evaluations began."""
        spent = link.paused.since(paused)
        names = {*self.activities, *link.activities}
        return RunTotals(
            self.timeline,
            self.interruptions,
            self.alignment,
            Path(
                self.evaluation.computation + spent.computation,
                self.evaluation.communication + spent.communication,
            ),
            {name: self.activities.get(name, 0.0) + link.activities.get(name, 0.0) for name in names},
        )

    def to_meta(self) -> dict[str, Any]:
        """Without the timeline, which has a file of its own."""
        return {
            "interruptions": self.interruptions,
            "alignment": [self.alignment.computation, self.alignment.communication],
            "evaluation": [self.evaluation.computation, self.evaluation.communication],
            "activities": dict(self.activities),
        }

    @classmethod
    def from_meta(cls, meta: Any, timeline: Timeline) -> RunTotals:
        try:
            return cls(
                timeline,
                int(meta["interruptions"]),
                Path(*meta["alignment"]),
                Path(*meta["evaluation"]),
                dict(meta["activities"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"checkpoint: malformed ({error})") from None


class RunRecorder:
    """Follows one attempt. `state` gives the arrays of a checkpoint; who only holds a key has none."""

    def __init__(
        self,
        store: CheckpointStore,
        agreement: Agreement,
        instance: str,
        tally: RunTotals,
        link: Link,
        *,
        judges: bool,
        events: Events,
    ) -> None:
        """`judges`: this party sees the metric, and so knows why the training ends."""
        self._store, self._agreement, self._instance = store, agreement, instance
        self._tally, self._link, self._paused = tally, link, link.paused
        self._tracker = agreement.stopping.tracker()
        self._judges = judges or not agreement.watched
        self._events = events
        self._entries: int | None = None
        """Entries of the transcript when the question of the last evaluation was fixed."""
        self.state: Callable[[], Arrays] = dict

    def resume(self, arrays: Arrays) -> None:
        """Take over the counters of the checkpoint that this attempt goes on from."""
        self._entries = len(self._link.transcript)
        prefix = "stopping."
        found = {name[len(prefix) :]: array for name, array in arrays.items() if name.startswith(prefix)}
        if found:
            self._tracker.restore(found)

    def on_scoring(self, state: Round) -> None:
        """Write a checkpoint before an evaluation: an interruption repeats the question, not the round."""
        with state.link.activity("checkpoint"):
            self._store.append(asdict(self._tally.timeline.add(state)))
            self._entries = len(state.link.transcript)
            self.write(state.number + 1, None)

    def on_round(self, state: Round) -> None:
        """Write a checkpoint after each round."""
        with state.link.activity("checkpoint"):
            point = self._tally.timeline.add(state)
            self._store.append(asdict(point))
            if not self._agreement.evaluates_after(state.number):
                self._entries = len(state.link.transcript)
            ended = self._tracker.update(state.number, state.metric)
            self.write(state.number + 1, ended if self._judges else None)
        facts = asdict(point)
        number = facts.pop("number") + 1
        self._events.tell("round", round=number, rounds=self._agreement.stopping.rounds, **facts)

    def write(self, rounds: int, ended: Reason | None, *, done: bool = False) -> None:
        self._store.write(
            rounds,
            Checkpoint(
                self.state(),
                {
                    "instance": self._instance,
                    "ended": ended,
                    "done": done,
                    "entries": self._entries,
                    "members": [[m.name, m.parameters, m.is_linear] for m in self._agreement.members],
                    "tally": self.tally.to_meta(),
                    "path": [self.path.computation, self.path.communication],
                },
            ),
        )

    @property
    def tally(self) -> RunTotals:
        return self._tally.with_link(self._link, self._paused)

    @property
    def path(self) -> Path:
        """Of the whole run, as of now."""
        return self._tally.timeline.path(self._link.path)
