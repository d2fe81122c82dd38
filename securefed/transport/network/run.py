"""Drive one party's program over the network.

The program runs in the thread that calls `run`. Other threads send and receive. The program and its `Link`
are the same as in one process (securefed.transport.link).

The clock on a real link. Work is measured as in one process. A message departs at its sender's path, or when
the message before it is through. It carries that path, plus the time that its sender lost until the envelope
was out, for example with an absent peer. Its receiver measures on its own clock how long the payload took
from the beginning of its call to the last piece and to the waiting program. It adds half of the median round
trip to that peer. All of that is communication. So clocks of two machines are never compared, and computation
+ communication = total holds as in simulation.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from securefed.errors import (
    BadCiphertext,
    BadKey,
    FormatError,
    KeyFileError,
    MaskError,
    ShapeError,
    WrongKey,
    plain_text,
)
from securefed.transport.link import Link, Needed, Timer
from securefed.transport.message import (
    Deadlock,
    IllegalMessage,
    LimitExceeded,
    Message,
    Network,
    Path,
    PeerGone,
    PeerLost,
    WrongSender,
)
from securefed.transport.network import codec
from securefed.transport.network.attempt import Attempt
from securefed.transport.network.codec import FINISHED
from securefed.transport.network.host import Host
from securefed.transport.network.peer_channel import Line, Sender

T = TypeVar("T")

REFUSED = (FormatError, ShapeError, BadKey, BadCiphertext, WrongKey, MaskError)
"""Errors of the crypto layer about a peer's bytes."""
GREET_OFTEN, GREET_RARELY = 0.05, 1.0
SHOWN_EVERY = 1.0
SOON = 0.01
TRIPS = 5
MEASURED = Network("measured", 1e30, 0.0)
"""A link with measured times. Sending adds no modelled time that counts."""


@dataclass(frozen=True)
class Waiting:
    """A wait to show as a countdown: the peer, and the seconds that are left."""

    peer: str
    left: float
    trouble: str
    moved: tuple[int, int] | None = None
    """Bytes of a message in transit that have arrived, and all."""
    outgoing: bool = False
    """The message is one of ours."""


class NetworkLink(Link):
    """A party's end on a real network. `hello` has each peer's facts from the beginning."""

    def __init__(self, driver: Driver, attempt: Attempt, timer: Timer) -> None:
        super().__init__(
            attempt.name,
            tuple(attempt.others),
            run=attempt.run,
            kinds=attempt.kinds,
            network=MEASURED,
            timer=timer,
        )
        self.hello: dict[str, dict[str, Any]] = {
            name: codec.from_json("facts", other.hello.facts)
            for name, other in attempt.others.items()
            if other.hello is not None
        }
        self.skew: dict[str, float] = {
            name: other.skew for name, other in attempt.others.items() if other.skew is not None
        }
        """Each peer's wall clock minus ours, in seconds."""
        self._driver, self._attempt = driver, attempt
        self._until: dict[str, Path] = {}
        """Until when the link to each peer is busy. Time off the clock has its own."""

    def bound(self, sizes: Mapping[str, int | None]) -> None:
        """Say how many bytes messages of each kind may have, as soon as the program knows it."""
        self._attempt.bound(sizes)

    def send(self, *arguments: Any, **named: Any) -> None:
        """Send as in one process. The program continues while the message is sent."""
        super().send(*arguments, **named)
        for message in self.outbox:
            if self._driver.post(message, self._until):
                # The program stood still until the link had room: the link's time, not work.
                self.path = self.path.later(self._until.get(message.receiver, Path()))
                self._start()
        self.outbox.clear()

    @contextmanager
    def off_the_clock(self, phase: str) -> Iterator[None]:
        """Work as in one process. A message in transit counts where it was sent."""
        before, self._until = self._until, {}
        try:
            with super().off_the_clock(phase):
                yield
        finally:
            self._until = before


NetworkProgram = Callable[[NetworkLink], Coroutine[Any, Any, Any]]


@dataclass(frozen=True)
class NetworkRun:
    """The result of a run at this party."""

    outcome: Any
    link: NetworkLink


class Driver:
    """One attempt, from the first greeting to the last."""

    def __init__(
        self,
        attempt: Attempt,
        lines: Mapping[str, Line],
        host: Host,
        join: float = math.inf,
        *,
        on_wait: Callable[[Waiting], None] | None,
        timer: Timer,
    ) -> None:
        self._attempt, self._lines, self._host = attempt, lines, host
        self._timeouts = replace(host.timeouts, join=min(host.timeouts.join, join))
        self._on_wait, self._timer = on_wait, timer
        self._shown: dict[str, float] = {}
        self._senders: dict[str, Sender] = {}

    def run(self, program: NetworkProgram) -> NetworkRun:
        finished = False
        try:
            self._gather()
            self._measure()
            lines = self._lines.items()
            self._senders = {name: Sender(line, self._attempt, self._host) for name, line in lines}
            link = NetworkLink(self, self._attempt, self._timer)
            outcome = self._drive(program, link)
            self._part()
            finished = True
            return NetworkRun(outcome, link)
        finally:
            if not finished:
                self._attempt.leave(_reason(sys.exception()))
            for sender in self._senders.values():
                sender.close()
            if not finished:
                self._say_farewell()

    # The three parts of an attempt.

    def _gather(self) -> None:
        """Greet until all peers are present and know it of each other."""
        attempt, begun, pause = self._attempt, self._host.now(), GREET_OFTEN
        while True:
            attempt.check()
            if attempt.begin_if_agreed():
                return
            known = attempt.sessions

            def moved(known: dict[str, bytes] = known) -> bool:
                agreed = all(map(attempt.agrees, attempt.others))
                return attempt.over or agreed or attempt.sessions != known

            for name, line in self._lines.items():
                if not attempt.agrees(name):
                    line.greet(attempt)
            with attempt.changed:
                # An answer that changes nothing is no reason to ask again at once.
                attempt.changed.wait_for(moved, pause)
            pause = min(1.5 * pause, GREET_RARELY) if attempt.sessions == known else GREET_OFTEN
            self._check_join(begun)

    def _measure(self) -> None:
        """Measure a few round trips to each peer for the clock. Failures do not matter."""
        attempt, deadline = self._attempt, self._host.now() + 1.0
        while self._host.now() < deadline:
            untried = [
                name
                for name, other in attempt.others.items()
                if len(other.trips) < TRIPS and not other.trouble
            ]
            if not untried:
                return
            for name in untried:
                self._lines[name].greet(attempt)
            with attempt.changed:
                attempt.check()
                attempt.changed.wait(GREET_OFTEN)

    def _check_join(self, begun: float) -> None:
        waited, others = self._host.now() - begun, self._attempt.others
        self._attempt.compare_settings(self._timeouts.farewell)
        if waited > self._timeouts.join:
            # A peer that is here and waits for a third one is not the one that is missing.
            missing = [name for name, other in others.items() if other.hello is None]
            missing = missing or [name for name in others if not self._attempt.agrees(name)]
            if missing:
                self._attempt.lose(waited, *missing)
        for name, other in others.items():
            if other.hello is None or other.trouble:
                self._show(Waiting(name, self._timeouts.join - waited, other.trouble))

    def _drive(self, program: NetworkProgram, link: NetworkLink) -> Any:
        coroutine = program(link)
        message: Message | None = None
        try:
            while True:
                self._attempt.check()
                link.resume()
                try:
                    needed: Needed = coroutine.send(message)
                except StopIteration as end:
                    link.settle()
                    return end.value
                except REFUSED as error:
                    if message is None or isinstance(error, KeyFileError):
                        raise
                    raise self._refused(message, error) from error
                message = self._take(needed)
        finally:
            coroutine.close()

    def _refused(self, message: Message, error: Exception) -> IllegalMessage:
        """Name the sender of a message that the program could not use, and tell that peer."""
        place = f"{message.kind!r} (round {message.round}, step {message.step})"
        refused = IllegalMessage(f"{message.sender} sent {place} that cannot be used: {plain_text(error)}")
        self._attempt.refuse(message.sender, refused)
        return refused

    def _part(self) -> None:
        """Deliver the remaining messages, report the end, and wait for all peers."""
        attempt, others, begun = self._attempt, self._attempt.others, self._host.now()
        for sender in self._senders.values():
            sender.awaited = True
        self._wait(lambda: all(s.idle for s in self._senders.values()) or None, others, "our last messages")
        attempt.finish()
        done_at: list[float] = []

        def all_done() -> bool | None:
            if not attempt.all_finished:
                return None
            done_at.append(self._host.now())
            # Everybody's program has ended. One who does not say that it knows so of ours is gone already, or
            # asks again: the register answers it.
            late = done_at[-1] - done_at[0] > self._timeouts.farewell
            return late or attempt.may_part or None

        while True:
            untold = [name for name, other in others.items() if not other.told_end]
            for name in untold:
                self._lines[name].greet(attempt, pause=GREET_OFTEN)
            unfinished = [name for name, other in others.items() if other.state != FINISHED]
            if self._wait(all_done, unfinished, "end of the run", begun, once=bool(untold)):
                return

    def _say_farewell(self) -> None:
        """Tell all reachable peers that we leave, which saves them a wait.

        A greeting can fail although the peer is there, for example while its connection is made anew.
        So it is repeated to a peer that gave a sign of life a moment ago.
        """
        attempt, timeouts, begun = self._attempt, self._timeouts, self._host.now()
        untold = dict(self._lines)

        def told() -> bool:
            return all(line.answered >= begun for line in untold.values())

        while untold and (now := self._host.now()) - begun < timeouts.farewell:
            for name, line in tuple(untold.items()):
                other = attempt.others[name]
                absent = other.hello is None or now - other.heard > timeouts.answer
                if line.answered >= begun or (absent and line.failed >= begun):
                    del untold[name]
                else:
                    line.greet(attempt, timeouts.farewell)
            with attempt.changed:
                attempt.changed.wait_for(told, SOON)

    # Waiting. Whoever is waited for is asked from time to time whether it is still there.

    def _take(self, needed: Needed) -> Message:
        other = self._attempt.others.get(needed.sender)
        if other is None:
            raise WrongSender(f"{self._attempt.name} waits for {needed.sender!r}, who is not a peer")

        def next_message() -> tuple[Message, float] | None:
            arrival = other.inbox.take()
            if arrival is None and (early := self._attempt.unbounded(needed.sender)) is not None:
                # Only this program sets bounds, and it waits for what comes before.
                self._attempt.refuse(needed.sender, early)
                raise early
            if arrival is None and other.state == FINISHED:
                # It finished when all its messages were here.
                raise Deadlock(
                    f"{self._attempt.name} waits for {needed.what} from {needed.sender}, which has finished"
                )
            return arrival

        begun = self._host.now()
        arrival = self._wait(next_message, [needed.sender], needed.what)
        if arrival is None:
            raise PeerLost(needed.sender, f"{needed.what} of {needed.sender} did not come")
        with self._attempt.changed:
            self._attempt.changed.notify_all()  # there is room in the inbox now
        message, moment = arrival
        if moment < begun:
            return message
        # The program stood still until it was woken up for this.
        return replace(message, arrival=message.arrival.travel(self._host.now() - moment))

    def _wait(
        self,
        ready: Callable[[], T | None],
        peers: Collection[str],
        what: str,
        begun: float | None = None,
        *,
        once: bool = False,
    ) -> T | None:
        """Return what `ready` returns. With `once`, return None after one pause without it."""
        attempt, begun = self._attempt, self._host.now() if begun is None else begun
        while True:
            with attempt.changed:
                attempt.check()
                if (result := ready()) is not None:
                    return result
                attempt.changed.wait(0.05 if once else min(self._timeouts.beat, SHOWN_EVERY))
                attempt.check()
                if (result := ready()) is not None:
                    return result
            now = self._host.now()
            for peer in peers:
                self._watch(peer, begun, now)
            if now - begun > self._timeouts.silence:
                text = f"{', '.join(peers)}: no {what} for {self._timeouts.silence:.0f} s"
                attempt.fail(PeerLost(next(iter(peers), ""), text))
            elif once:
                return None

    def _watch(self, peer: str, since: float, now: float) -> None:
        attempt, timeouts, other = self._attempt, self._timeouts, self._attempt.others[peer]
        if other.state == FINISHED:
            return
        # Also one that was heard: it may be waiting for a sign of us.
        self._lines[peer].greet(attempt, pause=timeouts.beat)
        quiet = now - max(other.heard, since)
        if other.trouble and not other.trips and other.inbox.current is None:
            # It calls us, but none of our calls has reached it: its address here is wrong, or a firewall is.
            quiet = now - since
        if quiet > timeouts.patience:
            attempt.lose(quiet, peer)
        elif other.trouble or quiet > 2 * timeouts.beat + timeouts.answer:
            self._show(Waiting(peer, timeouts.patience - quiet, other.trouble))
        parcel = other.inbox.current
        if parcel is not None and parcel.begun is not None:
            still, moved = now - parcel.moved, (parcel.size, parcel.envelope.size)
            if still > timeouts.patience:
                other.trouble = f"it stopped after {moved[0]} of {moved[1]} bytes of {parcel.envelope.kind!r}"
                attempt.lose(still, peer)
            elif now - since > SHOWN_EVERY:
                self._show(Waiting(peer, timeouts.patience - still, "", moved))
        elif (sender := self._senders.get(peer)) is not None and (going := sender.under_way) is not None:
            self._show(Waiting(peer, timeouts.patience - quiet, "", going, outgoing=True))

    def _show(self, waiting: Waiting) -> None:
        now = self._host.now()
        if self._on_wait is not None and now - self._shown.get(waiting.peer, 0.0) >= SHOWN_EVERY:
            self._shown[waiting.peer] = now
            self._on_wait(waiting)

    # What the link hands over.

    def post(self, message: Message, until: dict[str, Path]) -> bool:
        """Queue a message. Return True if that had to wait for room. `until`: see `Sender`."""
        self._attempt.check()
        sender = self._senders[message.receiver]
        if message.size > (most := self._host.limits.message_bytes):
            raise LimitExceeded(
                f"{message.kind!r} for {message.receiver} has {message.size} bytes, "
                f"at most {most} are allowed"
            )
        waits = not sender.has_room(message.size)
        if waits:
            sender.awaited = True
            self._wait(lambda: sender.has_room(message.size) or None, [message.receiver], "room on the way")
        sender.put(message, until)
        return waits


def _reason(error: BaseException | None) -> str:
    """Return the reason for the others: the name of the error, and the missing party."""
    if isinstance(error, PeerGone) and error.peer:
        return f"{type(error).__name__} {error.peer}"
    return "" if error is None else type(error).__name__
