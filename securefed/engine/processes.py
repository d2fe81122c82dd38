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
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from multiprocessing.connection import Connection, wait
from multiprocessing.util import Finalize
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


class Gone(Exception):
    """A worker died over a piece."""


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


def _serve(pipe: Connection[Any, Any], parent: int) -> None:
    """Do one piece after the other in a worker, until the party's process is gone."""
    _begin(parent)
    with suppress(EOFError, OSError):
        while True:
            path, packed = pipe.recv()
            answer: tuple[Places | None, Exception | None]
            try:
                answer = work(path, packed), None
            except Exception as error:  # noqa: BLE001  # the party raises it
                answer = None, _portable(error)
            pipe.send(answer)


def _portable(error: Exception) -> Exception:
    """Return an error that can be sent, with the worker's stack as a note."""
    error.add_note("in a worker process:\n" + "".join(traceback.format_exception(error)))
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301  # made here
    except Exception:  # noqa: BLE001  # whatever its class does
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


class Worker:
    """A process with a pipe of its own.

    Workers share no queue. A process that is killed in a queue keeps its lock, and all others would wait for
    it. Nor is a thread of this process between them.
    """

    def __init__(self, context: Any) -> None:
        self.pipe, theirs = context.Pipe()
        self.pieces: deque[tuple[int, WorkFile]] = deque()
        """The pieces that it was given, with their places. Results come in this order."""
        self._process = context.Process(target=_serve, args=(theirs, os.getpid()), daemon=True)
        # With stop signals blocked, so that none reaches a worker before it can ignore it.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            theirs.close()

    def give(self, place: int, parcel: WorkFile) -> None:
        self.pieces.append((place, parcel))
        try:
            self.pipe.send((parcel.path, parcel.packed))
        except OSError:
            raise Gone from None

    def take(self) -> tuple[int, Any]:
        """Return the place and the result of the oldest piece. Raise what the piece raised."""
        try:
            packed, error = self.pipe.recv()
        except (EOFError, OSError):
            raise Gone from None
        if error is not None:
            raise error
        place, parcel = self.pieces.popleft()
        try:
            return place, parcel.result(packed)
        finally:
            parcel.close()

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        """Wait for the end of a killed worker, and close its files."""
        self._process.join()
        self.pipe.close()
        for _, parcel in self.pieces:
            parcel.close()


def _end(workers: list[Worker]) -> None:
    for worker in workers:
        worker.kill()
    while workers:
        workers.pop().close()


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
    dies, for example for lack of memory, new ones start and repeat the pieces without a result. One thread
    at a time may use an engine.
    """

    def __init__(self, workers: int) -> None:
        self.workers = check_integer("workers", workers, least=1)
        self._started: list[Worker] = []
        # At the end of a process without `close`, before Python waits for its children.
        Finalize(self, _end, (self._started,), exitpriority=1)

    @property
    def local(self) -> Self:
        return self

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> list[R]:
        if any(worker.pieces for worker in self._started):
            raise SecurefedError("engine: another thread uses it; give each thread an engine of its own")
        source, pieces, done = iter(items), list[T](), dict[int, R]()
        deaths = 0
        while True:
            before = len(done)
            try:
                self._do(function, source, pieces, done)
                return [done[place] for place in range(len(pieces))]
            except Gone:
                self.close()
            except BaseException:
                self.close()  # no piece is under way after a failure
                raise
            deaths = 1 if len(done) > before else deaths + 1
            if deaths == MOST_DEATHS:
                raise WorkerDied(
                    f"a worker process died {deaths} times over the same work: killed, or short of memory; "
                    'engine = "serial" or fewer workers need less'
                )

    def _do(
        self, function: Callable[[T], R], source: Iterator[T], pieces: list[T], done: dict[int, R]
    ) -> None:
        """Do all unfinished pieces, and those that `source` still has.

        Workers begin with the first pieces while `source` makes the next ones.
        """
        workers = self._start()

        def unfinished() -> Iterator[int]:
            yield from (place for place in range(len(pieces)) if place not in done)
            for piece in source:
                pieces.append(piece)
                yield len(pieces) - 1

        def give(places: Iterable[int]) -> None:
            for place in places:
                worker = min(workers, key=lambda each: len(each.pieces))
                worker.give(place, WorkFile(function, pieces[place]))

        due = unfinished()
        give(islice(due, AHEAD * self.workers))
        while busy := {worker.pipe: worker for worker in workers if worker.pieces}:
            for pipe in wait(list(busy)):
                place, result = busy[pipe].take()
                done[place] = result
                give(islice(due, 1))

    def _start(self) -> list[Worker]:
        """Start all workers, before there are files that they would inherit."""
        if not self._started:
            method = "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"
            context = multiprocessing.get_context(method)
            try:
                for _ in range(self.workers):
                    self._started.append(Worker(context))
            except OSError as error:
                raise WorkerDied(
                    f"no worker process could be started ({error.strerror}); raise the limit of this "
                    'process\'s user or container, or take engine = "serial"'
                ) from None
        return self._started

    def close(self) -> None:
        """End the workers."""
        _end(self._started)


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
