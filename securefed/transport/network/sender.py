"""The messages of one attempt to one peer: in order, each repeated until its receipt arrives."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from securefed.transport.clock import Path
from securefed.transport.message import Message, TransportError
from securefed.transport.network import codec
from securefed.transport.network.attempt import Attempt
from securefed.transport.network.codec import Envelope
from securefed.transport.network.core import grpc, translate
from securefed.transport.network.errors import Malformed, PeerRefused, PeerRestarted
from securefed.transport.network.host import Host
from securefed.transport.network.limits import Limits, Timeouts
from securefed.transport.network.peer_channel import Line

__all__ = ["Sender"]

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
