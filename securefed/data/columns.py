"""A party's columns as numbers that a linear model takes; fitted on the party's own rows alone.

docs/data.md says what becomes of numbers, words, gaps and dates. Categories that training did not have count
as rare ones where there are any, else as none. What was fitted is kept with the party's part of the model.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from securefed.data.column import Array, Column, gaps
from securefed.data.column_types import column_type, plain_number
from securefed.data.readings import ReadColumn
from securefed.data.rows import Rows
from securefed.data.storage import new_table, row_blocks
from securefed.declare import check_choice
from securefed.errors import DataError, Problems

TRANSFORMS = ("none", "auto")
FARTHEST = 16.0
"""Standard deviations from the mean beyond which a number is cut: one row cannot decide alone."""
MIDDLE = (0.025, 0.975)
ABSURD = 1000.0
"""Values this many widths away cause a warning."""

PENALTY = 30.0
"""The penalty on what "auto" derives from a column, beside that on the column itself (docs/choosing.md)."""
MOST_ROWS = 20_000
"""Rows from which entropies are estimated: more bits than this has are not told apart."""


class OutlierWarning(UserWarning):
    """A column with values that cannot be meant."""


@dataclass(eq=False)
class FittedColumns:
    """A party's columns as they were fitted. They are kept as arrays: nothing that is read back is run."""

    source: tuple[Column, ...]
    mean: Array
    scale: Array
    missing: tuple[str, ...] = ()
    """Words that mean "not known"."""
    readings: Mapping[str, str] = field(default_factory=dict)
    """How each of the source's columns was read (securefed.data.readings)."""
    limits: Array = field(default_factory=lambda: np.zeros((2, 0)))
    """The least and the largest value of each of those numbers before they are scaled; others are cut."""
    weight: int = 0
    """How many columns these count as in an automatic penalty. Not saved: only training asks."""

    def __post_init__(self) -> None:
        self.names = [name for column in self.source for name in column.names]
        """The names of the numbers that a row becomes."""
        own = np.array([name == column.name for column in self.source for name in column.names])
        self.as_given: NDArray[np.bool_] = own
        """Whether each number is a column, not a spline, a category or an indicator that it became."""
        self.untransformed = np.flatnonzero(own) if own.any() else np.arange(len(own))
        """Which of those numbers are columns as they were given; all of them where none is."""
        self.kinds = {column.origin: column.taken for column in self.source}
        """The source's columns by name, and their types: "number", "words" or "date"."""

    def read(self, rows: Rows, name: str) -> NDArray[Any]:
        """A column of other rows, of the type and reading of the training."""
        kind, reading = self.kinds[name], self.readings.get(name)
        return rows.read(name, "a feature", kind=kind, missing=self.missing, reading=reading).values

    def scaled(self, numbers: Array) -> None:
        for block in row_blocks(len(numbers)):
            inside = numbers[block] if not self.limits.size else np.clip(numbers[block], *self.limits)
            with np.errstate(over="ignore"):
                scaled = (inside - self.mean) / self.scale
            numbers[block] = np.clip(scaled, -FARTHEST, FARTHEST)

    def row_bits(self, numbers: Array) -> float:
        """Return the entropy of a row. A column counts once, whatever splines and marks it became."""
        origins = np.array([column.origin for column in self.source for _ in column.names])
        rows = numbers[:: -(-len(numbers) // MOST_ROWS) or 1]
        codes = []
        for name in self.kinds:
            group = rows[:, origins == name]
            several = group.shape[1] > 1
            codes.append(np.unique(group, axis=0, return_inverse=True)[1] if several else group[:, 0])
        return column_bits(np.column_stack([each.reshape(-1) for each in codes]).astype(np.float64))

    def to_arrays(self) -> dict[str, NDArray[np.generic]]:
        return {
            "columns": np.array(json.dumps([column.to_dict() for column in self.source])),
            "mean": self.mean,
            "scale": self.scale,
            "missing": np.array(json.dumps(self.missing)),
            "readings": np.array(json.dumps(dict(self.readings))),
            "limits": self.limits,
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[np.generic]]) -> Self:
        try:
            listed, missing, saved = (json.loads(str(arrays[n])) for n in ("columns", "missing", "readings"))
            mean, scale, limits = (np.asarray(arrays[n], np.float64) for n in ("mean", "scale", "limits"))
            source = tuple(Column.from_dict(each) for each in listed)
            readings = {str(name): str(reading) for name, reading in saved.items()}
            columns = cls(source, mean, scale, tuple(map(str, missing)), readings, limits)
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise DataError(f"preparation: malformed ({error})") from None
        if limits.shape not in ((2, 0), (2, len(mean))) or np.isnan(limits).any():
            raise DataError(f"preparation: limits of shape {limits.shape} for {len(mean)} columns")
        if mean.shape != (len(columns.names),) or scale.shape != mean.shape or not (scale > 0).all():
            raise DataError(f"preparation: {mean.shape} means and {scale.shape} scales for {columns.names}")
        return columns


def prepare(
    rows: Rows, chosen: Sequence[str], *, transform: str = "none", standardise: bool = True
) -> tuple[FittedColumns, Array]:
    """Fit the chosen columns on these rows, and return the rows as numbers too."""
    check_choice("transform", transform, TRANSFORMS)
    policy, problems = rows.policy, Problems(rows.name)
    for name in policy.named:
        with problems.gathered():
            rows.require(name, "to be prepared")
            if name not in chosen:
                raise DataError(f"{rows.name}: column {name!r} is to be prepared and is not a feature")
    source, readings = list[Column](), dict[str, str]()
    for name in chosen:
        with problems.gathered():
            values, readings[name] = _read(rows, name)
            source += _columns(rows, transform, name, values)
    problems.check()
    width = sum(len(column.names) for column in source)
    start = np.zeros(width), np.ones(width)
    columns = FittedColumns(tuple(source), *start, tuple(policy.missing), readings, weight=width)
    numbers, _ = prepared(columns, rows)
    if standardise:
        each = zip(columns.names, numbers.T, strict=True)
        fitted = [_scale(name, column.copy(), rows.name) for name, column in each]
        least, most, mean, scale = np.array(fitted).T
        if transform == "auto":
            penalties = np.where(columns.as_given, 1.0, PENALTY)
            scale *= np.sqrt(penalties)
            columns = replace(columns, weight=round(float((1.0 / penalties).sum())))
        columns = replace(columns, mean=mean, scale=scale, limits=np.array([least, most]))
        columns.scaled(numbers)
    return columns, numbers


def prepared(columns: FittedColumns, rows: Rows) -> tuple[Array, dict[str, int]]:
    """Return rows as numbers, and how many values of each column training did not have."""
    problems, unknown = Problems(rows.name), dict[str, int]()
    numbers, place = new_table(rows.count, len(columns.names)), 0
    for name, parts in groupby(columns.source, lambda column: column.origin):
        with problems.gathered():
            values = columns.read(rows, name)
            for column in parts:
                part, strange = column.numbers(values, rows.name)
                numbers[:, place : place + part.shape[1]] = part
                place += part.shape[1]
                if strange:
                    unknown[name] = max(strange, unknown.get(name, 0))
    problems.check()
    if (columns.scale != 1).any() or columns.mean.any():
        columns.scaled(numbers)
    return numbers, unknown


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


def _columns(rows: Rows, transform: str, name: str, values: NDArray[Any]) -> Iterator[Column]:
    """Yield a column as it is fitted, or the parts of one whose type has several forms."""
    owner, policy = rows.name, rows.policy
    kind, form = column_type(values), policy.dates.get(name)
    fitted = partial(Column.of, transform=transform, one_hot=name in (policy.one_hot or ()), owner=owner)
    if form is not None and form not in kind.forms:
        raise DataError(f"{owner}: dates: column {name!r} holds {kind.plural}, not dates")
    if kind.part is None:
        yield fitted(name, values, policy=policy)
        return
    known = values[values == values]
    if not len(known):
        raise DataError(gaps(owner, name, values != values))
    if form is None and transform != "auto":
        ways = " or ".join(f"dates = {{ {name} = {each!r} }}" for each in kind.forms)
        raise DataError(
            f"{owner}: column {name!r} holds {kind.plural} such as {known[0]}; say {ways}, "
            f"or one_hot = [{name!r}]"
        )
    reference = kind.reference(known)
    for part in kind.forms[form or next(iter(kind.forms))]:
        origin: dict[str, Any] = {"given": name, "part": part, "newest": reference}
        yield fitted(f"{name}.{part}", kind.part(values, part, reference), policy=policy, **origin)


def _scale(name: str, column: Array, owner: str) -> tuple[float, float, float, float]:
    """Return the values that a column is cut to (docs/data.md), and its mean and deviation after that.

    A column of mostly one value has no middle and is not cut.
    """
    low, high = np.quantile(column, MIDDLE).tolist()
    width, least, most = high - low, -np.inf, np.inf
    if 0.0 < width < np.inf:
        least, most = low - width, high + width
        away = np.maximum(least - column, column - most)
        if absurd := int((away > ABSURD * width).sum()):
            text = (
                f"{owner}: column {name!r} has {absurd} values far from all others, such as "
                f"{column[np.argmax(away)]:.4g}; they are cut to {least:.4g} to {most:.4g}. Look whether "
                "they stand for something missing"
            )
            warnings.warn(text, OutlierWarning, stacklevel=2)
    inside = np.clip(column, least, most)
    size = float(np.abs(inside).max()) or 1.0  # squares of larger numbers would leave a float's range
    mean, deviation = (inside / size).mean(), (inside / size).std()
    return least, most, mean * size, size if deviation <= 1e-12 else deviation * size


def decided(columns: FittedColumns, rows: Rows) -> list[str]:
    """What becomes of gaps and dates, in words."""
    lines = []
    for column in columns.source:
        values = columns.read(rows, column.origin)
        gone = int((values == "").sum() if column.taken == "words" else (values != values).sum())
        if column.part:
            newest = np.datetime64(int(column.newest), "D")
            since = f", in years before {newest}" if column.part == "age" else ""
            lines.append(f"{column.origin}: dates, taken as {column.part}{since}")
        if gone:
            marked = column.impute == "indicator"
            way = "marked as missing" if marked else f"filled by the {column.impute} value"
            lines.append(f"{column.origin}: {gone} of {rows.count} values are missing, {way}")
    return list(dict.fromkeys(lines))


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
    left = (name for name in rows.fields if name not in special and name not in drop)
    chosen = list(left if columns is None else columns)
    if not chosen:
        raise DataError(f"{rows.name}: no feature columns are left")
    return chosen


# Entropy: how much there is to tell of a table, which a score ledger sets scores against


def column_bits(features: NDArray[np.float64]) -> float:
    """The entropy of a row in bits, as if the columns had nothing to do with each other.

    Columns that only rename each other's values count once, and columns of two values that exclude each
    other (a category, one-hot) count as the one category that they are.
    """
    rows = np.ascontiguousarray(features[:: -(-len(features) // MOST_ROWS) or 1] + 0.0)
    patterns: set[bytes] = set()
    groups: list[NDArray[np.intp]] = []
    """The category of each row, 0 for none, of columns that exclude each other."""
    total = 0.0
    for column in rows.T:
        _, first, places, counts = np.unique(
            column, return_index=True, return_inverse=True, return_counts=True
        )
        # The same for every renaming of the values: numbered by where they first occur, or, where most occur
        # only once and so any column would be a renaming of any other, by their order.
        numbers = np.argsort(np.argsort(first)) if 4 * len(counts) <= len(rows) else np.arange(len(counts))
        if len(counts) > 2 and numbers[places[0]] > numbers[places[-1]]:
            numbers = len(counts) - 1 - numbers  # nor does it matter which end is which
        pattern = numbers[places].astype(np.uint32).tobytes()
        if len(counts) < 2 or pattern in patterns:
            continue
        patterns.add(pattern)
        if len(counts) > 2:
            total += _entropy(counts)
            continue
        member = places == int(np.argmin(counts))
        group = next((group for group in groups if not group[member].any()), None)
        if group is None:
            groups.append(group := np.zeros(len(rows), dtype=np.intp))
        group[member] = group.max() + 1
    return total + sum(_entropy(np.bincount(group)) for group in groups)


def _entropy(counts: NDArray[np.integer[Any]]) -> float:
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log2(shares)).sum())
