"""The 714 features of an ICU stay: 17 variables x 7 parts of the time x 6 statistics.

As the logistic regression of Harutyunyan et al. (2019, the public MIMIC-III benchmark) computes them. For
each variable the parts are the whole time between its first and last measurement, the first 10, 25 and 50
percent and the last 10, 25 and 50 percent; the statistics are minimum, maximum, mean, standard deviation,
skewness and number of measurements. What was never measured is NaN. Columns are ordered by variable, part,
statistic.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from research.data.tables import read_table
from securefed.errors import DataError

# The benchmark's spelling, and its order of columns.
VARIABLES = (
    "Capillary refill rate",
    "Diastolic blood pressure",
    "Fraction inspired oxygen",
    "Glascow coma scale eye opening",
    "Glascow coma scale motor response",
    "Glascow coma scale total",
    "Glascow coma scale verbal response",
    "Glucose",
    "Heart Rate",
    "Height",
    "Mean blood pressure",
    "Oxygen saturation",
    "Respiratory rate",
    "Systolic blood pressure",
    "Temperature",
    "Weight",
    "pH",
)
_PARTS = (
    ("all", 0, 100),
    *((f"first{p}", 0, p) for p in (10, 25, 50)),
    *((f"last{p}", 100 - p, 100) for p in (10, 25, 50)),
)
_STATISTICS = ("min", "max", "mean", "std", "skew", "len")
FEATURE_NAMES = tuple(
    f"{variable}|{part}|{statistic}"
    for variable in VARIABLES
    for part, *_ in _PARTS
    for statistic in _STATISTICS
)
PER_VARIABLE = len(_PARTS) * len(_STATISTICS)

# The coma scale is written in words, with and without its number in front.
_EYES = {"none": 0, "no response": 1, "to pain": 2, "to speech": 3, "spontaneously": 4}
_MOTOR = {
    "no response": 1,
    "abnorm extensn": 2,
    "abnormal extension": 2,
    "abnorm flexion": 3,
    "abnormal flexion": 3,
    "flex-withdraws": 4,
    "localizes pain": 5,
    "obeys commands": 6,
}
_VERBAL = {
    "no response": 1,
    "no response-ett": 1,
    "et/trach": 1,
    "incomp sounds": 2,
    "incomprehensible sounds": 2,
    "inapprop words": 3,
    "inappropriate words": 3,
    "confused": 4,
    "oriented": 5,
}
_WORDS: Mapping[str, Mapping[str, int]] = {
    "Glascow coma scale eye opening": _EYES,
    "Glascow coma scale motor response": _MOTOR,
    "Glascow coma scale verbal response": _VERBAL,
}
_CLOSE = 1e-6  # hours: a measurement at the edge of a part belongs to it

Array = NDArray[np.float64]


def stay_features(path: Path) -> Array:
    """The features of one stay, from its CSV file: Hours and the 17 variables, a line for each moment."""
    table = read_table(path)
    table.require(("Hours", *VARIABLES))
    hours = table.numbers(["Hours"])[:, 0]
    return np.concatenate([_variable(table.name, hours, name, table.column(name)) for name in VARIABLES])


def _variable(file: str, hours: Array, name: str, fields: list[str]) -> Array:
    known = [row for row, text in enumerate(fields) if text.strip()]
    if not known:
        return np.full(PER_VARIABLE, np.nan)
    values = np.array([_value(file, name, fields[row].strip()) for row in known])
    times = hours[known]
    begin, end = times[0], times[-1]
    statistics = []
    for _, low, high in _PARTS:
        start, stop = begin + (end - begin) * low / 100, begin + (end - begin) * high / 100
        statistics.append(_statistics(values[(times > start - _CLOSE) & (times < stop + _CLOSE)]))
    return np.concatenate(statistics)


def _value(file: str, name: str, text: str) -> float:
    words = _WORDS.get(name)
    if words is not None:
        number, _, rest = text.partition(" ")
        bare = rest if number.replace(".", "", 1).isdigit() and rest else text
        value = words.get(bare.lower())
        if value is None:
            raise DataError(f"{file}: {name} is {text!r}, which is not a word of that scale")
        return float(value)
    try:
        measured = float(text)
    except ValueError:
        measured = np.nan
    if not np.isfinite(measured):
        raise DataError(f"{file}: {name} is {text!r}, a number is expected")
    return measured


def _statistics(values: Array) -> Array:
    if not len(values):
        return np.full(len(_STATISTICS), np.nan)
    mean, deviation = values.mean(), values.std()
    # A constant has no direction to lean to: 0, not NaN, which would mean "not measured".
    skew = ((values - mean) ** 3).mean() / deviation**3 if deviation > 1e-12 * max(1.0, abs(mean)) else 0.0
    return np.array([values.min(), values.max(), mean, deviation, skew, len(values)])
