"""Dates in a table: how they are recognised, and the numbers that they become.

    age      years from the date to the newest date of the training rows
    parts    the year as a number, the month and the day of the week as categories

2024-03-01, 2024/03/01 and 01.03.2024 are dates, with a time of day after them or without; 8 digits are where
the settings say so. 03/01/2024 is the first of March in one country and the third of January in another, and
is refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["AMBIGUOUS", "DATE_FORMS", "date_part", "parse_date"]

DATE_FORMS: dict[str, tuple[str, ...]] = {"age": ("age",), "parts": ("year", "month", "weekday")}
"""What a column of dates becomes, by the name of the setting."""
YEAR = 365.2425

_TIME = r"(?:[T ]\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?:Z| ?[+-]\d{2}:?\d{2})?)?"
_YEAR_FIRST = re.compile(rf"(\d{{4}})([-/.])(\d{{1,2}})\2(\d{{1,2}}){_TIME}")
_DAY_FIRST = re.compile(rf"(\d{{1,2}})\.(\d{{1,2}})\.(\d{{4}}){_TIME}")
_DIGITS = re.compile(r"(\d{4})(\d{2})(\d{2})(?:\.0)?")
AMBIGUOUS = re.compile(rf"\d{{1,2}}([/-])\d{{1,2}}\1\d{{4}}{_TIME}")


def parse_date(value: object, *, digits: bool = False) -> np.datetime64 | None:
    """A field as a day; None if it is none. `digits`: 20240301 is one too."""
    if isinstance(value, date | np.datetime64):  # a datetime and pandas' Timestamp are dates
        day: np.datetime64 = np.array([value], dtype="datetime64[D]")[0]
        return None if np.isnat(day) else day
    text = str(value).strip()
    if found := _YEAR_FIRST.fullmatch(text):
        year, month, day_of_month = found[1], found[3], found[4]
    elif found := _DAY_FIRST.fullmatch(text):
        year, month, day_of_month = found[3], found[2], found[1]
    elif digits and (found := _DIGITS.fullmatch(text)):
        year, month, day_of_month = found[1], found[2], found[3]
    else:
        return None
    try:
        return np.datetime64(date(int(year), int(month), int(day_of_month)), "D")
    except ValueError:
        return None


def date_part(days: NDArray[Any], part: str, newest: float) -> NDArray[Any]:
    """One part of each date. `newest`: days since 1970, the newest date of the training."""
    gone = np.isnat(days)
    if part == "age":
        age: NDArray[Any] = (newest - days.astype("datetime64[D]").astype(np.float64)) / YEAR
        return np.where(gone, np.nan, age)
    known: Sequence[date | None] = days.astype("datetime64[D]").tolist()
    if part == "year":
        return np.array([np.nan if day is None else float(day.year) for day in known])
    name = {"month": "%m", "weekday": "%u"}[part]
    return np.array(["" if day is None else day.strftime(name) for day in known])
