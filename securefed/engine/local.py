"""Engines on this machine: this process, or a pool of forked ones."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
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
AHEAD = 2
"""Pieces that a worker has been given and not done."""


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
    locks of this process. Pieces go to workers by their number, so that a piece that comes again in the next
    round finds what its worker has made of its columns; who is done takes from others. When one dies (the
    system was short of memory, say) there are new ones, and what had no result yet is done again.
    """

    def __init__(self, workers: int) -> None:
        self.workers = check_integer("workers", workers, least=1)
        self._pools: list[ProcessPoolExecutor] = []
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
        """All that is not done yet; False if a worker died over it."""
        left = [place for place in range(len(pieces)) if place not in done]
        homes = [deque(p for p in left if p % self.workers == worker) for worker in range(self.workers)]
        running: dict[Future[R], tuple[int, int]] = {}

        def give(worker: int) -> None:
            """The next piece of its own, or the last of whoever has most left."""
            own, longest = homes[worker], max(homes, key=len)
            if longest:
                place = own.popleft() if own else longest.pop()
                running[self._submit(self._started()[worker], function, pieces[place])] = worker, place

        try:
            for worker in AHEAD * list(range(self.workers)):
                give(worker)
            while running:
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    worker, place = running[future]
                    done[place] = future.result()
                    del running[future]
                    give(worker)
        except BrokenProcessPool:
            self.close()
            for future, (_, place) in running.items():
                if not future.cancelled() and future.exception() is None:
                    done[place] = future.result()
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

    def _started(self) -> list[ProcessPoolExecutor]:
        if not self._pools:
            method = "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"
            self._pools = [
                ProcessPoolExecutor(
                    1,
                    mp_context=multiprocessing.get_context(method),
                    initializer=_begin,
                    initargs=(os.getpid(),),
                )
                for _ in range(self.workers)
            ]
        return self._pools

    def close(self) -> None:
        pools, self._pools = self._pools, []
        for pool in pools:
            pool.shutdown(cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self._places.close()
