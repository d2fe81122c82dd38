"""The public port: who connects, how many, for how long, and a line in the log for everybody who is refused.

grpc does the TLS handshake itself and tells nobody when it fails. So the port that the world sees is this
one: each connection is passed on, unopened, to grpc's own server on a loopback port, where TLS ends. The
bytes stay encrypted here, and on Linux they are spliced and never enter Python. What a caller has shown in
its handshake is known when its first call arrives (`admit`); a connection that ends, or gets too old, without
one was refused, and is logged once with its address.

A newcomer never waits for callers that say nothing: where they are too many, from one address or in all, the
one that has had the longest time goes, first of those from the address that has most. Who opens connections
and leaves them idle so keeps out itself. Flooding from very many addresses still slows peers down, who try
again.

A fork (a pool of worker processes) closes the sockets in the child, so that a worker that outlives a killed
party does not hold its port.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import socket
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_network

from securefed.transport.network.errors import AddressError

__all__ = ["Doorman"]

PIPE_BYTES = 1 << 20
LINES_A_MINUTE = 60

_OPEN: weakref.WeakSet[Doorman] = weakref.WeakSet()


class Connection:
    """One caller: the socket towards it and the one towards grpc."""

    def __init__(self, outer: socket.socket, inner: socket.socket, remote: str) -> None:
        self.outer, self.inner, self.remote = outer, inner, remote
        self.origin = _origin(remote)
        self.port = int(inner.getsockname()[1])
        self.begun = time.monotonic()
        self.admitted = False
        self.greets = False
        self.carrier = ""
        """The party that sends messages on it; greetings have connections of their own."""
        self.logged = False
        self.ended = False
        self.pumps = 2

    def end(self) -> None:
        self.ended = True
        for end in (self.outer, self.inner):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


class Doorman:
    """Listens at `host`:`port` (0: any free one) and passes on to 127.0.0.1:`inner_port`."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        callers: int,
        callers_per_address: int,
        connections: int,
        handshake: float,
        log: logging.Logger,
    ) -> None:
        self._callers, self._each, self._most = callers, callers_per_address, connections
        self._handshake, self._log = handshake, log
        self._lock = threading.Lock()
        self._connections: dict[int, Connection] = {}
        self._closing = threading.Event()
        self._lines: list[float] = []
        self._unsaid = 0
        self._inner_port = 0
        self._arrived: dict[str, tuple[int, float]] = {}
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._listener = socket.create_server((host, port), family=family, backlog=64)
        except OSError as error:
            word = (
                "is in use"
                if error.errno == errno.EADDRINUSE
                else f"cannot be used: {error.strerror or error}"
            )
            raise AddressError(f"listen: {host}:{port} {word}") from None
        self._listener.settimeout(0.2)
        self.port = int(self._listener.getsockname()[1])
        self._thread = threading.Thread(target=self._accept, name="securefed-door", daemon=True)
        _OPEN.add(self)

    def open(self, inner_port: int) -> None:
        self._inner_port = inner_port
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        if self._thread.ident is not None:
            self._thread.join()
        self._listener.close()
        with self._lock:
            left = list(self._connections.values())
        for connection in left:
            connection.end()
        _OPEN.discard(self)

    # What the calls tell us. `peer` is grpc's name of the inner connection, "ipv4:127.0.0.1:PORT".

    def admit(self, peer: str) -> None:
        """This caller has shown a certificate that is known here."""
        if (connection := self._find(peer)) is not None:
            connection.admitted = True

    def carries(self, peer: str, name: str) -> None:
        """This connection is one on which the party of that name sends messages, and nothing else."""
        if (connection := self._find(peer)) is not None and not connection.greets:
            connection.carrier = name

    def greets(self, peer: str) -> None:
        """A greeting came on this connection: its bytes say nothing of messages."""
        if (connection := self._find(peer)) is not None:
            connection.greets, connection.carrier = True, ""

    def arrived(self, name: str) -> tuple[int, float]:
        """How many bytes have come on such connections, and when the last did: that a large message moves on
        a slow line is seen here first.
        """
        with self._lock:
            return self._arrived.get(name, (0, 0.0))

    def refuse(self, peer: str, why: str) -> None:
        """Log that this caller gets nothing, once for each connection."""
        connection = self._find(peer)
        if connection is None:
            self._say(f"refused {peer}: {why}")
        elif not connection.logged:
            connection.logged = True
            self._say(f"refused {connection.remote}: {why}")

    def remote(self, peer: str) -> str:
        connection = self._find(peer)
        return peer if connection is None else connection.remote

    def _find(self, peer: str) -> Connection | None:
        port = peer.rpartition(":")[2]
        with self._lock:
            return self._connections.get(int(port)) if port.isdigit() else None

    def _say(self, line: str) -> None:
        """A flood of callers must not become a flood of lines."""
        now = time.monotonic()
        with self._lock:
            self._lines = [moment for moment in self._lines if now - moment < 60.0]
            if len(self._lines) >= LINES_A_MINUTE:
                self._unsaid += 1
                return
            self._lines.append(now)
            unsaid, self._unsaid = self._unsaid, 0
        self._log.warning("%s%s", line, f" ({unsaid} more were refused before)" if unsaid else "")

    def _accept(self) -> None:
        while not self._closing.is_set():
            self._send_away_the_slow()
            try:
                outer, address = self._listener.accept()
            except TimeoutError:
                continue
            except OSError as error:
                # Out of descriptors, or the caller is gone already. Neither is a reason to close the door.
                if self._closing.is_set():
                    return
                self._log.warning("a caller could not be let in: %s", error.strerror)
                time.sleep(0.1)
                continue
            self._receive(outer, f"{address[0]}:{address[1]}")

    def _send_away_the_slow(self) -> None:
        now = time.monotonic()
        with self._lock:
            slow = [
                c for c in self._connections.values() if not c.admitted and now - c.begun > self._handshake
            ]
        for connection in slow:
            if not connection.logged:
                connection.logged = True
                self._say(f"refused {connection.remote}: it did not show who it is in {self._handshake:g} s")
            connection.end()

    def _receive(self, outer: socket.socket, remote: str) -> None:
        with self._lock:
            known = list(self._connections.values())
        if len(known) >= 2 * self._callers + self._most:  # those that were sent away are not gone yet
            outer.close()
            self._say(f"refused {remote}: too many connections")
            return
        waiting = [c for c in known if not (c.admitted or c.ended)]
        for connection in _crowding(waiting, _origin(remote), self._callers, self._each):
            if not connection.logged:
                connection.logged = True
                self._say(f"refused {connection.remote}: it did not show who it is, and others wait")
            connection.end()
        try:
            inner = socket.create_connection(("127.0.0.1", self._inner_port), timeout=5.0)
        except OSError:
            outer.close()
            return
        inner.settimeout(None)
        outer.setblocking(True)
        with suppress(OSError):  # the caller may be gone already, and is noticed below
            outer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for end in (outer, inner):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = Connection(outer, inner, remote)
        with self._lock:
            self._connections[connection.port] = connection
        for source, target in ((outer, inner), (inner, outer)):
            threading.Thread(
                target=self._pump, args=(connection, source, target), name="securefed-pump", daemon=True
            ).start()

    def _pump(self, connection: Connection, source: socket.socket, target: socket.socket) -> None:
        incoming = source is connection.outer

        def count(size: int) -> None:
            if incoming and connection.carrier:
                with self._lock:
                    before = self._arrived.get(connection.carrier, (0, 0.0))[0]
                    self._arrived[connection.carrier] = (before + size, time.monotonic())

        with suppress(OSError):  # either end may vanish at any time; grpc and the peer notice themselves
            _carry(source, target, count)
        # HTTP/2 has no use for a connection that is closed on one side.
        connection.end()
        with self._lock:
            connection.pumps -= 1
            last = connection.pumps == 0
            if last:
                self._connections.pop(connection.port, None)
        if last:
            connection.outer.close()
            connection.inner.close()
            if not (connection.admitted or connection.logged or self._closing.is_set()):
                self._say(
                    f"refused {connection.remote}: no TLS 1.3 handshake with a certificate that is "
                    "known here and valid"
                )

    def _close_in_child(self) -> None:
        """After a fork, without locks: a thread that held one does not exist here."""
        for end in (
            self._listener,
            *(s for c in list(self._connections.values()) for s in (c.outer, c.inner)),
        ):
            with suppress(OSError):
                end.close()


def _origin(remote: str) -> str:
    """Who a HOST:PORT is counted as: an IPv4 address, or the 64 bits of an IPv6 network."""
    host = remote.rpartition(":")[0]
    return str(ip_network(f"{host.partition('%')[0]}/64", strict=False)) if ":" in host else host


def _crowding(waiting: list[Connection], newcomer: str, callers: int, each: int) -> list[Connection]:
    """Who has to go for one more from there, of those that have not shown who they are; at most one."""
    crowd = Counter(c.origin for c in waiting)
    if crowd[newcomer] >= each:
        return [min((c for c in waiting if c.origin == newcomer), key=lambda c: c.begun)]
    if len(waiting) >= callers:
        return [min(waiting, key=lambda c: (-crowd[c.origin], c.begun))]
    return []


def _carry(source: socket.socket, target: socket.socket, tell: Callable[[int], None]) -> None:
    """Pass on everything until the end, and tell of each piece."""
    if not hasattr(os, "splice"):
        buffer = memoryview(bytearray(1 << 18))
        while count := source.recv_into(buffer):
            tell(count)
            target.sendall(buffer[:count])
        return
    reading, writing = os.pipe()
    try:
        with suppress(OSError):  # a larger pipe is faster, and a small one works
            fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        while count := os.splice(source.fileno(), writing, PIPE_BYTES):
            tell(count)
            while count:
                count -= os.splice(reading, target.fileno(), count)
    finally:
        os.close(reading)
        os.close(writing)


def _close_all_in_child() -> None:
    for doorman in list(_OPEN):
        doorman._close_in_child()


os.register_at_fork(after_in_child=_close_all_in_child)
