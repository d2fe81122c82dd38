"""From a party's file to numbers that a model takes (securefed.data.columns), as [data] of party.toml says.

What was fitted is kept with the shard and applied as it is to the rows of a prediction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefed.data import storage
from securefed.data.columns import Columns, Table
from securefed.data.fields import field_kind
from securefed.data.policy import Policy
from securefed.errors import DataError, Problems
from securefed.process.rows import Rows
from securefed.process.settings import DataSettings

__all__ = ["decided", "prepare", "prepared"]

Array = NDArray[np.float64]


class ReadColumns(Mapping[str, NDArray[Any]]):
    """Columns of a file that were read and found good. Small ones are kept, the others are read again each
    time that they are asked for, so that one at a time is in memory.
    """

    def __init__(self, rows: Rows) -> None:
        self._rows, self._kept, self._bytes = rows, dict[str, NDArray[Any]](), 0
        self._ways: dict[str, dict[str, Any]] = {}

    def add(self, name: str, values: NDArray[Any], kind: str | None, missing: tuple[str, ...]) -> None:
        self._ways[name] = {"kind": kind, "missing": missing}
        self._bytes += values.nbytes
        if self._bytes <= storage.MOST_RAW:
            self._kept[name] = values

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name in self._kept:
            return self._kept[name]
        return self._rows.column(name, "a feature", **self._ways[name])

    def __contains__(self, name: object) -> bool:
        return name in self._ways

    def __iter__(self) -> Iterator[str]:
        return iter(self._ways)

    def __len__(self) -> int:
        return len(self._ways)


def prepare(rows: Rows, settings: DataSettings) -> tuple[Columns, Array]:
    """Fitted on these rows; and the rows as numbers."""
    policy, problems, table = settings.policy, Problems(rows.name), ReadColumns(rows)
    one_hot = settings.one_hot
    with problems.gathered():
        chosen = _chosen(rows, settings)
        for name in (*(one_hot or ()), *policy.columns):
            with problems.gathered():
                rows.require(name, "to be prepared")
                if name not in chosen:
                    raise DataError(f"{rows.name}: column {name!r} is to be prepared and is not a feature")
        for name in chosen:
            with problems.gathered():
                kind = "date" if name in policy.dates else None
                if kind is None and name in (one_hot or ()) and not _is_numbers(rows, name, policy.missing):
                    kind = "words"
                values = rows.column(name, "a feature", kind=kind, missing=policy.missing)
                if one_hot is not None and name not in one_hot and field_kind(values) == "words":
                    bad = next(word for word in values.tolist() if not _is_number(word))
                    raise DataError(
                        f"{rows.name}: column {name!r} has {bad!r}, a number is expected; one_hot encodes "
                        "words"
                    )
                table.add(name, values, kind, policy.missing)
    fitted = None
    with problems.gathered():
        if table:
            fitted = Columns.fit(
                table,
                transform=settings.transform,
                standardise=settings.standardise,
                one_hot=one_hot or (),
                owner=rows.name,
                policy=replace(policy, **_there(policy, table)),
            )
    problems.check()
    if fitted is None:
        raise DataError(f"{rows.name}: no feature columns are left")
    return fitted


def prepared(columns: Columns, rows: Rows) -> tuple[Array, dict[str, int]]:
    """Other rows by the same measure, and the columns with values that training did not know, counted."""
    table, problems = ReadColumns(rows), Problems(rows.name)
    for name, kind in columns.kinds.items():
        with problems.gathered():
            values = rows.column(name, "a feature", kind=kind, missing=columns.missing)
            table.add(name, values, kind, columns.missing)
    problems.check()
    return columns.apply(table, rows.name)


def decided(columns: Columns, rows: Rows) -> list[str]:
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
    """What was decided about columns that could be read; the others are told of already."""
    impute = policy.impute
    if isinstance(impute, Mapping):
        impute = {name: way for name, way in impute.items() if name in table}
    return {"impute": impute, "dates": {name: form for name, form in policy.dates.items() if name in table}}


def _chosen(rows: Rows, settings: DataSettings) -> list[str]:
    special = {settings.id, settings.label, settings.weight, settings.offset}
    problems = Problems(rows.name)
    for name in settings.drop:
        with problems.gathered():
            rows.require(name, "to drop")
    for name in settings.columns or ():
        with problems.gathered():
            rows.require(name, "a feature")
            if name in special:
                raise DataError(f"{rows.name}: column {name!r} is the id, label, weight or offset")
    problems.check()
    if settings.columns is not None:
        return list(settings.columns)
    chosen = [name for name in rows.fields if name not in special and name not in settings.drop]
    if not chosen:
        raise DataError(f"{rows.name}: no feature columns are left")
    return chosen


def _is_numbers(rows: Rows, name: str, missing: tuple[str, ...]) -> bool:
    """Codes are numbers where all are: 1 and 1.0 are one category then."""
    try:
        return field_kind(rows.column(name, "to be prepared", missing=missing)) == "number"
    except DataError:
        return False


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
