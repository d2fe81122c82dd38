"""What a party writes down while a run goes on: its transcript, events, and a checkpoint after each round.

A transcript is written as it happens. After an interruption the run goes back to a round that all parties
have, and so does the transcript: what was exchanged before that round stays, what came after it happens
again, and the entry `resumed` stands between. Both ends of each line cut at the same place, so that what
one sent is what the other received, to the end.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import Any

from securefed.errors import DataError
from securefed.files import Closing, storage_error
from securefed.process.checkpoints import POINTS, REMEDY, ArrayMapping, Checkpoint, CheckpointStore
from securefed.protocols.agreement import Agreement
from securefed.protocols.loop import Round
from securefed.protocols.schedules import Reason
from securefed.report.summary import RoundPoint, Timeline
from securefed.transport.link import Link
from securefed.transport.message import Path as ClockPath
from securefed.transport.transcript import Entry, Transcript

ROUNDS = ("training", "evaluation")
"""Phases that belong to a round."""
WRITTEN = frozenset(
    ["listening", "aligned", "training", "round", "interrupted", "resumed", "finished", "stopped", "failed"]
)
"""Events in the file. Others are for listeners alone: attempt, message, waiting, note, closing."""

EventListener = Callable[[str, Mapping[str, Any]], None]


def start_transcript(path: Path, party: str, run: str, events: Events | None = None) -> Transcript:
    transcript = Transcript(party, run, None if events is None else events.on_entry)
    transcript.stream_to(path)
    return transcript


def resume_transcript(
    path: Path,
    party: str,
    run: str,
    start: int,
    entries: int | None = None,
    *,
    evaluates: bool = False,
    events: Events | None = None,
) -> Transcript:
    """Return the transcript in the file, cut before round `start` (counted from 0), and write on in the file.

    `entries`: how many its checkpoint says to keep. Without it, all of the rounds before `start` stay.
    `evaluates`: the evaluation of the round before `start` happens again.
    """
    transcript = Transcript(party, run, None if events is None else events.on_entry)
    dropped = {}
    if start > 0:  # before that nothing of it counts, and it may not even have been begun
        old = Transcript.read(path)
        if (old.party, old.run) != (party, run) or old.fault(ended=False):
            raise DataError(f"{path}: not a whole transcript of {party} in run {run!r}; {REMEDY}")
        # Keys and agreements of attempts that came to nothing go too: half of them may never have arrived.
        if entries is None or entries > len(old):
            again = ("evaluation", start - 1) if evaluates else None
            kept = [
                place
                for place, e in enumerate(old.entries)
                if e.phase in ROUNDS and e.round < start and (e.phase, e.round) != again
            ]
            entries = kept[-1] + 1 if kept else 0
        transcript.entries, transcript.release = old.entries[:entries], old.release
        dropped = {"dropped": len(old) - entries}
    transcript.note("resumed", "checkpoint", "", start, 0, "setup", **dropped)
    transcript.stream_to(path)
    return transcript


class Events(Closing):
    """What happens in a party's process: lines of JSON in a file, and listeners in the same process."""

    def __init__(self, path: Path | None, listeners: Iterable[EventListener] = ()) -> None:
        self._file, self._path, self._listeners = None, path, tuple(listeners)
        if path is not None:
            try:
                self._file = path.open("ab", buffering=0)
            except OSError as error:
                raise storage_error(path, error) from None

    def tell(self, event: str, **facts: Any) -> None:
        """Tell the listeners; events of the table in docs/operations.md go into the file too."""
        for listener in self._listeners:
            listener(event, facts)
        if self._file is None or event not in WRITTEN:
            return
        line = json.dumps({"time": time.time(), "cpu": time.process_time(), "event": event, **facts})
        try:
            self._file.write(line.encode() + b"\n")
        except OSError as error:
            self.close()
            raise storage_error(self._path or Path(), error) from None

    def on_entry(self, entry: Entry) -> None:
        """Tell the listeners of an entry in a transcript."""
        self.tell("message", entry=entry)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


@dataclass
class RunTotals:
    """Sums over all attempts at a run, up to a checkpoint."""

    timeline: Timeline = field(default_factory=Timeline)
    interruptions: int = 0
    alignment: ClockPath = field(default_factory=ClockPath)
    evaluation: ClockPath = field(default_factory=ClockPath)
    activities: Mapping[str, float] = field(default_factory=dict)

    def to_meta(self) -> dict[str, Any]:
        """Return what a checkpoint holds. Earlier rounds' points are in their own."""
        return {
            POINTS: [list(vars(point).values()) for point in self.timeline.points[-1:]],
            "interruptions": self.interruptions,
            "alignment": [self.alignment.computation, self.alignment.communication],
            "evaluation": [self.evaluation.computation, self.evaluation.communication],
            "activities": dict(self.activities),
        }

    @classmethod
    def from_meta(cls, meta: Mapping[str, Any]) -> RunTotals:
        return cls(
            Timeline(RoundPoint(*point) for point in meta[POINTS]),
            int(meta["interruptions"]),
            ClockPath(*meta["alignment"]),
            ClockPath(*meta["evaluation"]),
            dict(meta["activities"]),
        )


class RunRecorder:
    """Follows one attempt. `state` gives the arrays of a checkpoint; who only holds a key has none."""

    def __init__(
        self,
        store: CheckpointStore,
        agreement: Agreement,
        totals: RunTotals,
        link: Link,
        events: Events,
    ) -> None:
        self._store, self.agreement = store, agreement
        self._totals, self._link, self._events = totals, link, events
        link.paused, link.activities = totals.alignment.plus(totals.evaluation), dict(totals.activities)
        self._entries = len(link.transcript)
        """Entries of the transcript when the question of the last evaluation was fixed."""
        self.state: Callable[[], ArrayMapping] = dict

    def on_scoring(self, state: Round) -> None:
        """Write a checkpoint before an evaluation: an interruption repeats the question, not the round."""
        with state.link.activity("checkpoint"):
            self._totals.timeline.add(state)
            self._entries = len(state.link.transcript)
            self.write(state.number + 1, None)

    def on_round(self, state: Round) -> None:
        with state.link.activity("checkpoint"):
            point = self._totals.timeline.add(state)
            if not self.agreement.evaluates_after(state.number):
                self._entries = len(state.link.transcript)
            self.write(state.number + 1, state.reason)
        facts = dict(vars(point))
        number = facts.pop("number") + 1
        self._events.tell("round", round=number, rounds=self.agreement.stopping.rounds, **facts)

    def write(self, rounds: int, ended: Reason | None, *, done: bool = False) -> None:
        meta = {"ended": ended, "done": done, "entries": self._entries, **self.totals.to_meta()}
        if done:
            meta["members"] = [list(astuple(member)) for member in self.agreement.members]
            path = self._totals.timeline.path(self._link.path)  # the clock of the whole run
            meta["path"] = [path.computation, path.communication]
        # A checkpoint that survives a power cut needs the lines of its rounds: peers compare them at the end.
        self._link.transcript.flush(on_disk=True)
        question = rounds > 0 and self.agreement.evaluates_after(rounds - 1)
        self._store.write(rounds, Checkpoint(self.state(), meta), question=question)

    @property
    def totals(self) -> RunTotals:
        """The totals of all attempts, as of now."""
        evaluation = self._link.paused.since(self._totals.alignment)
        return replace(self._totals, evaluation=evaluation, activities=dict(self._link.activities))
