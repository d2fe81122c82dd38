"""A party's own file: CSV, Parquet or numpy's .npy, as named columns of numbers or words.

It is read a block of rows at a time: in memory are the text of one block, columns of numbers up to a size (a
file holds larger ones, securefed.data.storage), and columns of words as references to each different word,
unless there are very many, as of ids.

Nothing is guessed that matters: which column says who, which one is the label and which ones are features is
in party.toml; securefed.data.fields says what the fields of a column are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefed.data.fields import typed
from securefed.data.ids import normalised_blocks
from securefed.data.storage import ColumnStore
from securefed.data.tables import BLOCK_ROWS, few, read_blocks
from securefed.errors import DataError
from securefed.extras import require

__all__ = ["Fields", "Ids", "Rows", "file_digest", "read_rows"]

PARQUET = (".parquet", ".pq")


Blocks = Iterator[Mapping[str, Sequence[object]]]
MOST_DIFFERENT = 1 << 16
"""Different texts of a column up to which it is kept."""


class Fields(Mapping[str, list[object]]):
    """The columns of a file: those of numbers alone as numbers, the others as their texts. The texts of a
    column of numbers (ids, codes) are read again when somebody asks for them, and from the same file: one
    that was written anew in the meantime may have other people in its rows.
    """

    def __init__(self, path: Path, blocks: Callable[[Path, Collection[str]], Blocks]) -> None:
        self._path, self._blocks = path, partial(blocks, path)
        self._version = _version(path)
        self._numbers, self._names, self.rows = ColumnStore(), list[str](), 0
        others: dict[str, None] = {}
        for block in self._blocks(()):
            self._names = self._names or list(block)
            self.rows += len(next(iter(block.values())))
            for column, fields in block.items():
                if column in others:
                    continue
                try:
                    self._numbers.append(column, np.asarray(fields, dtype=np.float64))
                except (TypeError, ValueError):
                    self._numbers.drop(column)
                    others[column] = None
        self._texts = self._read(others) if others else {}
        self._check(*map(len, self._texts.values()))

    def _check(self, *counts: int) -> None:
        if any(count != self.rows for count in counts) or _version(self._path) != self._version:
            raise DataError(f"{self._path.name}: changed since it was read; start again")

    def _read(self, columns: Collection[str]) -> dict[str, list[object]]:
        """Words, each different one once; columns with very many of them are left to be read when needed."""
        found: dict[str, list[object]] = {column: [] for column in columns}
        known: dict[str, dict[object, object]] = {column: {} for column in columns}
        for block in self._blocks(columns):
            for column in tuple(found):
                words = known[column]
                found[column] += [words.setdefault(text, text) for text in block[column]]
                if len(words) > MOST_DIFFERENT:
                    del found[column], known[column]
        return found

    def numbers(self, column: str) -> NDArray[np.float64] | None:
        return self._numbers.read(column) if column in self._numbers else None

    def __getitem__(self, column: str) -> list[object]:
        if column in self._texts:
            return self._texts[column]
        if column not in self._names:
            raise KeyError(column)
        return list(self.each(column))

    def each(self, column: str) -> Iterator[object]:
        """The fields of a column, from memory or a block after the other."""
        if column in self._texts:
            yield from self._texts[column]
            return
        self._check()
        count = 0
        for block in self._blocks([column]):
            count += len(block[column])
            yield from block[column]
        self._check(count)

    def __contains__(self, column: object) -> bool:
        return column in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@dataclass(frozen=True, eq=False)
class Ids(Collection[str]):
    """The ids of a file, in the agreed form (securefed.data.ids)."""

    fields: Fields
    column: str
    owner: str
    form: str

    def __len__(self) -> int:
        return self.fields.rows

    def __iter__(self) -> Iterator[str]:
        given = self.fields.each(self.column)
        return (text for block in normalised_blocks(given, self.owner, self.form, 1024) for text in block)

    def __contains__(self, text: object) -> bool:
        return any(own == text for own in self)


@dataclass(frozen=True, eq=False)
class Rows:
    """Fields by column as the file has them."""

    name: str
    fields: Fields

    @property
    def count(self) -> int:
        return self.fields.rows

    def require(self, name: str, purpose: str) -> None:
        """Refuse a name that the file does not have."""
        if name not in self.fields:
            near = get_close_matches(name, self.fields, 1, cutoff=0.7)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise DataError(f"{self.name}: no column {name!r} ({purpose}); {hint}it has {few(self.fields)}")

    def column(
        self, name: str, purpose: str, *, kind: str | None = None, missing: Collection[str] = ()
    ) -> NDArray[Any]:
        """A column as numbers, words or days."""
        self.require(name, purpose)
        numbers = self.fields.numbers(name)
        if numbers is not None and not missing and kind in (None, "number"):
            return numbers
        return typed(self.fields[name], name, self.name, kind=kind, missing=missing)

    def ids(self, name: str) -> list[object]:
        """Ids as they stand there: leading zeros and digits beyond a float's stay."""
        self.require(name, "id")
        return list(self.fields[name])

    def each_id(self, name: str, owner: str, form: str) -> Ids:
        """The same in the agreed form, read from the file each time that somebody goes through them."""
        self.require(name, "id")
        return Ids(self.fields, name, owner, form)


def read_rows(path: Path) -> Rows:
    """The table in a file, by its ending."""
    if not path.exists():
        raise DataError(f"{path}: no such file")
    ending = path.suffix.lower()
    blocks = _parquet_blocks if ending in PARQUET else _npy_blocks if ending == ".npy" else _csv_blocks
    return Rows(path.name, Fields(path, blocks))


def _csv_blocks(path: Path, chosen: Collection[str]) -> Blocks:
    for table in read_blocks(path):
        columns = dict(zip(table.header, zip(*table.body, strict=True), strict=True))
        yield {name: columns[name] for name in chosen or table.header}


def _parquet_blocks(path: Path, chosen: Collection[str]) -> Blocks:
    parquet = require("pyarrow.parquet", extra="parquet")
    arrow = require("pyarrow", extra="parquet")
    try:
        with parquet.ParquetFile(path) as file:
            if file.metadata.num_rows == 0 or file.metadata.num_columns == 0:
                raise DataError(f"{path.name}: no rows")
            for batch in file.iter_batches(columns=list(chosen) or None):
                columns = zip(batch.schema.names, batch.columns, strict=True)
                yield {name: _python(column) for name, column in columns}
    except (OSError, arrow.ArrowException) as error:
        raise DataError(f"{path}: not a Parquet file that can be read ({_first(error)})") from None


def _python(column: Any) -> Sequence[object]:
    """Floats as they are; all else as Python has it, so that no digit of an id is lost."""
    if str(column.type) in ("double", "float"):
        floats: Sequence[object] = column.to_numpy(zero_copy_only=False)
        return floats
    fields: list[object] = column.to_pylist()
    return fields


def _npy_blocks(path: Path, chosen: Collection[str]) -> Blocks:
    """A matrix, whose columns are called by their numbers, or a table with named fields."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: not a numpy file that can be read ({_first(error)})") from None
    named = array.dtype.names
    if not (array.ndim == 1 if named else array.ndim == 2 and array.dtype.kind in "fiub"):
        raise DataError(f"{path.name}: an array of shape {array.shape}, rows and columns are expected")
    if array.size == 0:
        raise DataError(f"{path.name}: no rows")
    for start in range(0, len(array), BLOCK_ROWS):
        rows = array[start : start + BLOCK_ROWS]
        columns = named or [str(place) for place in range(array.shape[1])]
        found = {name: rows[name] if named else rows[:, int(name)] for name in chosen or columns}
        made: dict[str, Any] = {
            name: part.tolist() if chosen else np.array(part) for name, part in found.items()
        }
        yield made


def _first(error: BaseException) -> str:
    return str(error).strip().split("\n", 1)[0]


def _version(path: Path) -> tuple[int, int, int]:
    """What a file has another one of when it was written again."""
    try:
        found = path.stat()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    return found.st_ino, found.st_size, found.st_mtime_ns


def file_digest(path: Path) -> str:
    """SHA-256 of a file: a checkpoint remembers it, and a changed file is noticed. It stays with its
    owner.
    """
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
