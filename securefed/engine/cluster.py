"""An engine on a Ray cluster, for a party whose one machine is not enough."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Self, TypeVar

from securefed.errors import MissingExtra

__all__ = ["Ray"]

T = TypeVar("T")
R = TypeVar("R")


class Ray:
    """Pieces of work as Ray tasks. Connects with the first piece; leaves a cluster that it joined running."""

    def __init__(self, address: str | None = None) -> None:
        self._address = address
        self._ray: Any = None
        self._joined = False

    @property
    def workers(self) -> int:
        return max(1, int(self._connected().cluster_resources().get("CPU", 1)))

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> list[R]:
        ray = self._connected()
        task = ray.remote(function)
        results: list[R] = ray.get([task.remote(item) for item in items])
        return results

    def _connected(self) -> Any:
        if self._ray is None:
            try:
                import ray
            except ImportError:
                raise MissingExtra('the engine "ray" needs Ray: pip install "securefed[ray]"') from None
            if not ray.is_initialized():
                ray.init(address=self._address, log_to_driver=False, include_dashboard=False)
                self._joined = True
            self._ray = ray
        return self._ray

    def close(self) -> None:
        if self._ray is not None and self._joined:
            self._ray.shutdown()
        self._ray = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
