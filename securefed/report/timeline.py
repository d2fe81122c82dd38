"""A run's time, bytes and metric, round by round, as one party sees them.

Times are those of the party's clock (securefed.transport.clock): computation and communication on the path of
events up to the end of the round. A run that was resumed goes on where its checkpoint stood: what a kill made
it do twice counts once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from securefed.errors import DataError
from securefed.protocols.loop import Round
from securefed.transport import Path, Transcript

__all__ = ["RoundPoint", "Timeline", "bytes_by_kind"]


@dataclass(frozen=True)
class RoundPoint:
    """After round `number` (from 0): totals since the run began."""

    number: int
    computation: float
    communication: float
    sent: int
    received: int
    metric: float | None = None

    @property
    def total(self) -> float:
        return self.computation + self.communication


class Timeline:
    """The points of one run. `base` is where an earlier attempt stood when this one began."""

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
        point = RoundPoint(
            state.number,
            self._base.computation + link.path.computation,
            self._base.communication + link.path.communication,
            self._base.sent + self._bytes["sent"],
            self._base.received + self._bytes["received"],
            state.metric,
        )
        if self.points and self.points[-1].number == point.number:
            self.points.pop()
        self.points.append(point)
        return point

    def resumed(self, transcript: Transcript) -> None:
        """What the transcript holds already is in the points already."""
        self._read = len(transcript.entries)

    def path(self, link_path: Path) -> Path:
        """A path of this attempt as one of the whole run."""
        return Path(
            self._base.computation + link_path.computation, self._base.communication + link_path.communication
        )

    @property
    def history(self) -> list[tuple[int, float]]:
        """(round, metric) of each evaluation."""
        return [(point.number, point.metric) for point in self.points if point.metric is not None]

    def each(self) -> list[RoundPoint]:
        """What each round took by itself."""
        before = RoundPoint(-1, 0.0, 0.0, 0, 0)
        steps = []
        for point in self.points:
            steps.append(
                RoundPoint(
                    point.number,
                    point.computation - before.computation,
                    point.communication - before.communication,
                    point.sent - before.sent,
                    point.received - before.received,
                    point.metric,
                )
            )
            before = point
        return steps

    def to_list(self) -> list[dict[str, Any]]:
        return [asdict(point) for point in self.points]

    @classmethod
    def from_list(cls, rows: Iterable[Mapping[str, Any]]) -> Timeline:
        try:
            return cls(RoundPoint(**row) for row in rows)
        except TypeError as error:
            raise DataError(f"timeline: a point is malformed ({error})") from None


def bytes_by_kind(transcript: Transcript, event: str) -> dict[str, dict[str, int]]:
    """Messages and bytes by kind, for "sent" or "received", whatever the phase."""
    counts, sizes = transcript.count(event), transcript.bytes(event)
    return {kind: {"messages": counts[kind], "bytes": sizes[kind]} for kind in sorted(counts)}
