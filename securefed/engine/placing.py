"""Values that many pieces of work need, placed once where all workers find them.

A value is pickled without its large arrays. Those are placed apart, each once for as long as it lives,
however many values hold it: an array in memory as a file in memory that workers map, an array that is a file
already (numpy's memmap) by its path. Every worker keeps the last few values that it was asked about.

Only a party's own processes read what is written here, under the same user.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import tempfile
import weakref
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from securefed.crypto.scheme import Shared

__all__ = ["ArrayFile", "Handle", "Placed", "Places"]

T = TypeVar("T")
Array = NDArray[Any]
LARGE = 1 << 16
"""Bytes from which on an array is placed apart."""
MOST_VALUES = 16
"""That a worker keeps: two parties in one process have six keys and matrices that come again in every round,
and between two uses of one there are operands that do not.
"""


class Handle(Protocol):
    """Where an array is; small, and the same in all processes."""

    def load(self) -> Array: ...


_loaded: weakref.WeakValueDictionary[tuple[Any, ...], Array] = weakref.WeakValueDictionary()
_values: OrderedDict[bytes, Any] = OrderedDict()


@dataclass(frozen=True)
class ArrayFile:
    """An array in a file, of memory or on disk."""

    path: str
    dtype: str
    shape: tuple[int, ...]
    offset: int = 0
    token: bytes = b""
    """What tells two files of memory with one path apart."""

    def load(self) -> Array:
        array = _loaded.get((self.path, self.token, self.offset, self.shape))
        if array is None:
            array = np.memmap(self.path, self.dtype, "r", self.offset, self.shape)
            _loaded[self.path, self.token, self.offset, self.shape] = array
        return array


class Placed(Shared[T]):
    """A value and its handles."""

    def __init__(self, value: T, place: Callable[[Array], Handle]) -> None:
        super().__init__(value)
        stream, self.token = io.BytesIO(), os.urandom(16)
        pickler = _Pickler(stream, place)
        pickler.dump(value)
        self._blob, self._handles = stream.getvalue(), pickler.handles
        self._arrays = pickler.arrays  # some were made for this, and have no other owner

    def __getstate__(self) -> dict[str, Any]:
        return {"token": self.token, "_blob": self._blob, "_handles": self._handles}

    def get(self) -> T:
        if "_value" in vars(self):
            return super().get()
        if self.token not in _values:
            _values[self.token] = _Unpickler(self._blob, self._handles).load()
            while len(_values) > MOST_VALUES:
                _values.popitem(last=False)
        _values.move_to_end(self.token)
        value: T = _values[self.token]
        return value


class _Pickler(pickle.Pickler):
    def __init__(self, stream: io.BytesIO, place: Callable[[Array], Handle]) -> None:
        super().__init__(stream, protocol=5)
        self._place, self.handles, self.arrays = place, list[Handle](), list[Array]()

    def persistent_id(self, value: Any) -> int | None:
        if not isinstance(value, np.ndarray) or value.nbytes < LARGE or value.dtype.hasobject:
            return None
        self.handles.append(self._place(value))
        self.arrays.append(value)
        return len(self.handles) - 1


class _Unpickler(pickle.Unpickler):
    def __init__(self, blob: bytes, handles: list[Handle]) -> None:
        super().__init__(io.BytesIO(blob))
        self._handles = handles

    def persistent_load(self, number: int) -> Array:
        return self._handles[number].load()


class Places:
    """Arrays of this process as files, until they or this are gone."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Array], ArrayFile]] = {}
        self._open: dict[int, Callable[[], None]] = {}

    def place(self, array: Array) -> ArrayFile:
        on_disk = mapped(array)
        if on_disk is not None:
            return on_disk
        known = self._known.get(id(array))
        if known is not None and known[0]() is array:
            return known[1]
        path, release = _written(array)
        file = ArrayFile(path, array.dtype.str, array.shape, token=os.urandom(16))
        self._known[id(array)] = weakref.ref(array), file
        self._open[id(array)] = release
        weakref.finalize(array, self._forget, id(array))
        return file

    def _forget(self, name: int) -> None:
        release = self._open.pop(name, None)
        self._known.pop(name, None)
        if release is not None:
            release()

    def close(self) -> None:
        for name in list(self._open):
            self._forget(name)


def mapped(array: Array) -> ArrayFile | None:
    """The file that an array is as a whole, if it is one."""
    root: Any = array
    while isinstance(root, np.ndarray) and not isinstance(root, np.memmap):
        root = root.base
    if not isinstance(root, np.memmap) or root.filename is None or root.mode == "c":
        return None
    same = root.__array_interface__["data"][0] == array.__array_interface__["data"][0]
    base: Any = root.base  # of a part of a file: the whole
    whole = isinstance(base, mmap.mmap) and root.shape == array.shape and root.dtype == array.dtype
    if not (same and whole and array.flags.c_contiguous):
        return None
    return ArrayFile(str(root.filename), array.dtype.str, array.shape, int(root.offset))


def _written(array: Array) -> tuple[str, Callable[[], None]]:
    """A file with the array's bytes that only this user can open, and what removes it."""
    whole = np.ascontiguousarray(array)
    if hasattr(os, "memfd_create"):
        handle = os.memfd_create("securefed")
        path, owner = f"/proc/{os.getpid()}/fd/{handle}", os.getpid()

        def release() -> None:
            if os.getpid() == owner:  # a forked worker has a copy of the number, and not its meaning
                os.close(handle)
    else:
        handle, path = tempfile.mkstemp(prefix="securefed-")

        def release() -> None:
            os.close(handle)
            os.unlink(path)

    rest = whole.data.cast("B")
    while rest:
        rest = rest[os.write(handle, rest[: 1 << 30]) :]
    return path, release
