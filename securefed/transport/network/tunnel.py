"""Connections to a party that listens on nothing, through calls that this party opened.

A party behind a firewall opens a call (`Tunnel`) to each peer, on the peer's public port. The call carries
the bytes of one TCP connection in the other direction:

    grpc client of the peer -> local port -> [ Tunnel call, mutual TLS ] -> own local port -> own grpc server

The connection inside has its own mutual TLS, with the same pins. So receipts, order, patience, limits and the
count of arrived bytes are those of any other connection. Bytes that a third party puts into a tunnel fail in
the inner handshake.

One tunnel waits for use, the *spare*. A used one is followed by the next spare. Each side sends
an empty frame from time to time. A tunnel on which nothing arrives for half of the patience is replaced.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from securefed.errors import plain_text
from securefed.transport.network.core import TUNNEL, grpc
from securefed.transport.network.host import MOST_REFUSAL, Host, Timeouts

FRAME_BYTES = 1 << 16
MOST_TUNNELS = 6
"""Tunnels with one peer: two in use, two that are being replaced, a spare and the next one."""
ANSWERED_BEATS = 4
EMPTY = b""
"""A frame that says only that the peer is there."""


class Waiter:
    """A tunnel at the party that accepts it: when its peer was heard, and the local connection it serves."""

    def __init__(self, now: float) -> None:
        self.heard = now
        self.end: socket.socket | None = None

    def leave(self) -> None:
        if self.end is not None:
            _shut(self.end)


class TunnelPort:
    """A local port that leads to a peer which listens on nothing."""

    def __init__(self, timeouts: Timeouts, host: Host) -> None:
        self._timeouts, self._host = timeouts, host
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(timeouts.beat)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._spare: Waiter | None = None
        self._used: set[socket.socket] = set()
        self.open = 0
        """Tunnels of the peer, used or not."""

    def carry(self, frames: Iterator[bytes], active: Callable[[], bool]) -> Iterator[bytes]:
        """Serve one tunnel: yield what goes to the peer. A newer spare ends one that still waits.

        A spare gets a connection only if the peer answered lately. A connection that is dead without notice
        would keep its caller waiting.
        """
        waiting = Waiter(self._host.now())
        with self._lock:
            self._spare = waiting
            self.open += 1
        try:
            self._host.start(lambda: self._take(frames, waiting), "securefed-tunnel")
            while active() and not self._stop.is_set() and self._spare is waiting:
                answered = self._host.now() - waiting.heard < ANSWERED_BEATS * self._timeouts.beat
                end = self._accepted() if answered else None
                if end is not None:
                    yield from self._pass_on(end, waiting)
                    return
                yield EMPTY
                if not answered:
                    self._stop.wait(self._timeouts.beat)
        finally:
            waiting.leave()
            with self._lock:
                self.open -= 1

    def _take(self, frames: Iterator[bytes], waiting: Waiter) -> None:
        """Pass on what comes from the peer."""
        with suppress(OSError, grpc.RpcError):
            for frame in frames:
                waiting.heard = self._host.now()
                if waiting.end is not None:
                    _send(waiting.end, frame)
        waiting.leave()

    def _accepted(self) -> socket.socket | None:
        try:
            end, _ = self._listener.accept()
        except OSError:
            return None
        end.settimeout(self._timeouts.beat)
        return end

    def _pass_on(self, end: socket.socket, waiting: Waiter) -> Iterator[bytes]:
        waiting.end = end
        with self._lock:
            self._used.add(end)
        try:
            while not self._stop.is_set():
                try:
                    data = end.recv(FRAME_BYTES)
                except TimeoutError:
                    data = EMPTY
                except OSError:
                    return
                else:
                    if not data:
                        return
                yield data
        finally:
            with self._lock:
                self._used.discard(end)
            _shut(end)
            end.close()

    def close(self) -> None:
        self._stop.set()
        _shut(self._listener)
        with self._lock:
            used = tuple(self._used)
        for end in used:
            _shut(end)
        self._listener.close()


class TunnelSource:
    """A party that listens on nothing keeps a spare tunnel open to one peer.

    `port` is the party's own port on this machine. `connect` makes a new channel to the peer.
    """

    def __init__(
        self,
        name: str,
        connect: Callable[[], Any],
        port: int,
        timeouts: Timeouts,
        host: Host,
        log: logging.Logger,
    ) -> None:
        self.name, self.port, self.timeouts, self.host, self.connect = name, port, timeouts, host, connect
        self._log, self._refused = log, False
        self._tunnels: set[Tunnel] = set()
        self._spare: Tunnel | None = None
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = host.start(self._keep, f"securefed-tunnels-{name}")

    def _keep(self) -> None:
        self.open_spare()
        while not self._closing.wait(self.timeouts.beat):
            with self._lock:
                tunnels = tuple(self._tunnels)
            for tunnel in tunnels:
                if self.host.now() - tunnel.heard > self.timeouts.patience / 2:
                    tunnel.end()
            self.open_spare()

    def open_spare(self) -> None:
        """Open a tunnel, if none waits and there are not too many."""
        with self._lock:
            if self._closing.is_set() or self._spare is not None or len(self._tunnels) >= MOST_TUNNELS:
                return
            tunnel = self._spare = Tunnel(self)
            self._tunnels.add(tunnel)
        self.host.start(tunnel.run, f"securefed-tunnel-{self.name}")

    def used(self, tunnel: Tunnel) -> None:
        with self._lock:
            if self._spare is tunnel:
                self._spare = None
        self.open_spare()

    def ended(self, tunnel: Tunnel) -> None:
        """Forget a tunnel. The next spare waits for the next beat: the peer may be away."""
        with self._lock:
            self._tunnels.discard(tunnel)
            if self._spare is tunnel:
                self._spare = None

    def failed(self, error: grpc.RpcError) -> None:
        """Log a refusal, once. Other failures show in greetings to the same address."""
        if error.code() is grpc.StatusCode.FAILED_PRECONDITION and not self._refused:
            self._refused = True
            self._log.warning("%s refused: %s", self.name, plain_text(error.details() or "", MOST_REFUSAL))

    def close(self) -> None:
        self._closing.set()
        with self._lock:
            tunnels = tuple(self._tunnels)
        for tunnel in tunnels:
            tunnel.end()
        self._thread.join()


class Tunnel:
    """One call to the peer, and the local connection that its bytes go to."""

    def __init__(self, source: TunnelSource) -> None:
        self._source = source
        self._channel = source.connect()
        self._inner: socket.socket | None = None
        self._begun = threading.Event()
        self.heard = source.host.now()
        """When the last frame came; infinite while this party itself does not take one."""

    def run(self) -> None:
        source = self._source
        try:
            call = self._channel.stream_stream(TUNNEL)(self._outgoing())
        except ValueError:  # it was ended before it began
            source.ended(self)
            return
        try:
            for frame in call:
                if frame and self._inner is None:
                    self._inner = socket.create_connection(("127.0.0.1", source.port), timeout=5.0)
                    self._inner.settimeout(source.timeouts.beat)
                    self._begun.set()
                    source.used(self)
                if self._inner is not None:
                    self.heard = float("inf")
                    _send(self._inner, frame)
                self.heard = source.host.now()
        except grpc.RpcError as error:
            source.failed(error)
        except OSError:
            pass
        finally:
            self.end()
            call.cancel()
            if self._inner is not None:
                self._inner.close()
            source.ended(self)

    def _outgoing(self) -> Iterator[bytes]:
        """Yield an empty frame each beat until the tunnel is used, then the bytes of its connection."""
        while not self._begun.wait(self._source.timeouts.beat):
            yield EMPTY
        end = self._inner
        with suppress(OSError):
            while end is not None:
                try:
                    data = end.recv(FRAME_BYTES)
                except TimeoutError:
                    continue
                if not data:
                    break
                yield data
        # A stream that ends at one side is of no use at the other.
        self.end()

    def end(self) -> None:
        self._begun.set()
        if self._inner is not None:
            _shut(self._inner)
        self._channel.close()


def _send(end: socket.socket, data: bytes) -> None:
    """Send all of it, however long the other side takes."""
    rest = memoryview(data)
    while rest:
        with suppress(TimeoutError):
            rest = rest[end.send(rest) :]


def _shut(end: socket.socket) -> None:
    """Wake whoever waits for this socket."""
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
