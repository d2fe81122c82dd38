"""What a recorded run takes on a network: the clock of securefed.transport, run again over its events.

A run is measured once. Its parties' events (how long each worked, then what it sent to whom and of which
size) do not depend on the network, which is modelled anyway; so the critical path on another one follows
from them by the rules of `Link.send` and `Link.receive`: work adds computation, a message waits for its link,
adds transfer and latency, and the receiver's clock becomes the later of its own and the arrival.

Here a path also says what its seconds were for, so that a table can tell an exchange from a local step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from securefed.errors import DataError
from securefed.protocols.messages import KINDS
from securefed.transport.message import Network, Path

COLUMNS = {"setup": "setup", "exchange": "exchange", "opening": "steps"}
PURPOSES = {name: COLUMNS[kind.traffic] for name, kind in KINDS.items() if kind.traffic in COLUMNS}
"""What a kind of message is sent for, after the setup; the rest is "other"."""
SEGMENTS = {"setup": "setup", "exchange": "exchange", "round": "steps"}
"""What the work before a mark was for."""


class Event(NamedTuple):
    """An event on a party's clock (`Link.events`): `seconds` of work, and what ended them."""

    seconds: float
    what: str
    """A message "sent" or "received", or a "mark" of the program."""
    name: str
    """The kind of the message, or the name of the mark."""
    round: int = 0
    step: int = 0
    peer: str = ""
    size: int = 0


@dataclass(frozen=True)
class Costs:
    """A path: seconds of computation and communication, by what they were for."""

    computation: Mapping[str, float] = field(default_factory=dict)
    communication: Mapping[str, float] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        return Path(sum(self.computation.values()), sum(self.communication.values()))

    @property
    def total(self) -> float:
        return self.path.total

    def work(self, seconds: float, purpose: str) -> Costs:
        return replace(self, computation=_added(self.computation, purpose, seconds))

    def travel(self, seconds: float, purpose: str) -> Costs:
        return replace(self, communication=_added(self.communication, purpose, seconds))

    def later(self, other: Costs) -> Costs:
        return other if other.total > self.total else self


def _added(parts: Mapping[str, float], purpose: str, seconds: float) -> dict[str, float]:
    return {**parts, purpose: parts.get(purpose, 0.0) + seconds}


@dataclass
class Replay:
    """The critical path after the setup, and after each round."""

    setup: Costs
    rounds: list[Costs]
    ends: dict[str, Costs]
    """Each party's path at its end."""


def replay(events: Mapping[str, Sequence[Event]], network: Network) -> Replay:
    """All parties' events on that network."""
    paths = dict.fromkeys(events, Costs())
    places = dict.fromkeys(events, 0)
    busy: dict[tuple[str, str], Costs] = {}
    mail: dict[tuple[str, str], deque[tuple[Event, Costs]]] = {}
    purposes = {name: _purposes(listed) for name, listed in events.items()}
    setup, rounds = Costs(), dict[int, Costs]()

    def advance(name: str) -> bool:
        """Handle one event of that party, if what it waits for has been sent."""
        nonlocal setup
        if places[name] == len(events[name]):
            return False
        event, purpose = events[name][places[name]], purposes[name][places[name]]
        link = (event.peer, name) if event.what == "received" else (name, event.peer)
        if event.what == "received" and not mail.get(link):
            return False
        path = paths[name].work(event.seconds, purpose)
        if event.what == "sent":
            what_for = purpose if purpose == "setup" else PURPOSES.get(event.name, "other")
            start = path.later(busy.get(link, Costs()))
            busy[link] = start.travel(network.transfer(event.size), what_for)
            arrival = busy[link].travel(network.latency, what_for)
            mail.setdefault(link, deque()).append((event, arrival))
        elif event.what == "received":
            sent, arrival = mail[link].popleft()
            if (sent.name, sent.round, sent.step) != (event.name, event.round, event.step):
                raise DataError(f"events: {name} received {event}, {event.peer} sent {sent}")
            path = path.later(arrival)
        elif event.name == "setup":
            setup = setup.later(path)
        elif event.name == "round":
            rounds[event.round] = rounds.get(event.round, Costs()).later(path)
        paths[name] = path
        places[name] += 1
        return True

    while any(advance(name) for name in events):
        pass
    stuck = [name for name in events if places[name] < len(events[name])]
    if stuck:
        raise DataError(f"events: {', '.join(stuck)} wait for messages that nobody sent")
    return Replay(setup, [rounds[number] for number in sorted(rounds)], paths)


def _purposes(events: Sequence[Event]) -> list[str]:
    """What the work before each event was for: the next mark says so."""
    found: list[str] = []
    purpose = "other"
    for event in reversed(events):
        if event.what == "mark":
            purpose = SEGMENTS.get(event.name, "other")
        found.append(purpose)
    return found[::-1]


def write_events(events: Mapping[str, Sequence[tuple[Any, ...]]]) -> dict[str, list[list[Any]]]:
    """For JSON, short."""
    return {name: [list(event) for event in listed] for name, listed in events.items()}


def read_events(rows: Mapping[str, Sequence[Sequence[Any]]]) -> dict[str, list[Event]]:
    try:
        return {name: [Event(*row) for row in listed] for name, listed in rows.items()}
    except TypeError as error:
        raise DataError(f"events: one is malformed ({error})") from None
