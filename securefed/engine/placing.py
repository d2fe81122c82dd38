"""Transfer of pieces of work and results between a party's own processes.

Everything is pickled except large arrays and byte strings. These are in a memory file that both sides map,
one file for a piece and its result. So they are written once and pass through no pipe.

Only a party's own processes, under the same user, read these files.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import tempfile
from typing import Any

import numpy as np

__all__ = ["WorkFile", "work"]

LARGE = 1 << 16
"""Values of at least this many bytes go to the file."""
ALIGNED = 64


class WorkFile:
    """A function and its argument for a worker, and the file for the result."""

    def __init__(self, function: Any, piece: Any) -> None:
        if hasattr(os, "memfd_create"):
            self._file = os.memfd_create("securefed")
            self.path = f"/proc/{os.getpid()}/fd/{self._file}"
        else:
            self._file, self.path = tempfile.mkstemp(prefix="securefed-")
        self.packed = _pack((function, piece), self._file)

    def result(self, packed: bytes) -> Any:
        """Return the worker's result."""
        return _unpack(packed, self._file, mmap.ACCESS_WRITE)

    def close(self) -> None:
        """Close the file. Arrays of a result keep its memory as long as they live."""
        os.close(self._file)
        if not self.path.startswith("/proc/"):
            os.unlink(self.path)


def work(path: str, packed: bytes) -> bytes:
    """Run a parcel's function in a worker."""
    file = os.open(path, os.O_RDWR)
    try:
        function, piece = _unpack(packed, file, mmap.ACCESS_READ)
        return _pack(function(piece), file)
    finally:
        os.close(file)


def _pack(value: Any, file: int) -> bytes:
    stream = io.BytesIO()
    _Pickler(stream, file).dump(value)
    return stream.getvalue()


def _unpack(packed: bytes, file: int, access: int) -> Any:
    size = os.fstat(file).st_size
    mapped = memoryview(mmap.mmap(file, size, access=access)) if size else memoryview(b"")
    return _Unpickler(packed, mapped).load()


class _Pickler(pickle.Pickler):
    def __init__(self, stream: io.BytesIO, file: int) -> None:
        super().__init__(stream, protocol=5)
        self._file = file

    def persistent_id(self, value: Any) -> tuple[int, int, str, tuple[int, ...]] | None:
        """Write a large value to the file; return its place, length, type and shape."""
        if isinstance(value, bytes) and len(value) >= LARGE:
            return self._written(memoryview(value)), len(value), "", ()
        if not isinstance(value, np.ndarray) or value.nbytes < LARGE or value.dtype.hasobject:
            return None
        whole = np.ascontiguousarray(value)
        return self._written(whole.data.cast("B")), whole.nbytes, whole.dtype.str, whole.shape

    def _written(self, rest: memoryview) -> int:
        start = -(-os.lseek(self._file, 0, os.SEEK_END) // ALIGNED) * ALIGNED
        os.lseek(self._file, start, os.SEEK_SET)
        while rest:
            rest = rest[os.write(self._file, rest[: 1 << 30]) :]
        return start


class _Unpickler(pickle.Unpickler):
    def __init__(self, packed: bytes, mapped: memoryview) -> None:
        super().__init__(io.BytesIO(packed))
        self._mapped = mapped

    def persistent_load(self, place: tuple[int, int, str, tuple[int, ...]]) -> Any:
        start, size, dtype, shape = place
        data = self._mapped[start : start + size]
        return np.frombuffer(data, dtype).reshape(shape) if dtype else bytes(data)
