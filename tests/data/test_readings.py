"""One set of rules for files and frames: separators, decimal commas, day-first dates, names of columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securefed import DataError, GeneralisedLinear, Party, Plain, SettingError
from securefed.data.columns import FittedColumns, prepare, prepared
from securefed.data.readings import Policy, read_column
from securefed.data.rows import read_rows

LAB = """\
patient;seen;potassium;ward;relapse
p1;31/01/2024;4,1;north;1
p2;15/02/2024;3,9;south;0
p3;01/03/2024;5;north;1
p4;12/03/2024;1.004,25;south;0
"""


def write(folder: Path, text: str, name: str = "lab.csv") -> Path:
    (folder / name).write_text(text)
    return folder / name


def rows_of(folder: Path, text: str, **policy: Any) -> Any:
    return read_rows(write(folder, text), Policy(**policy))


@pytest.mark.parametrize("sign", [",", ";", "\t", "|"])
def test_the_separator_is_recognised(sign: str, tmp_path: Path) -> None:
    text = "id,x,y\n1,2.5,a\n2,3.5,b\n".replace(",", sign)
    for policy in ({}, {"separator": sign}):
        rows = rows_of(tmp_path, text, **policy)
        assert list(rows.fields) == ["id", "x", "y"]
        assert rows.column("x", "a feature").tolist() == [2.5, 3.5]


def test_commas_inside_other_separators_and_faulty_lines(tmp_path: Path) -> None:
    assert list(rows_of(tmp_path, 'name,x\n"a;b",1\n"c;d",2\n').fields) == ["name", "x"]
    assert list(rows_of(tmp_path, "a;b\n1,5;2\n2,5;3\n").fields) == ["a", "b"]
    with pytest.raises(DataError, match="line 3 has 1 fields, 2 are expected"):
        rows_of(tmp_path, "a;b\n1;2\n3\n")


def test_decimal_commas_and_days_first_are_recognised_and_kept_for_other_rows(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, LAB, dates={"seen": "age"})
    columns, numbers = prepare(rows, ["seen", "potassium", "ward"], standardise=False)
    values = dict(zip(columns.names, numbers.T.tolist(), strict=True))
    assert values["potassium"] == [4.1, 3.9, 5.0, 1004.25]
    assert values["seen.age"] == pytest.approx([41 / 365.2425, 26 / 365.2425, 11 / 365.2425, 0.0])
    kept = FittedColumns.from_arrays(columns.to_arrays())
    assert kept.readings == {"seen": "day first", "potassium": "decimal comma", "ward": "words"}
    # Alone, these fields fit two readings; training has settled which one it is.
    new = read_rows(write(tmp_path, "patient;seen;potassium;ward\np9;01/03/2024;1,234;north\n", "new.csv"))
    again, unknown = prepared(kept, new)
    assert again[0].tolist() == pytest.approx([11 / 365.2425, 1.234, 1.0, 0.0]) and not unknown
    # After decimal commas 1.234 is not 1.234, and may well be 1234.
    point = read_rows(
        write(tmp_path, "patient;seen;potassium;ward\np9;01/03/2024;1.234;north\n", "point.csv")
    )
    with pytest.raises(DataError, match=r"column 'potassium' holds numbers, but 1 field is not \('1.234'"):
        prepared(kept, point)


@pytest.mark.parametrize(
    ("fields", "form", "values"),
    [
        (["1.234", "2"], Policy(), [1.234, 2.0]),
        (["1.234", "2"], Policy(decimal=","), [1234.0, 2.0]),
        (["1,234", "2"], Policy(decimal=","), [1.234, 2.0]),
        (["1,234", "2.5"], Policy(decimal="."), [1234.0, 2.5]),
        (["1,234", "2.5"], Policy(), [1234.0, 2.5]),
        (["-1,5e3", ",5"], Policy(), [-1500.0, 0.5]),
        (["4.0", "<4.0"], Policy(missing=["<4.0"]), [4.0, np.nan]),
        (np.array([4.0, 999.0]), Policy(missing=["999"]), [4.0, np.nan]),
        ([4, 999], Policy(missing=["999"]), [4.0, np.nan]),
        ([4, -9999999], Policy(missing=["NA", "-9999999"]), [4.0, np.nan]),
    ],
)
def test_numbers_as_they_are_written(fields: Any, form: Policy, values: list[float]) -> None:
    read = read_column(fields, "x", "lab", policy=form)
    np.testing.assert_array_equal(read.values, values)


@pytest.mark.parametrize(
    ("fields", "dayfirst", "days"),
    [
        (["31/12/2024", "01/02/2024"], None, ["2024-12-31", "2024-02-01"]),
        (["12/31/2024", "01/02/2024"], None, ["2024-12-31", "2024-01-02"]),
        (["01-02-2024"], True, ["2024-02-01"]),
        (["01-02-2024"], False, ["2024-01-02"]),
        (["01/01/2024", "2024-05-06"], None, ["2024-01-01", "2024-05-06"]),
    ],
)
def test_dates_as_they_are_written(fields: list[str], dayfirst: bool | None, days: list[str]) -> None:
    read = read_column(fields, "x", "lab", policy=Policy(dayfirst=dayfirst))
    assert read.values.astype(str).tolist() == days


@pytest.mark.parametrize(
    ("bad", "said"),
    [({"decimal": ";"}, "decimal"), ({"dayfirst": 1}, "dayfirst"), ({"separator": ";;"}, "one sign such as")],
)
def test_settings_that_are_none(bad: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingError, match=said):
        Party("lab", [[1.0]], **bad)


def test_a_frame_is_refused_in_the_words_of_the_file(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    text = "id,k\n" + "".join(f"{n},4.{n}\n" for n in range(9)) + "9,<4.0\n"
    with pytest.raises(DataError) as of_file:
        prepare(rows_of(tmp_path, text), ["k"])
    for data in (pandas.read_csv(tmp_path / "lab.csv"), tmp_path / "lab.csv"):
        with pytest.raises(DataError) as of_party:
            Party("lab.csv", data, ids="id").fitted()
        assert str(of_party.value) == str(of_file.value)
    assert "('<4.0' in row 10)" in str(of_file.value) and "missing = ['<4.0']" in str(of_file.value)
    taken, _ = Party("lab", tmp_path / "lab.csv", ids="id", missing=["<4.0"], impute="median").fitted()
    assert taken.features.shape == (10, 1)


def test_rows_are_named_as_the_table_has_them_after_alignment() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"id": range(20), "k": [*map(str, range(19)), "<4.0"]})
    with pytest.raises(DataError, match=r"'<4.0' in row 20"):
        Party("lab", frame, ids="id").take(np.arange(10, 20)).fitted()


def test_categories_of_pandas_are_words() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"code": pandas.Categorical(["1", "2", "1"]), "x": [1.0, 2.0, 3.0]})
    _, fitted = Party("lab", frame).fitted()
    assert fitted.names == ["code=1", "code=2", "x"]


@pytest.mark.parametrize("kind", ["path", "text", "frame", "parquet"])
def test_columns_are_named(kind: str, tmp_path: Path) -> None:
    path = write(tmp_path, "id,age,ward,late,share\n007,30,n,0,1\n8,40,s,1,2\n9,50,n,0,1\n")
    data: Any = path if kind == "path" else str(path)
    if kind in ("frame", "parquet"):
        pandas = pytest.importorskip("pandas")
        data = pandas.read_csv(path, dtype={"id": str})
    if kind == "parquet":
        pytest.importorskip("pyarrow")
        data.to_parquet(tmp_path / "lab.parquet")
        data = tmp_path / "lab.parquet"
    party = Party("lab", data, labels="late", ids="id", weights="share")
    assert party.columns == ["age", "ward"] and party.rows == 3
    assert party.ids is not None and party.ids.tolist() == ["007", "8", "9"]
    assert party.labels is not None and party.labels.tolist() == [0, 1, 0]
    assert party.weights is not None and party.weights.tolist() == [1.0, 2.0, 1.0]
    ready, fitted = party.fitted(standardise=False)
    assert fitted.names == ["age", "ward=n", "ward=s"]
    assert ready.features.tolist() == [[30, 1, 0], [40, 0, 1], [50, 1, 0]]
    with pytest.raises(DataError, match=r"no column 'lat' .*did you mean 'late'"):
        Party("lab", data, labels="lat", ids="id")


def test_what_names_and_paths_cannot_be(tmp_path: Path) -> None:
    path = write(tmp_path, "id,late\n1,0\n2,1\n")
    for named, said in (
        ({"data": tmp_path / "none.csv"}, "no such file"),
        ({"data": path, "labels": "late", "ids": "id"}, "no feature columns are left besides"),
        ({"data": [[1.0, 2.0]], "separator": ";"}, "separator is for text files"),
        ({"data": [[1.0, 2.0]], "labels": "late"}, "no column 'late'"),
    ):
        with pytest.raises((DataError, SettingError), match=said):
            Party("lab", **named)
    numbered = Party("lab", [[1, 2.0, 0], [2, 3.0, 1]], labels="2", ids="0")
    assert numbered.features.tolist() == [[2.0], [3.0]] and numbered.columns is None


def test_files_in_and_predictions_out(tmp_path: Path) -> None:
    """Two files, one with semicolons; new rows need no settings again, and may have other columns too."""
    rng = np.random.default_rng(3)
    count = 200
    x, y = rng.normal(size=count), rng.normal(size=count)
    ward = np.where(rng.random(count) < 0.5, "north", "south")
    late = np.where(2 * x + y + (ward == "north") + rng.normal(size=count) > 0.5, "yes", "no")
    lab = "".join(f"{n};{x[n]:.3f};{ward[n]}\n".replace(".", ",") for n in range(count))
    write(tmp_path, "id;x;ward\n" + lab)
    bank = "".join(f"{n},{'' if n == 5 else y[n]},{late[n]}\n" for n in range(count))
    write(tmp_path, "id,y,late\n" + bank, "bank.csv")
    parties = [
        Party("lab", tmp_path / "lab.csv", ids="id"),
        Party("bank", tmp_path / "bank.csv", labels="late", ids="id", impute="median"),
    ]
    model = GeneralisedLinear(protection=Plain(), rounds=10).fit(parties)
    assert model.score(parties) > 0.7
    new = [
        Party("lab", write(tmp_path, "id;x;ward;note\n7;1,25;north;ok\n", "new-lab.csv"), ids="id"),
        Party("bank", write(tmp_path, "id,y\n7,\n", "new-bank.csv"), ids="id"),
    ]
    assert model.predict(new).tolist() in (["yes"], ["no"])
