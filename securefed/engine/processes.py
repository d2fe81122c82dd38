"""Engines on this machine: this process, or a pool of forked ones.

Work for a worker and its result are pickled into a pipe that only the party and this worker have. A worker
has one piece at a time: neither side waits for the other to read while it writes.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.util import Finalize
from typing import Any, Self

from securefed.crypto.scheme import R, Serial, T
from securefed.declare import check_integer
from securefed.errors import SecurefedError
from securefed.files import Closing


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


STOPPING = {signal.SIGINT, signal.SIGTERM}
MOST_DEATHS = 3


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
            piece = pipe.recv_bytes()
            try:
                answer = _answer(piece)
            except Exception as error:  # noqa: BLE001  # the party raises it
                answer = pickle.dumps((None, _portable(error)))
            pipe.send_bytes(answer)


def _answer(packed: bytes) -> bytes:
    function, piece = pickle.loads(packed)  # noqa: S301  # written by this worker's party
    return pickle.dumps((function(piece), None), pickle.HIGHEST_PROTOCOL)


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
        self._process = context.Process(target=_serve, args=(theirs, os.getpid()), daemon=True)
        # With stop signals blocked, so that none reaches a worker before it can ignore it.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            theirs.close()

    def give(self, function: Callable[[T], R], piece: T) -> None:
        try:
            self.pipe.send_bytes(pickle.dumps((function, piece), pickle.HIGHEST_PROTOCOL))
        except OSError:
            raise Gone from None

    def take(self) -> Any:
        """Return the result of the piece. Raise what the piece raised."""
        try:
            result, error = self.pipe.recv()
        except (EOFError, OSError):
            raise Gone from None
        if error is not None:
            raise error
        return result

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        """Wait for the end of a killed worker."""
        self._process.join()
        self._process.close()
        self.pipe.close()


def _end(workers: list[Worker]) -> None:
    for worker in workers:
        worker.kill()
    while workers:
        workers.pop().close()


class SerialEngine(Closing, Serial):
    """An engine that works in this process, one piece after the other."""


class Processes(Closing):
    """A pool of processes, started with the first piece of work and ended by `close`.

    Workers are forked. A spawned worker would import the user's script again, and a
    script without a main guard would start over. A worker computes one piece and holds no locks of this
    process. When a worker dies, for example for lack of memory, new ones start and repeat the pieces without
    a result. One thread at a time may use an engine.
    """

    def __init__(self, workers: int) -> None:
        self.workers = check_integer("workers", workers, least=1)
        self._started: list[Worker] = []
        self._busy: dict[Worker, int] = {}
        """The place of the piece that a worker has."""
        # At the end of a process without `close`, before Python waits for its children.
        Finalize(self, _end, (self._started,), exitpriority=1)

    @property
    def local(self) -> Self:
        return self

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> list[R]:
        if self._busy:
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
        idle = list(self._start())

        def unfinished() -> Iterator[int]:
            yield from (place for place in range(len(pieces)) if place not in done)
            for piece in source:
                pieces.append(piece)
                yield len(pieces) - 1

        due = unfinished()
        while True:
            while idle and (place := next(due, None)) is not None:
                self._busy[idle[-1]] = place
                idle.pop().give(function, pieces[place])
            if not self._busy:
                return
            ready = wait([worker.pipe for worker in self._busy])
            for worker in [worker for worker in self._busy if worker.pipe in ready]:
                done[self._busy[worker]] = worker.take()
                del self._busy[worker]
                idle.append(worker)

    def _start(self) -> list[Worker]:
        """Start all workers, before there are files that they would inherit."""
        if not self._started:
            context = multiprocessing.get_context("fork")
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
        self._busy.clear()
        _end(self._started)
