"""The types that a column may have, one entry each: numbers, dates and words (docs/data.md).

A type says how the text of a field is read and what its values become. To add a type, add an entry to
`TYPES`, or `register` one from outside of the package (docs/extending.md).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefed.errors import SettingError


@dataclass(frozen=True)
class Reading:
    """One way to write the values of a type."""

    name: str
    parse: Callable[[str], Any]
    """A field's text as a value; None if the text is no such value."""
    setting: tuple[str, object] | None = None
    """The setting and the value that declare this way. None: the usual way, which needs no declaration."""
    only_declared: bool = False
    """Tried only where the settings declare it: by `setting`, or by the column's type if there is none."""


@dataclass(frozen=True)
class ColumnType:
    """A type of column. `numpy_kind` is the dtype's letter of its values."""

    name: str
    plural: str
    numpy_kind: str
    readings: tuple[Reading, ...] = ()
    convert: Callable[[object], Any] = lambda value: None
    """A value that is no text (a float, a datetime) as a value of this type, or None."""
    array: Callable[[list[Any]], NDArray[Any]] = np.array
    """Values, None where one is missing, as an array."""
    similar: re.Pattern[str] | None = None
    """Fields of this form belong to the type, even if they cannot be read: 31/31/2024 is a mistyped date."""
    example: str = ""
    forms: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The parts that a column becomes, by the name of the setting. Empty: the values are used directly."""
    part: Callable[[NDArray[Any], str, float], NDArray[Any]] | None = None
    """One part of the values: numbers or words. The last argument is `reference`'s result."""
    reference: Callable[[NDArray[Any]], float] = lambda values: 0.0
    """A number that the parts are measured from, taken from the training rows."""


# Numbers

_COMMA = re.compile(r"[+-]?(\d+|\d*,\d+|\d{1,3}(\.\d{3})+,\d*)([eE][+-]?\d+)?")
_POINTS = re.compile(r"[+-]?[1-9]\d{0,2}(\.\d{3})+")
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d*)?([eE][+-]?\d+)?")


def plain_number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _comma_number(text: str) -> float | None:
    """1234,5 and 1.234,5, but not 1.234, which may be a number with a decimal point."""
    return float(text.replace(".", "").replace(",", ".")) if _COMMA.fullmatch(text) else None


def _declared_comma_number(text: str) -> float | None:
    """1234,5 and 1.234,5, and 1.234 for 1234."""
    return float(text.replace(".", "")) if _POINTS.fullmatch(text) else _comma_number(text)


def _thousands_number(text: str) -> float | None:
    """1,234.5 and 1234.5."""
    if _THOUSANDS.fullmatch(text):
        return float(text.replace(",", ""))
    return plain_number(text)


def _as_number(value: object) -> float | None:
    try:
        return float(value) if hasattr(value, "__float__") else None  # Decimal and Fraction too
    except (TypeError, ValueError, OverflowError):
        return None


def _array(gap: object, dtype: str) -> Callable[[list[Any]], NDArray[Any]]:
    return lambda values: np.array([gap if value is None else value for value in values], dtype)


# Dates

YEAR = 365.2425

_TIME = r"(?:[ T]\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?:Z|[+-]\d{2}:?\d{2})?)?"
_YEAR_FIRST = rf"(?P<y>\d{{4}})([/-])(?P<m>\d{{1,2}})\2(?P<d>\d{{1,2}}){_TIME}"
_DOTTED = rf"(?P<d>\d{{1,2}})\.(?P<m>\d{{1,2}})\.(?P<y>\d{{4}}){_TIME}"
_DAY_FIRST = rf"(?P<d>\d{{1,2}})([/-])(?P<m>\d{{1,2}})\2(?P<y>\d{{4}}){_TIME}"
_MONTH_FIRST = rf"(?P<m>\d{{1,2}})([/-])(?P<d>\d{{1,2}})\2(?P<y>\d{{4}}){_TIME}"
_DIGITS = r"(?P<y>\d{4})(?P<m>\d{2})(?P<d>\d{2})(?:\.0)?"


def _date_parser(*more: str) -> Callable[[str], np.datetime64 | None]:
    """Read days of these forms, and such as 2024-03-01, 2024/03/01 or 01.03.2024."""
    forms = [re.compile(form) for form in (*more, _YEAR_FIRST, _DOTTED)]

    def parse(text: str) -> np.datetime64 | None:
        for form in forms:
            if match := form.fullmatch(text):
                try:
                    return np.datetime64(date(int(match["y"]), int(match["m"]), int(match["d"])), "D")
                except ValueError:  # 2024-02-30
                    return None
        return None

    return parse


parse_date, parse_digits = _date_parser(), _date_parser(_DIGITS)


def _as_day(value: object) -> np.datetime64 | None:
    """A date, a datetime, numpy's or pandas' as a day."""
    if not isinstance(value, date | np.datetime64):
        return None
    day: np.datetime64 = np.array([value], dtype="datetime64[D]")[0]
    return None if np.isnat(day) else day


def newest(days: NDArray[Any]) -> float:
    """The newest of these days, counted from 1970."""
    return float(days.max().astype("datetime64[D]").astype(np.int64))


def date_part(days: NDArray[Any], part: str, newest: float) -> NDArray[Any]:
    """One part of each date. `newest`: the newest date of the training rows, in days since 1970."""
    gone = np.isnat(days)
    if part == "age":
        age: NDArray[Any] = (newest - days.astype("datetime64[D]").astype(np.float64)) / YEAR
        return np.where(gone, np.nan, age)
    known: Sequence[date | None] = days.astype("datetime64[D]").tolist()
    if part == "year":
        return np.array([np.nan if day is None else float(day.year) for day in known])
    name = {"month": "%m", "weekday": "%u"}[part]
    return np.array(["" if day is None else day.strftime(name) for day in known])


TYPES: list[ColumnType] = [
    ColumnType(
        "number",
        "numbers",
        "f",
        readings=(
            Reading("number", plain_number, ("decimal", ".")),
            Reading("decimal comma", _comma_number, ("decimal", ",")),
            Reading("declared comma", _declared_comma_number, ("decimal", ","), only_declared=True),
            Reading("decimal point", _thousands_number, ("decimal", ".")),
        ),
        convert=_as_number,
        array=_array(np.nan, "float64"),
        example="12.5",
    ),
    ColumnType(
        "date",
        "dates",
        "M",
        readings=(
            Reading("date", parse_date),
            Reading("day first", _date_parser(_DAY_FIRST), ("dayfirst", True)),
            Reading("month first", _date_parser(_MONTH_FIRST), ("dayfirst", False)),
            Reading("digits", parse_digits, only_declared=True),
        ),
        convert=_as_day,
        array=_array(np.datetime64("NaT"), "datetime64[D]"),
        similar=re.compile(_DAY_FIRST),
        example="2024-12-31",
        forms={"age": ("age",), "parts": ("year", "month", "weekday")},
        part=date_part,
        reference=newest,
    ),
    ColumnType("words", "words", "U"),
]
"""In the order in which a column is tried; words take everything."""


def register(entry: ColumnType) -> None:
    """Make a type of column known. It is tried after the others, and before words."""
    if any(each.name == entry.name or each.numpy_kind == entry.numpy_kind for each in TYPES):
        raise SettingError(f"column type: {entry.name!r} given, and there is one of that name or numpy kind")
    TYPES.insert(len(TYPES) - 1, entry)


def column_type(values: NDArray[Any]) -> ColumnType:
    return next((each for each in TYPES if each.numpy_kind == values.dtype.kind), TYPES[-1])


def all_forms() -> dict[str, tuple[str, ...]]:
    """What the types with several forms may become, by the name of the setting."""
    return {form: parts for each in TYPES for form, parts in each.forms.items()}


def type_with(word: str) -> ColumnType:
    """The type that has this form or part."""
    return next(each for each in TYPES if any(word in (form, *parts) for form, parts in each.forms.items()))
