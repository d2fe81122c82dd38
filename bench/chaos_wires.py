"""Lines between parties: a TCP relay for each direction, which can be made to fail in several ways."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from random import Random

__all__ = ["FAULTS", "Wire", "disturb"]

HOST = "127.0.0.1"
SLOW_BYTES = 50_000
"""A second, while a line is throttled."""
DELAY = 0.4
"""Seconds, while a line is delayed."""
MOST_BYTES = 150_000
"""Of a connection, while a middlebox drops those that carried more."""


class Wire:
    """Where one party reaches another. Faults last for a while and end by themselves."""

    def __init__(self, target: int, rate: float = float("inf"), latency: float = 0.0) -> None:
        """`rate` in bytes a second and `latency` in seconds are those of the line without a fault."""
        self._target, self._rate, self._latency = target, rate, latency
        self._listener = socket.create_server((HOST, 0))
        # What is on its way is here and not in a buffer of this machine.
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        self.port = int(self._listener.getsockname()[1])
        self._open: set[socket.socket] = set()
        self._dead: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._still_until = self._slow_until = self._late_until = self._drop_until = 0.0
        self._most = MOST_BYTES
        self._once = ""
        """What happens to the next piece."""
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()
        self.cut()

    def cut(self, _: float = 0.0) -> None:
        """End every connection now; new ones work."""
        with self._lock:
            sockets = list(self._open)
        for end in sockets:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def stall(self, seconds: float) -> None:
        """Let nothing through, and close nothing."""
        self._still_until = time.monotonic() + seconds

    def throttle(self, seconds: float) -> None:
        self._slow_until = time.monotonic() + seconds

    def delay(self, seconds: float) -> None:
        self._late_until = time.monotonic() + seconds

    def drop(self, seconds: float, most: int = MOST_BYTES) -> None:
        """Cut each connection that has carried `most` bytes, as some middleboxes do."""
        self._most, self._drop_until = most, time.monotonic() + seconds

    def forget(self, _: float = 0.0) -> None:
        """Swallow everything on open connections, as a router that lost its table. New ones work."""
        with self._lock:
            self._dead |= self._open

    def duplicate(self, _: float = 0.0) -> None:
        """Send the next piece twice."""
        self._once = "duplicate"

    def corrupt(self, _: float = 0.0) -> None:
        """Change a bit of the next piece."""
        self._once = "corrupt"

    def mend(self) -> None:
        self._still_until = self._slow_until = self._late_until = self._drop_until = 0.0
        self._once = ""

    def _accept(self) -> None:
        while True:
            try:
                outer, _ = self._listener.accept()
            except OSError:
                return
            try:
                inner = socket.create_connection((HOST, self._target), timeout=5)
            except OSError:
                outer.close()
                continue
            inner.settimeout(None)
            with self._lock:
                self._open |= {outer, inner}
            for source, sink in ((outer, inner), (inner, outer)):
                threading.Thread(target=self._relay, args=(source, sink), daemon=True).start()

    def _relay(self, source: socket.socket, sink: socket.socket) -> None:
        carried = 0
        with suppress(OSError):
            while data := source.recv(65536 if self._rate > 65536 else 4096):
                while time.monotonic() < self._still_until:
                    time.sleep(0.05)
                if source in self._dead or sink in self._dead:
                    continue
                now = time.monotonic()
                carried += len(data)
                if now < self._drop_until and carried > self._most:
                    break
                rate = min(self._rate, SLOW_BYTES if now < self._slow_until else self._rate)
                time.sleep(self._latency + len(data) / rate + (DELAY if now < self._late_until else 0.0))
                sink.sendall(self._changed(data))
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        source.close()
        with self._lock:
            self._open.discard(source)
            self._dead.discard(source)

    def _changed(self, data: bytes) -> bytes:
        once, self._once = self._once, ""
        if once == "duplicate":
            return data + data
        if once == "corrupt":
            middle = len(data) // 2
            return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
        return data


FAULTS: dict[str, Callable[[Wire, float], None]] = {
    "cut": Wire.cut,
    "stall": Wire.stall,
    "throttle": Wire.throttle,
    "delay": Wire.delay,
    "half-open": Wire.forget,
    "middlebox": Wire.drop,
    "duplicated bytes": Wire.duplicate,
    "changed byte": Wire.corrupt,
}


def disturb(wires: list[Wire], kind: str, chance: Random, most_seconds: float) -> None:
    """That fault on these lines, for up to `most_seconds`."""
    seconds = chance.uniform(0.3, most_seconds)
    for wire in wires:
        FAULTS[kind](wire, seconds)
