"""The outgoing channels to one peer, and the messages on them: in order, each until its receipt arrives.

Both channels trust only that peer's certificates. Greetings have a connection of their own. On a slow line a
large message fills its connection for minutes. A question behind it would not show whether the peer is there.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from securefed.transport.identity import Identity, Peer
from securefed.transport.message import (
    Malformed,
    Message,
    OtherRelease,
    Path,
    PeerRefused,
    PeerRestarted,
    TransportError,
    WrongCertificate,
)
from securefed.transport.network import codec
from securefed.transport.network.attempt import Attempt
from securefed.transport.network.codec import GREETING, Envelope
from securefed.transport.network.core import DELIVER, GREET, POST, channel_options, grpc, translate
from securefed.transport.network.host import Host, Limits, Timeouts
from securefed.transport.network.tunnel import TunnelPort

SMALL = 1 << 16
"""Bytes of a message that is sent in one piece. A line that takes a beat for it is slow."""
OVERDUE = 1.0
"""Seconds after its deadline until a question is given up that grpc has not ended."""

Connect = Callable[[], Any]
"""A new channel, with a connection of its own."""


def connector(
    name: str, peer: Peer, identity: Identity, limits: Limits, tunnels: TunnelPort | None = None
) -> Connect:
    """Return a maker of connections to that peer alone, whatever answers at its address."""
    address = peer.address if tunnels is None else tunnels.address
    credentials = grpc.ssl_channel_credentials(peer.anchors, identity.key_pem(), identity.chain)
    # A pinned certificate is trusted as it is, whatever name it has; one from an authority has to be for this
    # peer.
    shown = next((each for pin in peer.pins for each in pin.names), name)
    options = channel_options(limits.wire_bytes, shown)

    def connect() -> Any:
        return grpc.secure_channel(address, credentials, options, compression=grpc.Compression.NoCompression)

    return connect


@dataclass(frozen=True, eq=False)
class Question:
    call: Any
    deadline: float


class Line:
    """The channels to a peer. They outlive attempts.

    A connection can be dead without notice to either end, for example after a router forgot it. So the
    greeting channel is replaced when no greeting was answered for half of the patience. The message channel
    is replaced when the peer, asked on the other, has seen no byte on it for as long (`Sender`).
    """

    def __init__(
        self, name: str, address: str, connect: Connect, limits: Limits, timeouts: Timeouts, host: Host
    ) -> None:
        self.name, self.address = name, address
        self._connect, self._limits, self._timeouts, self._host = connect, limits, timeouts, host
        self._lock = threading.Lock()
        self._question: Question | None = None
        self._unanswered: float | None = None
        self.answered = self.failed = -math.inf
        """When the last greeting that was answered, and the last that failed, was sent."""
        self._warm = False
        self._proven = False
        self._rate = 0.0
        """Bytes a second of the last message that was not small."""
        self._asks, self._carries = connect(), connect()
        self._whole = self._carries.unary_unary(POST)

    def close(self) -> None:
        self._asks.close()
        self._carries.close()

    # Questions.

    def greet(self, attempt: Attempt, timeout: float | None = None) -> bool:
        """Greet in the background, once at a time. Return False if a greeting is still open."""
        now, seconds, old = self._host.now(), timeout or self._timeouts.answer, None
        with self._lock:
            before = self._question
            if before is not None and now <= before.deadline + OVERDUE:
                return False
            if before is not None:
                self._leave_unanswered(before.deadline - self._timeouts.answer)
            if self._unanswered is not None and now - self._unanswered > self._timeouts.patience / 2:
                self._unanswered = None
                old, self._asks = self._asks, self._connect()
            known = attempt.others[self.name].session
            data = codec.encode_hello(attempt.hello(self.name))
            call = self._asks.unary_unary(GREET).future(data, timeout=seconds)
            question = self._question = Question(call, now + seconds)

        def answered(done: Any) -> None:
            with self._lock:
                if self._question is question:
                    self._question = None
            self._answered(attempt, known, now, done)

        # Without the lock: what they end calls `answered` of an earlier question, which takes it.
        if before is not None:
            before.call.cancel()
        if old is not None:
            old.close()
        call.add_done_callback(answered)
        return True

    def _leave_unanswered(self, since: float) -> None:
        if self._unanswered is None:
            self._unanswered = since

    def _answered(self, attempt: Attempt, known: bytes, sent: float, call: Any) -> None:
        trip = self._host.now() - sent
        try:
            hello = codec.decode_hello(call.result())
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                self._leave_unanswered(sent)
            self.failed = sent
            self._failed(attempt, translate(error, self.name, self.address))
        except grpc.FutureCancelledError:
            self.failed = sent
            self._failed(attempt, "the call was cancelled")
        except Malformed as error:
            attempt.fail(type(error)(f"{self.name} answered with {error}"))
        else:
            self._unanswered, self.answered = None, sent
            if hello.sender != self.name:
                attempt.fail(Malformed(f"{self.name} answered with the name {hello.sender!r}"))
                return
            attempt.measured(self.name, trip, hello.clock, time.time(), warm=self._warm)
            self._warm = True
            attempt.hear(hello, known)
            with attempt.changed:
                attempt.changed.notify_all()

    def _failed(self, attempt: Attempt, problem: TransportError | str) -> None:
        self._warm = False
        with attempt.changed:
            # At the start a wrong certificate is a wrong setting; later it may pass, as a lost peer may.
            if isinstance(problem, PeerRefused | OtherRelease) or (
                isinstance(problem, WrongCertificate) and attempt.state == GREETING
            ):
                attempt.fail(problem)
            else:
                attempt.others[self.name].trouble = str(problem)
                attempt.changed.notify_all()

    # Messages.

    def takes_whole(self, size: int) -> bool:
        """Return whether a message of that size goes in one piece (`post`).

        A stream costs several times as much in threads and turns. Streams remain for the first message of a
        new connection, for one after a failure, for more than a chunk, and for slow lines: a stream shows its
        caller before its payload, and has no time limit.
        """
        quick = size <= SMALL or size < self._rate * self._timeouts.beat / 4
        return self._proven and quick and size <= self._limits.chunk_bytes

    def post(self, envelope: Envelope, payload: bytes, waited: Callable[[], float]) -> bytes:
        """Send a message in one piece and wait at most one beat for its receipt. `waited`: so far."""
        letter = codec.encode_letter(_departing(envelope, waited), payload)
        return bytes(self._whole(letter, timeout=self._timeouts.beat))

    def deliver(self, envelope: Envelope, payload: bytes, waited: Callable[[], float]) -> Any:
        """Begin to send a message in pieces. The call's result is its receipt."""
        with self._lock:
            return self._carries.stream_unary(DELIVER).future(self._pieces(envelope, payload, waited))

    def delivered(self, trouble: str | None, size: int, seconds: float) -> None:
        """Record the result of the last try."""
        self._proven = trouble is None and seconds < self._timeouts.beat / 2
        if size > SMALL or trouble is not None:
            self._rate = 0.0 if trouble is not None else size / max(seconds, 1e-6)

    def renew(self) -> None:
        """Replace the connection for messages. Its pending calls fail."""
        with self._lock:
            old, self._carries = self._carries, self._connect()
            self._whole = self._carries.unary_unary(POST)
        old.close()

    def reconnect(self, connect: Connect) -> None:
        """Replace both connections, by new ones with other credentials."""
        with self._lock:
            self._connect, old = connect, self._asks
            self._asks = connect()
        old.close()
        self.renew()

    def _pieces(self, envelope: Envelope, payload: bytes, waited: Callable[[], float]) -> Iterator[bytes]:
        # The envelope travels alone, so that the receiver's measurement begins before the payload.
        yield codec.encode_envelope(_departing(envelope, waited))
        view, size = memoryview(payload), self._limits.chunk_bytes
        for start in range(0, len(payload), size):
            yield codec.encode_data(bytes(view[start : start + size]))


def _departing(envelope: Envelope, waited: Callable[[], float]) -> Envelope:
    return replace(envelope, departure=envelope.departure.travel(waited()))


FIRST_DELAY, LONGEST_DELAY = 0.1, 5.0


@dataclass(frozen=True)
class Outgoing:
    message: Message
    era: int
    posted: float


class Sender:
    """A thread that sends messages to one peer.

    A message departs at its sender's path, or when the one before it was through, whichever is later. The
    link is busy until the receipt is back. `busy` has that path for each era: the training, or an evaluation
    off the clock.
    """

    def __init__(self, line: Line, attempt: Attempt, limits: Limits, timeouts: Timeouts, host: Host) -> None:
        self._line, self._attempt, self._limits, self._timeouts = line, attempt, limits, timeouts
        self._host = host
        self._queue: deque[Outgoing] = deque()
        self._bytes = 0
        self._closing = False
        self._busy: dict[int, Path] = {}
        self._free = 0.0
        self.awaited = False
        """The program waits for room or for the end."""
        self._work = host.condition(attempt.changed)
        attempt.ended.append(self._work)
        self.under_way: tuple[int, int] | None = None
        """Bytes of the current message that the peer has seen, as it last reported, and all."""
        self._thread = host.start(self._run, f"securefed-to-{line.name}")

    def has_room(self, size: int) -> bool:
        with self._attempt.changed:
            few = len(self._queue) < self._limits.queued_messages
            return not self._queue or (few and self._bytes + size <= self._limits.queued_bytes)

    def put(self, message: Message, era: int) -> None:
        with self._attempt.changed:
            self._queue.append(Outgoing(message, era, self._host.now()))
            self._bytes += message.size
            self._work.notify_all()

    def busy(self, era: int) -> Path:
        with self._attempt.changed:
            return self._busy.get(era, Path())

    def forget(self, era: int) -> None:
        with self._attempt.changed:
            self._busy.pop(era, None)

    @property
    def idle(self) -> bool:
        return not self._queue

    def close(self) -> None:
        with self._attempt.changed:
            self._closing = True
            self._work.notify_all()
        self._thread.join()

    @property
    def _stopped(self) -> bool:
        return self._closing or self._attempt.over

    def _run(self) -> None:
        try:
            self._send_all()
        except Exception as error:  # nobody else would hear of it, and the party would wait for ever
            self._attempt.fail(TransportError(f"messages to {self._line.name} cannot be sent: {error}"))
            raise

    def _send_all(self) -> None:
        changed = self._attempt.changed
        while True:
            with changed:
                self._work.wait_for(lambda: bool(self._queue) or self._stopped)
                if self._stopped:
                    return
                item = self._queue[0]
            delivered = self._deliver(item)
            with changed:
                if not delivered:
                    return
                self._queue.popleft()
                self._bytes -= item.message.size
                if self.awaited:
                    changed.notify_all()

    def _deliver(self, item: Outgoing) -> bool:
        """Send one message with retries. Return False if the attempt is over."""
        message, attempt, other = item.message, self._attempt, self._attempt.others[self._line.name]
        start = message.arrival.later(self.busy(item.era))
        envelope = Envelope(
            run=message.run,
            sender=message.sender,
            receiver=message.receiver,
            attempt=attempt.attempt,
            settings=attempt.settings_digest,
            sequence=message.sequence,
            kind=message.kind,
            round=message.round,
            step=message.step,
            size=message.size,
            departure=start,
        )
        begun = max(item.posted, self._free)
        failing, delay = None, FIRST_DELAY

        def waited() -> float:
            return self._host.now() - begun

        while not self._stopped:
            tried = self._host.now()
            trouble = self._try(envelope, message.payload, waited)
            self._line.delivered(trouble, message.size, self._host.now() - tried)
            if trouble is None:
                self._free = self._host.now()
                with attempt.changed:
                    self._busy[item.era] = start.travel(self._free - begun)
                return True
            failing = self._host.now() if failing is None else failing
            with attempt.changed:
                other.trouble = trouble
                if self._host.now() - failing > self._timeouts.patience:
                    attempt.lose(self._host.now() - failing, self._line.name)
                # Not all parties at the same moment.
                jitter = 1 + self._host.chance() / 2
                self._work.wait_for(lambda: self._stopped, timeout=delay * jitter)
            delay = min(2 * delay, LONGEST_DELAY)
        return False

    def _try(self, envelope: Envelope, payload: bytes, waited: Callable[[], float]) -> str | None:
        """Try once. Return None with a receipt, else the problem. A permanent problem ends the attempt."""
        attempt, name = self._attempt, self._line.name
        try:
            if self._line.takes_whole(envelope.size):
                answer = self._line.post(envelope, payload, waited)
            else:
                call = self._line.deliver(envelope, payload, waited)
                still = self._accompany(call, envelope.size)
                if still is not None:
                    call.cancel()
                    return still
                answer = call.result()
            sequence, _ = codec.decode_receipt(answer)
        except grpc.FutureCancelledError:
            return "the call was cancelled"
        except grpc.RpcError as error:
            problem = translate(error, name, self._line.address)
            if isinstance(problem, PeerRefused) and problem.reason == "OtherAttempt":
                attempt.fail(PeerRestarted(name, f"{name} is in another attempt at the run"))
            elif isinstance(problem, PeerRefused):
                attempt.fail(problem)
            return str(problem)
        except Malformed as error:
            attempt.fail(Malformed(f"{name} answered with {error}"))
            return str(error)
        if sequence != envelope.sequence:
            text = f"{name} sent a receipt for message {sequence}, message {envelope.sequence} was sent"
            attempt.fail(Malformed(text))
            return text
        attempt.sign_of_life(name)
        return None

    def _accompany(self, call: Any, size: int) -> str | None:
        """Wait for the call's end. Return None, or the reason to give it up.

        From time to time the peer is asked, on the other connection, how many bytes it has seen on this one.
        On a slow line that number grows. On a dead line it does not grow for half of the patience while the
        peer has room.
        """
        attempt, other = self._attempt, self._attempt.others[self._line.name]

        def wake(_: Any) -> None:
            with attempt.changed:
                self._work.notify_all()

        call.add_done_callback(wake)
        moved, first = self._host.now(), other.arrived
        seen, reported = first, False
        try:
            while True:
                with attempt.changed:
                    self._work.wait_for(lambda: call.done() or self._stopped, self._timeouts.beat)
                    if call.done():
                        return None
                    if self._stopped:
                        return "the attempt is over"
                    if other.arrived != seen or other.holding:
                        # The first report may tell of bytes that came before this try.
                        if reported or other.holding:
                            moved = self._host.now()
                        seen, reported = other.arrived, True
                    self.under_way = (min(size, seen - first), size)
                self._line.greet(attempt)
                still = self._host.now() - moved
                if still > self._timeouts.patience / 2:
                    self._line.renew()
                    return f"nothing of a message arrived for {still:.0f} s"
        finally:
            self.under_way = None
