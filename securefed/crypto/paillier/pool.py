"""r**n ahead of time: a bounded store that a background thread fills while its party waits for others.

r**n is nearly all of the cost of encrypting and of re-randomising, and does not depend on what is
encrypted. Taken from a filled pool, a ciphertext costs two multiplications.

Each value is handed out once: taking removes it, under a lock. A copy of the store would break that, so
there is none: a pool cannot be pickled or copied, and in a process that was forked off it is empty. An
empty pool is never waited for; what is missing is computed by whoever asks.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from types import TracebackType
from typing import NoReturn

import gmpy2
from gmpy2 import mpz

from securefed.crypto.errors import CryptoError, RangeError
from securefed.crypto.paillier.residues import Residues

__all__ = ["RandomnessPool"]

MOST_VALUES = 1 << 20


class RandomnessPool:
    """At most `capacity` residues, refilled in the background until closed. Use it in a with statement."""

    def __init__(
        self, residues: Residues, capacity: int = 256, *, batch: int = 4, background: bool = True
    ) -> None:
        if not 1 <= capacity <= MOST_VALUES:
            raise RangeError(f"capacity: {capacity} given, 1 to {MOST_VALUES} are allowed")
        if not 1 <= batch <= 256:
            raise RangeError(f"batch: {batch} given, 1 to 256 are allowed")
        self.capacity = capacity
        self._batch = batch
        self._residues = residues
        self._values: deque[mpz] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread: threading.Thread | None = None
        _pools.add(self)
        if background:
            self._thread = threading.Thread(target=self._work, name="paillier randomness", daemon=True)
            self._thread.start()

    def __len__(self) -> int:
        """How many values are ready."""
        return len(self._values)

    @property
    def closed(self) -> bool:
        return self._closed

    def take(self, count: int) -> list[mpz]:
        """`count` residues that nobody else gets: what the store has of them, the rest computed here."""
        if count < 0:
            raise RangeError(f"count: {count} given, at least 0 is allowed")
        if self._closed:
            raise CryptoError("this randomness pool is closed")
        ready = self.take_ready(count)
        missing = count - len(ready)
        return ready + (self._residues.draw(missing) if missing else [])

    def take_ready(self, count: int) -> list[mpz]:
        """Up to `count` residues of those that are ready; none once it is closed."""
        with self._changed:
            taken = [self._values.popleft() for _ in range(min(count, len(self._values)))]
            self._changed.notify_all()
        return taken

    def fill(self) -> None:
        """Fill it to its capacity now, in this thread beside the background one."""
        while (room := self._room()) > 0:
            self._store(self._residues.draw(min(room, self._batch)))

    def wait_until_full(self, timeout: float | None = None) -> bool:
        """Wait for the background thread; False when the time ran out before."""
        with self._changed:
            return self._changed.wait_for(lambda: self._closed or len(self._values) >= self.capacity, timeout)

    def close(self) -> None:
        """Stop the thread and forget what is left. What was left is never used."""
        with self._changed:
            self._closed = True
            self._values.clear()
            self._changed.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def __enter__(self) -> RandomnessPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a randomness pool cannot be copied or pickled: its values would be used twice")

    def __repr__(self) -> str:
        return f"<randomness pool, {len(self)} of {self.capacity} ready{', closed' if self._closed else ''}>"

    def _room(self) -> int:
        with self._changed:
            return 0 if self._closed else self.capacity - len(self._values)

    def _store(self, values: list[mpz]) -> None:
        """Keep what fits; what a faster thread left no room for is dropped unused."""
        with self._changed:
            if not self._closed:
                self._values.extend(values[: self.capacity - len(self._values)])
            self._changed.notify_all()

    def _work(self) -> None:
        with gmpy2.context(allow_release_gil=True):
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._closed or len(self._values) < self.capacity)
                    if self._closed:
                        return
                    room = self.capacity - len(self._values)
                self._store(self._residues.draw(min(room, self._batch)))

    def _abandon(self) -> None:
        """In a forked process: the values belong to the parent, and its thread and lock are not here."""
        self._values = deque()
        self._changed = threading.Condition()
        self._thread = None


_pools: weakref.WeakSet[RandomnessPool] = weakref.WeakSet()


def _abandon_all() -> None:
    for pool in list(_pools):
        pool._abandon()


if hasattr(os, "register_at_fork"):  # where there is no fork, nothing can be copied that way
    os.register_at_fork(after_in_child=_abandon_all)
