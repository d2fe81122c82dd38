"""Records that need not fit into memory: rows of 64-bit words, of which a file holds all but the first few.

The file has no name and nobody else can open it; it is where the system keeps temporary files (TMPDIR), and
is gone with the process. `Buckets` deals records out by a number of theirs, so that what belongs together is
read together: a sort, a shuffle or a search for repetitions of any size in the memory of one bucket.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Iterator
from typing import IO

import numpy as np
from numpy.typing import NDArray

__all__ = ["BUCKET", "Buckets", "RepeatCheck", "Spool", "bucket_count", "bucket_of"]

BUCKET = 1 << 16
"""Records in a bucket, on average at most."""

Words = NDArray[np.uint64]


def bucket_count(records: int) -> int:
    return max(1, -(-records // BUCKET))


def bucket_of(words: Words, count: int) -> NDArray[np.intp]:
    """Which of `count` buckets, in the order of the words; even where they are uniform."""
    return ((words >> np.uint64(32)) * np.uint64(count) >> np.uint64(32)).astype(np.intp)


class Spool:
    """Rows of so many words, appended and read again by number."""

    def __init__(self, columns: int) -> None:
        self.columns, self._count = columns, 0
        self._held: list[Words] = []
        self._file: IO[bytes] | None = None

    def __len__(self) -> int:
        return self._count

    def append(self, rows: Words) -> None:
        self._count += len(rows)
        if self._file is None:
            self._held.append(rows)
            if self._count <= BUCKET:
                return
            self._file = tempfile.TemporaryFile(prefix="securefed-")  # noqa: SIM115  (as long as this lives)
            weakref.finalize(self, self._file.close)
            rows = np.concatenate(self._held)
            self._held = []
        self._file.seek(0, os.SEEK_END)
        self._file.write(np.ascontiguousarray(rows, dtype=np.uint64).tobytes())

    def read(self, start: int, stop: int) -> Words:
        if self._file is None:
            self._held = [np.concatenate([np.empty((0, self.columns), dtype=np.uint64), *self._held])]
            return self._held[0][start:stop]
        width = 8 * self.columns
        self._file.seek(width * start)
        blob = self._file.read(width * (min(stop, self._count) - start))
        return np.frombuffer(blob, dtype=np.uint64).reshape(-1, self.columns)

    def blocks(self, size: int) -> Iterator[Words]:
        for start in range(0, self._count, size):
            yield self.read(start, start + size)


class Buckets:
    """Rows of so many words in `count` buckets."""

    def __init__(self, columns: int, count: int) -> None:
        self.count, self._spool = count, Spool(columns)
        self._waiting: list[tuple[Words, NDArray[np.intp]]] = []
        self._extents: list[list[tuple[int, int]]] = [[] for _ in range(count)]

    def add(self, rows: Words, buckets: NDArray[np.intp]) -> None:
        """Each row into the bucket of its number."""
        self._waiting.append((rows, buckets))
        if sum(len(each) for each, _ in self._waiting) >= BUCKET:
            self._deal()

    def _deal(self) -> None:
        if not self._waiting:
            return
        rows, buckets = (np.concatenate(parts) for parts in zip(*self._waiting, strict=True))
        self._waiting = []
        order = np.argsort(buckets, kind="stable")
        first = len(self._spool)
        edges = (first + np.searchsorted(buckets[order], np.arange(self.count + 1))).tolist()
        self._spool.append(rows[order])
        for bucket in range(self.count):
            if edges[bucket] < edges[bucket + 1]:
                self._extents[bucket].append((edges[bucket], edges[bucket + 1]))

    def read(self, bucket: int) -> Words:
        self._deal()
        parts = [self._spool.read(*extent) for extent in self._extents[bucket]]
        return np.concatenate([np.empty((0, self._spool.columns), dtype=np.uint64), *parts])

    def __iter__(self) -> Iterator[Words]:
        return map(self.read, range(self.count))


class RepeatCheck:
    """A test for repeated rows. A secret hash keeps a peer from filling one bucket."""

    def __init__(self, count: int) -> None:
        self._buckets = Buckets(2, bucket_count(count))
        self._factors = np.frombuffer(os.urandom(16), dtype=np.uint64) | np.uint64(1)

    def add(self, rows: Words) -> None:
        """Add rows of two words."""
        mixed = (rows * self._factors).sum(axis=1, dtype=np.uint64)
        self._buckets.add(rows, bucket_of(mixed, self._buckets.count))

    def found(self) -> bool:
        return any(len(np.unique(each, axis=0)) < len(each) for each in self._buckets)
