"""Tables from text: what is read, and one line for each thing that can be wrong with one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from research.data.tables import as_integers, read_table
from securefed.errors import DataError


def table(folder: Path, text: str | bytes) -> Path:
    path = folder / "t.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_numbers_and_text(data: Path) -> None:
    read = read_table(table(data, '\ufeffid, x ,"y"\r\na,1,2.5\r\n\r\n"b, c",-3e2,4\r\n'))
    assert read.header == ("id", "x", "y")
    assert read.column("id") == ["a", "b, c"]
    np.testing.assert_array_equal(read.numbers(["y", "x"]), [[2.5, 1.0], [4.0, -300.0]])


def test_gaps_are_nan_only_where_they_may_be(data: Path) -> None:
    read = read_table(table(data, "x,y\n1, \nnan,2\n"))
    np.testing.assert_array_equal(read.numbers(["x", "y"], gaps=True), [[1, np.nan], [np.nan, 2]])
    with pytest.raises(DataError, match=r"^t.csv: line 2: y is ' ', a number is expected$"):
        read.numbers(["x", "y"])
    with pytest.raises(DataError, match="line 3: x is 'nan'"):
        read.numbers(["x"])


@pytest.mark.parametrize("field", ["a", "1,5x", "inf", "-inf", "1e999", "0x10"])
def test_what_is_not_a_number(data: Path, field: str) -> None:
    read = read_table(table(data, f'x,y\n1,2\n3,"{field}"\n'))
    for gaps in (False, True):
        with pytest.raises(DataError, match=rf"^t.csv: line 3: y is '{field}', a number is expected$"):
            read.numbers(["x", "y"], gaps=gaps)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "t.csv: the file is empty"),
        ("\n\n", "t.csv: the file is empty"),
        ("x,y\n", "t.csv: a header and no rows"),
        ("x,y\n1,2\n3\n", "t.csv: line 3 has 1 fields, 2 are expected; the file may be cut off"),
        ("x,y\n1,2,3\n", "t.csv: line 2 has 3 fields, 2 are expected"),
        ("x,y,x\n1,2,3\n", "t.csv: column x occurs more than once"),
        ('x,y\n1,"2\n', "t.csv: not a table of comma-separated values"),
        (b"x,y\n\xff\xfe,1\n", "t.csv: not a text file in UTF-8"),
        (b"x,y\n1,\x00\n", "t.csv: "),
    ],
)
def test_what_is_no_table(data: Path, text: str | bytes, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        read_table(table(data, text)).numbers(["x", "y"])
    assert "\n" not in str(caught.value)


def test_a_folder_is_no_table(data: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        read_table(data)


@pytest.mark.parametrize(("sign", "word"), [(";", "semicolons"), ("\t", "tabs"), ("|", "bars")])
def test_another_delimiter_is_named(data: Path, sign: str, word: str) -> None:
    read = read_table(table(data, f"x{sign}y\n1{sign}2\n"))
    with pytest.raises(DataError, match=rf"separated by {word}, commas are expected"):
        read.require(["x", "y"])


def test_missing_and_unknown_columns(data: Path) -> None:
    read = read_table(table(data, "x,y\n1,2\n"))
    read.require(["y", "x"])
    with pytest.raises(DataError, match=r"no column a, b, c, d; 5 columns are expected"):
        read.require(["x", "a", "b", "c", "d"])
    with pytest.raises(DataError, match="unknown column y"):
        read.require(["x"])


def test_whole_numbers() -> None:
    assert as_integers("t", "x", np.array([1.0, -2.0])).tolist() == [1, -2]
    for value in (0.5, np.nan, np.inf, 2.0**60 + 2.0**53):
        with pytest.raises(DataError, match="t: 1 values of x such as"):
            as_integers("t", "x", np.array([1.0, value]))
    with pytest.raises(DataError, match="0 to 1 is allowed"):
        as_integers("t", "x", np.array([0.0, 2.0]), (0, 1))
