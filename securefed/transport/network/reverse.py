"""Connections to a party that listens on nothing: it opens them itself, and its peers call it on them.

A party behind a firewall calls each peer (`REVERSE`) on the peer's public port. When the peer has agreed, the
two change sides: the peer asks, and the party that opened the connection answers. TLS has shown each end the
other's certificate, so nothing else differs from a connection in the other direction.

One connection waits for use, the *spare*. A used spare is followed by the next one. A spare that is not used
is replaced after a few beats, because a router may have forgotten it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from securefed.transport.message import PeerRefused, TransportError
from securefed.transport.network.calls import (
    REVERSE,
    CallChannel,
    CallFailed,
    Connect,
    Connection,
    Handler,
    serve,
)
from securefed.transport.network.host import Host

SPARE_BEATS = 4
"""How long a spare waits, in beats."""
MOST_OPEN = 6
"""Connections to one peer: two in use, two that are being replaced, a spare and the next one."""


class Spare:
    """The newest connection of a party that listens on nothing, at a peer that calls it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._connection: Connection | None = None

    def put(self, connection: Connection | None) -> None:
        """Keep this one. The one before ends: it may be dead without notice."""
        with self._changed:
            before, self._connection = self._connection, connection
            self._changed.notify_all()
        if before is not None:
            before.end()

    def take(self, seconds: float) -> Connection:
        with self._changed:
            self._changed.wait_for(lambda: self._connection is not None, seconds)
            connection, self._connection = self._connection, None
        if connection is None:
            raise CallFailed("it is not connected to this party")
        return connection


class Outbound:
    """A party that listens on nothing keeps a spare open at one peer, and answers calls on it."""

    def __init__(
        self,
        name: str,
        connect: Connect,
        handle: Handler,
        failed: Callable[[TransportError], None],
        host: Host,
    ) -> None:
        self._name, self._connect, self._handle = name, connect, handle
        self._timeouts, self._host, self._failed, self._refused = host.timeouts, host, failed, False
        self._changed = threading.Condition()
        self._open: set[CallChannel] = set()
        self._spare: CallChannel | None = None
        self._used = False
        """The last spare was used, so that the next one is needed at once."""
        self._closing = False
        self._thread = host.start(self._keep, f"securefed-outbound-{name}")

    def _keep(self) -> None:
        """Open one spare after the other. Where too many are open, wait for the end of one."""
        while not self._closing:
            full = len(self._open) >= MOST_OPEN
            if not full:
                self._begin(CallChannel(self._name, self._connect))
            with self._changed:
                if not full:
                    seconds = SPARE_BEATS * self._timeouts.beat
                    self._changed.wait_for(lambda: self._spare is None or self._closing, seconds)
                if full or (self._spare is None and not self._used):  # the peer may be away
                    self._changed.wait_for(lambda: self._closing, self._timeouts.beat)

    def _begin(self, channel: CallChannel) -> None:
        with self._changed:
            self._spare, self._used = channel, False
            self._open.add(channel)
        try:
            self._host.start(lambda: self._serve(channel), f"securefed-outbound-{self._name}")
        except TransportError as error:
            self._end(channel)
            self._failed(error)

    def _serve(self, channel: CallChannel) -> None:
        def handle(what: int, question: bytearray, connection: Connection, since: float) -> bytes:
            self._leave_spare(channel, used=True)
            return self._handle(what, question, connection, since)

        try:
            channel.call(REVERSE, seconds=self._timeouts.answer, is_cancelled=lambda: self._closing)
            if (connection := channel.connection) is not None:
                serve(
                    connection,
                    handle,
                    most=self._host.limits.wire_bytes,
                    patience=self._timeouts.patience,
                    goes_on=lambda: not self._closing,
                )
        except PeerRefused as error:
            if not self._refused:
                self._refused = True
                self._host.log.warning("%s", error)
        except (CallFailed, TransportError):
            pass  # it shows in greetings to the same address
        finally:
            self._end(channel)

    def _end(self, channel: CallChannel) -> None:
        channel.close()
        with self._changed:
            self._open.discard(channel)
        self._leave_spare(channel, used=False)

    def _leave_spare(self, channel: CallChannel, *, used: bool) -> None:
        with self._changed:
            if self._spare is channel:
                self._spare, self._used = None, used
                self._changed.notify_all()

    def renew(self) -> None:
        """End the connections. New ones are opened at once."""
        with self._changed:
            channels = tuple(self._open)
        for channel in channels:
            channel.drop()

    def close(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self.renew()
        self._thread.join()
