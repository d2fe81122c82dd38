"""Engines on this machine: this process, or a pool of forked ones."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from typing import Any, Self, TypeVar

from securefed.checks import check_integer
from securefed.crypto.scheme import Serial
from securefed.engine.placing import WorkFile, work
from securefed.errors import SecurefedError

__all__ = ["Processes", "SerialEngine", "WorkerDied", "cores"]

T = TypeVar("T")
R = TypeVar("R")


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


STOPPING = {signal.SIGINT, signal.SIGTERM}
MOST_DEATHS = 3
AHEAD = 2
"""Unfinished pieces per worker."""


class WorkerDied(SecurefedError):
    """Workers die repeatedly over the same work. A later try with more memory may succeed."""


def _begin(parent: int) -> None:
    """Prepare a worker: ignore stop signals, and end when the party's process is gone."""
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class SerialEngine(Serial):
    """An engine that works in this process, one piece after the other."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None


class Processes:
    """A pool of processes, started with the first piece of work and ended by `close`.

    Workers are forked where the system can. A spawned worker would import the user's script again, and a
    script without a main guard would start over. A worker computes one piece and holds no locks of this
    process. Large arrays go through memory that both processes map (securefed.engine.placing). When a worker
    dies, for example for lack of memory, new ones start and repeat the pieces without a result.
    """

    def __init__(self, workers: int) -> None:
        self.workers = check_integer("workers", workers, least=1)
        self._pools: list[ProcessPoolExecutor] = []

    @property
    def local(self) -> Self:
        return self

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> list[R]:
        source, pieces, done = iter(items), list[T](), dict[int, R]()
        deaths = 0
        while True:
            before = len(done)
            if self._try(function, source, pieces, done):
                return [done[place] for place in range(len(pieces))]
            deaths = 1 if len(done) > before else deaths + 1
            if deaths == MOST_DEATHS:
                raise WorkerDied(
                    f"a worker process died {deaths} times over the same work: killed, or short of memory; "
                    'engine = "serial" or fewer workers need less'
                )

    def _try(
        self, function: Callable[[T], R], source: Iterator[T], pieces: list[T], done: dict[int, R]
    ) -> bool:
        """Do all unfinished pieces, and those that `source` still has. Return False if a worker died.

        Workers begin with the first pieces while `source` makes the next ones.
        """
        waiting = deque(place for place in range(len(pieces)) if place not in done)
        running: dict[Future[bytes], tuple[int, int, WorkFile]] = {}

        def give(worker: int) -> None:
            """Give a worker the next piece, if there is one."""
            if not waiting:
                for piece in islice(source, 1):
                    waiting.append(len(pieces))
                    pieces.append(piece)
            if waiting:
                place = waiting.popleft()
                pool, parcel = self._started()[worker], WorkFile(function, pieces[place])
                try:
                    future = self._submit(pool, work, parcel.path, parcel.packed)
                except BaseException:
                    parcel.close()
                    raise
                running[future] = worker, place, parcel

        def take(future: Future[bytes]) -> int:
            worker, place, parcel = running[future]
            done[place] = parcel.result(future.result())
            parcel.close()
            del running[future]
            return worker

        try:
            for worker in AHEAD * list(range(self.workers)):
                give(worker)
            while running:
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    give(take(future))
        except BrokenProcessPool:
            self.close()
            for future in list(running):
                if not future.cancelled() and future.exception() is None:
                    take(future)
            return False
        finally:
            # A worker that is still at a piece has its file open: the path must not name another one yet.
            wait([future for future in running if not future.cancel()])
            for _, _, parcel in running.values():
                parcel.close()
        return True

    @staticmethod
    def _submit(pool: ProcessPoolExecutor, function: Callable[..., R], *arguments: Any) -> Future[R]:
        """Submit work with stop signals blocked, so that none reaches a worker before it can ignore it."""
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
        try:
            return pool.submit(function, *arguments)
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
            for pool in self._pools:  # all are forked now, before there are files that they would inherit
                self._submit(pool, os.getpid)
        return self._pools

    def close(self) -> None:
        pools, self._pools = self._pools, []
        for pool in pools:
            pool.shutdown(cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
