"""Default-Credit: three layouts of one table, its encoding and division, each defect, the readings of Table
2.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from research.data import credit
from research.data.credit import credit_held_out, credit_overlap, load_credit
from securefed.errors import DataError, MissingExtra, SettingError
from tests.data.layouts import (
    CREDIT_COLUMNS,
    credit_csv,
    credit_rows,
    edit,
    two_headers,
    write_csv,
    write_xls,
)

HAS_XLRD = importlib.util.find_spec("xlrd") is not None


def same(one: Path, other: Path) -> None:
    first, second = (load_credit(path, verify=False) for path in (one, other))
    for name in first.parts:
        np.testing.assert_array_equal(first.parts[name], second.parts[name])
    np.testing.assert_array_equal(first.labels, second.labels)
    np.testing.assert_array_equal(first.ids, second.ids)


def test_the_columns_and_who_has_them(data: Path) -> None:
    table = load_credit(credit_csv(data / "t.csv"), verify=False)
    rows = np.array(credit_rows(60))
    profile, payments = table.party("B"), table.party("A")
    assert (profile.features.shape, payments.features.shape) == ((60, 15), (60, 18))
    assert payments.columns == tuple(CREDIT_COLUMNS[6:24])
    np.testing.assert_array_equal(payments.features, rows[:, 6:24])
    np.testing.assert_array_equal(table.labels, rows[:, 24])
    np.testing.assert_array_equal(table.ids, rows[:, 0])
    one_hot = dict(zip(profile.columns, profile.features.T, strict=True))
    for name, column, levels in (("SEX", 2, (1, 2)), ("EDUCATION", 3, range(7)), ("MARRIAGE", 4, range(4))):
        for level in levels:
            np.testing.assert_array_equal(one_hot[f"{name}_{level}"], rows[:, column] == level)
    np.testing.assert_array_equal(one_hot["LIMIT_BAL"], rows[:, 1])
    np.testing.assert_array_equal(one_hot["AGE"], rows[:, 5])


def test_the_columns_can_be_swapped(data: Path) -> None:
    table = load_credit(credit_csv(data / "t.csv"), label_columns="profile", verify=False)
    assert (len(table.columns["A"]), len(table.columns["B"])) == (15, 18)
    with pytest.raises(SettingError, match="label_columns"):
        load_credit(label_columns="all")


def test_the_sheet_saved_as_csv(data: Path) -> None:
    same(credit_csv(data / "t.csv"), write_csv(data / "two.csv", two_headers()))


def test_columns_in_another_order_and_with_decimal_points(data: Path) -> None:
    lines: list[list[object]] = [[*reversed(CREDIT_COLUMNS)]]
    lines += [[f"{value}.0" for value in reversed(row)] for row in credit_rows(60)]
    same(credit_csv(data / "t.csv"), write_csv(data / "other.csv", lines))


@pytest.mark.skipif(not HAS_XLRD, reason="xlrd is not installed")
def test_the_sheet_itself(data: Path) -> None:
    same(credit_csv(data / "t.csv"), write_xls(data / "t.xls", two_headers()))


@pytest.mark.skipif(not HAS_XLRD, reason="xlrd is not installed")
@pytest.mark.parametrize(
    "content", [b"", b"PK\x03\x04 not a sheet", bytes(600), b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" * 80]
)
def test_a_file_that_is_no_sheet(data: Path, content: bytes) -> None:
    path = data / "t.xls"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"^t.xls: ") as caught:
        load_credit(path)
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(HAS_XLRD, reason="xlrd is installed")
def test_a_sheet_without_its_reader_is_one_hint(data: Path) -> None:
    with pytest.raises(MissingExtra, match="xlrd is not installed"):
        load_credit(write_xls(data / "t.xls", two_headers()))


def drop_column(lines: list[str]) -> list[str]:
    return [",".join(line.split(",")[:3] + line.split(",")[4:]) for line in lines]


def set_field(row: int, column: int, value: str) -> Callable[[list[str]], list[str]]:
    def change(lines: list[str]) -> list[str]:
        fields = lines[row].rstrip("\r\n").split(",")
        fields[column] = value
        return [*lines[:row], ",".join(fields) + "\n", *lines[row + 1 :]]

    return change


DEFECTS: list[tuple[Callable[[list[str]], list[str]], str]] = [
    (drop_column, "no column EDUCATION; 25 columns are expected"),
    (lambda lines: [f"{line.rstrip()},1\n" for line in lines], "unknown column 1"),
    (
        lambda lines: [line.replace(",", ";") for line in lines],
        "separated by semicolons, commas are expected",
    ),
    (
        lambda lines: [*lines[:-1], lines[-1][:20]],
        "line 61 has . fields, 25 are expected; the file may be cut off",
    ),
    (lambda lines: lines[:1], "a header and no rows"),
    (lambda lines: [], "the file is empty"),
    (lambda lines: lines[1:], "the first line has numbers, a header with names is expected"),
    (lambda lines: [*lines, lines[-1]], "an ID occurs more than once"),
    (set_field(3, 5, "old"), "line 4: AGE is 'old', a number is expected"),
    (set_field(3, 5, ""), "line 4: AGE is '', a number is expected"),
    (set_field(3, 12, "1.5"), "values of BILL_AMT1 such as 1.5, whole numbers are allowed"),
    (set_field(3, 2, "3"), "values of SEX such as 3, 1 to 2 is allowed"),
    (set_field(3, 3, "7"), "values of EDUCATION such as 7, 0 to 6 is allowed"),
    (set_field(3, 24, "2"), "values of default payment next month such as 2, 0 to 1 is allowed"),
]


@pytest.mark.parametrize(("change", "message"), DEFECTS)
@pytest.mark.parametrize("verify", [True, False])
def test_each_defect_is_one_line(
    data: Path, change: Callable[[list[str]], list[str]], message: str, verify: bool
) -> None:
    edit(credit_csv(data / "UCI_Credit_Card.csv"), change)
    with pytest.raises(DataError, match=rf"^UCI_Credit_Card.csv: .*{message}") as caught:
        load_credit(verify=verify)
    assert "\n" not in str(caught.value)


def test_only_one_header_line_of_two(data: Path) -> None:
    with pytest.raises(DataError, match="one header line, UCI's file has two"):
        load_credit(write_csv(data / "t.csv", two_headers()[:1]))


@pytest.mark.parametrize("count", [59, 61])
def test_missing_and_extra_rows(data: Path, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credit, "_ROWS", 60)
    with pytest.raises(DataError, match=f"t.csv: {count} rows, the published table has 60"):
        load_credit(credit_csv(data / "t.csv", count))


def test_other_values_than_the_published_ones(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credit, "_ROWS", 60)
    with pytest.raises(
        DataError, match=r"its values are not the published ones \(sha256 of UCI_Credit_Card.csv: a0f0"
    ):
        load_credit(credit_csv(data / "t.csv"))


# The published file.


def test_the_published_table(real: Path) -> None:
    table = load_credit()
    assert table.rows == 30_000
    assert int(table.labels.sum()) == 6_636
    assert not table.generated
    assert sum(part.shape[1] for part in table.parts.values()) == 33


@pytest.mark.slow
def test_one_changed_value_is_noticed(real: Path, data: Path) -> None:
    path = data / "UCI_Credit_Card.csv"
    path.write_bytes((real / path.name).read_bytes())
    edit(path, set_field(1000, 1, "20001"))
    with pytest.raises(DataError, match="not the published ones"):
        load_credit(path)
    assert load_credit(path, verify=False).rows == 30_000


@pytest.mark.slow
def test_reading_overlap(real: Path) -> None:
    task = credit_overlap(0)
    assert (task.a.rows, task.a.features.shape[1]) == (1000, 18)
    assert task.b.features.shape[1] == 15
    assert task.overlap == 100
    assert task.a.labels is not None
    assert int(task.a.labels.sum()) == 500
    assert credit_overlap(0).a.ids.tolist() == task.a.ids.tolist() != credit_overlap(1).a.ids.tolist()


def test_reading_held_out(real: Path) -> None:
    task = credit_held_out(0)
    assert (task.a.rows, task.a.features.shape[1]) == (6000, 15)
    assert task.b.features.shape[1] == 18
    assert (task.overlap, task.held_out.rows) == (2000, 7500)
    assert task.a.labels is not None and task.held_out.labels is not None
    assert int(task.a.labels.sum()) == 3000
    assert task.held_out.labels.mean() == pytest.approx(6636 / 30000, abs=1e-3)
