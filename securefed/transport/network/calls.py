"""Calls between two parties: a question and its answer, one at a time on a connection with mutual TLS 1.3.

    question    what 1 | size 4 | bytes       GREET, POST or REVERSE
    answer      how 1 | size 4 | bytes        DONE, REFUSED (the error's name and text) or LATER (a text)

A call ends with its answer, or with an error at its deadline at the latest. A call that fails closes its
connection, and the next call opens a new one. So an answer always belongs to the question before it.

The connection's certificates say who is at each end (securefed.transport.identity). The pinned
certificates alone are trusted.
"""

from __future__ import annotations

import os
import secrets
import select
import socket
import ssl
import struct
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from securefed.errors import plain_text
from securefed.transport.identity import Certificate, Identity, IdentityError, Peer, parse_address
from securefed.transport.message import OtherRelease, PeerRefused, TransportError, WrongCertificate
from securefed.transport.network.host import HELLO_BYTES, MOST_REFUSAL

NO_CALL, GREET, POST, REVERSE = range(4)
DONE, REFUSED, LATER = range(3)
HEAD = struct.Struct(">BI")
CONNECTING = 10.0
"""Seconds for a new connection, at most."""
MOST_WORDS = 80
TOGETHER = 1 << 16
"""Up to so many bytes a frame is sent in one piece."""
RECORD = 1 << 14
"""Bytes of the largest record of TLS."""
CORK: int | None = getattr(socket, "TCP_CORK", None)
CLOSED_AT_ONCE = "the connection is closed at once: not ready yet, or our certificate is unknown there"

_SOCKETS: weakref.WeakSet[socket.socket] = weakref.WeakSet()


class CallFailed(Exception):
    """A call without an answer. Another try may succeed."""

    def __init__(self, text: str, *, late: bool = False) -> None:
        super().__init__(text)
        self.late = late
        """The deadline passed."""


class Refusal(Exception):
    """The answer to a call that is refused."""

    def __init__(self, error: TransportError) -> None:
        super().__init__(plain_text(error))
        self.name = type(error).__name__


class Later(Exception):
    """The answer to a call that cannot be taken now."""


# Connections.


def keep(end: socket.socket) -> None:
    """Close this socket in processes that are forked from this one.

    A worker process that outlives a killed party must not keep its port and its connections.
    """
    _SOCKETS.add(end)


def _close_in_child() -> None:
    for end in list(_SOCKETS):
        with suppress(OSError):
            end.close()


os.register_at_fork(after_in_child=_close_in_child)


def shut(end: socket.socket, how: int = socket.SHUT_RDWR) -> None:
    """End a connection, and wake whoever waits for it. Any thread may call this."""
    with suppress(OSError):
        socket.socket.shutdown(end, how)  # not TLS's own, which would go on in the clear


def contexts(
    identity: Identity, peers: Mapping[str, Peer]
) -> tuple[ssl.SSLContext, dict[str, ssl.SSLContext]]:
    """Return TLS's settings for calls of peers, and for calls to each of them.

    The ssl module reads keys from files only. So the key is written encrypted, under a password of a moment.
    """
    server = _context(ssl.PROTOCOL_TLS_SERVER, b"".join(peer.anchors for peer in peers.values()))
    server.num_tickets = 0  # nothing is resumed, and an idle connection has nothing to read
    clients = {name: _context(ssl.PROTOCOL_TLS_CLIENT, peer.anchors) for name, peer in peers.items()}
    password = secrets.token_hex(32)
    with tempfile.TemporaryDirectory() as folder:
        chain, key = Path(folder) / "chain.pem", Path(folder) / "key.pem"
        chain.write_bytes(identity.certificate.pem)
        key.write_bytes(identity.key_pem(password))
        try:
            for context in (server, *clients.values()):
                context.load_cert_chain(chain, key, password)
        except ssl.SSLError:
            raise IdentityError(
                f"the certificate of {identity.name!r} cannot be used for TLS; put the file back from a "
                f"backup, or renew it: securefed init {identity.name} --renew tls"
            ) from None
    return server, clients


def _context(side: int, anchors: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(side)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the whole certificate is compared with the pinned ones
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # a pinned certificate may be of an authority
    context.load_verify_locations(cadata=anchors.decode())
    return context


def shown_certificate(connection: ssl.SSLSocket) -> Certificate:
    """Return the certificate of the other end. The handshake has checked its signature and its days."""
    return Certificate.from_pem(ssl.DER_cert_to_PEM_cert(connection.getpeercert(binary_form=True) or b""))


class Connection:
    """One TLS connection. One thread at a time reads and writes; any thread may end it."""

    def __init__(self, tls: ssl.SSLSocket, remote: str, party: str = "") -> None:
        self.tls, self.remote, self.party = tls, remote, party
        """`party`: the other end, as its certificate says; empty before the handshake."""
        self.begun = time.monotonic()
        self.proven = False
        """Something came from the other end."""
        self._gathers = False
        keep(tls)
        tls.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, tag: int, *parts: bytes | memoryview, deadline: float) -> None:
        """Send one frame."""
        size = sum(map(len, parts))
        frame = (HEAD.pack(tag, size), *parts)
        self._gather(size > RECORD)
        for part in (b"".join(frame),) if size <= TOGETHER else frame:
            rest = memoryview(part)
            while rest:
                self.wait_until(deadline)
                rest = rest[self.tls.send(rest) :]
        self._gather(False)

    def _gather(self, on: bool) -> None:
        """Gather TLS records into full packets, until this is off again. Each packet wakes the receiver."""
        if CORK is not None and on != self._gathers:
            self._gathers = on
            self.tls.setsockopt(socket.IPPROTO_TCP, CORK, on)

    def receive_head(self, deadline: float) -> tuple[int, int]:
        """Return the tag and the size of the next frame."""
        tag, size = HEAD.unpack(self.receive_bytes(HEAD.size, deadline))
        self.proven = True
        return tag, size

    def receive_bytes(self, size: int, deadline: float) -> bytearray:
        data, count = bytearray(size), 0
        while count < size:
            self.wait_until(deadline)
            arrived = self.tls.recv_into(memoryview(data)[count:])
            if arrived == 0:
                raise EOFError("the other end closed the connection")
            count += arrived
        return data

    def wait_until(self, deadline: float) -> None:
        """Set how long the next operation may wait."""
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self.tls.settimeout(left)

    @property
    def has_ended(self) -> bool:
        """Whether the other end has closed it. Between two calls nothing else is sent."""
        if self.tls.fileno() < 0:
            return True
        poller = select.poll()
        poller.register(self.tls, select.POLLIN)
        return bool(poller.poll(0))

    def end(self) -> None:
        """Close it. A thread that waits for it gets an error."""
        shut(self.tls)
        self.tls.close()


def dial(name: str, peer: Peer, context: ssl.SSLContext, seconds: float, publish: Publish) -> Connection:
    """Return a connection to that peer alone, whatever answers at its address."""
    host, port = parse_address(peer.address)
    deadline = time.monotonic() + min(seconds, CONNECTING)
    end = _connected(host, port, deadline, publish)
    try:
        connection = Connection(context.wrap_socket(end, do_handshake_on_connect=False), peer.address, name)
    except OSError:
        end.close()
        raise
    try:
        publish(connection.tls)
        connection.wait_until(deadline)
        connection.tls.do_handshake()
        if peer.speaks(shown_certificate(connection.tls)):
            return connection
    except (ssl.SSLCertVerificationError, IdentityError):
        pass
    except BaseException:
        connection.end()
        raise
    connection.end()
    raise WrongCertificate(
        f"the machine at {peer.address} did not show {name}'s certificate, or that certificate has expired; "
        f"ask {name} for its current certificate and compare fingerprints"
    )


def _connected(host: str, port: int, deadline: float, publish: Publish) -> socket.socket:
    """Return a connection to the first address of that host that takes one. They share the time."""
    failed: OSError = TimeoutError()
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for number, (family, kind, protocol, _, place) in enumerate(addresses):
        try:
            end = socket.socket(family, kind, protocol)
        except OSError as error:  # a system without IPv6, for example
            failed = error
            continue
        try:
            publish(end)
            end.settimeout(max((deadline - time.monotonic()) / (len(addresses) - number), 0.001))
            end.connect(place)
        except OSError as error:
            end.close()
            failed = error
        except BaseException:
            end.close()
            raise
        else:
            return end
    raise failed


Publish = Callable[[socket.socket], None]
"""Gets the socket that a call waits for, so that another thread can end the wait."""
Connect = Callable[[float, Publish], Connection]
"""Makes a connection within so many seconds."""


class CallChannel:
    """Calls to one peer, one at a time. The first one opens the connection, and so does one after a failure.

    The calls come from one thread, which alone closes the connection. Any thread may `drop` it, which ends a
    call.
    """

    def __init__(self, name: str, connect: Connect) -> None:
        self._name, self._connect = name, connect
        self._lock = threading.Lock()
        self.connection: Connection | None = None
        """The connection, while it is open."""
        self._waits: socket.socket | None = None
        self._dropped = 0
        """How many times the connection was dropped."""

    def call(
        self,
        what: int,
        *parts: bytes | memoryview,
        seconds: float,
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> bytearray:
        """Return the answer, or raise CallFailed, PeerRefused, OtherRelease or WrongCertificate."""
        deadline, dropped = time.monotonic() + seconds, self._dropped

        def publish(end: socket.socket) -> None:
            with self._lock:
                if is_cancelled() or self._dropped != dropped:
                    raise CallFailed("the call was cancelled")
                self._waits = end

        connection = self.connection
        try:
            if connection is None or connection.has_ended:
                self.close()
                connection = self.connection = self._connect(seconds, publish)
            publish(connection.tls)
            connection.send(what, *parts, deadline=deadline)
            how, size = connection.receive_head(deadline)
            if size > HELLO_BYTES:
                raise EOFError(f"an answer of {size} bytes")
            answer = connection.receive_bytes(size, deadline)
        except (OSError, EOFError) as error:
            self.close()
            raise _failure(error, connection) from None
        except BaseException:
            self.close()
            raise
        finally:
            with self._lock:
                self._waits = None
        return concluded(self._name, how, answer)

    def drop(self) -> None:
        """End the connection, and a call that waits for it."""
        with self._lock:
            self._dropped += 1
            if self._waits is not None:
                shut(self._waits)
            if self.connection is not None:
                shut(self.connection.tls)

    def close(self) -> None:
        """Close the connection. No call may be under way in another thread."""
        with self._lock:
            connection, self.connection = self.connection, None
        if connection is not None:
            connection.end()


def concluded(name: str, how: int, answer: bytearray) -> bytearray:
    """Return the answer to a call that was done. Raise for one that was refused or was not taken."""
    if how == DONE:
        return answer
    text = answer.decode("utf-8", "replace")
    if how == LATER:
        raise CallFailed(plain_text(text, MOST_REFUSAL))
    reason, _, text = text.partition("\n")
    text = f"{name} refused: {plain_text(text, MOST_REFUSAL)}"
    if reason == OtherRelease.__name__:
        raise OtherRelease(text)
    raise PeerRefused(text, plain_text(reason, MOST_REFUSAL))


def _failure(error: Exception, connection: Connection | None) -> CallFailed:
    match error:
        case TimeoutError():
            return CallFailed("no answer", late=True)
        case socket.gaierror():
            return CallFailed("the host name cannot be resolved")
        case ConnectionRefusedError():
            return CallFailed("nobody listens there")
        case ssl.SSLError() | ConnectionError() | EOFError():
            answered = connection is not None and connection.proven
            return CallFailed("the connection was lost" if answered else CLOSED_AT_ONCE)
    return CallFailed(plain_text(getattr(error, "strerror", None) or error, MOST_WORDS))


# The other side of a call.

Handler = Callable[[int, bytearray, Connection, float], bytes]
"""Gets what is asked, the question, its connection and when it began to arrive. Raises Refusal or Later."""


def serve(
    connection: Connection, handle: Handler, *, most: int, patience: float, goes_on: Callable[[], bool]
) -> bool:
    """Answer the questions on a connection, until it ends or is silent for so long.

    Return True if the other end offers it for calls to itself.
    """
    with suppress(OSError, EOFError):
        while goes_on():
            what, size = connection.receive_head(time.monotonic() + patience)
            since = time.monotonic()
            if is_call := size <= most:
                question = connection.receive_bytes(size, since + patience)
            else:  # another release, or a peer that misbehaves
                what, question = NO_CALL, bytearray()
            how, answer = answered(handle, what, question, connection, since)
            connection.send(how, answer, deadline=time.monotonic() + patience)
            if not is_call or (what == REVERSE and how == DONE):
                return is_call
    return False


def answered(
    handle: Handler, what: int, question: bytearray, connection: Connection, since: float
) -> tuple[int, bytes]:
    """Return how a question is answered, and the answer."""
    try:
        return DONE, handle(what, question, connection, since)
    except Refusal as refusal:
        return REFUSED, f"{refusal.name}\n{refusal}".encode()
    except Later as later:
        return LATER, str(later).encode()
