"""A party's own file: CSV or Parquet, as named columns of numbers or words.

Nothing is guessed that matters: which column says who, which one is the label and which ones are features is
in party.toml; securefed.data.fields says what the fields of a column are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from securefed.data.fields import typed
from securefed.data.tables import few, read_table
from securefed.errors import DataError
from securefed.extras import require

__all__ = ["Rows", "file_digest", "read_rows"]

PARQUET = (".parquet", ".pq")


@dataclass(frozen=True, eq=False)
class Rows:
    """Fields by column as the file has them."""

    name: str
    fields: dict[str, list[object]]

    @property
    def count(self) -> int:
        return len(next(iter(self.fields.values())))

    def require(self, name: str, purpose: str) -> list[object]:
        """A column as it stands there."""
        if name not in self.fields:
            near = get_close_matches(name, self.fields, 1, cutoff=0.7)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise DataError(f"{self.name}: no column {name!r} ({purpose}); {hint}it has {few(self.fields)}")
        return self.fields[name]

    def column(
        self, name: str, purpose: str, *, kind: str | None = None, missing: Collection[str] = ()
    ) -> NDArray[Any]:
        """A column as numbers, words or days."""
        return typed(self.require(name, purpose), name, self.name, kind=kind, missing=missing)

    def ids(self, name: str) -> list[object]:
        """Ids as they stand there: leading zeros and digits beyond a float's stay."""
        return list(self.require(name, "id"))


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


def _first(error: BaseException) -> str:
    return str(error).strip().split("\n", 1)[0]


def file_digest(path: Path) -> str:
    """SHA-256 of a file: a checkpoint remembers it, and a changed file is noticed. It stays with its
    owner.
    """
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
