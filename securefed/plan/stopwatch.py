"""How long something takes this thread, by the processor's clock."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import thread_time

__all__ = ["timed"]


def timed(work: Callable[[], object], repeats: int = 3) -> float:
    """The median of a few."""
    taken = []
    for _ in range(repeats):
        begin = thread_time()
        work()
        taken.append(thread_time() - begin)
    return median(taken)
