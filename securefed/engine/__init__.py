"""Parallel work inside a party: serial, a pool of processes, or a Ray cluster. Same results bit for bit.

The crypto layer cuts heavy work into independent pieces and hands them to a mapper
(securefed.crypto.scheme.Mapper). Which one is the operator's choice:

    None             all cores of this machine where the scheme gains by it (Paillier), else serial
    "serial"         this process alone
    "processes"      one process for each core; an integer says how many
    "ray"            a Ray cluster: the one that RAY_ADDRESS names, or one on this machine
    "ray://..."      the Ray cluster at this address; ?cpus=2&memory_gib=4&resource=NAME behind it, or behind
                     "ray", is what a piece of work asks for

Pieces carry public keys, ciphertexts and a party's own numbers, and never a secret key of another party; a
party's own cluster is inside its walls. Under RLWE they carry no secret key at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from securefed.checks import check_choice, check_integer
from securefed.crypto import SCHEMES
from securefed.engine.cluster import Ray
from securefed.engine.local import Processes, SerialEngine, WorkerDied, cores
from securefed.errors import SettingError

__all__ = ["Engine", "Processes", "Ray", "SerialEngine", "WorkerDied", "get_engine", "started_engine"]

Engine = SerialEngine | Processes | Ray


def get_engine(value: object, scheme: str) -> Engine:
    """Return the engine for a run, a context manager: its processes end with the run."""
    if isinstance(value, SerialEngine | Processes | Ray):
        return value
    if value is None:
        return Processes(cores()) if SCHEMES[scheme].parallel and cores() > 1 else SerialEngine()
    if isinstance(value, str):
        if value.startswith("ray://"):
            return Ray(value)
        if value.partition("?")[0] == "ray":
            return Ray(value.removeprefix("ray"))
        check_choice("engine", value, ("serial", "processes", "ray"))
        return SerialEngine() if value == "serial" else Processes(cores())
    if isinstance(value, bool) or not isinstance(value, int):
        raise SettingError(
            f"engine: {value!r} given, serial, processes, ray or a number of processes is allowed"
        )
    workers = check_integer("engine", value, least=1)
    return Processes(workers) if workers > 1 else SerialEngine()


@contextmanager
def started_engine(value: object, scheme: str) -> Iterator[Engine]:
    """Start the engine of a party process, with its worker processes.

    A worker is a fork of this process. It starts before the network does, so that it has no socket and no
    lock of it.
    """
    with get_engine(value, scheme) as engine:
        if isinstance(engine, Processes):
            engine.map(abs, range(engine.workers))
        yield engine
