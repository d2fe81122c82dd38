"""The party's own worker processes, started before anything that must not be copied into them.

A worker is a fork of this process. It is made before the network is set up, so that it holds no socket and no
lock of it, and does not take a Ctrl-C that is meant for the party. It ends with the party, however that ends
(securefed.engine.local).
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from securefed.engine import Engine, Processes, get_engine

__all__ = ["workers"]


@contextmanager
def workers(value: str | int | None, scheme: str) -> Iterator[Engine]:
    """The engine of a run, ready to work."""
    with get_engine(value, scheme) as engine:
        if isinstance(engine, Processes):
            _start(engine)
        yield engine


def _start(engine: Engine) -> None:
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited by what is forked now
    try:
        engine.map(abs, range(engine.workers))
    finally:
        signal.signal(signal.SIGINT, handler)
