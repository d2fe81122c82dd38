"""Time per item of two ways to do the same, taken in turns.

A shared machine is slower at one moment than at the next. Taking turns gives both sides the same moments, and
the median keeps one bad moment from deciding; what counts is the ratio, not the microseconds. Measured is
processor time, over all threads of the process: for work on one thread it is the time on an idle machine,
whoever else runs, and a side that used more threads would gain nothing.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import process_time


@dataclass(frozen=True)
class Task:
    """Work that handles `items` items in one call; `prepare` makes its input and is not timed."""

    work: Callable[..., object]
    items: int
    prepare: Callable[[], tuple[object, ...]] = tuple


def per_item_us(task: Task) -> float:
    """One timed call, in microseconds an item. The collector is off meanwhile, as in timeit."""
    inputs = task.prepare()
    was_on = gc.isenabled()
    gc.disable()
    try:
        begin = process_time()
        task.work(*inputs)
        return (process_time() - begin) * 1e6 / task.items
    finally:
        if was_on:
            gc.enable()


def take_turns(tasks: dict[str, Task], repeats: int) -> dict[str, float]:
    """Median microseconds an item of each task over `repeats` rounds, after one round that is not counted."""
    taken: dict[str, list[float]] = {name: [] for name in tasks}
    for turn in range(repeats + 1):
        for name, task in tasks.items():
            spent = per_item_us(task)
            if turn:
                taken[name].append(spent)
    return {name: median(times) for name, times in taken.items()}
