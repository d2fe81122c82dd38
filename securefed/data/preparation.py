"""From a party's table to the numbers that a model takes (securefed.data.columns), as its policy says.

Files and frames go this way, in party processes and in Python. What was fitted is kept with the party's part
of the model and applied unchanged to the rows of a prediction.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefed.data import storage
from securefed.data.column_types import column_type
from securefed.data.columns import FittedColumns, Table
from securefed.data.readings import Policy
from securefed.data.rows import Rows
from securefed.errors import DataError, Problems

Array = NDArray[np.float64]


class ReadColumns(Mapping[str, NDArray[Any]]):
    """Columns that were read. Small ones are kept, the others are read again whenever they are needed."""

    def __init__(self, rows: Rows) -> None:
        self._rows, self._kept, self._bytes = rows, dict[str, NDArray[Any]](), 0
        self._ways: dict[str, dict[str, Any]] = {}

    @property
    def readings(self) -> dict[str, str]:
        """How each column was read."""
        return {name: way["reading"] for name, way in self._ways.items()}

    def read(
        self, name: str, kind: str | None, missing: Collection[str], reading: str | None = None
    ) -> NDArray[Any]:
        """Read a column and keep how."""
        values, used = self._rows.read(name, "a feature", kind=kind, missing=missing, reading=reading)
        self._ways[name] = {"kind": kind, "missing": missing, "reading": used}
        self._bytes += values.nbytes
        if self._bytes <= storage.MOST_RAW:
            self._kept[name] = values
        return values

    def drop(self, name: str) -> None:
        """Forget a column that cannot be used."""
        self._ways.pop(name, None)
        self._kept.pop(name, None)

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name in self._kept:
            return self._kept[name]
        return self._rows.read(name, "a feature", **self._ways[name]).values

    def __contains__(self, name: object) -> bool:
        return name in self._ways

    def __iter__(self) -> Iterator[str]:
        return iter(self._ways)

    def __len__(self) -> int:
        return len(self._ways)


def prepare(
    rows: Rows, chosen: Sequence[str], *, transform: str = "none", standardise: bool = True
) -> tuple[FittedColumns, Array]:
    """Fit the chosen columns on these rows, and return the rows as numbers too."""
    policy, problems, table = rows.policy, Problems(rows.name), ReadColumns(rows)
    one_hot = policy.one_hot
    for name in policy.named:
        with problems.gathered():
            rows.require(name, "to be prepared")
            if name not in chosen:
                raise DataError(f"{rows.name}: column {name!r} is to be prepared and is not a feature")
    for name in chosen:
        with problems.gathered():
            kind = policy.kind(name)
            if kind is None and name in (one_hot or ()) and not _is_numbers(rows, name, policy.missing):
                kind = "words"
            values = table.read(name, kind, policy.missing)
            if one_hot is not None and name not in one_hot and column_type(values).name == "words":
                table.drop(name)
                bad = next(word for word in values.tolist() if not _is_number(word))
                raise DataError(
                    f"{rows.name}: column {name!r} has {bad!r}, a number is expected; one_hot encodes words"
                )
    fitted = None
    with problems.gathered():
        if table:
            fitted = FittedColumns.fit(
                table,
                transform=transform,
                standardise=standardise,
                one_hot=one_hot or (),
                owner=rows.name,
                policy=replace(policy, **_there(policy, table)),
                readings=table.readings,
            )
    problems.check()
    if fitted is None:
        raise DataError(f"{rows.name}: no feature columns are left")
    return fitted


def prepared(columns: FittedColumns, rows: Rows) -> tuple[Array, dict[str, int]]:
    """Return other rows as training prepared its own, and how many values of each column are new."""
    table, problems = ReadColumns(rows), Problems(rows.name)
    for name, kind in columns.kinds.items():
        with problems.gathered():
            table.read(name, kind, columns.missing, columns.readings.get(name))
    problems.check()
    return columns.apply(table, rows.name)


def decided(columns: FittedColumns, rows: Rows) -> list[str]:
    """What becomes of gaps and dates, in words."""
    told = []
    for column in columns.source:
        values = rows.column(column.origin, "a feature", kind=column.taken, missing=columns.missing)
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


def _there(policy: Policy, table: Table) -> dict[str, Any]:
    """What was decided about columns that could be read; the others are reported already."""
    impute, one_hot = policy.impute, policy.one_hot
    if isinstance(impute, Mapping):
        impute = {name: way for name, way in impute.items() if name in table}
    if one_hot is not None:
        one_hot = tuple(name for name in one_hot if name in table)
    dates = {name: form for name, form in policy.dates.items() if name in table}
    return {"impute": impute, "one_hot": one_hot, "dates": dates}


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


def _is_numbers(rows: Rows, name: str, missing: Collection[str]) -> bool:
    """Codes are numbers where all are: 1 and 1.0 are one category then."""
    try:
        return rows.column(name, "to be prepared", missing=missing).dtype.kind == "f"
    except DataError:
        return False


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
