"""One attempt at a run: its parties, their states, arrived messages, and what ends it.

An attempt begins with greetings. Each party has a random *session*, new for every attempt, and tells all
others which sessions it knows. It starts its program when every peer knows exactly the same sessions. Then
all are in the same attempt, and its name is a digest over those sessions. Every message carries that name.

A party that was killed and started again has a new session. Parties that still greet take note of it. Parties
that already run stop their attempt with `PeerRestarted`. The layer above returns to the last common round and
makes a new attempt. A running party answers a new session as one that is leaving, so no party can start with
one that is about to stop.

    GREETING --all know the same sessions--> RUNNING --program ended--> FINISHED --all finished--> over
        `------------- any failure, here or at a peer ------------------------> LEFT

All methods of an attempt may be called from any thread. `changed` is notified whenever state that a thread
waits for has changed.
"""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from types import MappingProxyType
from typing import Any

from securefed.transport.message import (
    IllegalMessage,
    LimitExceeded,
    Message,
    OtherAttempt,
    OutOfOrder,
    PeerLeft,
    PeerLost,
    PeerRefused,
    PeerRestarted,
    Repeated,
    SettingsDiffer,
    TransportError,
    WrongKind,
    WrongRun,
    WrongSender,
    left_because,
)
from securefed.transport.network import codec
from securefed.transport.network.codec import ABSENT, FINISHED, GREETING, LEFT, RUNNING, Envelope, Hello
from securefed.transport.network.host import Host, Limits


class Parcel:
    """An arriving message."""

    def __init__(self, sender: str, envelope: Envelope) -> None:
        self.sender, self.envelope = sender, envelope
        self.begun: float | None = None
        """When its first piece came; None while it waits for room here."""
        self.moved = 0.0
        """When the last piece came."""
        self.size = 0
        """Bytes that have arrived."""
        self._pieces: list[bytes] = []

    def add(self, offset: int, piece: bytes | memoryview) -> None:
        """Take what is new of a piece. A retry may bring bytes once more."""
        if offset + len(piece) > self.envelope.size:
            raise LimitExceeded(
                f"{self.sender} sent more than the {self.envelope.size} bytes that it announced "
                f"for message {self.envelope.sequence}"
            )
        if offset <= self.size:
            new = bytes(memoryview(piece)[self.size - offset :])  # a copy: nothing else of it is kept
            self._pieces.append(new)
            self.size += len(new)

    def payload(self) -> bytes:
        """Return the whole message, without another copy if it came in one piece."""
        return b"".join(self._pieces)


class Inbox:
    """One peer's messages. The attempt's condition guards it."""

    def __init__(self, sender: str, limits: Limits) -> None:
        self.sender, self._limits = sender, limits
        self._messages: deque[tuple[Message, float]] = deque()
        self._bytes = 0
        self._due = 0
        self._last: tuple[object, ...] | None = None
        self.current: Parcel | None = None

    def expects(self, envelope: Envelope) -> bool:
        """Return True for the due message, False for a repeat of the one before. Raises for others."""
        if envelope.sequence == self._due:
            return True
        if envelope.sequence == self._due - 1 and envelope.identity == self._last:
            return False
        due = f"message {self._due} is due"
        if envelope.sequence < self._due - 1:
            raise Repeated(f"{self.sender} sent message {envelope.sequence} again; {due}")
        word = "again, with another content" if envelope.sequence < self._due else "too early"
        raise OutOfOrder(f"{self.sender} sent message {envelope.sequence} {word}; {due}")

    def begin(self, envelope: Envelope) -> Parcel:
        """Return the due message as far as it has arrived."""
        if self.current is None:
            self.current = Parcel(self.sender, envelope)
        if self.current.envelope.identity != envelope.identity:
            raise OutOfOrder(f"{self.sender} sent message {envelope.sequence} again, with another content")
        return self.current

    def has_room(self, size: int) -> bool:
        """Return whether the message fits. An empty inbox has room for any legal message."""
        if not self._messages:
            return True
        few = len(self._messages) < self._limits.queued_messages
        return few and self._bytes + size <= self._limits.queued_bytes

    def put(self, envelope: Envelope, message: Message, now: float) -> None:
        self.current = None
        self._messages.append((message, now))
        self._bytes += message.size
        self._due += 1
        self._last = envelope.identity

    def take(self) -> tuple[Message, float] | None:
        """Return the next message and the time of its arrival."""
        if not self._messages:
            return None
        message, moment = self._messages.popleft()
        self._bytes -= message.size
        return message, moment


SKEW_WARNED = 30.0
SAMPLES = 64
MAKE_EQUAL = "make them equal (in [run], or by installing the same release) and start all parties again"


@dataclass
class Other:
    """A peer's state as this party knows it."""

    name: str
    inbox: Inbox
    heard: float
    """When the peer last gave a sign of life, on this machine's monotonic clock."""
    hello: Hello | None = None
    trouble: str = ""
    """The last call's failure; empty if it was answered."""
    compared: bool = False
    """Its settings were compared with ours."""
    unlike: str = ""
    """Which of its settings differ from ours, and how."""
    told_end: bool = False
    """The peer acknowledged our FINISHED."""
    trips: list[float] = field(default_factory=list)
    """Round trips of recent greetings, in seconds."""
    skew: float | None = None
    """Its wall clock minus ours, in seconds, at the fastest greeting so far."""
    skew_said: bool = False
    """The difference of the clocks was logged."""

    @property
    def state(self) -> int:
        return ABSENT if self.hello is None else self.hello.state

    @property
    def session(self) -> bytes:
        return b"" if self.hello is None else self.hello.session

    @property
    def latency(self) -> float:
        """Seconds one way: half of the median of recent round trips."""
        return median(self.trips) / 2 if self.trips else 0.0


class Attempt:
    """The shared state of calls, senders and program."""

    def __init__(
        self,
        name: str,
        peers: Collection[str],
        *,
        run: str,
        kinds: Collection[str],
        settings: Mapping[str, Any],
        facts: Mapping[str, Any],
        host: Host,
        done: Collection[str] = (),
        addresses: Mapping[str, str] = MappingProxyType({}),
        sizes: Mapping[str, int | None] = MappingProxyType({}),
    ) -> None:
        """Begin an attempt.

        `sizes` bounds the bytes of messages by kind. Messages of a kind with None wait until `bound` says
        more. A kind that is not in it has the general limit. `done` names the runs that this
        process has completed. A peer that still greets for one of them may join.
        """
        self.name, self.run, self.kinds, self.limits = name, run, kinds, host.limits
        self.settings = codec.to_json("settings", settings)
        self._host = host
        self._addresses, self._sizes = addresses, dict(sizes)
        self.changed = host.condition()
        self.ended = [self.changed]
        """Conditions besides `changed` to notify at the end."""
        self.others = {peer: Other(peer, Inbox(peer, host.limits), host.now()) for peer in peers}
        self.state = GREETING
        self.failure: TransportError | None = None
        self.attempt = b""
        self._facts = codec.to_json("facts", facts)
        self._session = secrets.token_bytes(codec.SESSION_BYTES)
        self._unlike_since = 0.0
        self._reason = ""
        self._refusals: dict[str, str] = {}
        self._done = frozenset(done)

    # Greetings.

    def hello(self, receiver: str) -> Hello:
        """Return this party's current hello."""
        with self.changed:
            other = self.others[receiver]
            known = other.state >= RUNNING  # it has our settings and facts, and on a slow line they cost time
            return Hello(
                run=self.run,
                sender=self.name,
                receiver=receiver,
                session=self._session,
                state=self.state,
                settings="" if known and self.state != GREETING else self.settings,
                facts="" if known and self.state != GREETING else self._facts,
                sessions=self.sessions,
                clock=time.time(),
                reason=self._reason,
                refusal=self._refusals.get(receiver, "") if self.state == LEFT else "",
                heard=other.state,
            )

    @property
    def sessions(self) -> dict[str, bytes]:
        """Return the sessions that this party knows, its own included."""
        with self.changed:
            others = self.others.values()
            known = {other.name: other.hello.session for other in others if other.hello is not None}
            return {self.name: self._session, **known}

    def agrees(self, peer: str) -> bool:
        """Return whether that peer knows the same sessions as this party."""
        with self.changed:
            hello = self.others[peer].hello
            return hello is not None and dict(hello.sessions) == self.sessions

    def begin_if_agreed(self) -> bool:
        with self.changed:
            complete = all(other.hello is not None for other in self.others.values())
            if self.state != GREETING or not complete or not all(map(self.agrees, self.others)):
                return False
            self.attempt = codec.attempt_name(self.run, self.settings, self.sessions)
            self._go(RUNNING)
            return True

    def hear(self, hello: Hello, asked_when: bytes | None = None) -> None:
        """Process a hello, from an incoming call or as the answer to ours.

        `asked_when` is the session that we knew when we asked, or None if this is no answer. An answer of a
        process that was replaced since is too late. A peer answers for the attempt that it is asked about,
        and greets for its own. So only an answer tells the fate of this attempt.
        """
        with self.changed:
            other = self.others[hello.sender]
            self.sign_of_life(hello.sender)
            if self.failure is not None or self.state == LEFT:
                return
            if asked_when is not None and other.session not in (asked_when, hello.session):
                return
            if self.state == GREETING:
                self._hear_greeting(other, hello)
            else:
                self._hear_running(other, hello, answered=asked_when is not None)
            # It may have left this attempt since, for the next run: what it heard it has heard.
            knows_us = hello.sessions.get(self.name) == self._session and hello.session == other.session
            if knows_us:
                other.told_end = other.told_end or hello.heard >= FINISHED
                self.changed.notify_all()

    def _hear_greeting(self, other: Other, hello: Hello) -> None:
        known = other.hello
        if known is not None and (
            hello.state == ABSENT or (hello.state, hello.session) == (LEFT, known.session)
        ):
            other.hello = None  # it was here, and is not any more
            other.trouble = f"it left: {left_because(hello.reason)}"
            self.changed.notify_all()
        if hello.state == ABSENT:
            return
        if hello.run != self.run:
            # A peer that is busy with another run may come to ours, and one that came back to a run that we
            # have been through is shown on by our answer; one that greets for another will not come.
            if hello.state == GREETING and hello.run not in self._done:
                text = f"{self.name} is in run {self.run!r}, {hello.sender} is in run {hello.run!r}"
                self.fail(WrongRun(text))
            self.is_late(hello)
            return
        if hello.is_short:
            other.trouble = "it is still in an earlier attempt"  # it says so to one that runs with it
            return
        other.compared = True
        other.unlike = codec.differences(self.name, self.settings, hello.sender, hello.settings) or ""
        if other.unlike:
            other.hello = None
            self._unlike_since = self._unlike_since or self._host.now()
            self.compare_settings(math.inf)
            return
        ours = hello.sessions.get(self.name) == self._session
        if hello.state == GREETING or (hello.state in (RUNNING, FINISHED) and ours):
            if other.hello is None or other.hello.session != hello.session:
                self._host.log.info("%s is here", other.name)
            other.hello = hello
            other.trouble = ""
            self.changed.notify_all()
        elif hello.state != LEFT:
            # Our own hello makes it leave what it is in.
            other.trouble = "it is still in an earlier attempt"

    def compare_settings(self, patience: float) -> None:
        """Fail if settings differ, with the differences of all peers.

        Peers that were not heard yet are waited for, up to `patience` seconds after the first difference.
        """
        with self.changed:
            texts = [other.unlike for other in self.others.values() if other.unlike]
            heard = all(other.compared for other in self.others.values())
            if texts and (heard or self._host.now() - self._unlike_since > patience):
                self.fail(SettingsDiffer("; ".join([*texts, MAKE_EQUAL])))

    def is_late(self, hello: Hello) -> None:
        """Return whether the peer is alive and in another run."""
        with self.changed:
            self.sign_of_life(hello.sender)
            word = "still in" if hello.run in self._done else "in"
            self.others[hello.sender].trouble = f"it is {word} run {hello.run!r}"

    def _hear_running(self, other: Other, hello: Hello, *, answered: bool) -> None:
        before = other.hello
        elsewhere = hello.state == ABSENT or hello.run != self.run
        if elsewhere and (other.state == FINISHED or not answered):
            return  # what a finished party does next is its own business; coming back to this run is not
        if hello.state == ABSENT:
            self._left(other.name, "ABSENT")
        elif elsewhere:
            text = f"{other.name} has started again, and is in run {hello.run!r}"
            self.fail(PeerRestarted(other.name, text))
        elif before is None or hello.session != before.session:
            # Otherwise it is a late word of an attempt that is over.
            if hello.state == GREETING or hello.sessions.get(self.name) == self._session:
                self.fail(PeerRestarted(other.name, f"{other.name} has started again"))
        elif hello.state == LEFT and hello.refusal:
            self.fail(PeerRefused(f"{other.name} refused: {hello.refusal}", hello.reason))
        elif hello.state == LEFT:
            self._left(other.name, hello.reason)
        elif hello.state >= before.state:
            short = hello.is_short
            other.hello = replace(hello, settings=before.settings, facts=before.facts) if short else hello
            self.changed.notify_all()

    def _left(self, name: str, reason: str) -> None:
        self.fail(PeerLeft(name, f"{name} left the run: {left_because(reason)}", reason))

    def knew(self, hello: Hello) -> bool:
        """Return whether that party took part in this attempt."""
        with self.changed:
            return self.others[hello.sender].session == hello.session

    def answer(self, hello: Hello) -> Hello:
        """Process an incoming hello and return ours."""
        with self.changed:
            self.hear(hello)
            return self.hello(hello.sender)

    def measured(self, peer: str, trip: float, clock: float, now: float, *, warm: bool = True) -> None:
        """Record a greeting's round trip of `trip` seconds and the peer's wall clock half-way.

        A greeting that is not warm made its connection first. It does not measure latency, but it shows a
        clock that is far off.
        """
        with self.changed:
            other = self.others[peer]
            fastest = not other.trips or trip <= min(other.trips)
            if warm:
                other.trips = [*other.trips, trip][-SAMPLES:]
            if not fastest:
                return
            other.skew = clock - (now - trip / 2)
            if not other.skew_said and abs(other.skew) - trip / 2 > SKEW_WARNED:
                other.skew_said = True
                word = "ahead of" if other.skew > 0 else "behind"
                self._host.log.warning("the clock of %s is %.0f s %s ours", peer, abs(other.skew), word)

    def sign_of_life(self, peer: str) -> None:
        with self.changed:
            other = self.others[peer]
            other.heard = self._host.now()
            other.trouble = ""

    # Messages.

    def admit(self, sender: str, envelope: Envelope) -> None:
        """Refuse a message that does not belong to this attempt, or is larger than its kind may be, as far as
        that is known, before its payload is read.
        """
        if envelope.receiver != self.name:
            raise WrongSender(f"{sender} sent {self.name} a message for {envelope.receiver!r}")
        if envelope.run != self.run:
            raise WrongRun(f"{sender} sent a message of run {envelope.run!r}, this is run {self.run!r}")
        if envelope.attempt != self.attempt:
            raise OtherAttempt(f"{sender} sent a message of another attempt at run {self.run!r}")
        if envelope.kind not in self.kinds:
            raise WrongKind(f"{sender} sent {envelope.kind!r}, a kind that the protocol does not name")
        most, known = self.limits.message_bytes, self._sizes.get(envelope.kind)
        if known is not None:
            most = min(most, known)
        if envelope.size > most:
            raise LimitExceeded(
                f"{sender} sent {envelope.kind!r} of {envelope.size} bytes, at most {most} are allowed"
            )

    def bound(self, sizes: Mapping[str, int | None]) -> None:
        """Set the most bytes of messages by kind. Those that wait for it are read or refused."""
        with self.changed:
            self._sizes.update(sizes)
            self.changed.notify_all()

    def is_bounded(self, kind: str) -> bool:
        """Return whether it is known how large messages of this kind may be."""
        return self._sizes.get(kind, 0) is not None

    def unbounded(self, sender: str) -> OutOfOrder | None:
        """Return a refusal if the next message of `sender` is of a kind that is not bounded yet."""
        parcel = self.others[sender].inbox.current
        if parcel is None or self.is_bounded(parcel.envelope.kind):
            return None
        return OutOfOrder(f"{sender} sent {parcel.envelope.kind!r} too early, before its size is agreed")

    # Ends.

    def fail(self, error: TransportError) -> None:
        """End the attempt. The first reason is kept."""
        with self.changed:
            if self.failure is None and self.state != LEFT:
                self.failure = error
            self._tell()

    def refuse(self, peer: str, error: IllegalMessage) -> None:
        """End the attempt because of a message from `peer`, which learns the reason."""
        with self.changed:
            self._refusals.setdefault(peer, str(error))
            self.fail(error)

    def lose(self, seconds: float, *peers: str) -> None:
        """End the attempt because of these peers. The text has each one's address and problem."""
        lost = []
        for peer in peers:
            place = f" at {self._addresses[peer]}" if peer in self._addresses else ""
            trouble = self.others[peer].trouble
            lost.append(f"{peer}{place}" + (f" ({trouble})" if trouble else ""))
        self.fail(PeerLost(peers[0], f"{' and '.join(lost)} could not be reached for {seconds:.0f} s"))

    def finish(self) -> None:
        with self.changed:
            self._go(FINISHED)

    def leave(self, reason: str) -> None:
        with self.changed:
            self._reason = reason
            self._go(LEFT)

    @property
    def all_finished(self) -> bool:
        """Return whether every program is known to have ended well."""
        with self.changed:
            return self.state == FINISHED and all(o.state == FINISHED for o in self.others.values())

    @property
    def may_part(self) -> bool:
        """Return whether all have finished and acknowledged that we have. Then no peer needs us."""
        with self.changed:
            return self.all_finished and all(other.told_end for other in self.others.values())

    def _go(self, state: int) -> None:
        self.state = state
        self._tell()

    def _tell(self) -> None:
        for condition in self.ended:
            condition.notify_all()

    @property
    def over(self) -> bool:
        return self.failure is not None or self.state == LEFT

    def check(self) -> None:
        """Raise the error that ended the attempt, if any."""
        if self.failure is not None:
            raise self.failure


REMEMBERED = 8
"""Finished attempts that are kept. No party can be more than one behind: the next one needs all."""


class Register:
    """The attempts of one party's process: the current one and finished ones."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.attempt: Attempt | None = None
        self._last: Attempt | None = None
        self._finished: list[Attempt] = []
        self._lock = threading.Lock()

    def begin(self, attempt: Attempt) -> None:
        with self._lock:
            if self.attempt is not None:
                raise TransportError(f"{self.name} is already in run {self.attempt.run!r}")
            self.attempt = attempt

    def end(self) -> None:
        with self._lock:
            last, self.attempt = self.attempt, None
            self._last = last
            if last is not None and last.state == FINISHED:
                self._finished = [*self._finished, last][-REMEMBERED:]

    def fail(self, error: TransportError) -> None:
        """End the current attempt."""
        attempt = self.attempt
        if attempt is not None:
            attempt.fail(error)

    @property
    def done(self) -> frozenset[str]:
        """The runs that this process has completed."""
        with self._lock:
            return frozenset(attempt.run for attempt in self._finished)

    def answer(self, hello: Hello) -> Hello:
        """Return the answer to a hello."""
        with self._lock:
            attempt, last = self.attempt, self._last
            over = next((past for past in self._finished if past.knew(hello)), None)
        if over is not None:
            if attempt is not None:
                attempt.is_late(hello)
            return over.hello(hello.sender)
        if attempt is not None:
            return attempt.answer(hello)
        if last is not None and last.knew(hello):
            return last.hello(hello.sender)  # how it ended, for those who have not heard
        return Hello("", self.name, hello.sender, b"", ABSENT, "", "", {}, time.time())
