"""MIMIC-III from the public benchmark's layout: the 714 features against a direct computation, and each
defect.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from research.data.mimic import extract_mimic, load_mimic
from research.data.mimic_features import FEATURE_NAMES, VARIABLES, stay_features
from securefed.engine import Processes
from securefed.errors import DataError, SettingError
from tests.data.layouts import edit, mimic_folder, stay_lines, write_csv

WORDS = {
    "None": 0,
    "To Pain": 2,
    "3 To speech": 3,
    "4 Spontaneously": 4,
    "No response": 1,
    "Abnormal Flexion": 3,
    "6 Obeys Commands": 6,
    "1.0 ET/Trach": 1,
    "No Response-ETT": 1,
    "Confused": 4,
    "5 Oriented": 5,
}


def naive_features(lines: list[list[object]]) -> list[float]:
    """Number by number, as the benchmark describes it."""
    found: list[float] = []
    for place, _ in enumerate(VARIABLES, 1):
        series = [
            (float(line[0]), float(WORDS.get(str(line[place]), line[place])))
            for line in lines[1:]
            if line[place] != ""
        ]
        if not series:
            found += [math.nan] * 42
            continue
        begin, end = series[0][0], series[-1][0]
        length = end - begin
        parts = [(begin, end)]
        parts += [(begin, begin + length * p / 100) for p in (10, 25, 50)]
        parts += [(end - length * p / 100, end) for p in (10, 25, 50)]
        for low, high in parts:
            values = [x for t, x in series if low - 1e-6 < t < high + 1e-6]
            n = len(values)
            mean = sum(values) / n
            second = sum((x - mean) ** 2 for x in values) / n
            third = sum((x - mean) ** 3 for x in values) / n
            skew = third / second**1.5 if second > 1e-20 else 0.0
            found += [min(values), max(values), mean, math.sqrt(second), skew, n]
    return found


@pytest.mark.parametrize("seed", range(5))
def test_the_features_are_those_of_the_benchmark(data: Path, seed: int) -> None:
    lines = stay_lines(seed)
    found = stay_features(write_csv(data / "stay.csv", lines))
    assert found.shape == (714,) == (len(FEATURE_NAMES),)
    np.testing.assert_allclose(found, naive_features(lines), rtol=1e-9, atol=1e-9)


def test_a_variable_that_was_measured_once(data: Path) -> None:
    lines = [["Hours", *VARIABLES], [1.5, *[""] * 8, 80, *[""] * 8]]
    found = dict(zip(FEATURE_NAMES, stay_features(write_csv(data / "stay.csv", lines)), strict=True))
    of_rate = {name.split("|", 1)[1]: value for name, value in found.items() if name.startswith("Heart Rate")}
    assert of_rate["all|mean"] == of_rate["last10|min"] == 80
    assert of_rate["first25|std"] == of_rate["first25|skew"] == 0
    assert of_rate["all|len"] == 1
    assert math.isnan(found["pH|all|len"])


@pytest.mark.parametrize(
    ("parties", "widths"), [(2, [336, 378]), (5, [126, 126, 168, 126, 168]), (17, [42] * 17)]
)
def test_stays_are_divided_by_variable(data: Path, parties: int, widths: list[int]) -> None:
    mimic_folder(data / "in-hospital-mortality")
    train, test = load_mimic(parties=parties)
    assert (train.rows, test.rows) == (8, 4)
    assert [part.shape[1] for part in train.parts.values()] == widths
    assert train.label_party == f"P{parties}"
    assert train.labels.tolist() == [0, 1] * 4
    assert train.ids[0] == "0_episode1_timeseries.csv"
    assert [name for part in train.columns.values() for name in part] == list(FEATURE_NAMES)
    whole = np.hstack(list(train.parts.values()))
    np.testing.assert_allclose(whole.mean(axis=0), 0, atol=1e-9)
    assert not train.generated


def test_gaps_get_the_training_mean(data: Path) -> None:
    root = mimic_folder(data / "in-hospital-mortality")
    train, test = load_mimic()
    height = [i for i, name in enumerate(FEATURE_NAMES) if name.startswith("Height")]
    assert not np.hstack(list(test.parts.values()))[:, height].any()  # never measured anywhere
    raw = np.vstack([stay_features(root / "train" / name) for name in train.ids])
    column = int(np.flatnonzero(np.isnan(raw).any(axis=0) & ~np.isnan(raw).all(axis=0))[0])
    filled = np.where(np.isnan(raw[:, column]), np.nanmean(raw[:, column]), raw[:, column])
    expected = (filled - filled.mean()) / (filled.std() or 1.0)
    np.testing.assert_allclose(np.hstack(list(train.parts.values()))[:, column], expected, atol=1e-9)


def test_extracted_features_are_the_same_again(data: Path) -> None:
    root = mimic_folder(data / "in-hospital-mortality")
    slow = load_mimic(root)
    with Processes(2) as mapper:
        extract_mimic(root, data / "mimic3_ihm.npz", mapper=mapper)
    for one, other in zip(slow, load_mimic(), strict=True):
        assert one.ids.tolist() == other.ids.tolist()
        for name in one.parts:
            np.testing.assert_array_equal(one.parts[name], other.parts[name])


def write_features(folder: Path) -> Path:
    root = mimic_folder(folder / "series")
    for part in ("train", "test"):
        with (root / part / "listfile.csv").open() as stream:
            stays = list(csv.DictReader(stream))
        lines: list[list[object]] = [["stay", *FEATURE_NAMES, "y_true"]]
        for stay in stays:
            row = stay_features(root / part / stay["stay"]).tolist()
            lines.append([stay["stay"], *["" if math.isnan(x) else repr(x) for x in row], stay["y_true"]])
        write_csv(folder / f"mimic3_ihm_{part}.csv", lines)
    return root


def test_features_in_csv_files(data: Path) -> None:
    root = write_features(data)
    for one, other in zip(load_mimic(root), load_mimic(), strict=True):
        for name in one.parts:
            np.testing.assert_array_equal(one.parts[name], other.parts[name])
    assert load_mimic(data)[0].rows == 8
    (data / "mimic3_ihm_test.csv").unlink()
    with pytest.raises(DataError, match="belong together"):
        load_mimic()


Change = Callable[[list[str]], list[str]]
STAY = "train/0_episode1_timeseries.csv"
LIST = "train/listfile.csv"
FOLDER_DEFECTS: list[tuple[str, Change, str]] = [
    (STAY, lambda lines: [lines[0].replace("pH", "acid"), *lines[1:]], "no column pH; 18 columns"),
    (STAY, lambda lines: [line.replace(",", ";") for line in lines], "separated by semicolons"),
    (STAY, lambda lines: [*lines[:-1], lines[-1][:8]], "line 13 has . fields, 18 are expected"),
    (STAY, lambda lines: lines[:1], "a header and no rows"),
    (STAY, lambda lines: [lines[0], "soon" + "," * 17 + "\n"], "Hours is 'soon'"),
    (
        STAY,
        lambda lines: [lines[0], "1" + "," * 9 + "fast" + "," * 8 + "\n"],
        "Heart Rate is 'fast', a number",
    ),
    (STAY, lambda lines: [lines[0], "1,,,,Wide awake" + "," * 13 + "\n"], "eye opening is 'Wide awake'"),
    (LIST, lambda lines: ["stay,died\n", *lines[1:]], "listfile.csv: no column y_true"),
    (
        LIST,
        lambda lines: [*lines, "99_episode1_timeseries.csv,0\n"],
        "lists '99_episode1_timeseries.csv', which is",
    ),
    (LIST, lambda lines: [*lines, "../test/0_episode1_timeseries.csv,0\n"], "which is not a file in"),
    (LIST, lambda lines: [*lines, lines[-1]], "1 stays are listed more than once"),
    (LIST, lambda lines: [lines[0], lines[1].replace(",0", ",2"), *lines[2:]], "y_true such as 2, 0 to 1"),
    (LIST, lambda lines: [*lines[:-1], lines[-1][:5]], "line 9 has 1 fields"),
]


@pytest.mark.parametrize(("name", "change", "message"), FOLDER_DEFECTS)
def test_each_defect_of_the_folder(data: Path, name: str, change: Change, message: str) -> None:
    edit(mimic_folder(data / "in-hospital-mortality") / name, change)
    with pytest.raises(DataError, match=message) as caught:
        load_mimic()
    assert "\n" not in str(caught.value)


def test_a_folder_without_a_list(data: Path) -> None:
    (mimic_folder(data / "in-hospital-mortality") / "test" / "listfile.csv").unlink()
    with pytest.raises(DataError, match=r"no .*test/listfile.csv; it comes from https://physionet.org"):
        load_mimic()


def arrays(**changes: object) -> dict[str, object]:
    rng = np.random.default_rng(0)
    good = {
        "train_X": rng.random((6, 714)),
        "train_y": np.array([0, 1] * 3),
        "test_X": rng.random((4, 714)),
        "test_y": np.array([0, 1] * 2),
    }
    return {key: value for key, value in {**good, **changes}.items() if value is not None}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"test_y": None}, "no array test_y; train_X, train_y, test_X, test_y are expected"),
        ({"train_X": np.zeros((6, 713))}, r"train has features of shape \(6, 713\) for 6 labels, 714"),
        ({"train_X": np.zeros((7, 714))}, r"features of shape \(7, 714\) for 6 labels"),
        ({"train_X": np.full((6, 714), "a")}, "features of type"),
        ({"train_X": np.full((6, 714), np.inf)}, "infinite features"),
        ({"train_y": np.array([0, 1, 2, 0, 1, 0])}, "values of train such as 2"),
        ({"train_y": np.array([0, 1, np.nan, 0, 1, 0])}, "values of train such as nan"),
        ({"train_X": np.array(1.0)}, r"train has features of shape \(\)"),
        ({"train_y": np.array(1)}, "train has features of type"),
        ({"train_y": np.zeros((6, 1))}, "train has features of type"),
        ({"train_stays": np.array(["a"])}, "train has features of shape"),
        ({"train_X": np.array([{}] * 6)}, "not an NPZ file that can be read"),
    ],
)
def test_each_defect_of_an_npz_file(data: Path, changes: dict[str, object], message: str) -> None:
    np.savez(data / "mimic3_ihm.npz", **arrays(**changes))
    with pytest.raises(DataError, match=message) as caught:
        load_mimic()
    assert "\n" not in str(caught.value)


def test_a_truncated_npz_file(data: Path) -> None:
    np.savez(data / "mimic3_ihm.npz", **arrays())
    blob = (data / "mimic3_ihm.npz").read_bytes()
    assert load_mimic()[0].rows == 6
    (data / "mimic3_ihm.npz").write_bytes(blob[:-100])
    with pytest.raises(DataError, match=r"^mimic3_ihm.npz: not an NPZ file"):
        load_mimic()


CSV_DEFECTS: list[tuple[Change, str]] = [
    (lambda lines: [line.split(",", 1)[1] for line in lines], "715 columns from"),
    (lambda lines: [line.replace(",", "\t") for line in lines], "1 columns from"),
    (lambda lines: [*lines[:-1], lines[-1][:100]], "line 9 has"),
    (lambda lines: [*lines[:1], lines[1].replace(",", ",x", 1), *lines[2:]], "line 2: Capillary refill rate"),
]


@pytest.mark.parametrize(("change", "message"), CSV_DEFECTS)
def test_each_defect_of_the_csv_files(data: Path, change: Change, message: str) -> None:
    write_features(data)
    edit(data / "mimic3_ihm_train.csv", change)
    with pytest.raises(DataError, match=message) as caught:
        load_mimic()
    assert "\n" not in str(caught.value)


def test_more_parties_than_variables(data: Path) -> None:
    np.savez(data / "mimic3_ihm.npz", **arrays())
    with pytest.raises(SettingError, match="parties"):
        load_mimic(parties=18)
