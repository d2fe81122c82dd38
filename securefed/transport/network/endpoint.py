"""One party's place on the network: the public port, grpc's server behind it, and a line to each peer.

An endpoint stays open for as long as the party lives. One attempt after the other uses it (`run`). Between
attempts it answers greetings with the end of the last one, or with "in no run".
"""

from __future__ import annotations

import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from types import MappingProxyType
from typing import Any, Self

from securefed.errors import SettingError
from securefed.transport.identity import (
    NOT_LISTENING,
    Identity,
    IdentityError,
    Peer,
    check_party_name,
    check_reachable,
    check_validity,
    parse_address,
)
from securefed.transport.link import Timer
from securefed.transport.message import (
    TransportError,
    WeakTransport,
)
from securefed.transport.network.attempt import Attempt, Register
from securefed.transport.network.core import GREET, POST, TUNNEL, grpc, server_options
from securefed.transport.network.host import Host, Limits, Timeouts, thread_starts, too_many_threads
from securefed.transport.network.peer_channel import Line, connector
from securefed.transport.network.rpc_handlers import Reception
from securefed.transport.network.run import Driver, NetworkProgram, NetworkRun, Waiting
from securefed.transport.network.tls_proxy import TlsProxy
from securefed.transport.network.tunnel import MOST_TUNNELS, TunnelPort, TunnelSource

LOG = logging.getLogger("securefed.transport")
GRACE = 0.5
CLOSING = 5.0
"""Seconds for pending answers, and for connections to end."""
HANDSHAKES = 4
"""Simultaneous handshakes of one peer that crowd out no caller."""


class Endpoint:
    """A party's open port and its lines to peers.

    `listen` is HOST:PORT; port 0 takes a free one. With "none" no port is open to other machines, and this
    party opens all connections itself (securefed.transport.network.tunnel).
    """

    def __init__(
        self,
        identity: Identity,
        *,
        listen: str,
        peers: Mapping[str, Peer],
        limits: Limits | None = None,
        timeouts: Timeouts | None = None,
        log: logging.Logger = LOG,
    ) -> None:
        self._host = Host()
        self.name = identity.name
        self.limits, self.timeouts = limits or Limits(), timeouts or Timeouts()
        self._peers = {check_party_name(name): peer for name, peer in peers.items()}
        if not peers or self.name in peers:
            raise SettingError(
                f"peers: {', '.join(peers) or 'none'} given, others than {self.name} are needed"
            )
        _check_certificates(identity, peers)
        for finding in check_validity(self.name, identity.certificate, {}, datetime.now(UTC)):
            if finding.verdict != "soon":
                raise IdentityError(finding.text)
        check_reachable(self.name, listen, peers)
        self._identity, self._log = identity, log
        self._listens = listen != NOT_LISTENING
        self._place = parse_address(listen) if self._listens else ("127.0.0.1", 0)
        self._register = Register(self.name)
        self._open()

    def _open(self) -> None:
        host, port = self._place
        room = HANDSHAKES * len(self._peers)  # they may all come at once, and from one machine
        self._door = TlsProxy(
            host,
            port,
            callers=self.limits.callers + room,
            callers_per_address=self.limits.callers_per_address + room,
            connections=(self.limits.connections + MOST_TUNNELS) * len(self._peers),
            handshake=self.timeouts.handshake,
            log=self._log,
        )
        self._place = host, self._door.port
        shown = f"[{host}]" if ":" in host else host
        self.address = f"{shown}:{self._door.port}" if self._listens else "nothing"
        self._ports = {
            name: TunnelPort(self.timeouts, self._host)
            for name, peer in self._peers.items()
            if not peer.listens
        }
        self._workers = 4 * len(self._peers) + 4 + MOST_TUNNELS * len(self._ports)
        try:
            self._pool = _started_pool(self._workers)
            self._server, self._inner_port = self._serve()
            try:
                self._door.open(self._inner_port, self._host)
            except TransportError:
                self._server.stop(None)
                self._pool.shutdown()
                raise
        except BaseException:
            self._door.close()
            for tunnel_port in self._ports.values():
                tunnel_port.close()
            raise
        connectors = {
            name: connector(name, peer, self._identity, self.limits, self._ports.get(name))
            for name, peer in self._peers.items()
        }
        self._lines = {
            name: Line(
                name,
                peer.address if peer.listens else "",
                connectors[name],
                self.limits,
                self.timeouts,
                self._host,
            )
            for name, peer in self._peers.items()
        }
        self._sources = {
            name: TunnelSource(name, connect, self._door.port, self.timeouts, self._host, self._log)
            for name, connect in connectors.items()
            if not self._listens
        }

    def _serve(self) -> tuple[Any, int]:
        reception = Reception(
            self._register, self._peers, self._door, self.timeouts, self._log, self._host, self._ports
        )
        server = grpc.server(
            self._pool,
            options=server_options(self.limits.wire_bytes),
            compression=grpc.Compression.NoCompression,
            maximum_concurrent_rpcs=self._workers,
        )
        server.add_generic_rpc_handlers((Calls(reception, self._host.now),))
        anchors = b"".join(peer.anchors for peer in self._peers.values())
        pair = (self._identity.key_pem(), self._identity.chain)
        try:
            credentials = grpc.ssl_server_credentials([pair], anchors, require_client_auth=True)
            port = server.add_secure_port("127.0.0.1:0", credentials)
        except (RuntimeError, ValueError):
            self._pool.shutdown()
            raise IdentityError(
                f"the certificate of {self.name!r} or of a peer cannot be used for TLS; put the files back "
                f"from a backup, or renew the own one: securefed init {self.name} --renew tls"
            ) from None
        try:
            # grpc's server never ends if its own thread cannot start, so another one has to show that it can.
            self._host.start(lambda: None, "securefed-first").join()
        except TransportError:
            self._pool.shutdown()
            raise
        server.start()
        if _speaks_tls_1_2(port):
            server.stop(None)
            raise WeakTransport(
                "grpc accepts TLS 1.2: something imported it before securefed.transport.network could set it "
                "up; import securefed.transport.network first"
            )
        return server, port

    def repin(self, peers: Mapping[str, Peer]) -> None:
        """Trust other certificates of the same peers from now on, between two attempts.

        grpc reads certificates when its server begins. So everything closes, and opens again at the same
        address.
        """
        _check_certificates(self._identity, peers)
        known = {
            name: replace(before, certificate=peers[name].certificate, authority=peers[name].authority)
            for name, before in self._peers.items()
        }
        changed = [name for name, peer in known.items() if peer != self._peers[name]]
        if changed:
            self.close()
            self._peers = known
            self._open()
        for name in changed:
            self._log.info("the certificates of %s were read again", name)

    def close(self) -> None:
        for port in self._ports.values():
            port.close()
        # Answers that are under way get out; no new call is taken.
        try:
            self._server.stop(GRACE).wait()
        except RuntimeError:  # no thread for the grace
            self._server.stop(None)
        self._pool.shutdown()
        for source in self._sources.values():
            source.close()
        self._door.close()
        # A stop that came while grpc began a call leaves one that nobody ends, and closing waits for it.
        end = time.monotonic() + CLOSING
        with suppress(TransportError):  # without a thread the end of the process closes them
            closing = [self._host.start(line.close, "securefed-closing") for line in self._lines.values()]
            for thread in closing:
                thread.join(max(0.0, end - time.monotonic()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def present(self) -> tuple[str, ...]:
        """Return the peers that answer in the current attempt."""
        attempt = self._register.attempt
        others = {} if attempt is None else attempt.others
        oldest = self._host.now() - self.timeouts.patience
        return tuple(
            name
            for name, other in others.items()
            if other.hello is not None and not other.trouble and other.heard > oldest
        )

    def __repr__(self) -> str:
        return f"<endpoint of {self.name!r} at {self.address}, peers {', '.join(self._peers)}>"

    def run(
        self,
        program: NetworkProgram,
        *,
        run: str,
        kinds: Collection[str],
        settings: Mapping[str, Any],
        facts: Mapping[str, Any] | None = None,
        after: Collection[str] = (),
        sizes: Mapping[str, int | None] = MappingProxyType({}),
        on_wait: Callable[[Waiting], None] | None = None,
        timer: Timer = time.perf_counter,
    ) -> NetworkRun:
        """Make one attempt: greet all peers, run the program, and wait until theirs have ended too.

        `settings` must be equal at all parties. Peers get `facts` in their `link.hello`. `PeerGone` means
        that all must begin a new attempt. `after` names completed runs, of any process: a peer that still
        greets for one of them is directed to the new run. `sizes` bounds the bytes of messages by kind;
        messages of a kind with None wait until the program calls `NetworkLink.bound`.
        """
        attempt = Attempt(
            self.name,
            tuple(self._peers),
            run=run,
            kinds=kinds,
            settings=settings,
            facts=facts or {},
            limits=self.limits,
            log=self._log,
            done={*after, *self._register.done},
            host=self._host,
            addresses={name: peer.address for name, peer in self._peers.items() if peer.listens},
            sizes=sizes,
        )
        self._register.begin(attempt)
        try:
            driver = Driver(
                attempt,
                self._lines,
                self.limits,
                self.timeouts,
                on_wait=on_wait,
                timer=timer,
                host=self._host,
            )
            with thread_starts():
                return driver.run(program)
        finally:
            self._register.end()


def _check_certificates(identity: Identity, peers: Mapping[str, Peer]) -> None:
    holders = {identity.certificate: identity.name}
    for name, peer in peers.items():
        for pin in peer.pins:
            if (other := holders.setdefault(pin, name)) != name:
                raise SettingError(
                    f"peers: {other} and {name} have the same certificate; ask each of them for its own"
                )


class Calls(grpc.GenericRpcHandler):  # type: ignore[misc]
    """The owner of each call. grpc asks when a call begins, before its message has arrived."""

    def __init__(self, reception: Reception, now: Timer) -> None:
        self._reception, self._now = reception, now

    def service(self, details: Any) -> Any:
        reception = self._reception
        if details.method == GREET:
            return grpc.unary_unary_rpc_method_handler(reception.greet)
        if details.method == POST:
            post = partial(reception.post, since=self._now())
            return grpc.unary_unary_rpc_method_handler(post)
        if details.method == TUNNEL:
            return grpc.stream_stream_rpc_method_handler(reception.tunnel)
        return None


def _started_pool(workers: int) -> ThreadPoolExecutor:
    """Return a pool whose threads run already. A thread that fails to start later would stop the server."""
    pool, ready = ThreadPoolExecutor(workers, thread_name_prefix="securefed-call"), threading.Barrier(workers)
    try:
        waiting = [pool.submit(ready.wait) for _ in range(workers)]
    except RuntimeError:
        ready.abort()
        pool.shutdown()
        raise too_many_threads() from None
    for each in waiting:
        each.result()
    return pool


def _speaks_tls_1_2(port: int) -> bool:
    """Return whether the server answers a handshake that offers only TLS 1.2."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # nothing is sent but the offer
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    offer = context.wrap_bio(incoming, outgoing)
    with suppress(ssl.SSLWantReadError):
        offer.do_handshake()
    with socket.create_connection(("127.0.0.1", port), timeout=10.0) as connection:
        connection.sendall(outgoing.read())
        try:
            answer = connection.recv(1)
        except ConnectionError:
            return False
    handshake_record = b"\x16"
    return answer == handshake_record
