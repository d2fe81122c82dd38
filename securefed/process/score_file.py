"""The score ledger on disk, beside a party's keys: what scores have shown of whom, over all its runs.

    score-ledger.bin    magic 4 b"SFSL" | version 1 | key print 16 | records (protocols.score_ledger)

A record is appended under a lock, held since the file was read, and is on disk before the scores that it is
about leave. One that was cut off by a crash was never answered, and is taken away by the next. The file
belongs to the key that people are hashed with; with another key it would find nobody, so that is refused.

    score-ledger.mark   how long the ledger was after the last record, under the same key

A ledger that is shorter than its mark, or gone, has lost records of what was shown. It is refused.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from hashlib import blake2b
from pathlib import Path

from securefed.errors import DataError
from securefed.files import storage_error, write_atomically
from securefed.process.keys import PartyKeys
from securefed.protocols.scoring.blur import ScoreGuard
from securefed.protocols.scoring.score_ledger import whole_records
from securefed.settings.party import PartyFile

__all__ = ["SCORE_LEDGER", "ScoreFile", "score_guard"]

SCORE_LEDGER = "score-ledger.bin"
MAGIC = b"SFSL\x01"
PRINT = 16


class ScoreFile:
    """A ScoreStore in a file."""

    def __init__(self, path: Path, key: bytes) -> None:
        self._path, self._key = path, key
        self._head = MAGIC + blake2b(b"", key=key, person=b"score file", digest_size=PRINT).digest()
        self._end = len(self._head)
        self._descriptor: int | None = None
        """Open while the lock is held."""

    def held(self) -> AbstractContextManager[object]:
        """The lock, over several calls."""
        return self._locked()

    def read(self) -> bytes:
        if not self._path.exists():
            self._check_mark(0)
            return b""
        with self._locked() as descriptor:
            found = self._rest(descriptor)
            self._check_mark(os.fstat(descriptor).st_size)
        self._end += len(found)
        return found

    def append(self, record: bytes) -> None:
        with self._locked() as descriptor:
            size = os.fstat(descriptor).st_size
            if size < len(self._head):  # new, or cut off when it was
                os.ftruncate(descriptor, 0)
                record = self._head + record
            else:
                os.ftruncate(descriptor, self._end + len(self._rest(descriptor)))
            os.lseek(descriptor, 0, os.SEEK_END)
            with os.fdopen(os.dup(descriptor), "wb") as file:
                file.write(record)
                file.flush()
                os.fsync(descriptor)
            self._write_mark(os.fstat(descriptor).st_size)

    @property
    def _mark(self) -> Path:
        return self._path.with_suffix(".mark")

    def _write_mark(self, size: int) -> None:
        length = size.to_bytes(8, "big")
        write_atomically(self._mark, length + self._sealed(length))

    def _sealed(self, length: bytes) -> bytes:
        return blake2b(length, key=self._key, person=b"score mark", digest_size=PRINT).digest()

    def _check_mark(self, size: int) -> None:
        """Refuse a ledger that has lost records since the last one was written."""
        if not self._mark.exists():
            return
        blob = self._mark.read_bytes()
        whole = len(blob) == 8 + PRINT and blob[8:] == self._sealed(blob[:8])
        if not whole or size < int.from_bytes(blob[:8], "big"):
            lost = "is shorter than its mark says" if whole else "has a damaged mark"
            raise DataError(
                f"{self._path} {lost}: records of what scores have shown are missing; put the file back from"
                f" a backup. Only if they are lost for good, delete {self._mark.name}: scores then count anew"
            )

    def _rest(self, descriptor: int) -> bytes:
        """Whole records from where this reader is."""
        with os.fdopen(os.dup(descriptor), "rb") as file:
            file.seek(0)
            head = file.read(len(self._head))
            if len(head) < len(self._head):
                return b""
            if head[: len(MAGIC)] != MAGIC:
                raise DataError(f"{self._path}: not a score ledger")
            if head != self._head:
                raise DataError(
                    f"{self._path}: a score ledger under another key than this party's; put the old"
                    " checkpoint-key.skf back, or move the ledger away to begin anew"
                )
            file.seek(self._end)
            data = file.read()
        try:
            return data[: whole_records(data)]
        except DataError as error:
            raise DataError(f"{self._path}: {error}") from None

    @contextmanager
    def _locked(self) -> Iterator[int]:
        if self._descriptor is not None:
            yield self._descriptor
            return
        try:
            self._descriptor = descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                yield descriptor
            finally:
                self._descriptor = None
                os.close(descriptor)
        except OSError as error:
            raise storage_error(self._path, error) from None


def score_guard(party: PartyFile, keys: PartyKeys, column_bits: float | None = None) -> ScoreGuard:
    """What this party blurs and counts by when it is scored; the same in every run of its folder."""
    return ScoreGuard(
        keys.score_key,
        party=party.own.name,
        mode=party.own.score_ledger,
        store=ScoreFile(party.keys_folder / SCORE_LEDGER, keys.score_key),
        column_bits=column_bits,
    )
