"""Strict tables of published data: the columns that are expected, as finite numbers.

An error names the file, the line and what was expected.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from securefed.data.rows import check_header, check_rows, few, reading_text
from securefed.errors import DataError

Array = NDArray[np.float64]
SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}


@dataclass(frozen=True, eq=False)
class Table:
    """A header and rows of text, each with as many fields as the header."""

    name: str
    header: tuple[str, ...]
    body: list[list[str]]
    first_line: int = 2
    """The number of the body's first line in the file."""

    def __post_init__(self) -> None:
        check_rows(self.name, self.header, self.body, self.first_line)

    def require(self, columns: Sequence[str]) -> None:
        """Refuse a table that lacks one of these columns or has others."""
        missing = [name for name in columns if name not in self.header]
        if missing and len(self.header) == 1:
            other = next((word for sign, word in SEPARATORS.items() if sign in self.header[0]), None)
            if other is not None:
                raise DataError(f"{self.name}: its columns are separated by {other}, commas are expected")
        if missing:
            check_header(self.name, self.header)
            raise DataError(f"{self.name}: no column {few(missing)}; {len(columns)} columns are expected")
        extra = [name for name in self.header if name not in columns]
        if extra:
            raise DataError(f"{self.name}: unknown column {few(extra)}; {len(columns)} columns are expected")

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
    with reading_text(path) as stream:
        lines = [row for row in csv.reader(stream, strict=True) if row]
    if not lines:
        raise DataError(f"{path.name}: the file is empty")
    return lines


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
