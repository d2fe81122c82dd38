"""A party's own file: CSV or Parquet, as named columns of numbers or words.

Nothing is guessed that matters: which column says who, which one is the label and which ones are features is
in party.toml; a column of words is one-hot encoded, and what is missing or not a number is refused by name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefed.data.tables import read_table
from securefed.errors import DataError
from securefed.extras import require

__all__ = ["Rows", "file_digest", "read_rows"]

PARQUET = (".parquet", ".pq")


@dataclass(frozen=True, eq=False)
class Rows:
    """Fields by column as the file has them."""

    name: str
    fields: dict[str, list[object]]

    @cached_property
    def columns(self) -> dict[str, NDArray[Any]]:
        """Each column as floats, or as words where one of its fields is none."""
        return {name: _typed(values) for name, values in self.fields.items()}

    @property
    def count(self) -> int:
        return len(next(iter(self.fields.values())))

    def column(self, name: str, purpose: str) -> NDArray[Any]:
        if name not in self.fields:
            raise DataError(f"{self.name}: no column {name!r} ({purpose}); it has {_few(tuple(self.fields))}")
        return self.columns[name]

    def ids(self, name: str) -> list[object]:
        """Ids as they stand there: leading zeros and digits beyond a float's stay."""
        self.column(name, "id")
        return list(self.fields[name])

    def is_words(self, name: str) -> bool:
        return self.columns[name].dtype.kind != "f"


def read_rows(path: Path) -> Rows:
    """The table in a file, by its ending."""
    if not path.exists():
        raise DataError(f"{path}: no such file")
    return _read_parquet(path) if path.suffix.lower() in PARQUET else _read_csv(path)


def _read_csv(path: Path) -> Rows:
    table = read_table(path)
    return Rows(path.name, {name: list(table.column(name)) for name in table.header})


def _read_parquet(path: Path) -> Rows:
    parquet = require("pyarrow.parquet", extra="parquet")
    arrow = require("pyarrow", extra="parquet")
    try:
        table = parquet.read_table(path)
    except (OSError, arrow.ArrowException) as error:
        raise DataError(f"{path}: not a Parquet file that can be read ({_first(error)})") from None
    if table.num_rows == 0 or table.num_columns == 0:
        raise DataError(f"{path.name}: no rows")
    return Rows(path.name, {name: table.column(name).to_pylist() for name in table.column_names})


def _typed(fields: Sequence[object]) -> NDArray[Any]:
    """Numbers if all fields are; an empty field is NaN among numbers and an empty word among words."""
    try:
        return np.array([_number(value) for value in fields], dtype=np.float64)
    except (TypeError, ValueError):
        return np.array(["" if value is None else str(value).strip() for value in fields])


def _number(value: object) -> float:
    if value is None or (isinstance(value, str) and not value.strip()):
        return float("nan")
    if not isinstance(value, str | int | float):
        raise TypeError(type(value).__name__)
    return float(value)


def _first(error: BaseException) -> str:
    return str(error).strip().split("\n", 1)[0]


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def file_digest(path: Path) -> str:
    """SHA-256 of a file: a checkpoint remembers it, and a changed file is noticed. It stays with its
    owner.
    """
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
