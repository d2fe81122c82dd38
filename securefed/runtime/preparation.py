"""From a party's columns to numbers that a model takes: one-hot encoding and standardisation by scikit-learn,
fitted on the party's own rows alone.

What was fitted is kept with the shard, as arrays (nothing that is read back is run), and applied as it is to
the rows of a prediction: a category that was not there in training gets zeros everywhere.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from securefed.errors import DataError
from securefed.runtime.rows import Rows
from securefed.runtime.settings import DataSettings

__all__ = ["MOST_CATEGORIES", "Preparation"]

Array = NDArray[np.float64]
Arrays = dict[str, NDArray[np.generic]]
MOST_CATEGORIES = 256
"""A column with more different words than this is an id or a text, not a category."""


@dataclass(frozen=True, eq=False)
class Preparation:
    """`categories`: for each source column, its categories in order; empty for a column of numbers."""

    categories: Mapping[str, tuple[str, ...]]
    mean: Array
    scale: Array

    @property
    def columns(self) -> int:
        """Numbers a row."""
        return len(self.mean)

    @property
    def names(self) -> list[str]:
        """The names of those numbers."""
        return [
            name if not words else f"{name}={word}"
            for name, words in self.categories.items()
            for word in words or ("",)
        ]

    @classmethod
    def fit(cls, rows: Rows, settings: DataSettings) -> tuple[Self, Array]:
        """Fitted on these rows; and the rows, prepared."""
        chosen = _chosen(rows, settings)
        hot = [name for name in chosen if rows.is_words(name)] if settings.one_hot is None else []
        hot += [name for name in settings.one_hot or () if _present(rows, name, chosen)]
        categories: dict[str, tuple[str, ...]] = {}
        for name in chosen:
            categories[name] = _categories(rows, name) if name in hot else ()
        unscaled = cls(categories, np.zeros(0), np.ones(0))
        table = unscaled._table(rows)
        if settings.standardise:
            scaler = StandardScaler().fit(table)
            made = cls(categories, scaler.mean_, scaler.scale_)
        else:
            made = cls(categories, np.zeros(table.shape[1]), np.ones(table.shape[1]))
        return made, made._scaled(table)

    def apply(self, rows: Rows) -> Array:
        """Other rows by the same measure."""
        return self._scaled(self._table(rows))

    def _scaled(self, table: Array) -> Array:
        scaled: Array = (table - self.mean) / self.scale
        return scaled

    def _table(self, rows: Rows) -> Array:
        parts: list[Array] = []
        for name, words in self.categories.items():
            column = rows.column(name, "a feature")
            if words:
                encoder = OneHotEncoder(
                    categories=[np.array(words)], handle_unknown="ignore", sparse_output=False
                )
                parts.append(encoder.fit_transform(_words(column)[:, None]))
            else:
                parts.append(_numbers(rows, name)[:, None])
        return np.hstack(parts)

    def to_arrays(self) -> Arrays:
        listed = [[name, list(words)] for name, words in self.categories.items()]
        return {"categories": np.array(json.dumps(listed)), "mean": self.mean, "scale": self.scale}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[np.generic]]) -> Self:
        try:
            listed: list[Any] = json.loads(str(arrays["categories"]))
            categories = {str(name): tuple(str(word) for word in words) for name, words in listed}
            mean = np.asarray(arrays["mean"], dtype=np.float64)
            scale = np.asarray(arrays["scale"], dtype=np.float64)
        except (KeyError, ValueError, TypeError) as error:
            raise DataError(f"preparation: malformed ({error})") from None
        made = cls(categories, mean, scale)
        if mean.shape != (len(made.names),) or scale.shape != mean.shape or not (scale > 0).all():
            raise DataError(f"preparation: {mean.shape} means and {scale.shape} scales for {made.names}")
        return made


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


def _present(rows: Rows, name: str, chosen: list[str]) -> bool:
    rows.column(name, "to one-hot encode")
    if name not in chosen:
        raise DataError(f"{rows.name}: column {name!r} is to be one-hot encoded and is not a feature")
    return True


def _words(column: NDArray[Any]) -> NDArray[Any]:
    """Categories as words; whole numbers without a point, so that 3 and 3.0 are one."""
    if column.dtype.kind == "f":
        return np.array([_word(float(value)) for value in column])
    return column.astype(str)


def _word(value: float) -> str:
    if value != value:
        return ""
    return str(int(value)) if value == int(value) else repr(value)


def _categories(rows: Rows, name: str) -> tuple[str, ...]:
    found = np.unique(_words(rows.columns[name])).tolist()
    if len(found) > MOST_CATEGORIES:
        raise DataError(
            f"{rows.name}: column {name!r} has {len(found)} different words, at most {MOST_CATEGORIES} can "
            "be one-hot encoded; drop it, or make it the id"
        )
    return tuple(str(word) for word in found)


def _numbers(rows: Rows, name: str) -> Array:
    column = rows.columns[name]
    if rows.is_words(name):
        bad = next(word for word in column.tolist() if not _is_number(word))
        raise DataError(
            f"{rows.name}: column {name!r} has {bad!r}, a number is expected; one_hot encodes words"
        )
    gone = ~np.isfinite(column)
    if gone.any():
        raise DataError(
            f"{rows.name}: {int(gone.sum())} of {len(column)} values of column {name!r} are missing or "
            f"infinite, the first in row {int(np.flatnonzero(gone)[0]) + 1}; fill or drop them"
        )
    return column.astype(np.float64)


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
