"""The outgoing channels to one peer. Both trust only that peer's certificate.

Greetings have a connection of their own. On a slow line a large message fills its connection for minutes. A
question behind it would not show whether the peer is there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from securefed.transport.identity import Identity, Peer
from securefed.transport.message import TransportError
from securefed.transport.network import codec
from securefed.transport.network.attempt import Attempt
from securefed.transport.network.codec import GREETING, Envelope
from securefed.transport.network.core import DELIVER, GREET, POST, channel_options, grpc, translate
from securefed.transport.network.errors import Malformed, OtherRelease, PeerRefused, WrongCertificate
from securefed.transport.network.host import Host
from securefed.transport.network.limits import Limits, Timeouts
from securefed.transport.network.tunnel import TunnelPort

__all__ = ["Connect", "Line", "connector"]

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
            self._answered(attempt, known, self._host.now() - now, done)

        # Without the lock: what they end calls `answered` of an earlier question, which takes it.
        if before is not None:
            before.call.cancel()
        if old is not None:
            old.close()
        call.add_done_callback(answered)
        return True

    @property
    def asking(self) -> bool:
        return self._question is not None

    def _leave_unanswered(self, since: float) -> None:
        if self._unanswered is None:
            self._unanswered = since

    def _answered(self, attempt: Attempt, known: bytes, trip: float, call: Any) -> None:
        try:
            hello = codec.decode_hello(call.result())
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                self._leave_unanswered(self._host.now() - trip)
            self._failed(attempt, translate(error, self.name, self.address))
        except grpc.FutureCancelledError:
            self._failed(attempt, "the call was cancelled")
        except Malformed as error:
            attempt.fail(type(error)(f"{self.name} answered with {error}"))
        else:
            self._unanswered = None
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
