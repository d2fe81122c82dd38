"""Handlers of incoming calls. Each runs in a thread of grpc's server.

The connection's certificate identifies the caller, never the call's contents. TLS admits only certificates
that are pinned here or issued by a peer's authority. Every call first looks up its certificate's party. A
call with another name is refused and logged. A message comes in pieces (`Post`). Each has the envelope, which
is checked against the attempt first. By then grpc has this piece in memory, and nothing else of the message.
An illegal message ends the attempt with the error that names it, here and, by the refusal, at the sender.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NoReturn

from securefed.errors import plain_text
from securefed.transport.identity import Certificate, Peer
from securefed.transport.message import (
    IllegalMessage,
    Malformed,
    OtherAttempt,
    OtherRelease,
    Repeated,
    SettingsDiffer,
    TransportError,
    WrongRun,
    WrongSender,
)
from securefed.transport.network import codec
from securefed.transport.network.attempt import Attempt, Register
from securefed.transport.network.codec import GREETING, Envelope, PieceReceipt
from securefed.transport.network.core import ERROR_KEY, grpc
from securefed.transport.network.host import Host, Timeouts
from securefed.transport.network.tls_proxy import TlsProxy
from securefed.transport.network.tunnel import MOST_TUNNELS, TunnelPort

DELIVERIES = 2
"""Open calls with a piece of one peer: one, and a retry of it."""

# Not part of this attempt, so no reason to end it; everything else that is illegal is.
STRAY = (WrongRun, OtherAttempt, Repeated)


class Reception:
    """The calls of one party's server. `register` finds their attempt."""

    def __init__(
        self,
        register: Register,
        peers: Mapping[str, Peer],
        door: TlsProxy,
        timeouts: Timeouts,
        log: logging.Logger,
        host: Host,
        tunnels: Mapping[str, TunnelPort] = MappingProxyType({}),
    ) -> None:
        self.name, self.register, self.timeouts = register.name, register, timeouts
        self._peers, self._door, self._log, self._host = peers, door, log, host
        self._tunnels = tunnels
        self._shown: dict[bytes, str] = {}
        self._lock = threading.Lock()
        self._deliveries = dict.fromkeys(peers, 0)

    def greet(self, data: bytes, context: Any) -> bytes:
        caller = self._caller(context)
        try:
            hello = codec.decode_hello(data)
        except Malformed as error:
            named = type(error)(f"{caller} sent {error}")
            attempt = self.register.attempt
            if isinstance(error, OtherRelease) and attempt is not None and attempt.state == GREETING:
                attempt.fail(named)
            self._refuse(context, caller, grpc.StatusCode.INVALID_ARGUMENT, named)
        self._check_claim(context, caller, hello.sender)
        if hello.receiver != self.name:
            wrong = WrongSender(f"this is {self.name}, the greeting is for {hello.receiver!r}")
            self._refuse(context, caller, grpc.StatusCode.FAILED_PRECONDITION, wrong)
        return codec.encode_hello(self.register.answer(hello))

    def tunnel(self, frames: Iterator[bytes], context: Any) -> Iterator[bytes]:
        """Carry a connection to a caller that listens on nothing."""
        caller = self._caller(context)
        port = self._tunnels.get(caller)
        if port is None:
            text = f'{caller} listens on nothing; its address at {self.name} has to be "none"'
            self._refuse(context, caller, grpc.StatusCode.FAILED_PRECONDITION, SettingsDiffer(text))
        if port.open >= MOST_TUNNELS:
            _abort(context, grpc.StatusCode.RESOURCE_EXHAUSTED, f"{caller} opens too many tunnels")
        yield from port.carry(frames, context.is_active)

    def post(self, data: bytes, context: Any, *, since: float) -> bytes:
        """Receive a piece of a message. Its call began at `since`, before all of it arrived."""
        lost = self._host.now() - since
        caller = self._caller(context)
        with self._lock:
            self._deliveries[caller] += 1
            open_ones = self._deliveries[caller]
        try:
            if open_ones > DELIVERIES:
                # Without a name, so that a sender whose earlier tries have not ended here comes again.
                _abort(context, grpc.StatusCode.RESOURCE_EXHAUSTED, f"{caller} delivers too much at once")
            return self._take_in(data, context, caller, lost)
        finally:
            with self._lock:
                self._deliveries[caller] -= 1

    def _take_in(self, data: bytes, context: Any, caller: str, lost: float) -> bytes:
        attempt = self.register.attempt
        try:
            try:
                envelope, piece = codec.decode_letter(data)
            except Malformed as error:
                raise Malformed(f"{caller} sent {error}") from None
            self._check_claim(context, caller, envelope.sender)
            if attempt is None:
                _abort(context, grpc.StatusCode.UNAVAILABLE, f"{self.name} is in no run")
            with attempt.changed:
                return codec.encode_receipt(self._take_piece(piece, context, attempt, caller, envelope, lost))
        except STRAY as error:
            self._refuse(context, caller, grpc.StatusCode.ABORTED, error)
        except IllegalMessage as error:
            # When the refusal is out: an attempt that is over takes the connection with it.
            if attempt is not None and not context.add_callback(partial(attempt.refuse, caller, error)):
                attempt.refuse(caller, error)
            self._refuse(context, caller, grpc.StatusCode.FAILED_PRECONDITION, error)

    def _take_piece(
        self, piece: memoryview, context: Any, attempt: Attempt, caller: str, envelope: Envelope, lost: float
    ) -> PieceReceipt:
        changed, other = attempt.changed, attempt.others[caller]
        inbox, sequence = other.inbox, envelope.sequence
        # The sender may have learned a moment before us that all are here.
        changed.wait_for(lambda: attempt.state != GREETING or attempt.over, self.timeouts.answer)
        if attempt.state == GREETING or attempt.over:
            _abort(context, grpc.StatusCode.UNAVAILABLE, f"{self.name} has not begun")
        attempt.admit(caller, envelope)
        if not inbox.expects(envelope):
            return PieceReceipt(sequence, envelope.size, room=True)
        parcel = inbox.begin(envelope)

        def ready() -> bool:
            has_room = parcel.begun is not None or inbox.has_room(envelope.size)
            return attempt.is_bounded(envelope.kind) and has_room

        changed.wait_for(lambda: ready() or attempt.over or inbox.current is not parcel, self.timeouts.beat)
        if attempt.over:
            _abort(context, grpc.StatusCode.UNAVAILABLE, f"{self.name} has left the run")
        if inbox.current is not parcel:  # another try of this piece completed it
            return PieceReceipt(sequence, envelope.size, room=True)
        if not ready():
            return PieceReceipt(sequence, parcel.size, room=False)
        attempt.check_size(caller, envelope)
        parcel.moved = self._host.now()
        parcel.begun = parcel.moved - lost if parcel.begun is None else parcel.begun
        parcel.add(envelope.offset, piece)
        attempt.sign_of_life(caller)
        if parcel.size == envelope.size:
            arrival = parcel.envelope.departure.travel(other.latency + parcel.moved - parcel.begun)
            inbox.put(envelope, envelope.message(parcel.payload(), arrival), parcel.moved)
            changed.notify_all()
        return PieceReceipt(sequence, parcel.size, room=True)

    def _caller(self, context: Any) -> str:
        """Return the party of this connection's certificate."""
        for pem in context.auth_context().get("x509_pem_cert", ()):
            if (known := self._shown.get(pem)) is not None:
                self._door.admit(context.peer())
                return known
            shown = Certificate.from_pem(pem)
            for name, peer in self._peers.items():
                if peer.speaks(name, shown):
                    self._door.admit(context.peer())
                    self._shown[pem] = name
                    return name
            self._door.refuse(context.peer(), f"the certificate of {shown.name!r} is not a peer's")
        _abort(context, grpc.StatusCode.UNAUTHENTICATED, "refused")

    def _check_claim(self, context: Any, caller: str, claimed: str) -> None:
        if claimed != caller:
            self._door.refuse(context.peer(), f"the certificate of {caller!r} came with the name {claimed!r}")
            _abort(context, grpc.StatusCode.PERMISSION_DENIED, "refused")

    def _refuse(self, context: Any, caller: str, code: Any, error: TransportError) -> NoReturn:
        # What belongs to an attempt that is over comes late, from honest peers that reconnect.
        level = logging.INFO if isinstance(error, STRAY) else logging.WARNING
        remote, text = self._door.remote(context.peer()), plain_text(error)
        self._log.log(level, "refused a call of %s from %s: %s", caller, remote, text)
        context.set_trailing_metadata(((ERROR_KEY, type(error).__name__),))
        _abort(context, code, text)


def _abort(context: Any, code: Any, text: str) -> NoReturn:
    """End a call with a status. grpc raises here; the line after it is for type checkers."""
    context.abort(code, text)
    raise TransportError(text)
