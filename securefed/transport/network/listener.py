"""The public port: handshakes, limits on callers, and a log line for every refused one.

One thread accepts callers and makes their TLS handshakes, so callers cannot use up this process's threads. A
caller with a peer's certificate is *admitted*: a thread of its own answers its questions. Each peer has a few
connections at most; one more ends its oldest.

A caller that is not admitted ends in one of these ways:

    the handshake fails               refused
    it takes too long, or crowds out  refused
    it ends by itself                 an information, not a refusal: a port scan, a health probe of a load
                                      balancer, or a peer that reconnects or is killed; it was shown nothing

A newcomer never waits for silent callers. If there are too many, from one address or in all, the oldest one
goes, first from the address that has most. So a caller that leaves connections idle crowds out only itself.
Flooding from very many addresses still slows down peers, which retry.
"""

from __future__ import annotations

import errno
import selectors
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from ipaddress import ip_network

from securefed.transport.identity import IdentityError, Peer
from securefed.transport.message import AddressError, TransportError
from securefed.transport.network import calls
from securefed.transport.network.calls import Connection, Handler, serve, shown_certificate, shut
from securefed.transport.network.host import FewLines, Host

TICK = 0.2
GRACE = 0.5
"""Seconds for pending answers when the port closes."""
HANDSHAKES = 4
"""Simultaneous handshakes of one peer that crowd out no caller."""
NO_HANDSHAKE = "no TLS 1.3 handshake with a certificate that is known here and valid"


class Listener:
    """A listener at `host`:`port` (0: any free one).

    `handle` answers questions. `park` takes a connection that its caller offers for calls to itself. `failed`
    hears of an error after which nobody could be answered.
    """

    def __init__(
        self,
        place: tuple[str, int],
        peers: Mapping[str, Peer],
        context: ssl.SSLContext,
        handle: Handler,
        park: Callable[[Connection], None],
        failed: Callable[[TransportError], None],
        machine: Host,
    ) -> None:
        self._handle, self._park, self._failed = handle, park, failed
        self._limits, self._timeouts = machine.limits, machine.timeouts
        self._machine, self._log = machine, FewLines(machine.log)
        self._lock = threading.Lock()
        self._waiting: list[Connection] = []
        self._admitted: dict[Connection, threading.Thread | None] = {}
        self._closing = threading.Event()
        host, port = place
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._listener = socket.create_server(place, family=family, backlog=64)
        except OSError as error:
            word = (
                "is in use"
                if error.errno == errno.EADDRINUSE
                else f"cannot be used: {error.strerror or error}"
            )
            raise AddressError(f"listen: {host}:{port} {word}") from None
        calls.keep(self._listener)
        self._listener.setblocking(False)
        self.port = int(self._listener.getsockname()[1])
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self.trust(peers, context)
        try:
            self._thread = machine.start(self._run, "securefed-listener")
        except TransportError:
            self._listener.close()
            self._selector.close()
            raise

    def trust(self, peers: Mapping[str, Peer], context: ssl.SSLContext, changed: Sequence[str] = ()) -> None:
        """Let in these peers from now on, and end the connections of those that changed."""
        with self._lock:
            self._peers, self._context = dict(peers), context
            admitted = [connection for connection in self._admitted if connection.party in changed]
        for connection in admitted:
            shut(connection.tls)

    def close(self) -> None:
        """Take no new question. Answers that are under way get out."""
        self._closing.set()
        shut(self._listener)  # wakes the thread that accepts
        self._thread.join()
        self._listener.close()
        for connection in self._waiting:
            connection.end()
        with self._lock:
            admitted = dict(self._admitted)
        for connection in admitted:
            shut(connection.tls, socket.SHUT_RD)
        end = time.monotonic() + GRACE
        for connection, thread in admitted.items():
            if thread is not None:
                thread.join(max(0.0, end - time.monotonic()))
            shut(connection.tls)
        self._selector.close()

    # The thread of newcomers.

    def _run(self) -> None:
        while not self._closing.is_set():
            for key, _ in self._selector.select(TICK):
                if key.data is None:
                    self._accept()
                elif key.data in self._waiting:  # it may have ended a moment ago
                    self._shake_hands(key.data)
            now = time.monotonic()
            for connection in list(self._waiting):
                if now - connection.begun > self._timeouts.handshake:
                    self._refuse(connection, f"it did not show who it is in {self._timeouts.handshake:g} s")

    def _accept(self) -> None:
        try:
            end, address = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as error:
            # Out of descriptors, or the caller is gone already. Neither is a reason to close the port.
            if not self._closing.is_set():
                self._log.warning("a caller could not be let in: %s", error.strerror)
                self._closing.wait(0.1)
            return
        remote = f"{address[0]}:{address[1]}"
        self._make_room(remote)
        try:
            end.setblocking(False)
            tls = self._context.wrap_socket(end, server_side=True, do_handshake_on_connect=False)
            connection = Connection(tls, remote)
        except OSError:
            end.close()
            self._log.info("%s connected and left before it showed who it is", remote)
            return
        self._waiting.append(connection)
        self._selector.register(connection.tls, selectors.EVENT_READ, connection)

    def _make_room(self, remote: str) -> None:
        room = HANDSHAKES * len(self._peers)  # they may all come at once, and from one machine
        most, each = self._limits.callers + room, self._limits.callers_per_address + room
        for connection in crowding(self._waiting, origin(remote), most, each):
            self._refuse(connection, "it did not show who it is, and others wait")

    def _shake_hands(self, connection: Connection) -> None:
        try:
            connection.tls.do_handshake()
        except ssl.SSLWantReadError:
            self._selector.modify(connection.tls, selectors.EVENT_READ, connection)
        except ssl.SSLWantWriteError:
            self._selector.modify(connection.tls, selectors.EVENT_WRITE, connection)
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError, ConnectionError):
            self._forget(connection)
            self._log.info("%s connected and left before it showed who it is", connection.remote)
        except OSError:
            self._refuse(connection, NO_HANDSHAKE)
        else:
            self._admit(connection)

    def _admit(self, connection: Connection) -> None:
        try:
            shown = shown_certificate(connection.tls)
        except IdentityError:
            self._refuse(connection, NO_HANDSHAKE)
            return
        with self._lock:  # so that `trust` sees it as admitted, or it sees the peers of now
            names = (name for name, peer in self._peers.items() if peer.speaks(shown))
            connection.party = next(names, "")
            its_own = [each for each in self._admitted if each.party == connection.party]
            self._admitted[connection] = None
        if not connection.party:
            self._refuse(connection, f"the certificate of {shown.name!r} is not a peer's")
            return
        most = self._limits.connections
        for each in its_own[: max(0, len(its_own) + 1 - most)]:
            shut(each.tls)
        if len(its_own) >= 2 * most:  # an ended one has its thread until its call is done
            self._refuse(connection, f"{connection.party} has {len(its_own)} connections already")
            return
        self._leave_waiting(connection)
        try:
            name = f"securefed-from-{connection.party}"
            thread = self._machine.start(lambda: self._serve(connection), name)
        except TransportError as error:
            self._forget(connection)
            self._failed(error)
            return
        with self._lock:
            if connection in self._admitted:
                self._admitted[connection] = thread

    def _serve(self, connection: Connection) -> None:
        parked = False
        try:
            parked = serve(
                connection,
                self._handle,
                most=self._limits.wire_bytes,
                patience=self._timeouts.patience,
                goes_on=lambda: not self._closing.is_set(),
            )
        finally:
            with self._lock:  # so that `trust` finds it here or there
                self._admitted.pop(connection, None)
                if parked:
                    self._park(connection)
            if not parked:
                connection.end()

    # Refusals.

    def _leave_waiting(self, connection: Connection) -> None:
        if connection in self._waiting:
            self._waiting.remove(connection)
            self._selector.unregister(connection.tls)

    def _forget(self, connection: Connection) -> None:
        self._leave_waiting(connection)
        with self._lock:
            self._admitted.pop(connection, None)
        connection.end()

    def _refuse(self, connection: Connection, why: str) -> None:
        self._forget(connection)
        self._log.warning("refused %s: %s", connection.remote, why)


def origin(remote: str) -> str:
    """Return the origin of a HOST:PORT: an IPv4 address, or the 64 bits of an IPv6 network."""
    host = remote.rpartition(":")[0]
    return str(ip_network(f"{host.partition('%')[0]}/64", strict=False)) if ":" in host else host


def crowding(waiting: Sequence[Connection], newcomer: str, callers: int, each: int) -> list[Connection]:
    """Return the callers without a certificate yet, at most one, that must go for one more from there."""
    crowd = Counter(origin(c.remote) for c in waiting)
    if crowd[newcomer] >= each:
        return [min((c for c in waiting if origin(c.remote) == newcomer), key=lambda c: c.begun)]
    if len(waiting) >= callers:
        return [min(waiting, key=lambda c: (-crowd[origin(c.remote)], c.begun))]
    return []
