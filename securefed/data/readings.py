"""What a party decides about its own columns, and how the fields of a column are read.

A column has the first type (securefed.data.column_types) of which all its fields are, apart from words for
"not known". Nothing is guessed that matters (docs/data.md): a column of numbers with a few other fields is
refused, and so is one that two readings fit with different results.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from securefed.data.column_types import TYPES, ColumnType, Reading, all_forms, plain_number, type_with
from securefed.declare import Declared, check_choice, check_names, choice, flag, integer, optional, setting
from securefed.errors import DataError, SettingError

Places = NDArray[np.intp]
UNKNOWN = frozenset({"", "na", "n/a", "#n/a", "nan", "null", "none", "?", "-", "."})
"""In a column of numbers or dates these are no slips: the value is not known."""
NEARLY = 0.8
"""A column with this part of numbers is one of numbers, with slips."""
IMPUTES = ("refuse", "median", "most-frequent", "indicator")
UNKNOWNS = ("ignore", "refuse")
DECIMALS = (".", ",")


def _impute(name: str, value: Any) -> Any:
    for column, way in value.items() if isinstance(value, Mapping) else ():
        check_choice(f"{name} of {column}", way, IMPUTES)
    return value if isinstance(value, Mapping) else check_choice(name, value, IMPUTES)


def _dates(name: str, value: Any) -> Mapping[str, str]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise SettingError(f"{name} must map columns to forms, such as {{born = 'age'}}, not {value!r}")
    for column, form in value.items():
        check_choice(f"{name}: {column}", form, tuple(all_forms()))
    return value


def _separator(name: str, value: Any) -> str:
    if not isinstance(value, str) or len(value) != 1:
        raise SettingError(f"{name}: {value!r} given, one sign such as ';' is allowed")
    return value


@dataclass(frozen=True, kw_only=True, repr=False)
class Policy(Declared):
    """One party's decisions about its columns, as in `Party(...)` and party.toml."""

    one_hot: Sequence[str] | None = setting(
        None,
        optional(check_names),
        "Categories. Left out: every column that holds words.",
        example=["region"],
    )
    impute: str | Mapping[str, str] | None = setting(
        None,
        optional(_impute),
        'Gaps: "median", "most-frequent" or "indicator" (marked too). Left out: refused.',
        example="indicator",
    )
    dates: Mapping[str, str] = setting(
        None,
        _dates,
        'Columns with dates: "age" (years before the newest) or "parts" (year, month, weekday).',
        example={"born": "age"},
    )
    missing: Sequence[str] = setting(
        (), check_names, "Words that mean that a value is not known.", example=["NA", "unknown"]
    )
    rare: int | None = setting(
        None, optional(integer(least=1)), "Categories of fewer rows are put together.", example=10
    )
    decimal: str | None = setting(
        None,
        optional(choice(DECIMALS)),
        "Before the decimals. Left out: recognised where only one reading fits.",
        example=",",
    )
    dayfirst: bool | None = setting(
        None,
        optional(flag),
        "Whether 03/01/2024 is in January. Left out: recognised where only one reading fits.",
        example=True,
    )
    separator: str | None = setting(
        None,
        optional(_separator),
        "Between the fields of a text file. Left out: recognised.",
        example=";",
    )
    unknown: str = setting(
        "ignore",
        choice(UNKNOWNS),
        'Categories that training did not have: "ignore" (counted and told) or "refuse".',
    )

    @property
    def named(self) -> list[str]:
        named = self.impute if isinstance(self.impute, Mapping) else {}
        return list(dict.fromkeys([*(self.one_hot or ()), *named, *self.dates]))

    def kind(self, column: str) -> str | None:
        return type_with(self.dates[column]).name if column in self.dates else None

    def way(self, column: str, transform: str) -> str:
        """How gaps of a column are filled."""
        chosen = self.impute.get(column) if isinstance(self.impute, Mapping) else self.impute
        return chosen or ("indicator" if transform == "auto" else "refuse")


POLICY = Policy()


class ReadColumn(NamedTuple):
    values: NDArray[Any]
    """Floats with NaN, days with NaT, or words with "" for what is not known."""
    reading: str


def read_column(
    fields: Sequence[object] | NDArray[Any],
    name: str,
    owner: str,
    policy: Policy = POLICY,
    kind: str | None = None,
    reading: str | None = None,
    numbers: Places | None = None,
) -> ReadColumn:
    """Read a column, or raise DataError if a field does not fit or two readings do.

    `kind`: the type that the column must have, where it is known. `reading`: the one that training used. For
    messages: the names of the column and of its `owner`, and `numbers`, the row of each field, from 1.
    """
    if isinstance(fields, np.ndarray) and fields.dtype.kind in "fiubMm":
        if fields.dtype.kind == "M" and kind in (None, "date"):
            return ReadColumn(fields.astype("datetime64[D]"), "date")
        if fields.dtype.kind in "fiub" and kind in (None, "number"):
            return ReadColumn(_without(fields.astype(np.float64), policy.missing), "number")
        if fields.dtype.kind == "m":  # as timedelta; nanoseconds would become integers
            fields = fields.astype("timedelta64[us]")
    listed: Sequence[object] = fields.tolist() if isinstance(fields, np.ndarray) else fields
    usual = kind in (None, "number") and reading in (None, "number")
    if usual and not policy.missing and policy.decimal != ",":
        with suppress(TypeError, ValueError):  # the usual case, and the fast way
            return ReadColumn(np.array(listed, dtype=np.float64), "number")
    return _Column(listed, name, owner, policy, numbers).read(kind, reading)


class _Column:
    def __init__(
        self, fields: Sequence[object], name: str, owner: str, policy: Policy, numbers: Places | None
    ) -> None:
        self.fields, self.name, self.owner, self.policy, self.numbers = fields, name, owner, policy, numbers
        self.words = ["" if _gone(value, policy.missing) else str(value).strip() for value in fields]
        self.meant = [word.lower() not in UNKNOWN for word in self.words]

    def read(self, kind: str | None, reading: str | None) -> ReadColumn:
        for each in TYPES:
            if kind in (None, each.name) and each.name != "words":
                read = self._read_as(each, declared=kind is not None, reading=reading)
                if read is not None:
                    return read
        return ReadColumn(np.array(self.words), "words")

    def _read_as(self, kind: ColumnType, *, declared: bool, reading: str | None) -> ReadColumn | None:
        """The column as this type, or None if it is another type."""
        allowed = [way for way in kind.readings if self._allowed(way, declared)]
        ways = [way for way in allowed if way.name == reading] or allowed
        tried = [(way, *self._parsed(kind, way)) for way in ways]
        fitting = [(way, values) for way, values, odd in tried if not odd]
        if fitting:
            way, values = fitting[0]
            for rival in fitting[1:]:
                self._check_clear(way, values, *rival)
            return ReadColumn(kind.array(values), way.name)
        _, values, odd = min(tried, key=lambda each: len(each[2]))
        count = sum(self.meant)
        similar = kind.similar is not None and all(kind.similar.fullmatch(self.words[row]) for row in odd)
        if declared or count - len(odd) >= NEARLY * count or similar:
            raise DataError(self._slips(kind, odd))
        return None

    def _allowed(self, way: Reading, declared: bool) -> bool:
        if way.setting is None:
            return declared or not way.only_declared
        setting, value = way.setting
        decision = getattr(self.policy, setting)
        return decision == value if way.only_declared else decision in (None, value)

    def _parsed(self, kind: ColumnType, way: Reading) -> tuple[list[Any], list[int]]:
        """The values by this reading, and the rows that have none."""
        values, odd, parse = [None] * len(self.fields), list[int](), lru_cache(1 << 16)(way.parse)
        for row in np.flatnonzero(self.meant).tolist():
            value = self.fields[row]
            values[row] = None if isinstance(value, str) else kind.convert(value)
            if values[row] is None:
                values[row] = parse(self.words[row])
            if values[row] is None:
                odd.append(row)
        return values, odd

    def _check_clear(self, way: Reading, first: list[Any], rival: Reading, second: list[Any]) -> None:
        """Refuse a column that two readings fit with different results."""
        row = next((row for row in range(len(first)) if first[row] != second[row]), None)
        if row is None or way.setting is None or rival.setting is None or way.setting == rival.setting:
            return
        ways = " or ".join(f"{setting} = {_toml(value)}" for setting, value in (way.setting, rival.setting))
        raise DataError(
            f"{self.owner}: column {self.name!r}: {_cut(self.words[row])} in row {self._row(row)} may be "
            f"{_shown(first[row])} or {_shown(second[row])}; say {ways}"
        )

    def _slips(self, kind: ColumnType, odd: Sequence[int]) -> str:
        shown = _cut(self.words[odd[0]])
        count = "1 field is" if len(odd) == 1 else f"{len(odd)} fields are"
        codes = f", or one_hot = [{self.name!r}] if the values are codes" if kind.name == "number" else ""
        return (
            f"{self.owner}: column {self.name!r} holds {kind.plural}, but {count} not ({shown} in row "
            f"{self._row(odd[0])}); write {kind.plural} as {kind.example}, or say missing = [{shown}] if "
            f'that means "not known"{codes}'
        )

    def _row(self, place: int) -> int:
        return place + 1 if self.numbers is None else int(self.numbers[place])


def _without(values: NDArray[np.float64], missing: Collection[str]) -> NDArray[np.float64]:
    """NaN in place of numbers that mean "not known", such as 999."""
    for word in missing:
        with suppress(ValueError):
            values[values == float(word)] = np.nan
    return values


def _gone(value: object, missing: Collection[str]) -> bool:
    """None, NaN, NaT, pandas' NA, an empty text, or a word that means so."""
    if isinstance(value, str):
        return not value.strip() or value.strip() in missing
    if isinstance(value, float | int) and any(plain_number(word) == value for word in missing):
        return True
    same = value == value
    return value is None or not isinstance(same, bool | np.bool_) or not same


def _toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _cut(text: str) -> str:
    return repr(text if len(text) <= 30 else text[:27] + "...")
