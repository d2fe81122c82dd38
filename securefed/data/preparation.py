"""From a party's table to the numbers that a model takes (securefed.data.columns), as its policy says.

Files and frames go this way, in party processes and in Python. What was fitted is kept with the party's part
of the model and applied unchanged to the rows of a prediction.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefed.data.column_types import column_type, plain_number
from securefed.data.columns import FittedColumns
from securefed.data.readings import ReadColumn
from securefed.data.rows import Rows
from securefed.errors import DataError, Problems

Array = NDArray[np.float64]


class Features(Mapping[str, NDArray[Any]]):
    """Feature columns that are read when they are asked for, and how each was read."""

    def __init__(self, names: Collection[str], read: Callable[[str], ReadColumn]) -> None:
        self._names, self._read = names, read
        self.readings: dict[str, str] = {}

    def __getitem__(self, name: str) -> NDArray[Any]:
        values, self.readings[name] = self._read(name)
        return values

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def prepare(
    rows: Rows, chosen: Sequence[str], *, transform: str = "none", standardise: bool = True
) -> tuple[FittedColumns, Array]:
    """Fit the chosen columns on these rows, and return the rows as numbers too."""
    policy, problems, table = rows.policy, Problems(rows.name), Features(chosen, partial(_read, rows))
    for name in policy.named:
        with problems.gathered():
            rows.require(name, "to be prepared")
            if name not in chosen:
                raise DataError(f"{rows.name}: column {name!r} is to be prepared and is not a feature")
    with problems.gathered():
        columns, numbers = FittedColumns.fit(
            table, transform=transform, standardise=standardise, owner=rows.name, policy=policy
        )
    problems.check()
    return replace(columns, readings=table.readings), numbers


def _read(rows: Rows, name: str) -> ReadColumn:
    """Read a feature of the training. The settings may say what it is."""
    one_hot, kind = rows.policy.one_hot, rows.policy.kind(name)
    if kind is None and name in (one_hot or ()):
        with suppress(DataError):
            read = rows.read(name, "a feature")
            if read.values.dtype.kind == "f":  # codes: 1 and 1.0 are one category
                return read
        kind = "words"
    read = rows.read(name, "a feature", kind=kind)
    if one_hot is not None and name not in one_hot and column_type(read.values).name == "words":
        bad = next((word for word in read.values.tolist() if plain_number(word) is None), read.values[0])
        raise DataError(
            f"{rows.name}: column {name!r} has {bad!r}, a number is expected; one_hot encodes words"
        )
    return read


def prepared(columns: FittedColumns, rows: Rows) -> tuple[Array, dict[str, int]]:
    """Return other rows as training prepared its own, and how many values of each column are new."""
    return columns.apply(_features(columns, rows), rows.name)


def _features(columns: FittedColumns, rows: Rows) -> Features:
    """The columns of other rows, of the types and readings of the training."""
    kinds, readings, missing = columns.kinds, columns.readings, columns.missing

    def read(name: str) -> ReadColumn:
        return rows.read(name, "a feature", kind=kinds[name], missing=missing, reading=readings.get(name))

    return Features(kinds, read)


def decided(columns: FittedColumns, rows: Rows) -> list[str]:
    """What becomes of gaps and dates, in words."""
    told, table = [], _features(columns, rows)
    for column in columns.source:
        values = table[column.origin]
        gone = int((values == "").sum() if column.taken == "words" else (values != values).sum())
        if column.part:
            since = (
                f", in years before {np.datetime64(int(column.newest), 'D')}" if column.part == "age" else ""
            )
            told.append(f"{column.origin}: dates, taken as {column.part}{since}")
        if gone:
            way = {"indicator": "marked as missing"}.get(
                column.impute, f"filled by the {column.impute} value"
            )
            told.append(f"{column.origin}: {gone} of {rows.count} values are missing, {way}")
    return list(dict.fromkeys(told))


def choose_columns(
    rows: Rows,
    special: Collection[str | None],
    columns: Sequence[str] | None = None,
    drop: Sequence[str] = (),
) -> list[str]:
    """The feature columns: `columns`, or all but `drop` and the special ones (id, label, weight, offset)."""
    problems = Problems(rows.name)
    for name in drop:
        with problems.gathered():
            rows.require(name, "to drop")
    for name in columns or ():
        with problems.gathered():
            rows.require(name, "a feature")
            if name in special:
                raise DataError(f"{rows.name}: column {name!r} is the id, label, weight or offset")
    problems.check()
    chosen = [name for name in rows.fields if name not in special and name not in drop]
    if columns is not None:
        chosen = list(columns)
    if not chosen:
        raise DataError(f"{rows.name}: no feature columns are left")
    return chosen
