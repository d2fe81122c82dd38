"""The outgoing channels to one peer, and the messages on them: in order, each until its receipt arrives.

Both channels trust only that peer's certificates. Greetings have a connection of their own. On a slow line a
piece of a message fills its connection for seconds. A question behind it would not show how far the peer is.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from securefed.transport.message import (
    Malformed,
    Message,
    OtherAttempt,
    OtherRelease,
    Path,
    PeerRefused,
    PeerRestarted,
    TransportError,
    WrongCertificate,
)
from securefed.transport.network import codec
from securefed.transport.network.attempt import Attempt
from securefed.transport.network.calls import GREET, POST, CallChannel, CallFailed
from securefed.transport.network.codec import GREETING, Envelope, PieceReceipt
from securefed.transport.network.host import Host

LEAST_PIECE = 1 << 15
"""Bytes of the first piece on a new connection, and of every piece on a very slow one."""
PIECE_BEATS = 4
"""How long a piece should take, in beats. Progress is seen by the piece."""
PATIENT_BEATS = 3
"""How long a small piece may take, in beats, before it is sent again on a new connection. A larger piece may
take twice as long as it should. Each piece that was too late doubles the time of the next one."""


class Line:
    """The channels to a peer. They outlive attempts."""

    def __init__(self, name: str, asks: CallChannel, carries: CallChannel, host: Host) -> None:
        self.name = name
        self._limits, self._timeouts, self._host = host.limits, host.timeouts, host
        self._asks, self._carries = asks, carries
        self._work = host.condition()
        self._question: tuple[Attempt, float] | None = None
        self._closing = False
        self._greeted = self.answered = self.failed = -math.inf
        """When the last greeting that was answered, and the last that failed, was sent."""
        self._warm = False
        self._rate = 0.0
        """Bytes a second of the last piece that was not small."""
        self._late = 0
        """How many pieces in a row were too late."""
        self._thread = host.start(self._ask_all, f"securefed-ask-{name}")

    def close(self) -> None:
        with self._work:
            self._closing = True
            self._work.notify_all()
        self.renew()
        self._thread.join()
        self._asks.close()
        self._carries.close()

    def renew(self) -> None:
        """End the connections. Calls that wait for them fail, and the next ones open new ones."""
        self._asks.drop()
        self._carries.drop()

    def interrupt(self) -> None:
        """End a call that carries a message."""
        self._carries.drop()

    # Questions.

    def greet(self, attempt: Attempt, timeout: float | None = None, *, pause: float = 0.0) -> None:
        """Greet in the background, once at a time, if the last greeting is older than `pause`."""
        with self._work:
            now = self._host.now()
            if self._question is None and now - self._greeted >= pause:
                self._greeted = now
                self._question = attempt, timeout or self._timeouts.answer
                self._work.notify_all()

    def _ask_all(self) -> None:
        while True:
            with self._work:
                self._work.wait_for(lambda: self._question is not None or self._closing)
                question = self._question
                if self._closing or question is None:
                    return
            attempt, seconds = question
            try:
                self._ask(attempt, seconds)
            except Exception as error:  # nobody else would hear of it, and the party would greet nobody
                attempt.fail(TransportError(f"{self.name} cannot be greeted: {error}"))
                raise

    def _ask(self, attempt: Attempt, seconds: float) -> None:
        sent, known = self._host.now(), attempt.others[self.name].session
        question, problem = codec.encode_hello(attempt.hello(self.name)), None
        try:
            answer = self._asks.call(GREET, question, seconds=seconds, is_cancelled=lambda: self._closing)
        except (CallFailed, PeerRefused, OtherRelease, WrongCertificate) as error:
            problem = error
        with self._work:
            self._question = None
        if problem is not None:
            self.failed = sent
            self._failed(attempt, problem)
            return
        try:
            hello = codec.decode_hello(answer)
        except Malformed as error:
            attempt.fail(type(error)(f"{self.name} answered with {error}"))
            return
        trip, self.answered = self._host.now() - sent, sent
        if hello.sender != self.name:
            attempt.fail(Malformed(f"{self.name} answered with the name {hello.sender!r}"))
            return
        attempt.measured(self.name, trip, hello.clock, time.time(), warm=self._warm)
        self._warm = True
        attempt.hear(hello, known)
        with attempt.changed:
            attempt.changed.notify_all()

    def _failed(self, attempt: Attempt, problem: TransportError | CallFailed) -> None:
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

    @property
    def piece_bytes(self) -> int:
        """Bytes of the next piece, by how quick the last one was."""
        quick = int(self._rate * PIECE_BEATS * self._timeouts.beat)
        return min(max(quick, LEAST_PIECE), self._limits.chunk_bytes)

    def post(self, envelope: Envelope, piece: memoryview, is_cancelled: Callable[[], bool]) -> PieceReceipt:
        """Send a piece of a message and wait for its receipt, for half of the patience at most.

        A connection can be dead without notice to either end, for example after a router forgot it. So a
        piece that is too late is sent again on a new connection, with more time.
        """
        begun, rate, self._rate = self._host.now(), self._rate, 0.0
        beats = (PATIENT_BEATS if len(piece) <= LEAST_PIECE else 2 * PIECE_BEATS) << self._late
        seconds = min(beats * self._timeouts.beat, self._timeouts.patience / 2)
        head = codec.encode_letter(envelope, b"")
        try:
            answer = self._carries.call(POST, head, piece, seconds=seconds, is_cancelled=is_cancelled)
        except CallFailed as failure:
            if failure.late:
                self._late = min(self._late + 1, 8)
            raise
        self._late = 0
        large = len(piece) >= LEAST_PIECE
        self._rate = len(piece) / max(self._host.now() - begun, 1e-6) if large else rate
        return codec.decode_receipt(answer)


FIRST_DELAY, LONGEST_DELAY = 0.1, 5.0


@dataclass(frozen=True)
class Outgoing:
    message: Message
    until: dict[str, Path]
    posted: float


class Sender:
    """A thread that sends messages to one peer.

    A message departs at its sender's path, or when the one before it was through, whichever is later. The
    link is busy until the receipt is back. Each message comes with the place to write that path to, by the
    name of the peer: the training has one, and each evaluation off the clock.
    """

    def __init__(self, line: Line, attempt: Attempt, host: Host) -> None:
        self._line, self._attempt, self._host = line, attempt, host
        self._queue: deque[Outgoing] = deque()
        self._bytes = 0
        self._closing = False
        self._free = 0.0
        self.awaited = False
        """The program waits for room or for the end."""
        self._work = host.condition(attempt.changed)
        attempt.ended.append(self._work)
        self.under_way: tuple[int, int] | None = None
        """Bytes of the current message that have arrived, and all."""
        self._thread = host.start(self._run, f"securefed-to-{line.name}")

    def has_room(self, size: int) -> bool:
        with self._attempt.changed:
            few = len(self._queue) < self._host.limits.queued_messages
            return not self._queue or (few and self._bytes + size <= self._host.limits.queued_bytes)

    def put(self, message: Message, until: dict[str, Path]) -> None:
        with self._attempt.changed:
            self._queue.append(Outgoing(message, until, self._host.now()))
            self._bytes += message.size
            self._work.notify_all()

    @property
    def idle(self) -> bool:
        return not self._queue

    def close(self) -> None:
        with self._attempt.changed:
            self._closing = True
            self._work.notify_all()
            under_way = bool(self._queue)
        if under_way:
            self._line.interrupt()
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
        start = message.arrival.later(item.until.get(self._line.name, Path()))
        envelope = Envelope(
            run=message.run,
            sender=message.sender,
            receiver=message.receiver,
            attempt=attempt.attempt,
            sequence=message.sequence,
            kind=message.kind,
            round=message.round,
            step=message.step,
            size=message.size,
            departure=start,
        )
        begun = max(item.posted, self._free)
        failing, delay = None, FIRST_DELAY
        arrived, has_room, payload = 0, True, memoryview(message.payload)
        while not self._stopped:
            # A peer without room is asked again with an empty piece.
            piece = payload[arrived : arrived + self._line.piece_bytes] if has_room else payload[:0]
            departure = start.travel(self._host.now() - begun)
            answer = self._try(replace(envelope, offset=arrived, departure=departure), piece)
            if isinstance(answer, PieceReceipt):
                arrived, has_room, failing, delay = answer.arrived, answer.room, None, FIRST_DELAY
                delivered = has_room and arrived == message.size
                self.under_way = None if delivered else (arrived, message.size)
                if delivered:
                    self._free = self._host.now()
                    with attempt.changed:
                        item.until[self._line.name] = start.travel(self._free - begun)
                    return True
                continue
            failing = self._host.now() if failing is None else failing
            with attempt.changed:
                other.trouble = answer
                if self._host.now() - failing > self._host.timeouts.patience:
                    attempt.lose(self._host.now() - failing, self._line.name)
                # Not all parties at the same moment.
                jitter = 1 + self._host.chance() / 2
                self._work.wait_for(lambda: self._stopped, timeout=delay * jitter)
            delay = min(2 * delay, LONGEST_DELAY)
        return False

    def _try(self, envelope: Envelope, piece: memoryview) -> PieceReceipt | str:
        """Send a piece once. Return its receipt, or the problem. A permanent problem ends the attempt."""
        attempt, name = self._attempt, self._line.name
        try:
            receipt = self._line.post(envelope, piece, lambda: self._stopped)
        except PeerRefused as error:
            if error.reason == OtherAttempt.__name__:
                attempt.fail(PeerRestarted(name, f"{name} is in another attempt at the run"))
            else:
                attempt.fail(error)
            return str(error)
        except (CallFailed, WrongCertificate) as error:
            return str(error)
        except Malformed as error:
            attempt.fail(Malformed(f"{name} answered with {error}"))
            return str(error)
        if receipt.sequence != envelope.sequence or receipt.arrived > envelope.size:
            text = (
                f"{name} sent a receipt for message {receipt.sequence}, message {envelope.sequence} was sent"
            )
            attempt.fail(Malformed(text))
            return text
        attempt.sign_of_life(name)
        if piece and receipt.room and receipt.arrived <= envelope.offset:
            return "it takes nothing of a message"
        return receipt
