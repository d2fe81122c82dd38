"""A party's end of the transport, and all parties in this process, one at a time.

A party's program is a coroutine that does not depend on the transport:

    async def program(link):
        link.send("shop", "contribution", payload, round=3)
        payload = await link.receive("contribution", "shop", round=3)

`receive` names the one message that is due. Any other arrival from that sender raises a named error before
its payload is read. A driver resumes the coroutine when the message is there, tells the clock how long the
party has worked, and carries what it sent: `run_local` here, or securefed.transport.network.

In `run_local` each program runs until it waits for a message that is not there yet. Only one computes at a
time, so others do not distort its measurement. The clocks (securefed.transport.message) compute the time of a
parallel run. The programs resume in a fixed order, and the clocks do not depend on it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from securefed.transport.message import (
    Deadlock,
    Message,
    Network,
    OutOfOrder,
    Path,
    WrongKind,
    WrongRound,
    WrongRun,
    WrongSender,
)
from securefed.transport.transcript import Transcript

Timer = Callable[[], float]
"""Seconds from some fixed moment, as time.perf_counter."""


class Needed:
    """The awaitable behind `receive`. It names the sender that the program waits for."""

    def __init__(self, sender: str, what: str) -> None:
        self.sender = sender
        self.what = what

    def __await__(self) -> Generator[Needed, Message, Message]:
        message = yield self
        return message


class Link:
    """One party's end of its connections.

    It sends and accepts only `kinds`, the message kinds of the protocol. A mapping may say by `looks` what
    bytes of a kind must look like, for the transcript.
    """

    def __init__(
        self,
        name: str,
        peers: Collection[str],
        *,
        run: str,
        kinds: Collection[str],
        network: Network,
        timer: Timer,
    ) -> None:
        self.name = name
        self.peers = tuple(peers)
        self.run = run
        self.phase = "setup"
        self.transcript = Transcript(name, run)
        self.outbox: list[Message] = []
        self.path = Path()
        self.paused = Path()
        """Time spent off the clock (evaluation)."""
        self.activities: dict[str, float] = {}
        """Seconds of this party's own work by activity."""
        self.events: list[tuple[float, str, str, int, int, str, int]] = []
        """Events on the clock, in order: seconds of work, and what ended them ("sent", "received" or "mark"),
        with kind or name, round, step, peer and size."""
        self._kinds = frozenset(kinds)
        self._looks = {
            name: str(getattr(kind, "looks", ""))
            for name, kind in (kinds.items() if isinstance(kinds, Mapping) else ())
        }
        self._network = network
        self._timer = timer
        self._worked = 0.0
        self._busy: dict[str, Path] = {}
        self._sent: dict[str, int] = {}
        self._taken: dict[str, int] = {}

    def send(
        self,
        receiver: str,
        kind: str,
        payload: bytes,
        *,
        round: int = 0,
        step: int = 0,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        """Hand a message to the transport without waiting.

        `facts` for the transcript say how this party protected the payload (securefed.protocols.channel).
        """
        if receiver not in self.peers:
            raise WrongSender(f"{self.name} has no peer {receiver!r}; its peers are {', '.join(self.peers)}")
        if kind not in self._kinds:
            raise WrongKind(
                f"the protocol names no message {kind!r}; it has {', '.join(sorted(self._kinds))}"
            )
        self._work()
        sequence = self._sent.get(receiver, 0)
        self._sent[receiver] = sequence + 1
        # A link carries one message after the other; the next waits until it is free.
        start = self.path.later(self._busy.get(receiver, Path()))
        free = start.travel(self._network.transfer(len(payload)))
        self._busy[receiver] = free
        arrival = free.travel(self._network.latency)
        message = Message(kind, self.run, round, step, self.name, receiver, sequence, payload, arrival)
        self._event("sent", kind, round, step, receiver, len(payload))
        self.transcript.message("sent", message, self.phase, facts, self._looks.get(kind, ""))
        self.outbox.append(message)

    async def receive(self, kind: str, sender: str, *, round: int = 0, step: int = 0) -> bytes:
        """Return the payload of the next message from `sender`, which must be this one."""
        self._work()
        message = await Needed(sender, f"{kind} of round {round} step {step}")
        self._start()
        self._check(message, kind, sender, round, step)
        self._taken[sender] = message.sequence + 1
        self.path = self.path.later(message.arrival)
        self._event("received", kind, round, step, sender, len(message.payload))
        self.transcript.message("received", message, self.phase, looks=self._looks.get(kind, ""))
        return message.payload

    def _check(self, message: Message, kind: str, sender: str, round_: int, step: int) -> None:
        if message.sender != sender or message.receiver != self.name:
            raise WrongSender(
                f"{self.name} waits for {sender}, got a message {message.sender}->{message.receiver}"
            )
        if message.run != self.run:
            raise WrongRun(f"{sender} sent a message of run {message.run!r}, this is run {self.run!r}")
        due = self._taken.get(sender, 0)
        if message.sequence != due:
            word = "again" if message.sequence < due else "too early"
            raise OutOfOrder(f"{sender} sent message {message.sequence} {word}; message {due} is due")
        if message.kind != kind:
            raise WrongKind(f"{sender} sent {message.kind!r}, {kind!r} is due in round {round_} step {step}")
        if (message.round, message.step) != (round_, step):
            raise WrongRound(
                f"{sender} sent {kind!r} of round {message.round} step {message.step}, "
                f"round {round_} step {step} is due"
            )

    # The clock. Work is what passes between a resumption of the program and its next send or receive.

    def _start(self) -> None:
        self._since = self._timer()

    def _work(self) -> None:
        now = self._timer()
        self.path = self.path.work(now - self._since)
        self._worked += now - self._since
        self._since = now

    resume = _start
    settle = _work

    def _event(self, what: str, name: str, round: int, step: int, peer: str = "", size: int = 0) -> None:
        self.events.append((self._worked, what, name, round, step, peer, size))
        self._worked = 0.0

    def mark(self, name: str, round: int = 0) -> None:
        """Mark a point of the program for cost reports: setup, exchange, round."""
        self._work()
        self._event("mark", name, round, 0)

    @contextmanager
    def activity(self, name: str) -> Iterator[None]:
        """Count the party's own work inside the block under a name, for reports."""
        start = self._timer()
        try:
            yield
        finally:
            self.activities[name] = self.activities.get(name, 0.0) + self._timer() - start

    @contextmanager
    def off_the_clock(self, phase: str) -> Iterator[None]:
        """Keep the time and bytes of an evaluation apart from the training's, at every party."""
        self._work()
        before, path, busy = self.phase, self.path, dict(self._busy)
        worked, count = self._worked, len(self.events)
        self.phase = phase
        try:
            yield
        finally:
            self._work()
            self.paused = self.paused.plus(self.path.since(path))
            self.phase, self.path, self._busy = before, path, busy
            self._worked = worked
            del self.events[count:]


Program = Callable[[Link], Coroutine[Any, Any, Any]]
Tap = Callable[[Message], Message]


@dataclass(frozen=True, eq=False)
class LocalRun:
    """The result of a run: each party's outcome and link."""

    links: dict[str, Link]
    outcomes: dict[str, Any]

    @property
    def critical(self) -> Path:
        """The path that ended last."""
        path = Path()
        for link in self.links.values():
            path = path.later(link.path)
        return path


def run_local(
    programs: Mapping[str, Program],
    *,
    run: str,
    kinds: Collection[str],
    network: Network,
    timer: Timer = time.perf_counter,
    tap: Tap | None = None,
) -> LocalRun:
    """Run the parties' programs to their ends. In tests `tap` sees each message and may alter it."""
    names = list(programs)
    links = {
        name: Link(name, [p for p in names if p != name], run=run, kinds=kinds, network=network, timer=timer)
        for name in names
    }
    mail: dict[tuple[str, str], deque[Message]] = {(s, r): deque() for s in names for r in names if s != r}
    running = {name: programs[name](links[name]) for name in names}
    waiting: dict[str, Needed | None] = dict.fromkeys(names)
    outcomes: dict[str, Any] = {}

    def advance(name: str) -> bool:
        """Resume one program if it can go on; true if it did."""
        needed, link = waiting[name], links[name]
        if needed is not None and not mail.get((needed.sender, name)):
            return False
        link.resume()
        try:
            need = running[name].send(None if needed is None else mail[needed.sender, name].popleft())
        except StopIteration as end:
            link.settle()
            outcomes[name] = end.value
            del running[name]
        else:
            waiting[name] = need
        for message in link.outbox:
            mail[message.sender, message.receiver].append(tap(message) if tap else message)
        link.outbox.clear()
        return True

    try:
        while running:
            moved = [advance(name) for name in list(running)]
            if not any(moved):
                waits = ", ".join(
                    f"{n} waits for {w.what} from {w.sender}" for n in running if (w := waiting[n])
                )
                raise Deadlock(f"no party can go on: {waits}")
    finally:
        for program in running.values():
            program.close()
    return LocalRun(links, outcomes)
