"""A party's file, and what is made of its columns."""

from __future__ import annotations

import sys
import tempfile
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.preprocessing import StandardScaler

from securefed.data import storage
from securefed.data.column import MOST_CATEGORIES
from securefed.data.columns import FittedColumns
from securefed.data.columns import prepared as prepared_rows
from securefed.data.rows import BLOCK_ROWS, file_digest, read_rows
from securefed.errors import DataError, MissingExtra
from securefed.process.own_data import check_labels, prepare_columns
from securefed.settings.party import DataSettings
from securefed.settings.run import RunSettings


def table(tmp_path: Path, text: str) -> Any:
    path = tmp_path / "data.csv"
    path.write_text(text)
    return read_rows(path)


PEOPLE = "id,age,region,late\n007,30,north,0\n7,40,south,1\n0008,50,north,0\n"


def prepare(rows: Any, way: DataSettings) -> Any:
    return prepare_columns(replace(rows, policy=way.policy), way)


def settings(**more: Any) -> DataSettings:
    return DataSettings(**{"file": "data.csv", "id": "id", "label": "late", **more})


def test_ids_stay_as_they_are_written(tmp_path: Path) -> None:
    rows = table(tmp_path, PEOPLE)
    assert rows.ids("id") == ["007", "7", "0008"]
    assert rows.count == 3


def test_words_become_categories_and_all_columns_are_standardised(tmp_path: Path) -> None:
    rows = table(tmp_path, PEOPLE)
    prepared, features = prepare(rows, settings())
    assert prepared.names == ["age", "region=north", "region=south"]
    plain = np.array([[30, 1, 0], [40, 0, 1], [50, 1, 0]], dtype=float)
    assert np.allclose(features, StandardScaler().fit_transform(plain))
    _, unscaled = prepare(rows, settings(standardise=False))
    assert np.array_equal(unscaled, plain)


def test_what_was_fitted_is_kept_as_arrays_and_applied_to_other_rows(tmp_path: Path) -> None:
    prepared, _ = prepare(table(tmp_path, PEOPLE), settings())
    again = FittedColumns.from_arrays(prepared.to_arrays())
    new = table(tmp_path, "id,region,age\n1,west,40\n2,south,60\n")
    found, unknown = prepared_rows(again, new)
    assert unknown == {"region": 1}
    assert found.shape == (2, 3)
    assert np.allclose(found[:, 0] * prepared.scale[0] + prepared.mean[0], [40, 60])
    assert np.allclose(found[0, 1:] * prepared.scale[1:] + prepared.mean[1:], 0), "an unknown region is none"


def test_columns_can_be_chosen_or_dropped(tmp_path: Path) -> None:
    rows = table(tmp_path, PEOPLE)
    assert prepare(rows, settings(columns=("age",)))[0].names == ["age"]
    assert prepare(rows, settings(drop=("region",)))[0].names == ["age"]
    codes = table(tmp_path, "id,code,late\n1,3,0\n2,3,1\n3,10,0\n")
    assert prepare(codes, settings(one_hot=("code",)))[0].names == ["code=10", "code=3"]


MANY = "id,word,late\n" + "".join(f"{i},w{i},{i % 2}\n" for i in range(MOST_CATEGORIES + 1))
REFUSED = {
    "a missing column": (PEOPLE, {"columns": ("income",)}, "no column 'income'"),
    "the id as a feature": (PEOPLE, {"columns": ("id",)}, "is the id, label, weight or offset"),
    "nothing left": (PEOPLE, {"drop": ("age", "region")}, "no feature columns are left"),
    "a column to drop that is not there": (PEOPLE, {"drop": ("income",)}, "no column 'income'"),
    "words where numbers are due": (PEOPLE, {"one_hot": ()}, "has 'north', a number is expected"),
    "a gap": (PEOPLE.replace(",40,", ",,"), {}, "1 of 3 values of column 'age' are missing"),
    "no number": (PEOPLE.replace(",40,", ",inf,"), {}, "missing or infinite"),
    "too many words": (MANY, {}, f"at most {MOST_CATEGORIES}"),
    "one-hot of what is no feature": (PEOPLE, {"one_hot": ("late", "region")}, "is not a feature"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_columns_that_cannot_be_used_are_named(case: str, tmp_path: Path) -> None:
    text, changes, said = REFUSED[case]
    with pytest.raises(DataError, match=r"data\.csv") as caught:
        prepare(table(tmp_path, text), settings(**changes))
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        read_rows(tmp_path / "none.csv")
    with pytest.raises(DataError, match="empty"):
        table(tmp_path, "")
    with pytest.raises(DataError, match="fields"):
        table(tmp_path, "a,b\n1\n")
    with pytest.raises(DataError, match="cannot be read"):
        file_digest(tmp_path)


def test_parquet_needs_its_package_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises((MissingExtra, ImportError), match="pyarrow"):
        read_rows(tmp_path / "data.parquet")


def test_parquet_is_read_like_csv(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {"id": ["007", "7"], "age": [30, 40], "region": ["north", None]}
    parquet.write_table(arrow.table(columns), tmp_path / "data.parquet")
    rows = read_rows(tmp_path / "data.parquet")
    assert rows.ids("id") == ["007", "7"]
    assert rows.column("age", "a feature").tolist() == [30.0, 40.0]
    assert rows.column("region", "a feature").tolist() == ["north", ""]
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 and nothing more")
    with pytest.raises(DataError, match="not a Parquet file"):
        read_rows(tmp_path / "bad.parquet")


def shared(**more: Any) -> RunSettings:
    return RunSettings.of({"name": "r", "parties": ["shop", "bank"], **more})


def test_labels_are_two_classes_in_sorted_order() -> None:
    signs, side = check_labels(np.array(["no", "yes", "no"]), "bank", shared())
    assert signs.tolist() == [-1, 1, -1]
    assert side.classes is not None and side.classes.tolist() == ["no", "yes"]
    _, side = check_labels(np.array([0.0, 1.0]), "bank", shared())
    assert side.classes is not None and side.classes.tolist() == [0.0, 1.0]
    with pytest.raises(DataError, match="3 classes"):
        check_labels(np.array(["a", "b", "c"]), "bank", shared())
    with pytest.raises(DataError, match="1 of 3 labels are missing"):
        check_labels(np.array(["a", "", "b"]), "bank", shared())


def test_labels_may_be_missing_in_transfer_learning() -> None:
    signs, _ = check_labels(np.array(["a", "", "b"]), "bank", shared(objective="transfer"))
    assert signs[0] == -1 and np.isnan(signs[1]) and signs[2] == 1


def test_labels_of_the_linear_loss_are_numbers_in_any_unit() -> None:
    labels = np.array([1500.0, -2000.0, 300.0])
    targets, side = check_labels(labels, "bank", shared(loss="linear"))
    assert side.classes is None and abs(targets.mean()) < 1e-12 and targets.std() == pytest.approx(1.0)
    assert np.allclose(side.numbers(targets), labels)
    with pytest.raises(DataError, match="bank: labels must be finite"):
        check_labels(np.array([1.5, 2.5, np.nan]), "bank", shared(loss="linear"))
    outlier = np.append(np.zeros(9999), 1.0)
    with pytest.raises(DataError, match="margin_bound"):
        check_labels(outlier, "bank", shared(loss="linear"))


def test_a_column_that_turns_to_words_after_many_rows_is_read_again(tmp_path: Path) -> None:
    """Numbers for more rows than are read at once, then a word: every field is as it stands there."""
    codes = [f"{place:05d}" for place in range(BLOCK_ROWS)] + ["north"] * 5
    rows = table(tmp_path, "code,x\n" + "".join(f"{code},{place}\n" for place, code in enumerate(codes)))
    assert rows.fields["code"] == codes
    assert rows.fields.numbers("code") is None
    assert rows.column("x", "a feature").tolist() == list(range(len(codes)))
    assert rows.ids("x")[:2] == ["0", "1"], "the texts of a column of numbers"


def test_numpy_files_are_tables(tmp_path: Path) -> None:
    path = tmp_path / "data.npy"
    np.save(path, np.array([[1, 2**60 + 1], [3, 4]]))
    rows = read_rows(path)
    assert list(rows.fields) == ["0", "1"]
    assert rows.column("0", "a feature").tolist() == [1.0, 3.0]
    assert rows.ids("1") == [2**60 + 1, 4], "no digit of an id is lost"
    np.save(path, np.array([(7, 0.5), (8, 1.5)], dtype=[("id", "i8"), ("x", "f4")]))
    assert read_rows(path).column("x", "a feature").tolist() == [0.5, 1.5]
    np.save(path, np.zeros(3))
    with pytest.raises(
        DataError, match=r"data\.npy: an array of shape \(3,\), rows and columns are expected"
    ):
        read_rows(path)
    path.write_bytes(b"no array")
    with pytest.raises(DataError, match="not a numpy file"):
        read_rows(path)


def test_a_large_table_is_a_file_that_nobody_else_can_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "MOST_IN_MEMORY", 100)
    monkeypatch.setattr(storage, "BLOCK_ROWS", 7)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    values = np.random.default_rng(0).normal(3.0, 2.0, (50, 2))
    given = "a,b\n" + "".join(f"{float(a)!r},{float(b)!r}\n" for a, b in values)
    _, features = prepare(table(tmp_path, given), DataSettings(file="data.csv"))
    assert isinstance(features, np.memmap) and not list((tmp_path / "scratch").iterdir())
    assert np.allclose(features, StandardScaler().fit_transform(values))
    chosen = storage.take_rows(features, np.array([4, 2]))
    assert (chosen == features[[4, 2]]).all()
    assert storage.take_rows(features, np.arange(50)) is features


def test_columns_are_prepared_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same numbers as in memory, while memory grows with rows by a few columns and not by all of them."""
    monkeypatch.setattr("securefed.data.rows.BLOCK_ROWS", 256)
    monkeypatch.setattr(storage, "BLOCK_ROWS", 256)
    columns, sizes, peaks = 48, (2_048, 8_192), []
    for rows in sizes:
        values = np.random.default_rng(rows).normal(size=(rows, columns))
        values[::7, 3] = np.nan
        np.save(tmp_path / "data.npy", values)
        wanted = DataSettings(file="data.npy", transform="none", impute="median")
        expected = prepare(read_rows(tmp_path / "data.npy"), wanted)[1]
        with monkeypatch.context() as small:
            small.setattr(storage, "MOST_RAW", 1)
            small.setattr(storage, "MOST_IN_MEMORY", 0)
            tracemalloc.start()
            try:
                fitted, found = prepare(read_rows(tmp_path / "data.npy"), wanted)
                peaks.append(tracemalloc.get_traced_memory()[1])
            finally:
                tracemalloc.stop()
        assert isinstance(found, np.memmap)
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(prepared_rows(fitted, read_rows(tmp_path / "data.npy"))[0], expected)
    a_row = (peaks[1] - peaks[0]) / (sizes[1] - sizes[0])
    assert a_row < 8 * columns / 4


def test_ids_are_read_when_somebody_goes_through_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("securefed.data.rows.MOST_DIFFERENT", 2)
    rows = table(tmp_path, "id,region\nA-1,north\nA-2,south\nA-3,north\n")
    ids = rows.each_id("id", "bank", "loose")
    assert (len(ids), list(ids), list(ids)) == (3, ["a1", "a2", "a3"], ["a1", "a2", "a3"])
    assert "a2" in ids
    assert rows.column("region", "a feature").tolist() == ["north", "south", "north"]
    (tmp_path / "data.csv").write_text("id,region\nA-1,north\n")
    with pytest.raises(DataError, match="changed since it was read"):
        list(ids)


def test_ids_of_a_file_that_was_written_again_are_not_taken_for_those_of_its_rows(tmp_path: Path) -> None:
    """As many rows in another order: other people's columns would go with every id."""
    path = tmp_path / "people.csv"
    path.write_text("id,x\n1,10\n2,20\n3,30\n")
    ids = read_rows(path).each_id("id", "bank", "exact")
    assert list(ids) == ["1", "2", "3"]
    written = tmp_path / "written.csv"
    written.write_text("id,x\n3,30\n2,20\n1,10\n")
    written.replace(path)
    with pytest.raises(DataError, match="changed since it was read"):
        list(ids)
