"""Where the parties stand when they meet, and what follows from it: start, go on, or refuse.

Each party tells all others, in its hello, how many numbers its model has and which rounds it has checkpoints
of, in one word of a fixed list of what shape its ids are (securefed.data.ids: a hint where none meet).
Nothing of that is secret. From the same statements everybody draws the same conclusion:

    all have a round of the same instance in common    go on after the latest such round
    nobody has got beyond the first round              start anew; at most one round is lost
    else                                               refuse: somebody has lost its checkpoints

An *instance* is one start of a run from the beginning; its name is the label party's to choose. In lockstep a
kill cannot leave two parties more than a round apart: the next exchange needs all of them. With a helper the
other parties may be any number of rounds behind, and round 0 may be the latest that all have. The helper's
statement counts like the others': it holds a part of the model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from securefed.data.ids import ID_SHAPES
from securefed.errors import SettingError
from securefed.protocols.schedules import Reason
from securefed.transport.network import Malformed

__all__ = ["ResumePlan", "ResumeState", "decide"]

TOKEN = re.compile(r"[0-9a-f]{16}")
MOST_NUMBERS = 1 << 31
REASONS = ("target", "rounds", "no progress")


@dataclass(frozen=True)
class ResumeState:
    """One party's statement."""

    parameters: int
    """Numbers of its model; 0 for a party without data."""
    is_linear: bool = True
    rows: int = 0
    """Its rows, where alignment is by row; else the rows in common, once they are known."""
    instance: str | None = None
    rounds: tuple[int, ...] = ()
    """After how many rounds it has a checkpoint."""
    ended: Reason | None = None
    """Why the training was over at the last of them (label party)."""
    proposal: str = ""
    """The name of a new instance, if there has to be one (label party)."""
    ids: str = ""
    """Of what shape its ids are, where it has any."""

    def to_facts(self) -> dict[str, Any]:
        return {
            "parameters": self.parameters,
            "is_linear": self.is_linear,
            "rows": self.rows,
            "instance": self.instance,
            "rounds": list(self.rounds),
            "ended": self.ended,
            "proposal": self.proposal,
            "ids": self.ids,
        }

    @classmethod
    def from_facts(cls, peer: str, facts: Mapping[str, Any]) -> Self:
        """What a peer said, checked."""

        def number(value: object) -> bool:
            return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MOST_NUMBERS

        rounds = facts.get("rounds")
        sound = (
            {field.name for field in fields(cls)} <= facts.keys()
            and number(facts.get("parameters"))
            and number(facts.get("rows"))
            and isinstance(facts.get("is_linear"), bool)
            and _token(facts.get("instance"), None)
            and _token(facts.get("proposal"), "")
            and facts.get("ids") in ("", *ID_SHAPES)
            and facts.get("ended") in (None, *REASONS)
            and isinstance(rounds, list)
            and len(rounds) < 100
            and all(map(number, rounds))
        )
        if not sound or not isinstance(rounds, list):
            raise Malformed(f"{peer} said something of itself that no party says")
        return cls(
            facts["parameters"],
            facts["is_linear"],
            facts["rows"],
            facts["instance"],
            tuple(rounds),
            facts["ended"],
            facts["proposal"],
            facts["ids"],
        )


def _token(value: object, none: object) -> bool:
    return value == none or (isinstance(value, str) and TOKEN.fullmatch(value) is not None)


@dataclass(frozen=True)
class ResumePlan:
    """What all parties do now."""

    instance: str
    start: int | None
    """Go on after this many rounds; None: align and start anew."""
    rows: int
    """In common, where that is known."""
    ended: Reason | None
    """The training was over after `start` rounds; only its end has to be repeated."""


def decide(
    standings: Mapping[str, ResumeState], label_party: str, alignment: str, *, lockstep: bool = True
) -> ResumePlan:
    """Draw the conclusion. `standings`: of all parties with data, and of the helper if there is one."""
    if alignment == "rows":
        counts = {name: standing.rows for name, standing in standings.items() if standing.parameters}
        if len(set(counts.values())) > 1:
            listed = ", ".join(f"{name} has {count}" for name, count in counts.items())
            raise SettingError(f"alignment: 'rows' needs equally many rows at all parties: {listed}")
    last = standings[label_party]
    instances = {standing.instance for standing in standings.values()}
    common = set.intersection(*(set(standing.rounds) for standing in standings.values()))
    ahead = {name: max(standing.rounds, default=0) for name, standing in standings.items()}
    far = max(ahead, key=lambda name: ahead[name])
    near = not lockstep or ahead[far] <= 1
    if len(instances) == 1 and last.instance and common and (max(common) > 0 or near):
        start = max(common)
        ended = last.ended if start == ahead[label_party] else None
        return ResumePlan(last.instance, start, last.rows, ended)
    if ahead[far] > 1:
        behind = ", ".join(name for name in standings if not set(standings[name].rounds) & {ahead[far]})
        raise SettingError(
            f"{far} has {ahead[far]} rounds of this run and {behind or 'another party'} has no checkpoint "
            "that fits; bring it back, or start all parties with --restart"
        )
    return ResumePlan(last.proposal, None, last.rows, None)
