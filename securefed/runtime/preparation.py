"""From a party's file to numbers that a model takes (securefed.data.columns), as [data] of party.toml says.

What was fitted is kept with the shard and applied as it is to the rows of a prediction.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefed.data.columns import Columns
from securefed.errors import DataError
from securefed.runtime.rows import Rows
from securefed.runtime.settings import DataSettings

__all__ = ["prepare", "prepared"]

Array = NDArray[np.float64]


def prepare(rows: Rows, settings: DataSettings) -> tuple[Columns, Array]:
    """Fitted on these rows; and the rows as numbers."""
    chosen = _chosen(rows, settings)
    for name in settings.one_hot or ():
        rows.column(name, "to one-hot encode")
        if name not in chosen:
            raise DataError(f"{rows.name}: column {name!r} is to be one-hot encoded and is not a feature")
    table = {name: rows.columns[name] for name in chosen}
    for name, values in table.items():
        if values.dtype.kind != "f" and settings.one_hot is not None and name not in settings.one_hot:
            bad = next(word for word in values.tolist() if not _is_number(word))
            raise DataError(
                f"{rows.name}: column {name!r} has {bad!r}, a number is expected; one_hot encodes words"
            )
    return Columns.fit(
        table,
        transform=settings.transform,
        standardise=settings.standardise,
        one_hot=settings.one_hot or (),
        owner=rows.name,
    )


def prepared(columns: Columns, rows: Rows) -> tuple[Array, dict[str, int]]:
    """Other rows by the same measure, and the columns with values that training did not know, counted."""
    table: dict[str, NDArray[Any]] = {}
    for column in columns.source:
        values = rows.column(column.name, "a feature")
        if column.kind == "words" and values.dtype.kind == "f":  # these rows' words all happen to be digits
            values = np.array(["" if v is None else str(v).strip() for v in rows.fields[column.name]])
        table[column.name] = values
    return columns.apply(table, rows.name)


def _chosen(rows: Rows, settings: DataSettings) -> list[str]:
    special = {settings.id, settings.label}
    for name in settings.drop:
        rows.column(name, "to drop")
    if settings.columns is not None:
        for name in settings.columns:
            rows.column(name, "a feature")
            if name in special:
                raise DataError(f"{rows.name}: column {name!r} is the id or the label, not a feature")
        return list(settings.columns)
    chosen = [name for name in rows.columns if name not in special and name not in settings.drop]
    if not chosen:
        raise DataError(f"{rows.name}: no feature columns are left")
    return chosen


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
