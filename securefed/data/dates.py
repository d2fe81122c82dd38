"""Dates in a table: how they are read, and the numbers that they become.

    age      years from the date to the newest date of the training rows
    parts    the year as a number, the month and the day of the week as categories

2024-03-01, 2024/03/01 and 01.03.2024 are dates, with or without a time of day after them. 20240301 is a date
only where the settings say that the column holds dates. 31/12/2024 and 12/31/2024 show by themselves which of
day and month comes first; a column of 03/01/2024 alone does not, and `dayfirst` has to say it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "DATE_FORMS",
    "SIMILAR",
    "as_day",
    "as_days",
    "date_part",
    "newest",
    "parse_date",
    "parse_day_first",
    "parse_digits",
    "parse_month_first",
]

DATE_FORMS: dict[str, tuple[str, ...]] = {"age": ("age",), "parts": ("year", "month", "weekday")}
"""What a column of dates becomes, by the name of the setting."""
YEAR = 365.2425

_TIME = r"(?:[ T]\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?:Z|[+-]\d{2}:?\d{2})?)?"
_YEAR_FIRST = re.compile(rf"(\d{{4}})([/-])(\d{{1,2}})\2(\d{{1,2}}){_TIME}")
_DOTTED = re.compile(rf"(\d{{1,2}})\.(\d{{1,2}})\.(\d{{4}}){_TIME}")
_DIGITS = re.compile(r"(\d{4})(\d{2})(\d{2})(?:\.0)?")
_YEAR_LAST = re.compile(rf"(\d{{1,2}})([/-])(\d{{1,2}})\2(\d{{4}}){_TIME}")
SIMILAR = re.compile(rf"{_YEAR_LAST.pattern}")


def parse_date(text: str) -> np.datetime64 | None:
    """A day written as 2024-03-01, 2024/03/01 or 01.03.2024."""
    if match := _YEAR_FIRST.fullmatch(text):
        return _day(match[1], match[3], match[4])
    if match := _DOTTED.fullmatch(text):
        return _day(match[3], match[2], match[1])
    return None


def parse_day_first(text: str) -> np.datetime64 | None:
    """A day written as 31/12/2024 or 31-12-2024, or in a form that `parse_date` takes."""
    match = _YEAR_LAST.fullmatch(text)
    return _day(match[4], match[3], match[1]) if match else parse_date(text)


def parse_month_first(text: str) -> np.datetime64 | None:
    """A day written as 12/31/2024 or 12-31-2024, or in a form that `parse_date` takes."""
    match = _YEAR_LAST.fullmatch(text)
    return _day(match[4], match[1], match[3]) if match else parse_date(text)


def parse_digits(text: str) -> np.datetime64 | None:
    """A day written as 20241231, or in a form that `parse_date` takes."""
    match = _DIGITS.fullmatch(text)
    return _day(match[1], match[2], match[3]) if match else parse_date(text)


def _day(year: str, month: str, day: str) -> np.datetime64 | None:
    try:
        return np.datetime64(date(int(year), int(month), int(day)), "D")
    except ValueError:
        return None


def as_day(value: object) -> np.datetime64 | None:
    """A date, a datetime, numpy's or pandas' as a day."""
    if not isinstance(value, date | np.datetime64):
        return None
    day: np.datetime64 = np.array([value], dtype="datetime64[D]")[0]
    return None if np.isnat(day) else day


def as_days(values: Sequence[np.datetime64 | None]) -> NDArray[Any]:
    """Days in an array; NaT where one is missing."""
    return np.array([np.datetime64("NaT") if day is None else day for day in values], dtype="datetime64[D]")


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
