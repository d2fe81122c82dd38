"""A party's own table as named columns: from a CSV, Parquet or .npy file, a frame, or an array.

A file is read a block of rows at a time. In memory are the text of one block, columns of numbers up to a size
(securefed.data.storage), and columns of words as references to each different word. A column with very many
different words, such as ids, is read again when it is needed.
"""

from __future__ import annotations

import csv
import hashlib
from collections import Counter, UserDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from securefed.data.ids import normalised
from securefed.data.readings import POLICY, Policy, ReadColumn, read_column
from securefed.data.storage import ColumnStore
from securefed.errors import DataError, require

PARQUET = (".parquet", ".pq")
BLOCK_ROWS = 1 << 13
"""Rows that are read as text at once."""
_OTHER_SEPARATORS = (";", "\t", "|")
_LINES_LOOKED_AT = 50
"""Lines from which the separator is recognised."""

Blocks = Iterator[Mapping[str, Any]]
MOST_DIFFERENT = 1 << 16
"""Different texts of a column up to which it is kept."""


class Fields(UserDict[str, Any]):
    """The columns of a table in memory: a frame's or an array's. `kinds`: types that it declares itself."""

    def __init__(
        self,
        columns: Mapping[str, Sequence[object] | None],
        rows: int,
        kinds: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(columns)
        self.rows, self.kinds = rows, kinds or {}

    def numbers(self, column: str) -> NDArray[np.float64] | None:
        """A column as numbers if all its fields are plain numbers."""
        return None

    def each(self, column: str) -> Iterator[object]:
        return iter(self[column])

    def __getitem__(self, column: str) -> Sequence[object]:
        fields: Sequence[object] | None = self.data[column]
        return list(self.each(column)) if fields is None else fields


class FileFields(Fields):
    """The columns of a file: those of numbers alone as numbers, the others as their texts.

    The texts of a column of numbers (ids, codes) are read again when they are needed. A file that was written
    anew in the meantime is refused, because it may have other people in its rows.
    """

    def __init__(
        self, path: Path, blocks: Callable[[Path, Collection[str]], Blocks], *, keep_texts: bool = False
    ) -> None:
        self._path, self._blocks = path, partial(blocks, path)
        self._version, self._numbers = _version(path), ColumnStore()
        names, others, rows = dict[str, None](), dict[str, None](), 0
        for block in self._blocks(()):
            if not names:
                names = dict.fromkeys(block)
                others = dict(names) if keep_texts else {}  # a declared decimal comma: 1.234 is not 1.234
            rows += len(next(iter(block.values())))
            for column in block.keys() - others.keys():
                try:
                    self._numbers.append(column, np.asarray(block[column], dtype=np.float64))
                except (TypeError, ValueError):
                    self._numbers.drop(column)
                    others[column] = None
        texts = self._read(others) if others else {}
        super().__init__({**names, **texts}, rows)
        self._check(*map(len, texts.values()))

    def _check(self, *counts: int) -> None:
        if any(count != self.rows for count in counts) or _version(self._path) != self._version:
            raise DataError(f"{self._path.name}: changed since it was read; start again")

    def _read(self, columns: Collection[str]) -> dict[str, list[object]]:
        """Words, each different one once; columns with very many of them are left to be read when needed."""
        values: dict[str, list[object]] = {column: [] for column in columns}
        known: dict[str, dict[object, object]] = {column: {} for column in columns}
        for block in self._blocks(columns):
            for column in tuple(values):
                words = known[column]
                values[column] += [words.setdefault(text, text) for text in block[column]]
                if len(words) > MOST_DIFFERENT:
                    del values[column], known[column]
        return values

    def numbers(self, column: str) -> NDArray[np.float64] | None:
        return self._numbers.read(column) if column in self._numbers else None

    def each(self, column: str) -> Iterator[object]:
        if self.data[column] is not None:
            yield from super().each(column)
            return
        self._check()
        count = 0
        for block in self._blocks([column]):
            count += len(block[column])
            yield from block[column]
        self._check(count)


@dataclass(frozen=True, eq=False)
class Ids(Collection[str]):
    fields: Fields
    column: str
    owner: str
    form: str

    def __len__(self) -> int:
        return self.fields.rows

    def __iter__(self) -> Iterator[str]:
        return normalised(self.fields.each(self.column), self.owner, self.form)

    def __contains__(self, text: object) -> bool:
        return any(own == text for own in self)


@dataclass(frozen=True, eq=False)
class Rows:
    """A table, and how to read its columns. `name`: the file or the party, for messages."""

    name: str
    fields: Fields
    policy: Policy = POLICY
    numbers: NDArray[np.intp] | None = None
    """Each row's number in the party's whole table, counted from 1, where only some rows are here."""

    @property
    def count(self) -> int:
        return self.fields.rows

    def require(self, name: str, purpose: str) -> None:
        if name not in self.fields:
            near = get_close_matches(name, self.fields, 1, cutoff=0.7)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise DataError(f"{self.name}: no column {name!r} ({purpose}); {hint}it has {few(self.fields)}")

    def column(self, name: str, purpose: str) -> NDArray[Any]:
        """A column as numbers, words or days."""
        return self.read(name, purpose).values

    def read(
        self,
        name: str,
        purpose: str,
        *,
        kind: str | None = None,
        reading: str | None = None,
        missing: Collection[str] | None = None,
    ) -> ReadColumn:
        """A column, and how it was read. `kind`, `reading`: what it has to be, where that is known."""
        self.require(name, purpose)
        kind = kind or self.fields.kinds.get(name)
        policy = self.policy if missing is None else replace(self.policy, missing=tuple(missing))
        numbers = self.fields.numbers(name)
        usual = kind in (None, "number") and reading in (None, "number")
        if numbers is not None and usual and not policy.missing:
            return ReadColumn(numbers, "number")
        return read_column(self.fields[name], name, self.name, policy, kind, reading, self.numbers)

    def ids(self, name: str) -> list[object]:
        """Ids as they stand there: leading zeros and digits beyond a float's stay."""
        self.require(name, "id")
        return list(self.fields[name])

    def each_id(self, name: str, owner: str, form: str) -> Ids:
        """The same in the agreed form, read from the file each time that somebody goes through them."""
        self.require(name, "id")
        return Ids(self.fields, name, owner, form)


def read_rows(path: Path, policy: Policy = POLICY) -> Rows:
    """Open the table in a file; its ending says of what format it is."""
    if not path.exists():
        raise DataError(f"{path}: no such file")
    ending = path.suffix.lower()
    text = partial(_csv_blocks, separator=policy.separator)
    blocks = _parquet_blocks if ending in PARQUET else _npy_blocks if ending == ".npy" else text
    keep_texts = blocks is text and policy.decimal == ","
    return Rows(path.name, FileFields(path, blocks, keep_texts=keep_texts), policy)


def rows_of(owner: str, table: Any, names: Sequence[str], policy: Policy = POLICY) -> Rows:
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise DataError(f"{owner}: column {few(repeated)} occurs more than once")
    if not hasattr(table, "iloc"):
        return Rows(owner, Fields(dict(zip(names, table.T, strict=True)), len(table)), policy)
    series = {name: table.iloc[:, place] for place, name in enumerate(names)}
    # Categories are words, whatever they look like.
    kinds = {name: "words" for name, each in series.items() if str(each.dtype) == "category"}
    return Rows(
        owner, Fields({name: each.to_numpy() for name, each in series.items()}, len(table), kinds), policy
    )


def _csv_blocks(path: Path, chosen: Collection[str], separator: str | None) -> Blocks:
    """Read a text file with a header. Without `separator` it is recognised."""
    with reading_text(path) as stream:
        separator = separator or _separator(stream)
        lines = (row for row in csv.reader(stream, delimiter=separator, strict=True) if row)
        first = next(lines, None)
        if first is None:
            raise DataError(f"{path.name}: the file is empty")
        header, line = tuple(name.strip() for name in first), 2
        while (body := list(islice(lines, BLOCK_ROWS))) or line == 2:
            check_rows(path.name, header, body, line)
            columns = dict(zip(header, zip(*body, strict=True), strict=True))
            yield {name: columns[name] for name in chosen or header}
            line += len(body)


def check_rows(name: str, header: Sequence[str], body: Sequence[Sequence[str]], first_line: int) -> None:
    """Refuse a table without rows, with a name twice, or with a line of another length than the header."""
    if not body:
        raise DataError(f"{name}: a header and no rows")
    repeated = sorted({column for column in header if header.count(column) > 1})
    if repeated:
        check_header(name, header)
        raise DataError(f"{name}: column {few(repeated)} occurs more than once")
    for line, row in enumerate(body, first_line):
        if len(row) != len(header):
            raise DataError(
                f"{name}: line {line} has {len(row)} fields, {len(header)} are expected;"
                " the file may be cut off"
            )


def check_header(name: str, header: Sequence[str]) -> None:
    """Where names are wrong, say so if the first line has none at all."""
    if all(column.replace(".", "", 1).lstrip("-").isdigit() for column in header):
        raise DataError(f"{name}: the first line has numbers, a header with names is expected")


def _separator(stream: TextIO) -> str:
    """The sign that cuts the first lines into equally many fields, more than one; a comma if several do."""
    lines = list(islice(stream, _LINES_LOOKED_AT))
    stream.seek(0)
    widths = dict[str, int]()
    for sign in (",", *_OTHER_SEPARATORS):
        with suppress(csv.Error):
            counts = {len(row) for row in csv.reader(lines, delimiter=sign) if row}
            if len(counts) == 1 and counts != {1}:
                widths[sign] = counts.pop()
    if not widths:  # the file has a faulty line
        header = lines[0] if lines else ""
        return "," if "," in header else next((sign for sign in _OTHER_SEPARATORS if sign in header), ",")
    return "," if "," in widths else max(widths, key=lambda sign: widths[sign])


@contextmanager
def _readable(path: Path, wrong: str = "cannot be read", *errors: type[Exception]) -> Iterator[None]:
    """Turn what goes wrong with a file into an error of one line."""
    kinds: tuple[type[Exception], ...] = (OSError, *errors)
    try:
        yield
    except kinds as error:
        line = (getattr(error, "strerror", None) or str(error).strip()).split("\n", 1)[0]
        raise DataError(f"{path}: {wrong} ({line})") from None


@contextmanager
def reading_text(path: Path) -> Iterator[TextIO]:
    """Open a text file; what is wrong with it becomes an error of one line."""
    try:
        with _readable(path), path.open(encoding="utf-8-sig", newline="") as stream:
            yield stream
    except UnicodeDecodeError:
        raise DataError(
            f'{path.name}: not a text file in UTF-8; a spreadsheet saves one as "CSV UTF-8"'
        ) from None
    except csv.Error as error:
        raise DataError(f"{path.name}: not a table of comma-separated values ({error})") from None


def _parquet_blocks(path: Path, chosen: Collection[str]) -> Blocks:
    parquet = require("pyarrow.parquet", extra="parquet")
    arrow = require("pyarrow", extra="parquet")
    wrong = "not a Parquet file that can be read"
    with _readable(path, wrong, arrow.ArrowException), parquet.ParquetFile(path) as file:
        if file.metadata.num_rows == 0 or file.metadata.num_columns == 0:
            raise DataError(f"{path.name}: no rows")
        for batch in file.iter_batches(columns=list(chosen) or None):
            # Floats as they are; all else as Python has it, so that no digit of an id is lost.
            yield {
                name: column.to_numpy(zero_copy_only=False)
                if str(column.type) in ("double", "float")
                else column.to_pylist()
                for name, column in zip(batch.schema.names, batch.columns, strict=True)
            }


def _npy_blocks(path: Path, chosen: Collection[str]) -> Blocks:
    """A matrix, whose columns are called by their numbers, or a table with named fields."""
    with _readable(path, "not a numpy file that can be read", ValueError):
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    named = array.dtype.names
    if not (array.ndim == 1 if named else array.ndim == 2 and array.dtype.kind in "fiub"):
        raise DataError(f"{path.name}: an array of shape {array.shape}, rows and columns are expected")
    if array.size == 0:
        raise DataError(f"{path.name}: no rows")
    for start in range(0, len(array), BLOCK_ROWS):
        rows = array[start : start + BLOCK_ROWS]
        columns = named or [str(place) for place in range(array.shape[1])]
        values = {name: rows[name] if named else rows[:, int(name)] for name in chosen or columns}
        yield {name: part.tolist() if chosen else np.array(part) for name, part in values.items()}


def _version(path: Path) -> tuple[int, int, int]:
    """Return what changes when a file is written again: inode, size and time."""
    with _readable(path):
        status = path.stat()
        return status.st_ino, status.st_size, status.st_mtime_ns


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file, for a checkpoint. It stays with its owner."""
    with _readable(path), path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def few(names: Iterable[str], most: int = 30) -> str:
    listed = list(names)
    return ", ".join(listed[:most]) + (f" and {len(listed) - most} more" if len(listed) > most else "")
