"""Engines on this machine: this process, or a pool of forked ones."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from typing import Self, TypeVar

from securefed.checks import check_integer

__all__ = ["Processes", "SerialEngine", "cores"]

T = TypeVar("T")
R = TypeVar("R")


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _end_with(parent: int) -> None:
    """In a worker: end when the party's process is gone. A killed one cannot tell its workers."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class SerialEngine:
    """One piece after the other, in this process."""

    workers = 1

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> list[R]:
        return [function(item) for item in items]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None


class Processes:
    """A pool of processes, started with the first piece of work and ended by `close`.

    Workers are forked where the system can: a spawned one would import the user's script again, and a
    script without a main guard would start over. A worker does the arithmetic of one piece and holds no
    locks of this process.
    """

    def __init__(self, workers: int) -> None:
        self.workers = check_integer("workers", workers, least=1)
        self._pool: ProcessPoolExecutor | None = None

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> list[R]:
        if self._pool is None:
            method = "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"
            self._pool = ProcessPoolExecutor(
                self.workers,
                mp_context=multiprocessing.get_context(method),
                initializer=_end_with,
                initargs=(os.getpid(),),
            )
        return list(self._pool.map(function, items))

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
