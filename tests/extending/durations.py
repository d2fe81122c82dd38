"""A type of column from outside the package: durations such as 1:30, in hours and minutes."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefed.data.column_types import ColumnType, Reading, register


def parse(text: str) -> np.timedelta64 | None:
    match = re.fullmatch(r"(\d+):([0-5]\d)", text)
    return np.timedelta64(60 * int(match[1]) + int(match[2]), "m") if match else None


def convert(value: object) -> np.timedelta64 | None:
    return np.timedelta64(value, "m") if isinstance(value, timedelta) else None


def as_array(values: list[Any]) -> NDArray[Any]:
    return np.array([np.timedelta64("NaT") if each is None else each for each in values], "timedelta64[m]")


DURATION = ColumnType(
    "duration",
    "durations",
    numpy_kind="m",
    readings=(Reading("hours and minutes", parse),),
    convert=convert,
    array=as_array,
    example="1:30",
    forms={"hours": ("hours",)},
    part=lambda values, part, reference: values / np.timedelta64(60, "m"),
    reference=lambda values: 0.0,
)
register(DURATION)
