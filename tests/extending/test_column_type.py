"""A type of column from outside of the package: one module and one entry."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from securefed import DataError, GeneralisedLinear, Party, Plain, SettingError
from securefed.data.column_types import TYPES, ColumnType, register
from securefed.data.columns import FittedColumns, prepare
from securefed.data.readings import Policy
from securefed.data.rows import read_rows, rows_of
from securefed.settings.party import DataSettings
from tests.extending.loading import loaded

TABLE = "stay,beds\n1:30,1\n0:45,2\n10:00,3\n,4\n"


@pytest.fixture
def duration() -> Iterator[ColumnType]:
    entry = loaded("durations").DURATION
    yield entry
    TYPES.remove(entry)


def table(folder: Path, text: str) -> Path:
    (folder / "stays.csv").write_text(text)
    return folder / "stays.csv"


@pytest.mark.usefixtures("duration")
def test_a_file_has_columns_of_the_type(tmp_path: Path) -> None:
    """party.toml says what it becomes; the fitted columns are saved and read again."""
    settings = DataSettings(file="stays.csv", dates={"stay": "hours"}, impute="median")
    rows = read_rows(table(tmp_path, TABLE), settings.policy)
    columns, numbers = prepare(rows, ["stay", "beds"], standardise=False)
    assert columns.names == ["stay.hours", "beds"]
    assert numbers.tolist() == [[1.5, 1], [0.75, 2], [10, 3], [1.5, 4]]
    assert FittedColumns.from_arrays(columns.to_arrays()).kinds == {"stay": "duration", "beds": "number"}


@pytest.mark.usefixtures("duration")
def test_a_model_learns_from_the_type(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    minutes = rng.integers(1, 600, size=80)
    lines = "".join(f"{each // 60}:{each % 60:02d}\n" for each in minutes)
    ward = Party("ward", table(tmp_path, f"stay\n{lines}"), dates={"stay": "hours"})
    bank = Party("bank", rng.normal(size=(80, 1)), labels=(minutes > 300).astype(int))
    model = GeneralisedLinear(protection=Plain(), rounds=40, holdout=0.0).fit([ward, bank])
    assert model.score([ward, bank]) > 0.9 and list(model.coef_["ward"]) == ["stay.hours"]


@pytest.mark.usefixtures("duration")
@pytest.mark.parametrize("unit", ["ns", "us", "s"])
def test_a_frame_has_columns_of_the_type(unit: str) -> None:
    """As pandas has them (`Timedelta`), with a gap, and as Python's `timedelta`."""
    stays = [timedelta(minutes=90), timedelta(hours=8, minutes=30), None, timedelta(minutes=45)]
    policy = Policy(dates={"stay": "hours"}, impute="median")
    for column in (pd.Series(stays).astype(f"timedelta64[{unit}]"), pd.Series(stays, dtype=object)):
        rows = rows_of("ward", pd.DataFrame({"stay": column}), ["stay"], policy)
        columns, numbers = prepare(rows, ["stay"], standardise=False)
        assert columns.kinds == {"stay": "duration"} and numbers.T.tolist() == [[1.5, 8.5, 1.5, 0.75]]


def test_messages_name_the_type(tmp_path: Path, duration: ColumnType) -> None:
    slip = "stay\n1:30\n0:45\n2:00\n3:99\n"
    with pytest.raises(DataError, match=r"holds durations, but 1 field is not \('3:99' in row 4\).* 1:30"):
        prepare(read_rows(table(tmp_path, slip), Policy(dates={"stay": "hours"})), ["stay"])
    with pytest.raises(DataError, match=r"say dates = { stay = 'hours' }"):
        prepare(read_rows(table(tmp_path, TABLE)), ["stay"])
    with pytest.raises(SettingError, match="column type: 'duration' given, and there is one"):
        register(duration)


def test_without_the_entry_they_are_words(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="dates: stay must be one of 'age', 'parts', not 'hours'"):
        Policy(dates={"stay": "hours"})
    columns, _ = prepare(read_rows(table(tmp_path, "stay\n1:30\n0:45\n"), Policy()), ["stay"])
    assert columns.kinds == {"stay": "words"}
