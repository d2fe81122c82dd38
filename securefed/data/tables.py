"""Read tables from text files. An error names the file, the line and what was expected.

Only Python's csv module and numpy are used. Faults are found here, before they become an exception from
inside another package.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

from securefed.errors import DataError

__all__ = ["BLOCK_ROWS", "Table", "as_integers", "few", "read_blocks", "read_table"]

Array = NDArray[np.float64]
BLOCK_ROWS = 1 << 13
"""Rows that are read as text at once."""
_OTHERS = {";": "semicolons", "\t": "tabs", "|": "bars"}
_LINES_LOOKED_AT = 50
"""Lines from which the separator is recognised."""


@dataclass(frozen=True, eq=False)
class Table:
    """A header and rows of text, each with as many fields as the header."""

    name: str
    header: tuple[str, ...]
    body: list[list[str]]
    first_line: int = 2
    """The number of the body's first line in the file."""

    def __post_init__(self) -> None:
        if not self.body:
            raise DataError(f"{self.name}: a header and no rows")
        repeated = sorted({name for name in self.header if self.header.count(name) > 1})
        if repeated:
            self._check_header()
            raise DataError(f"{self.name}: column {few(repeated)} occurs more than once")
        for line, row in enumerate(self.body, self.first_line):
            if len(row) != len(self.header):
                raise DataError(
                    f"{self.name}: line {line} has {len(row)} fields, {len(self.header)} are expected;"
                    " the file may be cut off"
                )

    def require(self, columns: Sequence[str]) -> None:
        """Refuse a table that lacks one of these columns or has others."""
        missing = [name for name in columns if name not in self.header]
        if missing and len(self.header) == 1:
            other = next((word for sign, word in _OTHERS.items() if sign in self.header[0]), None)
            if other is not None:
                raise DataError(f"{self.name}: its columns are separated by {other}, commas are expected")
        if missing:
            self._check_header()
            raise DataError(f"{self.name}: no column {few(missing)}; {len(columns)} columns are expected")
        extra = [name for name in self.header if name not in columns]
        if extra:
            raise DataError(f"{self.name}: unknown column {few(extra)}; {len(columns)} columns are expected")

    def _check_header(self) -> None:
        """Where names are wrong, say so if the first line has none at all."""
        if all(name.replace(".", "", 1).lstrip("-").isdigit() for name in self.header):
            raise DataError(f"{self.name}: the first line has numbers, a header with names is expected")

    def column(self, name: str) -> list[str]:
        place = self.header.index(name)
        return [row[place] for row in self.body]

    def numbers(self, columns: Sequence[str], *, gaps: bool = False) -> Array:
        """These columns as finite numbers; with `gaps`, empty fields are NaN."""
        places = [self.header.index(name) for name in columns]
        fields = [[row[place] for place in places] for row in self.body]
        if gaps:
            fields = [[text if text.strip() else "nan" for text in row] for row in fields]
        try:
            array = np.array(fields, dtype=np.float64)
        except ValueError:
            raise self._not_a_number(columns, places, gaps) from None
        if np.isinf(array).any() or (np.isnan(array).any() and not gaps):
            raise self._not_a_number(columns, places, gaps)
        return array

    def _not_a_number(self, columns: Sequence[str], places: Sequence[int], gaps: bool) -> DataError:
        for line, row in enumerate(self.body, self.first_line):
            for name, place in zip(columns, places, strict=True):
                try:
                    value = float(row[place] if row[place].strip() or not gaps else "0")
                except ValueError:
                    value = np.inf
                if np.isinf(value) or (np.isnan(value) and not gaps):
                    return DataError(
                        f"{self.name}: line {line}: {name} is {row[place]!r}, a number is expected"
                    )
        return DataError(f"{self.name}: a field is not a number")


def read_table(path: Path, header: Sequence[str] | None = None) -> Table:
    """A comma-separated file. Its first line is the header unless one is given."""
    lines = read_lines(path)
    names = tuple(name.strip() for name in (lines[0] if header is None else header))
    return Table(path.name, names, lines[1:] if header is None else lines, 2 if header is None else 1)


def read_lines(path: Path) -> list[list[str]]:
    """The fields of each line that is not empty."""
    with _translated(path), path.open(encoding="utf-8-sig", newline="") as stream:
        lines = [row for row in csv.reader(stream, strict=True) if row]
    if not lines:
        raise DataError(f"{path.name}: the file is empty")
    return lines


def read_blocks(path: Path, rows: int = BLOCK_ROWS, separator: str | None = None) -> Iterator[Table]:
    """Yield a text file with a header, so many rows at a time. Without `separator` it is recognised."""
    with _translated(path), path.open(encoding="utf-8-sig", newline="") as stream:
        if separator is None:
            separator = _separator(stream)
        lines = (row for row in csv.reader(stream, delimiter=separator, strict=True) if row)
        first = next(lines, None)
        if first is None:
            raise DataError(f"{path.name}: the file is empty")
        header, line = tuple(name.strip() for name in first), 2
        while body := list(islice(lines, rows)):
            yield Table(path.name, header, body, line)
            line += len(body)
        if line == 2:
            raise DataError(f"{path.name}: a header and no rows")


def _separator(stream: TextIO) -> str:
    """The sign that cuts the first lines into equally many fields, more than one; a comma if several do.

    If none does, the file has a faulty line, and the header decides.
    """
    lines = list(islice(stream, _LINES_LOOKED_AT))
    stream.seek(0)
    widths = dict[str, int]()
    for sign in (",", *_OTHERS):
        with suppress(csv.Error):
            counts = {len(row) for row in csv.reader(lines, delimiter=sign) if row}
            if len(counts) == 1 and counts != {1}:
                widths[sign] = counts.pop()
    if not widths:
        header = lines[0] if lines else ""
        return "," if "," in header else next((sign for sign in _OTHERS if sign in header), ",")
    return "," if "," in widths else max(widths, key=lambda sign: widths[sign])


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise DataError(
            f'{path.name}: not a text file in UTF-8; a spreadsheet saves one as "CSV UTF-8"'
        ) from None
    except csv.Error as error:
        raise DataError(f"{path.name}: not a table of comma-separated values ({error})") from None


def as_integers(
    name: str, column: str, values: Array, allowed: tuple[int, int] | None = None
) -> NDArray[np.int64]:
    """Whole numbers, in `allowed` where given."""
    whole = np.rint(np.where(np.abs(values) < 2.0**53, values, 0.0)).astype(np.int64)  # NaN becomes 0
    bad = whole != values
    words = "whole numbers are"
    if allowed is not None:
        bad |= (whole < allowed[0]) | (whole > allowed[1])
        words = f"{allowed[0]} to {allowed[1]} is"
    if bad.any():
        first = values[bad][0]
        raise DataError(f"{name}: {int(bad.sum())} values of {column} such as {first:g}, {words} allowed")
    return whole


def few(names: Iterable[str], most: int = 30) -> str:
    """Names of columns in a message: all of them unless there are very many, since one that is left out may
    be the one that is looked for.
    """
    listed = list(names)
    return ", ".join(listed[:most]) + (f" and {len(listed) - most} more" if len(listed) > most else "")
