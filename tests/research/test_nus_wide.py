"""NUS-WIDE from files of the public release's layout, with each kind of defect."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from research.data.nus_wide import load_nus_wide
from securefed.errors import DataError, SettingError
from tests.data.layouts import edit, nus_wide

CH = "Low_Level_Features/Train_Normalized_CH.dat"
TAGS = "NUS_WID_Tags/Train_Tags1k.dat"
MARKS = [(row % 3 == 0 or row % 5 == 4, row % 3 == 1 or row % 5 == 4) for row in range(12)]
ROWS = sum(sum(both) == 1 for both in MARKS)
PERSON = "Groundtruth/TrainTestLabels/Labels_person_Train.txt"


def test_images_with_exactly_one_of_two_concepts(data: Path) -> None:
    root = nus_wide(data / "NUS_WIDE")
    found = load_nus_wide()
    rows = [row for row, both in enumerate(MARKS) if sum(both) == 1]
    assert found.ids.tolist() == rows
    assert found.labels.tolist() == [int(MARKS[row][0]) for row in rows]
    assert (found.parts["B"].shape, found.parts["A"].shape) == ((len(rows), 634), (len(rows), 1000))
    ch = np.loadtxt(root / CH)
    np.testing.assert_array_equal(found.parts["B"][:, :64], ch[rows])
    wt = np.loadtxt(root / "Low_Level_Features" / "Train_Normalized_WT.dat")
    np.testing.assert_array_equal(found.parts["B"][:, -128:], wt[rows])
    np.testing.assert_array_equal(found.parts["A"], np.loadtxt(root / TAGS)[rows])
    assert (found.columns["B"][64], found.columns["B"][-1]) == ("CM55_0", "WT_127")


def test_one_concept_against_all_others_and_a_limit(data: Path) -> None:
    nus_wide(data / "NUS-WIDE")
    found = load_nus_wide(concepts=["sky"])
    assert found.rows == 12
    assert found.labels.tolist() == [int(row % 3 == 2 or row % 5 == 4) for row in range(12)]
    assert load_nus_wide(concepts=["sky"], rows=5).ids.tolist() == [0, 1, 2, 3, 4]


def test_the_test_images_and_the_archive_folder(data: Path) -> None:
    root = nus_wide(data / "nus", part="Test")
    (root / "NUS_WID_Low_Level_Features").mkdir()
    (root / "Low_Level_Features").rename(root / "NUS_WID_Low_Level_Features" / "Low_Level_Features")
    assert load_nus_wide(root, part="Test").rows == ROWS
    with pytest.raises(DataError, match=r"no Labels_person_Train.txt in"):
        load_nus_wide(root)
    with pytest.raises(SettingError, match="part"):
        load_nus_wide(root, part="train")


Change = Callable[[list[str]], list[str]]
DEFECTS: list[tuple[str, Change, str]] = [
    (CH, lambda lines: lines[:-1], "Train_Normalized_CH.dat: 11 lines, 12 are expected"),
    (CH, lambda lines: [*lines, lines[0]], "Train_Normalized_CH.dat: 13 lines, 12 are expected"),
    (CH, lambda lines: [line.replace(" ", ",") for line in lines], "line 1 has 1 fields between blanks, 64"),
    (CH, lambda lines: [lines[0].split(" ", 1)[1], *lines[1:]], "line 1 has 63 fields between blanks, 64"),
    (CH, lambda lines: [*lines[:-2], lines[-2][:50]], "line 11 has .* fields between blanks"),
    (CH, lambda lines: ["x" + lines[0], *lines[1:]], "line 1 has something that is not a number"),
    (CH, lambda lines: ["nan " + lines[0].split(" ", 1)[1], *lines[1:]], "a number is not finite"),
    (CH, lambda lines: [lines[0], "\n", *lines[1:]], "line 2 is empty"),
    (CH, lambda lines: [], "Train_Normalized_CH.dat: 0 lines, 12 are expected"),
    (TAGS, lambda lines: ["2" + lines[0][1:], *lines[1:]], "Train_Tags1k.dat: tags are 0 or 1"),
    (TAGS, lambda lines: [line.replace("\t", ";") for line in lines], "line 1 has 1 fields"),
    (PERSON, lambda lines: ["yes\n", *lines[1:]], "Labels_person_Train.txt: line 1 is b'yes', 0 or 1 is"),
    (PERSON, lambda lines: [], "Labels_person_Train.txt: the file is empty"),
    (PERSON, lambda lines: ["0\n"] * 12, "are all of one class"),
]


@pytest.mark.parametrize(("name", "change", "message"), DEFECTS)
def test_each_defect_is_one_line(data: Path, name: str, change: Change, message: str) -> None:
    edit(nus_wide(data / "NUS_WIDE") / name, change)
    with pytest.raises(DataError, match=message) as caught:
        load_nus_wide()
    assert "\n" not in str(caught.value)


def test_labels_of_different_lengths(data: Path) -> None:
    edit(nus_wide(data / "NUS_WIDE") / PERSON, lambda lines: lines[:-1])
    with pytest.raises(DataError, match=r"different numbers of lines: {'person': 11, 'animal': 12}"):
        load_nus_wide()


def test_empty_lines_at_the_end_do_no_harm(data: Path) -> None:
    edit(nus_wide(data / "NUS_WIDE") / CH, lambda lines: [*lines, "\n", "\n"])
    assert load_nus_wide().rows == ROWS


@pytest.mark.parametrize("name", [CH, TAGS, PERSON])
def test_a_missing_file_is_named(data: Path, name: str) -> None:
    (nus_wide(data / "NUS_WIDE") / name).unlink()
    with pytest.raises(DataError, match=f"no {Path(name).name} in .*; get it from https"):
        load_nus_wide()


def test_a_missing_folder_is_named(data: Path) -> None:
    (data / "NUS_WIDE").mkdir()
    with pytest.raises(DataError, match=r"no folder Groundtruth/TrainTestLabels in"):
        load_nus_wide()


@pytest.mark.parametrize("concepts", ["person", [], ["sky", "sky"]])
def test_concepts_are_a_list_of_names(data: Path, concepts: object) -> None:
    with pytest.raises(DataError, match="concepts"):
        load_nus_wide(concepts=concepts)
