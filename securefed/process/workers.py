"""The party's own worker processes, started before anything that must not be copied into them.

A worker is a fork of this process. It is made before the network is set up, so that it holds no socket and no
lock of it. It ends with the party, however that ends (securefed.engine.local).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from securefed.engine import Engine, Processes, get_engine

__all__ = ["workers"]


@contextmanager
def workers(value: str | int | None, scheme: str) -> Iterator[Engine]:
    """The engine of a run, ready to work."""
    with get_engine(value, scheme) as engine:
        if isinstance(engine, Processes):
            engine.map(abs, range(engine.workers))
        yield engine
