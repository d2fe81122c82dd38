"""The public port: limits on callers, and a log line for every refused one.

grpc does the TLS handshake itself and does not report failures. So the public port belongs to this proxy. It
passes each connection on, unopened, to grpc's own server on a loopback port, where TLS ends. The first call
of a connection shows what certificate its caller has (`admit`).

One thread serves all connections, so callers cannot use up this process's threads. A connection that is not
admitted ends in one of these ways:

    grpc's server ends it             refused: the handshake failed
    it takes too long, or crowds out  refused
    the caller ends it                an information, not a refusal: a port scan, a health probe of a load
                                      balancer, or a peer that reconnects or is killed; it was shown nothing

A newcomer never waits for silent callers. If there are too many, from one address or in all, the oldest one
goes, first from the address that has most. So a caller that leaves connections idle crowds out only itself.
Flooding from very many addresses still slows down peers, which retry.

A fork (a pool of worker processes) closes the sockets in the child. So a worker that outlives a killed party
does not block its port.
"""

from __future__ import annotations

import errno
import logging
import os
import selectors
import socket
import threading
import time
import weakref
from collections import Counter
from contextlib import suppress
from ipaddress import ip_network

from securefed.transport.message import AddressError
from securefed.transport.network.host import Host

BUFFER_BYTES = 1 << 20
LINES_A_MINUTE = 60
TICK = 0.2

_OPEN: weakref.WeakSet[TlsProxy] = weakref.WeakSet()


class Connection:
    """One caller: the socket towards it (outer) and the one towards grpc (inner)."""

    def __init__(self, outer: socket.socket, inner: socket.socket, remote: str) -> None:
        self.outer, self.inner, self.remote = outer, inner, remote
        self.origin = _origin(remote)
        self.port = int(inner.getsockname()[1])
        self.begun = time.monotonic()
        self.admitted = False
        self.logged = False
        self.ends = {outer: inner, inner: outer}
        self.unsent = {outer: b"", inner: b""}
        """Bytes for each end that it has not taken yet."""


class TlsProxy:
    """A listener at `host`:`port` (0: any free one) that passes on to 127.0.0.1:`inner_port`."""

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
        self._selector = selectors.DefaultSelector()
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._closing = threading.Event()
        self._lines: list[float] = []
        self._unsaid = 0
        self._inner_port = 0
        self._thread: threading.Thread | None = None
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._listener = socket.create_server((host, port), family=family, backlog=64)
        except OSError as error:
            self._selector.close()
            word = (
                "is in use"
                if error.errno == errno.EADDRINUSE
                else f"cannot be used: {error.strerror or error}"
            )
            raise AddressError(f"listen: {host}:{port} {word}") from None
        self._listener.setblocking(False)
        self.port = int(self._listener.getsockname()[1])
        _OPEN.add(self)

    def open(self, inner_port: int, host: Host) -> None:
        self._inner_port = inner_port
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._thread = host.start(self._serve, "securefed-door")

    def close(self) -> None:
        self._closing.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        if self._thread is not None:
            self._thread.join()
        self._listener.close()
        for connection in list(self._connections.values()):
            self._end(connection)
        self._selector.close()
        _OPEN.discard(self)

    # What the calls tell us. `peer` is grpc's name of the inner connection, "ipv4:127.0.0.1:PORT".

    def admit(self, peer: str) -> None:
        """Record that this caller showed a known certificate."""
        if (connection := self._find(peer)) is not None:
            connection.admitted = True

    def refuse(self, peer: str, why: str) -> None:
        """Log that this caller is refused, once for each connection."""
        connection = self._find(peer)
        if connection is None:
            self._say(f"refused {peer}: {why}")
        else:
            self._refuse(connection, why)

    def remote(self, peer: str) -> str:
        connection = self._find(peer)
        return peer if connection is None else connection.remote

    def _find(self, peer: str) -> Connection | None:
        port = peer.rpartition(":")[2]
        with self._lock:
            return self._connections.get(int(port)) if port.isdigit() else None

    def _refuse(self, connection: Connection, why: str) -> None:
        if not connection.logged:
            connection.logged = True
            self._say(f"refused {connection.remote}: {why}")

    def _say(self, line: str) -> None:
        """Log a warning. A flood of callers does not become a flood of lines."""
        now = time.monotonic()
        with self._lock:
            self._lines = [moment for moment in self._lines if now - moment < 60.0]
            if len(self._lines) >= LINES_A_MINUTE:
                self._unsaid += 1
                return
            self._lines.append(now)
            unsaid, self._unsaid = self._unsaid, 0
        self._log.warning("%s%s", line, f" ({unsaid} more were refused before)" if unsaid else "")

    # The thread.

    def _serve(self) -> None:
        while not self._closing.is_set():
            for key, ready in self._selector.select(TICK):
                if key.data is None:
                    self._accept()
                elif key.data.port in self._connections:  # it may have ended a moment ago
                    self._move(key.data, key.fileobj, ready)  # type: ignore[arg-type]
            self._send_away_the_slow()

    def _accept(self) -> None:
        try:
            outer, address = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as error:
            # Out of descriptors, or the caller is gone already. Neither is a reason to close the door.
            if not self._closing.is_set():
                self._log.warning("a caller could not be let in: %s", error.strerror)
                self._closing.wait(0.1)
            return
        self._receive(outer, f"{address[0]}:{address[1]}")

    def _send_away_the_slow(self) -> None:
        now = time.monotonic()
        for connection in list(self._connections.values()):
            if not connection.admitted and now - connection.begun > self._handshake:
                self._refuse(connection, f"it did not show who it is in {self._handshake:g} s")
                self._end(connection)

    def _receive(self, outer: socket.socket, remote: str) -> None:
        known = list(self._connections.values())
        if len(known) >= self._callers + self._most:
            outer.close()
            self._say(f"refused {remote}: too many connections")
            return
        waiting = [c for c in known if not c.admitted]
        for connection in _crowding(waiting, _origin(remote), self._callers, self._each):
            self._refuse(connection, "it did not show who it is, and others wait")
            self._end(connection)
        try:
            inner = socket.create_connection(("127.0.0.1", self._inner_port), timeout=5.0)
        except OSError:
            outer.close()
            return
        with suppress(OSError):  # the caller may be gone already, and is noticed below
            outer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for end in (outer, inner):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = Connection(outer, inner, remote)
        with self._lock:
            self._connections[connection.port] = connection
        for end in (outer, inner):
            end.setblocking(False)
            self._selector.register(end, selectors.EVENT_READ, connection)

    def _move(self, connection: Connection, end: socket.socket, ready: int) -> None:
        """Pass on what one end of a connection is ready for."""
        other, unsent = connection.ends[end], connection.unsent
        try:
            if ready & selectors.EVENT_WRITE:
                unsent[end] = self._send(end, unsent[end])
            if ready & selectors.EVENT_READ:
                count = end.recv_into(self._buffer)
                if count == 0:
                    raise EOFError
                unsent[other] = self._send(other, self._buffer[:count])
        except BlockingIOError:
            return
        except (OSError, EOFError):
            self._over(connection, by_caller=end is connection.outer)
            return
        # An end whose bytes are still on their way to the other one is not read.
        self._watch(end, connection, read=not unsent[other], write=bool(unsent[end]))
        self._watch(other, connection, read=not unsent[end], write=bool(unsent[other]))

    def _send(self, target: socket.socket, data: bytes | memoryview) -> bytes:
        try:
            sent = target.send(data)
        except BlockingIOError:
            sent = 0
        return bytes(data[sent:])

    def _watch(self, end: socket.socket, connection: Connection, *, read: bool, write: bool) -> None:
        wanted = read * selectors.EVENT_READ | write * selectors.EVENT_WRITE
        key = self._selector.get_map().get(end)
        if key is None and wanted:
            self._selector.register(end, wanted, connection)
        elif key is not None and not wanted:
            self._selector.unregister(end)
        elif key is not None and key.events != wanted:
            self._selector.modify(end, wanted, connection)

    def _over(self, connection: Connection, *, by_caller: bool) -> None:
        """Close a connection that one end has closed. HTTP/2 does not use half-open ones."""
        if by_caller and _has_ended(connection.inner):
            by_caller = False  # both at once: the caller left because it was refused
        self._end(connection)
        if connection.admitted or connection.logged or self._closing.is_set():
            return
        if by_caller:
            self._log.info("%s connected and left before it showed who it is", connection.remote)
        else:
            why = "no TLS 1.3 handshake with a certificate that is known here and valid"
            self._refuse(connection, why)

    def _end(self, connection: Connection) -> None:
        with self._lock:
            self._connections.pop(connection.port, None)
        for end in connection.ends:
            with suppress(KeyError, ValueError):
                self._selector.unregister(end)
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _close_in_child(self) -> None:
        """After a fork, without locks: a thread that held one does not exist here."""
        for end in (self._listener, *(s for c in list(self._connections.values()) for s in c.ends)):
            with suppress(OSError):
                end.close()


def _has_ended(end: socket.socket) -> bool:
    """Return whether the other side of this socket has closed it."""
    try:
        return end.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def _origin(remote: str) -> str:
    """Return the origin of a HOST:PORT: an IPv4 address, or the 64 bits of an IPv6 network."""
    host = remote.rpartition(":")[0]
    return str(ip_network(f"{host.partition('%')[0]}/64", strict=False)) if ":" in host else host


def _crowding(waiting: list[Connection], newcomer: str, callers: int, each: int) -> list[Connection]:
    """Return the unidentified callers, at most one, that must go for one more from there."""
    crowd = Counter(c.origin for c in waiting)
    if crowd[newcomer] >= each:
        return [min((c for c in waiting if c.origin == newcomer), key=lambda c: c.begun)]
    if len(waiting) >= callers:
        return [min(waiting, key=lambda c: (-crowd[c.origin], c.begun))]
    return []


def _close_all_in_child() -> None:
    for proxy in list(_OPEN):
        proxy._close_in_child()


os.register_at_fork(after_in_child=_close_all_in_child)
