"""The party's own worker processes, started before anything that must not be copied into them.

A worker is a fork of this process. It is made before the network is set up, so that it holds no socket and no
lock of it; it does not take a Ctrl-C that is meant for the party; and it ends with the party, however that
ends.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from securefed.engine import Engine, get_engine

__all__ = ["workers"]

PR_SET_PDEATHSIG = 1


@contextmanager
def workers(value: str | int | None, scheme: str) -> Iterator[Engine]:
    """The engine of a run, ready to work."""
    with get_engine(value, scheme) as engine:
        if type(engine).__name__ == "Processes":
            _start(engine)
        yield engine


def _start(engine: Engine) -> None:
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited by what is forked now
    try:
        seen: set[int] = set()
        while len(seen) < engine.workers:
            seen.update(engine.map(_settle, range(engine.workers)))
    finally:
        signal.signal(signal.SIGINT, handler)


def _settle(_: int) -> int:
    """In a worker: end when the party does. Long enough that every worker takes one of these."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    time.sleep(0.05)
    return os.getpid()
