"""Engines on this machine: this process, or a pool of forked ones.

Work for a worker and its result are pickled into a memory file that both sides map, one file for a piece and
its result. Large arrays stand beside the pickle, so they are written once and not copied when they are read.
Only a party's own processes, under the same user, read these files.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import pickle
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from multiprocessing.process import BaseProcess
from typing import Any, Self, TypeVar

from securefed.crypto.scheme import Serial
from securefed.declare import check_integer
from securefed.errors import SecurefedError

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

    try:
        threading.Thread(target=watch, daemon=True).start()
    except RuntimeError:  # no thread is left: the party sees that its worker died
        os._exit(1)


class Closing:
    """A context manager that closes at its end."""

    def close(self) -> None:
        """Nothing to close."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SerialEngine(Closing, Serial):
    """An engine that works in this process, one piece after the other."""


class Processes(Closing):
    """A pool of processes, started with the first piece of work and ended by `close`.

    Workers are forked where the system can. A spawned worker would import the user's script again, and a
    script without a main guard would start over. A worker computes one piece and holds no locks of this
    process. Large arrays go through memory that both processes map (`WorkFile`). When a worker
    dies, for example for lack of memory, new ones start and repeat the pieces without a result.
    """

    def __init__(self, workers: int) -> None:
        self.workers = check_integer("workers", workers, least=1)
        self._pool: ProcessPoolExecutor | None = None

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
        running: dict[Future[Places], tuple[int, WorkFile]] = {}

        def unfinished() -> Iterator[int]:
            yield from (place for place in range(len(pieces)) if place not in done)
            for piece in source:
                pieces.append(piece)
                yield len(pieces) - 1

        def give(places: Iterable[int]) -> None:
            for place in places:
                pool, parcel = self._started(), WorkFile(function, pieces[place])
                try:
                    future = self._submit(pool, work, parcel.path, parcel.packed)
                except BaseException:
                    parcel.close()
                    raise
                running[future] = place, parcel

        def take(future: Future[Places]) -> None:
            place, parcel = running[future]
            done[place] = parcel.result(future.result())
            parcel.close()
            del running[future]

        due = unfinished()
        try:
            give(islice(due, AHEAD * self.workers))
            while running:
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    take(future)
                    give(islice(due, 1))
        except BrokenProcessPool:
            self.close()
            for future in list(running):
                if not future.cancelled() and future.exception() is None:
                    take(future)
            return False
        finally:
            # A worker that is still at a piece has its file open: the path must not name another one yet.
            wait([future for future in running if not future.cancel()])
            for _, parcel in running.values():
                parcel.close()
        return True

    @staticmethod
    def _submit(pool: ProcessPoolExecutor, function: Callable[..., R], *arguments: Any) -> Future[R]:
        """Submit work with stop signals blocked, so that none reaches a worker before it can ignore it."""
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
        try:
            return pool.submit(function, *arguments)
        except RuntimeError as error:
            if "new thread" not in str(error):
                raise
            raise WorkerDied(
                "no worker process could be started, since this process cannot start another thread; raise "
                'the limit of its user or container, or take engine = "serial"'
            ) from None
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def _started(self) -> ProcessPoolExecutor:
        if self._pool is None:
            method = "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"
            context = multiprocessing.get_context(method)
            self._pool = ProcessPoolExecutor(self.workers, context, _begin, (os.getpid(),))
            # All are forked now, before there are files that they would inherit.
            self._submit(self._pool, os.getpid)
        return self._pool

    def close(self) -> None:
        pool, self._pool = self._pool, None
        workers: Mapping[int, BaseProcess] = getattr(pool, "_processes", None) or {}
        try:
            if pool is not None:
                pool.shutdown(cancel_futures=True)
        except RuntimeError:  # the pool has no thread: nobody else ends its workers
            for worker in workers.values():
                worker.kill()


LARGE = 1 << 16
"""Arrays of at least this many bytes stand beside the pickle."""
ALIGNED = 64


class WorkFile:
    """A function and its argument for a worker, and the file for the result."""

    def __init__(self, function: Any, piece: Any) -> None:
        if hasattr(os, "memfd_create"):
            self._file = os.memfd_create("securefed")
            self.path = f"/proc/{os.getpid()}/fd/{self._file}"
        else:
            self._file, self.path = tempfile.mkstemp(prefix="securefed-")
        self.packed = _pack((function, piece), self._file)

    def result(self, packed: Places) -> Any:
        """Return the worker's result."""
        return _unpack(packed, self._file, mmap.ACCESS_WRITE)

    def close(self) -> None:
        """Close the file. Arrays of a result keep its memory as long as they live."""
        os.close(self._file)
        if not self.path.startswith("/proc/"):
            os.unlink(self.path)


def work(path: str, packed: Places) -> Places:
    """Run a parcel's function in a worker."""
    file = os.open(path, os.O_RDWR)
    try:
        function, piece = _unpack(packed, file, mmap.ACCESS_READ)
        return _pack(function(piece), file)
    finally:
        os.close(file)


Places = list[tuple[int, int]]
"""(start, length) in a file: of a pickle, and of the arrays that it leaves out."""


def _pack(value: Any, file: int) -> Places:
    arrays: list[memoryview] = []

    def in_pickle(array: pickle.PickleBuffer) -> bool:
        large = array.raw().nbytes >= LARGE
        if large:
            arrays.append(array.raw())
        return not large

    pickled = pickle.dumps(value, protocol=5, buffer_callback=in_pickle)
    places = []
    for part in (memoryview(pickled), *arrays):
        start, rest = -(-os.lseek(file, 0, os.SEEK_END) // ALIGNED) * ALIGNED, part
        os.lseek(file, start, os.SEEK_SET)
        while rest:
            rest = rest[os.write(file, rest[: 1 << 30]) :]
        places.append((start, len(part)))
    return places


def _unpack(packed: Places, file: int, access: int) -> Any:
    mapped = memoryview(mmap.mmap(file, os.fstat(file).st_size, access=access))
    pickled, *arrays = (mapped[start : start + size] for start, size in packed)
    return pickle.loads(pickled, buffers=arrays)  # noqa: S301  # written by a process of this party
