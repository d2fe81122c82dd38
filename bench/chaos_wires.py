"""The lines between parties, as bad as one likes: a TCP relay for each direction, that cuts, stands still,
trickles, or swallows what comes on old connections without a word.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from random import Random

__all__ = ["FAULTS", "Wire"]

HOST = "127.0.0.1"
SLOW_BYTES = 50_000
"""A second, while a line is throttled."""


class Wire:
    """Where one party reaches another. Faults are for a while, and mend themselves."""

    def __init__(self, target: int, rate: float = float("inf"), latency: float = 0.0) -> None:
        """`rate` in bytes a second and `latency` in seconds: what the line is like in peace."""
        self._target, self._rate, self._latency = target, rate, latency
        self._listener = socket.create_server((HOST, 0))
        # What is on its way is here and not in a buffer of this machine.
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        self.port = int(self._listener.getsockname()[1])
        self._open: set[socket.socket] = set()
        self._dead: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._still_until = self._slow_until = 0.0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()
        self.cut()

    def cut(self, _: float = 0.0) -> None:
        """Every connection ends now; new ones work."""
        with self._lock:
            sockets = list(self._open)
        for end in sockets:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def stall(self, seconds: float) -> None:
        """Nothing gets through, and nothing is closed."""
        self._still_until = time.monotonic() + seconds

    def throttle(self, seconds: float) -> None:
        self._slow_until = time.monotonic() + seconds

    def forget(self, _: float = 0.0) -> None:
        """As a router that lost its table: open connections swallow everything, new ones work."""
        with self._lock:
            self._dead |= self._open

    def mend(self) -> None:
        self._still_until = self._slow_until = 0.0

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
        with suppress(OSError):
            while data := source.recv(65536 if self._rate > 65536 else 4096):
                while time.monotonic() < self._still_until:
                    time.sleep(0.05)
                if source in self._dead or sink in self._dead:
                    continue
                rate = min(self._rate, SLOW_BYTES if time.monotonic() < self._slow_until else self._rate)
                time.sleep(self._latency + len(data) / rate)
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        source.close()
        with self._lock:
            self._open.discard(source)
            self._dead.discard(source)


FAULTS: dict[str, Callable[[Wire, float], None]] = {
    "cut": Wire.cut,
    "stall": Wire.stall,
    "throttle": Wire.throttle,
    "half-open": Wire.forget,
}


def disturb(wires: list[Wire], kind: str, chance: Random) -> None:
    """That fault on one line, in one direction or both, for up to a bit more than the patience."""
    seconds = chance.uniform(0.5, 14.0)
    for wire in wires:
        FAULTS[kind](wire, seconds)
