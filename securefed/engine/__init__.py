"""Parallel work inside a party: serial, a pool of processes, or a Ray cluster. Same results bit for bit.

The crypto layer cuts heavy work into independent pieces and hands them to a mapper
(securefed.crypto.scheme.Mapper). Which one is the operator's choice:

    None             all cores of this machine for a scheme that encrypts, else serial
    "serial"         this process alone
    "processes"      one process for each core; an integer says how many
    "ray"            a Ray cluster: the one that RAY_ADDRESS names, or one on this machine
    "ray://..."      the Ray cluster at this address

Pieces carry public keys, ciphertexts and a party's own numbers, never a secret key of another party. Under
RLWE they carry no secret key at all. Ray's own settings apply: RAY_ADDRESS, and where the cluster asks for a
token RAY_AUTH_MODE=token with RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from securefed.crypto import protects
from securefed.crypto.scheme import R, T
from securefed.declare import check_choice, check_integer
from securefed.engine.processes import Processes, SerialEngine, WorkerDied, cores
from securefed.errors import MissingExtra, SecurefedError, SettingError
from securefed.files import Closing

__all__ = ["Engine", "Processes", "Ray", "SerialEngine", "WorkerDied", "get_engine", "started_engine"]

RETRIES = 3
"""Retries of a piece whose worker or node was lost."""
CONNECT_SECONDS = 10.0


class Ray(Closing):
    """Work as Ray tasks. It connects with the first piece, and leaves a cluster that it joined running.

    The cluster gets public keys, ciphertexts and this party's own columns, and its operator can read those
    (docs/threat-model.md). Work with a secret key stays in this machine's processes (`local`).
    """

    def __init__(self, address: str | None = None) -> None:
        self._address = address
        self._ray: Any = None
        self._task: Any = None
        self._joined = False
        self.local = Processes(cores())
        """Starts no process before there is work for it."""

    @property
    def workers(self) -> int:
        return max(1, int(self._connected().cluster_resources().get("CPU", 1)))

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> list[R]:
        ray = self._connected()
        if self._task is None:  # made once: a cluster is told of every new one, and its workers ask for it
            self._task = ray.remote(_done).options(max_retries=RETRIES)
        pending = [self._task.remote(function, item) for item in items]
        try:
            results: list[R] = ray.get(pending)
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except ray.exceptions.RayError as error:
            line = str(error).strip().split("\n", 1)[0]
            raise SecurefedError(
                f"the Ray cluster lost a piece of work {RETRIES + 1} times: {line}"
            ) from None
        except BaseException:
            for each in pending:  # whoever interrupts this party leaves nothing running in its name
                ray.cancel(each, force=True)
            raise
        return results

    def _connected(self) -> Any:
        if self._ray is None:
            try:
                import ray
            except ImportError:
                raise MissingExtra('the engine "ray" needs Ray: pip install "securefed[ray]"') from None
            if not ray.is_initialized():
                _reach(self._address)
                try:
                    ray.init(address=self._address, log_to_driver=False, include_dashboard=False)
                except (ConnectionError, RuntimeError, ValueError) as error:
                    raise _unreached(self._address, error) from None
                self._joined = True
            self._ray = ray
        return self._ray

    def close(self) -> None:
        self.local.close()
        if self._ray is not None and self._joined:
            self._ray.shutdown()
        self._ray, self._task, self._joined = None, None, False


def _done(function: Callable[[T], R], item: T) -> R:
    return function(item)


def _reach(address: str | None) -> None:
    """Raise SettingError if the address does not answer. Ray would end this process instead."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        try:
            socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
        except OSError as error:
            raise _unreached(address, error) from None


def _unreached(address: str | None, error: Exception) -> SettingError:
    line = str(error).strip().split("\n", 1)[0]
    return SettingError(f"engine: no Ray cluster at {address or 'this machine'}: {line}")


Engine = SerialEngine | Processes | Ray


def get_engine(value: object, scheme: str) -> Engine:
    """Return the engine for a run, a context manager: its processes end with the run."""
    if isinstance(value, SerialEngine | Processes | Ray):
        return value
    if value is None:
        return Processes(cores()) if protects(scheme) and cores() > 1 else SerialEngine()
    if isinstance(value, str):
        if value == "ray" or value.startswith("ray://"):
            return Ray(value if value != "ray" else None)
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
