"""Engines on this machine: this process, or a pool of forked ones."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Self, TypeVar

from securefed.checks import check_integer
from securefed.crypto.scheme import Shared
from securefed.engine.placing import Placed, Places
from securefed.errors import SecurefedError

__all__ = ["Processes", "SerialEngine", "WorkerDied", "cores"]

T = TypeVar("T")
R = TypeVar("R")


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


STOPPING = {signal.SIGINT, signal.SIGTERM}
MOST_DEATHS = 3


class WorkerDied(SecurefedError):
    """Workers keep dying over the same work; a later try, with more memory, may go well."""


def _begin(parent: int) -> None:
    """In a worker: whoever stops the party stops it, and the party its workers; they end when its process is
    gone, since a killed one cannot tell them.
    """
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class SerialEngine:
    """One piece after the other, in this process."""

    workers = 1

    @property
    def local(self) -> Self:
        return self

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> list[R]:
        return [function(item) for item in items]

    def share(self, value: T) -> Shared[T]:
        return Shared(value)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None


class Processes:
    """A pool of processes, started with the first piece of work and ended by `close`.

    Workers are forked where the system can: a spawned one would import the user's script again, and a
    script without a main guard would start over. A worker does the arithmetic of one piece and holds no
    locks of this process. One that dies (the system was short of memory, say) takes the pool with it: there
    is a new one, and what had no result yet is done again.
    """

    def __init__(self, workers: int) -> None:
        self.workers = check_integer("workers", workers, least=1)
        self._pool: ProcessPoolExecutor | None = None
        self._places = Places()

    @property
    def local(self) -> Self:
        return self

    def share(self, value: T) -> Shared[T]:
        return Placed(value, self._places.place)

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> list[R]:
        pieces = list(items)
        done: dict[int, R] = {}
        deaths = 0
        while len(done) < len(pieces):
            before = len(done)
            if self._try(function, pieces, done):
                break
            deaths = 1 if len(done) > before else deaths + 1
            if deaths == MOST_DEATHS:
                raise WorkerDied(
                    f"a worker process died {deaths} times over the same work: killed, or short of memory; "
                    'engine = "serial" or fewer workers need less'
                )
        return [done[place] for place in range(len(pieces))]

    def _try(self, function: Callable[[T], R], pieces: list[T], done: dict[int, R]) -> bool:
        """All that is not done yet; False if the pool broke over it."""
        tried = {}
        try:
            pool = self._started()
            for place in range(len(pieces)):
                if place not in done:
                    tried[place] = self._submit(pool, function, pieces[place])
            for place, future in tried.items():
                done[place] = future.result()
        except BrokenProcessPool:
            for place, future in tried.items():
                if future.done() and not future.cancelled() and future.exception() is None:
                    done[place] = future.result()
            self.close()
            return False
        return True

    @staticmethod
    def _submit(pool: ProcessPoolExecutor, function: Callable[[T], R], piece: T) -> Future[R]:
        """The first submission forks; a signal for the party must not reach a worker before it can ignore
        it.
        """
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
        try:
            return pool.submit(function, piece)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def _started(self) -> ProcessPoolExecutor:
        if self._pool is None:
            method = "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"
            self._pool = ProcessPoolExecutor(
                self.workers,
                mp_context=multiprocessing.get_context(method),
                initializer=_begin,
                initargs=(os.getpid(),),
            )
        return self._pool

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self._places.close()
