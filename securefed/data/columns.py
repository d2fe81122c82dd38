"""From a party's columns to numbers that a linear model takes; fitted on the party's own rows alone.

    "none"   words become one-hot columns, numbers stay as they are
    "auto"   numbers with many values also become splines (a linear model of them can bend), numbers with few
             values one column a value; rare categories are put together; a missing number is an indicator

Then every column gets mean 0 and variance 1, and nothing is further than `FARTHEST` from 0. What was fitted
is kept as arrays (nothing that is read back is run), with the name and kind of every column: other rows are
matched by name, and a column that is missing or of another kind is refused. Categories that were not there
in training count as rare ones where there are any, else as none, and are counted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.preprocessing import SplineTransformer

from securefed.checks import check_choice
from securefed.errors import DataError

__all__ = ["FARTHEST", "MOST_CATEGORIES", "TRANSFORMS", "Column", "Columns", "Table"]

Array = NDArray[np.float64]
Table = Mapping[str, NDArray[Any]]
"""Columns by name: floats (NaN where missing), or words ("" where missing)."""

TRANSFORMS = ("none", "auto")
MOST_CATEGORIES = 256
"""A column with more different words than this is an id or a text, not a category."""
FARTHEST = 16.0
"""Standard deviations from the mean beyond which a number is cut: one row cannot decide alone."""
FEW = 12
"""A number with at most so many different values is taken as categories too."""
KNOTS, DEGREE = 4, 2
RARE_ROWS, RARE_SHARE = 10, 0.005
"""Categories with fewer rows than either are put together."""
REST = "\x00rest"
"""The name of rare categories together; no file has it."""


@dataclass(frozen=True, eq=False)
class Column:
    """One column of the source, and what becomes of it."""

    name: str
    kind: str
    """"number" or "words"."""
    levels: tuple[str, ...] = ()
    """One-hot, in this order; REST last if there are rare ones."""
    linear: bool = True
    knots: Array = field(default_factory=lambda: np.zeros(0))
    missing: bool = False
    """Missing numbers were there in training: they have an indicator."""
    fill: float = 0.0

    @property
    def names(self) -> list[str]:
        """Of the numbers that it becomes."""
        made = [self.name] if self.linear and self.kind == "number" else []
        made += [f"{self.name}~{i + 1}" for i in range(_width(self.knots))]
        made += [f"{self.name}={'(rare)' if level == REST else level}" for level in self.levels]
        return made + ([f"{self.name}?"] if self.missing else [])

    def numbers(self, values: NDArray[Any], owner: str) -> tuple[Array, int]:
        """Its part of the table, and how many values were not known in training."""
        if self.kind == "words":
            return self._one_hot(values.astype(str))
        gone = ~np.isfinite(values)
        if gone.any() and not self.missing:
            raise DataError(
                f"{owner}: {int(gone.sum())} of {len(values)} values of column {self.name!r} are missing or "
                f"infinite, the first in row {int(np.flatnonzero(gone)[0]) + 1}; fill or drop them"
                ' (transform "auto" takes columns that miss values in training)'
            )
        filled = np.where(gone, self.fill, values).astype(np.float64)
        parts: list[Array] = [filled[:, None]] if self.linear else []
        if len(self.knots):
            parts.append(_spline(filled, self.knots))
        unknown = 0
        if self.levels:
            hot, unknown = self._one_hot(np.array([word(value) for value in filled.tolist()]))
            parts.append(hot)
        if self.missing:
            parts.append(gone.astype(np.float64)[:, None])
        return np.hstack(parts), unknown

    def _one_hot(self, words: NDArray[Any]) -> tuple[Array, int]:
        place = {level: i for i, level in enumerate(self.levels)}
        rest = place.get(REST, -1)
        found = np.array([place.get(each, rest) for each in words.tolist()])
        hot = np.zeros((len(words), len(self.levels)))
        known = found >= 0
        hot[np.flatnonzero(known), found[known]] = 1.0
        return hot, int((found == rest).sum()) if rest < 0 else 0

    @classmethod
    def of(cls, name: str, values: NDArray[Any], transform: str, *, one_hot: bool, owner: str) -> Self:
        """From a column of the training rows."""
        if values.dtype.kind != "f":
            return cls(name, "words", _levels(name, values.astype(str), transform, owner))
        gone = ~np.isfinite(values)
        missing = transform == "auto" and bool(np.isnan(values).any())
        if np.isinf(values).any() or (gone.any() and not missing) or gone.all():
            raise DataError(
                f"{owner}: {int(gone.sum())} of {len(values)} values of column {name!r} are missing or "
                f"infinite, the first in row {int(np.flatnonzero(gone)[0]) + 1}; fill or drop them"
            )
        known = values[~gone]
        fill = float(np.median(known)) if missing else 0.0
        if one_hot:
            words = np.array([word(value) for value in np.where(gone, fill, values).tolist()])
            levels = _levels(name, words, transform, owner)
            return cls(name, "number", levels, linear=False, missing=missing, fill=fill)
        if transform == "none":
            return cls(name, "number")
        distinct = np.unique(known)
        if len(distinct) <= 2:
            return cls(name, "number", missing=missing, fill=fill)
        if len(distinct) <= FEW:
            words = np.array([word(value) for value in np.where(gone, fill, values).tolist()])
            levels = _levels(name, words, transform, owner)
            return cls(name, "number", levels, missing=missing, fill=fill)
        knots = np.unique(np.quantile(known, np.linspace(0.0, 1.0, KNOTS)))
        if len(knots) < 3:  # most rows have one value; what matters is the rest
            knots = np.unique([known.min(), *np.quantile(distinct, [0.5]), known.max()])
        return cls(name, "number", knots=knots, missing=missing, fill=fill)

    def to_list(self) -> list[Any]:
        return [
            self.name,
            self.kind,
            list(self.levels),
            self.linear,
            self.knots.tolist(),
            self.missing,
            self.fill,
        ]

    @classmethod
    def from_list(cls, found: Sequence[Any]) -> Self:
        name, kind, levels, linear, knots, missing, fill = found
        made = cls(
            str(name),
            check_choice("kind", kind, ("number", "words")),
            tuple(str(level) for level in levels),
            bool(linear),
            np.array(knots, dtype=np.float64),
            bool(missing),
            float(fill),
        )
        if len(made.knots) and (len(made.knots) < 2 or not (np.diff(made.knots) > 0).all()):
            raise ValueError(f"knots of {name} do not rise")
        return made


@dataclass(frozen=True, eq=False)
class Columns:
    """A party's columns as they were fitted."""

    source: tuple[Column, ...]
    mean: Array
    scale: Array

    @property
    def count(self) -> int:
        """Numbers a row."""
        return len(self.mean)

    @property
    def names(self) -> list[str]:
        """The names of those numbers."""
        return [name for column in self.source for name in column.names]

    @property
    def given(self) -> list[str]:
        """The names of the source's columns."""
        return [column.name for column in self.source]

    @classmethod
    def fit(
        cls,
        table: Table,
        *,
        transform: str = "none",
        standardise: bool = True,
        one_hot: Sequence[str] = (),
        owner: str = "table",
    ) -> tuple[Self, Array]:
        """Fitted on these rows; and the rows as numbers. `one_hot`: numbers that are codes."""
        check_choice("transform", transform, TRANSFORMS)
        source = tuple(
            Column.of(name, values, transform, one_hot=name in one_hot, owner=owner)
            for name, values in table.items()
        )
        numbers, _ = cls(source, np.zeros(0), np.ones(0))._numbers(table, owner)
        mean, scale = np.zeros(numbers.shape[1]), np.ones(numbers.shape[1])
        if standardise:
            mean, scale = _moments(numbers)
        made = cls(source, mean, scale)
        return made, made._scaled(numbers, standardise)

    def apply(self, table: Table, owner: str = "table") -> tuple[Array, dict[str, int]]:
        """Other rows by the same measure; and the columns with values that training did not know, counted."""
        for column in self.source:
            if column.name not in table:
                few = ", ".join(list(table)[:6]) + (" ..." if len(table) > 6 else "")
                raise DataError(f"{owner}: column {column.name!r} of the training is missing; it has {few}")
            words = table[column.name].dtype.kind != "f"
            if words != (column.kind == "words"):
                now, due = ("words", "numbers") if words else ("numbers", "words")
                raise DataError(f"{owner}: column {column.name!r} holds {now}, in training it held {due}")
        numbers, unknown = self._numbers(table, owner)
        return self._scaled(numbers, bool((self.scale != 1).any() or self.mean.any())), unknown

    def _numbers(self, table: Table, owner: str) -> tuple[Array, dict[str, int]]:
        parts, unknown = [], {}
        for column in self.source:
            part, strange = column.numbers(table[column.name], owner)
            parts.append(part)
            if strange:
                unknown[column.name] = strange
        return np.hstack(parts), unknown

    def _scaled(self, numbers: Array, standardise: bool) -> Array:
        if not standardise:
            return numbers
        with np.errstate(over="ignore"):
            scaled: Array = np.clip((numbers - self.mean) / self.scale, -FARTHEST, FARTHEST)
        return scaled

    def to_arrays(self) -> dict[str, NDArray[np.generic]]:
        listed = json.dumps([column.to_list() for column in self.source])
        return {"columns": np.array(listed), "mean": self.mean, "scale": self.scale}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[np.generic]]) -> Self:
        try:
            source = tuple(Column.from_list(each) for each in json.loads(str(arrays["columns"])))
            mean = np.asarray(arrays["mean"], dtype=np.float64)
            scale = np.asarray(arrays["scale"], dtype=np.float64)
        except (KeyError, ValueError, TypeError) as error:
            raise DataError(f"preparation: malformed ({error})") from None
        made = cls(source, mean, scale)
        if mean.shape != (len(made.names),) or scale.shape != mean.shape or not (scale > 0).all():
            raise DataError(f"preparation: {mean.shape} means and {scale.shape} scales for {made.names}")
        return made


def word(value: float) -> str:
    """A number as a category; whole numbers without a point, so that 3 and 3.0 are one."""
    if value != value:
        return ""
    return str(int(value)) if value == int(value) else repr(value)


def _levels(name: str, words: NDArray[Any], transform: str, owner: str) -> tuple[str, ...]:
    found, counts = np.unique(words, return_counts=True)
    kept = found
    if transform == "auto":
        kept = found[counts >= max(RARE_ROWS, RARE_SHARE * len(words))]
        kept = kept if len(kept) else found[np.argsort(-counts)[:1]]
    if len(kept) > MOST_CATEGORIES or (transform == "none" and len(found) > MOST_CATEGORIES):
        raise DataError(
            f"{owner}: column {name!r} has {len(found)} different words, at most {MOST_CATEGORIES} can be "
            "one-hot encoded; drop it, or make it the id"
        )
    rest = (REST,) if len(kept) < len(found) else ()
    return (*(str(each) for each in kept), *rest)


def _moments(numbers: Array) -> tuple[Array, Array]:
    """Mean and standard deviation of each column, also where squares would leave a float's range; 1 in place
    of what is no more than rounding.
    """
    size = np.abs(numbers).max(axis=0)
    size = np.where(size > 0, size, 1.0)
    relative = numbers / size
    mean, scale = relative.mean(axis=0), relative.std(axis=0)
    constant = scale <= 1e-12
    return mean * size, np.where(constant, size, scale * size)


def _width(knots: Array) -> int:
    """Columns of a spline: one less than the basis has, since a constant is there already."""
    return len(knots) + DEGREE - 2 if len(knots) else 0


def _spline(values: Array, knots: Array) -> Array:
    basis = SplineTransformer(
        degree=DEGREE, knots=knots[:, None], extrapolation="constant", include_bias=False
    )
    made: Array = basis.fit(knots[:, None]).transform(values[:, None])
    return made
