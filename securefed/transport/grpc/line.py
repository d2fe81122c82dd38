"""The way out to one peer: a channel that trusts that peer's certificate and nothing else.

`greet` asks in the background whether it is there; `Sender` delivers messages one after the other, each again
until there is a receipt for it.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from securefed.transport.clock import Path
from securefed.transport.grpc import codec
from securefed.transport.grpc.attempt import Attempt
from securefed.transport.grpc.codec import GREETING, Envelope
from securefed.transport.grpc.core import DELIVER, GREET, POST, channel_options, grpc, translate
from securefed.transport.grpc.errors import Malformed, PeerRefused, PeerRestarted, WrongCertificate
from securefed.transport.grpc.limits import Limits, Timeouts
from securefed.transport.identity import Identity, Peer
from securefed.transport.message import Message, TransportError

__all__ = ["Line", "Sender"]

FIRST_DELAY, LONGEST_DELAY = 0.1, 5.0


class Line:
    """A channel to a peer; it outlives attempts.

    A connection can be dead without either end being told (a router forgot it, a cable was pulled). So a
    line on which nothing is answered and nothing moves for half of the patience is given up for a new one;
    what was under way on it fails and is tried again.
    """

    def __init__(self, name: str, peer: Peer, identity: Identity, limits: Limits, timeouts: Timeouts) -> None:
        self.name, self.address, self._limits, self._timeouts = name, peer.address, limits, timeouts
        self._credentials = grpc.ssl_channel_credentials(peer.anchor.pem, identity.key_pem(), identity.chain)
        certificate = peer.certificate
        # A pinned certificate is trusted as it is, whatever name it has; one from an authority has to be for
        # this peer.
        shown = name if certificate is None else next(iter(certificate.names), name)
        self._options = channel_options(limits.wire_bytes, shown)
        self._lock = threading.Lock()
        self._asking = threading.Lock()
        self._unanswered: float | None = None
        self._moved = 0.0
        self._warm = False
        self._connect()

    def _connect(self) -> None:
        self._channel = grpc.secure_channel(
            self.address, self._credentials, self._options, compression=grpc.Compression.NoCompression
        )
        self._greet = self._channel.unary_unary(GREET)
        self._post = self._channel.unary_unary(POST)
        self._deliver = self._channel.stream_unary(DELIVER)

    def close(self) -> None:
        self._channel.close()

    def greet(self, attempt: Attempt, timeout: float | None = None) -> bool:
        """Ask in the background; one question at a time. False if one is still open."""
        if not self._asking.acquire(blocking=False):
            return False
        known = attempt.others[self.name].session
        hello = attempt.hello(self.name)
        with self._lock:
            since = self._unanswered
            if since is not None and time.monotonic() - max(since, self._moved) > self._timeouts.patience / 2:
                self._unanswered = None
                self._channel.close()
                self._connect()
            begun = time.perf_counter()
            call = self._greet.future(codec.encode_hello(hello), timeout=timeout or self._timeouts.answer)

        def answered(done: Any) -> None:
            trip = time.perf_counter() - begun
            self._asking.release()
            self._answered(attempt, known, trip, done)

        call.add_done_callback(answered)
        return True

    @property
    def still_for(self) -> float:
        """Seconds since grpc last took a piece of a message to send."""
        return time.monotonic() - self._moved

    @property
    def asking(self) -> bool:
        return self._asking.locked()

    def _answered(self, attempt: Attempt, known: bytes, trip: float, call: Any) -> None:
        now = time.time()
        try:
            hello = codec.decode_hello(call.result())
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED and self._unanswered is None:
                self._unanswered = time.monotonic() - trip
            self._failed(attempt, translate(error, self.name, self.address))
        except grpc.FutureCancelledError:
            self._failed(attempt, "the call was cancelled")
        except Malformed as error:
            attempt.fail(Malformed(f"{self.name} answered with {error}"))
        else:
            self._unanswered = None
            if hello.sender != self.name:
                attempt.fail(Malformed(f"{self.name} answered with the name {hello.sender!r}"))
                return
            attempt.measured(self.name, trip, hello.clock, now, warm=self._warm)
            self._warm = True
            attempt.hear(hello, known)
            with attempt.changed:
                attempt.changed.notify_all()

    def _failed(self, attempt: Attempt, found: TransportError | str) -> None:
        self._warm = False
        with attempt.changed:
            # At the start a wrong certificate is a wrong setting; later it may pass, as a lost peer may.
            if isinstance(found, PeerRefused) or (
                isinstance(found, WrongCertificate) and attempt.state == GREETING
            ):
                attempt.fail(found)
            else:
                attempt.others[self.name].trouble = str(found)
                attempt.changed.notify_all()

    def deliver(self, envelope: Envelope, payload: bytes, waited: Callable[[], float]) -> Any:
        """Begin to send one message; the call's result is its receipt. `waited` says how long it has been
        waiting so far, which is communication too.

        What fits into one piece goes as one, because a stream costs several times as much: a thread at this
        end, and a turn for every piece at both.
        """
        with self._lock:
            if len(payload) <= self._limits.chunk_bytes:
                self._moved = time.monotonic()
                return self._post.future(codec.encode_letter(_departing(envelope, waited), payload))
            return self._deliver.future(self._pieces(envelope, payload, waited))

    def _pieces(self, envelope: Envelope, payload: bytes, waited: Callable[[], float]) -> Iterator[bytes]:
        # The envelope travels alone, so that the receiver's measurement begins before the payload.
        yield codec.encode_envelope(_departing(envelope, waited))
        view, size = memoryview(payload), self._limits.chunk_bytes
        for start in range(0, len(payload), size):
            self._moved = time.monotonic()
            yield codec.encode_data(bytes(view[start : start + size]))


def _departing(envelope: Envelope, waited: Callable[[], float]) -> Envelope:
    return replace(envelope, departure=envelope.departure.travel(waited()))


@dataclass(frozen=True)
class Outgoing:
    message: Message
    era: int
    posted: float


class Sender:
    """What one attempt has to send to one peer, in order, in a thread of its own.

    The clock: a message departs at its sender's path, or when the one before it was through, whichever is
    later; the link is taken until the receipt is back. `busy` holds that path for each era (the training, or
    an evaluation off the clock).
    """

    def __init__(self, line: Line, attempt: Attempt, limits: Limits, timeouts: Timeouts) -> None:
        self._line, self._attempt, self._limits, self._timeouts = line, attempt, limits, timeouts
        self._queue: deque[Outgoing] = deque()
        self._bytes = 0
        self._closing = False
        self._busy: dict[int, Path] = {}
        self._free = 0.0
        self._thread = threading.Thread(target=self._run, name=f"securefed-to-{line.name}", daemon=True)
        self._thread.start()

    def has_room(self, size: int) -> bool:
        with self._attempt.changed:
            few = len(self._queue) < self._limits.queued_messages
            return not self._queue or (few and self._bytes + size <= self._limits.queued_bytes)

    def put(self, message: Message, era: int) -> None:
        with self._attempt.changed:
            self._queue.append(Outgoing(message, era, time.perf_counter()))
            self._bytes += message.size
            self._attempt.changed.notify_all()

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
            self._attempt.changed.notify_all()
        self._thread.join()

    @property
    def _stopped(self) -> bool:
        return self._closing or self._attempt.over

    def _run(self) -> None:
        changed = self._attempt.changed
        while True:
            with changed:
                changed.wait_for(lambda: self._queue or self._stopped)
                if self._stopped:
                    return
                item = self._queue[0]
            delivered = self._deliver(item)
            with changed:
                if not delivered:
                    return
                self._queue.popleft()
                self._bytes -= item.message.size
                changed.notify_all()

    def _deliver(self, item: Outgoing) -> bool:
        """Send one message, again and again if need be; False if the attempt is over."""
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
            return time.perf_counter() - begun

        while not self._stopped:
            trouble = self._try(envelope, message.payload, waited)
            if trouble is None:
                self._free = time.perf_counter()
                with attempt.changed:
                    self._busy[item.era] = start.travel(self._free - begun)
                return True
            failing = failing or time.monotonic()
            with attempt.changed:
                other.trouble = trouble
                if time.monotonic() - failing > self._timeouts.patience:
                    attempt.lose(self._line.name, time.monotonic() - failing)
                # Not all parties at the same moment.
                jitter = 1 + secrets.randbelow(500) / 1000
                attempt.changed.wait_for(lambda: self._stopped, timeout=delay * jitter)
            delay = min(2 * delay, LONGEST_DELAY)
        return False

    def _try(self, envelope: Envelope, payload: bytes, waited: Callable[[], float]) -> str | None:
        """One try: None if there is a receipt, else what was wrong. What no try can mend ends the attempt."""
        attempt, name = self._attempt, self._line.name
        call = self._line.deliver(envelope, payload, waited)

        def wake(_: Any) -> None:
            with attempt.changed:
                attempt.changed.notify_all()

        call.add_done_callback(wake)
        while not (call.done() or self._stopped):
            with attempt.changed:
                attempt.changed.wait_for(lambda: call.done() or self._stopped, self._timeouts.beat)
            if not call.done() and self._line.still_for > self._timeouts.beat:
                self._line.greet(attempt)  # on this very connection: is it still one?
        if not call.done():
            call.cancel()
            return "the attempt is over"
        try:
            sequence, _ = codec.decode_receipt(call.result())
        except grpc.FutureCancelledError:
            return "the call was cancelled"
        except grpc.RpcError as error:
            found = translate(error, name, self._line.address)
            if isinstance(found, PeerRefused) and found.reason == "OtherAttempt":
                attempt.fail(PeerRestarted(name, f"{name} is in another attempt at the run"))
            elif isinstance(found, PeerRefused):
                attempt.fail(found)
            return str(found)
        except Malformed as error:
            attempt.fail(Malformed(f"{name} answered with {error}"))
            return str(error)
        if sequence != envelope.sequence:
            text = f"{name} sent a receipt for message {sequence}, message {envelope.sequence} was sent"
            attempt.fail(Malformed(text))
            return text
        attempt.sign_of_life(name)
        return None
