"""Answers to the calls of peers. Each runs in a thread of its connection.

The connection's certificate says who calls (`Connection.party`), never the call's contents. A call with
another name is refused and logged. A message comes in pieces (`POST`). Each has the envelope, which is
checked against the attempt first. By then this piece is in memory, and nothing else of the message. An
illegal message ends the attempt with the error that names it, here and, by the refusal, at the sender.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import NoReturn

from securefed.transport.identity import Peer
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
from securefed.transport.network.calls import GREET, POST, REVERSE, Connection, Later, Refusal
from securefed.transport.network.codec import GREETING, Envelope, PieceReceipt
from securefed.transport.network.host import FewLines, Host

# Not part of this attempt, so no reason to end it; everything else that is illegal is.
STRAY = (WrongRun, OtherAttempt, Repeated)


class Reception:
    """The answers of one party. `register` finds the attempt of a call."""

    def __init__(self, register: Register, peers: Mapping[str, Peer], host: Host) -> None:
        self.name, self.register = register.name, register
        self._peers, self._log, self._host = peers, FewLines(host.log), host

    def answer(self, what: int, question: bytearray, connection: Connection, since: float) -> bytes:
        """Return the answer, or raise Refusal or Later. The question began to arrive at `since`."""
        if what == GREET:
            return self.greet(question, connection)
        if what == POST:
            return self.post(question, connection, since=since)
        if what == REVERSE:
            return self.reverse(connection)
        text = f"{connection.party} sent what is not a call; all parties need the same release of securefed"
        self._refuse(connection, Malformed(text))

    def greet(self, data: bytes | bytearray, connection: Connection) -> bytes:
        caller = connection.party
        try:
            hello = codec.decode_hello(data)
        except Malformed as error:
            named = type(error)(f"{caller} sent {error}")
            attempt = self.register.attempt
            if isinstance(error, OtherRelease) and attempt is not None and attempt.state == GREETING:
                attempt.fail(named)
            self._refuse(connection, named)
        self._check_claim(connection, hello.sender)
        if hello.receiver != self.name:
            wrong = WrongSender(f"this is {self.name}, the greeting is for {hello.receiver!r}")
            self._refuse(connection, wrong)
        return codec.encode_hello(self.register.answer(hello))

    def reverse(self, connection: Connection) -> bytes:
        """Take a connection for calls to its caller, which listens on nothing."""
        caller = connection.party
        if self._peers[caller].listens:
            text = f'{caller} listens on nothing; its address at {self.name} has to be "none"'
            self._refuse(connection, SettingsDiffer(text))
        return b""

    def post(self, data: bytes | bytearray, connection: Connection, *, since: float) -> bytes:
        """Receive a piece of a message."""
        caller, attempt, lost = connection.party, self.register.attempt, self._host.now() - since
        try:
            try:
                envelope, piece = codec.decode_letter(data)
            except Malformed as error:
                raise Malformed(f"{caller} sent {error}") from None
            self._check_claim(connection, envelope.sender)
            if attempt is None:
                raise Later(f"{self.name} is in no run")
            with attempt.changed:
                return codec.encode_receipt(self._take_piece(piece, attempt, caller, envelope, lost))
        except STRAY as error:
            self._refuse(connection, error)
        except IllegalMessage as error:
            if attempt is not None:
                attempt.refuse(caller, error)
            self._refuse(connection, error)

    def _take_piece(
        self, piece: memoryview, attempt: Attempt, caller: str, envelope: Envelope, lost: float
    ) -> PieceReceipt:
        changed, other = attempt.changed, attempt.others[caller]
        inbox, sequence = other.inbox, envelope.sequence
        # The sender may have learned a moment before us that all are here.
        changed.wait_for(lambda: attempt.state != GREETING or attempt.over, self._host.timeouts.answer)
        if attempt.state == GREETING or attempt.over:
            raise Later(f"{self.name} has not begun")
        attempt.admit(caller, envelope)
        if not inbox.expects(envelope):
            return PieceReceipt(sequence, envelope.size, room=True)
        parcel = inbox.begin(envelope)

        def ready() -> bool:
            has_room = parcel.begun is not None or inbox.has_room(envelope.size)
            return attempt.is_bounded(envelope.kind) and has_room

        changed.wait_for(
            lambda: ready() or attempt.over or inbox.current is not parcel, self._host.timeouts.beat
        )
        if attempt.over:
            raise Later(f"{self.name} has left the run")
        if inbox.current is not parcel:  # another try of this piece completed it
            return PieceReceipt(sequence, envelope.size, room=True)
        if not ready():
            return PieceReceipt(sequence, parcel.size, room=False)
        attempt.admit(caller, envelope)  # once more: its size may be bounded by now
        parcel.moved = self._host.now()
        parcel.begun = parcel.moved - lost if parcel.begun is None else parcel.begun
        parcel.add(envelope.offset, piece)
        attempt.sign_of_life(caller)
        if parcel.size == envelope.size:
            arrival = parcel.envelope.departure.travel(other.latency + parcel.moved - parcel.begun)
            inbox.put(envelope, envelope.message(parcel.payload(), arrival), parcel.moved)
            changed.notify_all()
        return PieceReceipt(sequence, parcel.size, room=True)

    def _check_claim(self, connection: Connection, claimed: str) -> None:
        if claimed != connection.party:
            text = f"the certificate of {connection.party!r} came with the name {claimed!r}"
            self._refuse(connection, WrongSender(text))

    def _refuse(self, connection: Connection, error: TransportError) -> NoReturn:
        # What belongs to an attempt that is over comes late, from honest peers that reconnect.
        level = logging.INFO if isinstance(error, STRAY) else logging.WARNING
        refusal = Refusal(error)
        self._log.log(level, "refused a call of %s from %s: %s", connection.party, connection.remote, refusal)
        raise refusal
