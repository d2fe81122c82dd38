"""NUS-WIDE: Flickr images as 634 low-level features, 1,000 tags and 81 concepts (the paper's NUS-FTL).

Chua et al. (2009). Read from the files of the public release:

    Low_Level_Features/Train_Normalized_{CH,CM55,CORR,EDH,WT}.dat     64 + 225 + 144 + 73 + 128 numbers a line
    NUS_WID_Tags/Train_Tags1k.dat                                     1,000 zeros and ones a line
    Groundtruth/TrainTestLabels/Labels_<concept>_Train.txt            a zero or a one a line

and the same with Test. B has the image features, A the tags and the labels. The release has 161,789
training and 107,859 test images; lines that are not asked for are counted and not kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from os import PathLike
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from research.data.sources import Source
from research.data.vertical import VerticalData
from securefed.declare import check_choice, check_integer
from securefed.errors import DataError

NUS_WIDE = Source(
    "NUS-WIDE",
    ("NUS_WIDE", "NUS-WIDE", "nus-wide", "nus_wide"),
    "https://lms.comp.nus.edu.sg/wp-content/uploads/2019/research/nuswide/NUS-WIDE.html"
    " (low-level features, tags and ground truth, unpacked into one folder)",
)
FEATURES = {"CH": 64, "CM55": 225, "CORR": 144, "EDH": 73, "WT": 128}
TAGS = 1000
_FOLDERS = {
    "features": ("Low_Level_Features", "NUS_WID_Low_Level_Features/Low_Level_Features"),
    "tags": ("NUS_WID_Tags", "Tags", "."),
    "labels": ("Groundtruth/TrainTestLabels", "TrainTestLabels"),
}


def load_nus_wide(
    path: str | PathLike[str] | None = None,
    *,
    concepts: Sequence[str] = ("person", "animal"),
    part: str = "Train",
    rows: int | None = None,
) -> VerticalData:
    """The images of `part` ("Train" or "Test"), not standardised, label 1 for the first concept.

    With several concepts: the images that have exactly one of them (the authors' choice: person against
    animal). With one: all images. `rows`: no more than the first so many.
    """
    check_choice("part", part, ("Train", "Test"))
    if isinstance(concepts, str) or not concepts or len(set(concepts)) < len(concepts):
        raise DataError(f"concepts: {concepts!r} given, a list of different names is allowed")
    root = NUS_WIDE.find(path)
    each = {concept: _labels(root, concept, part) for concept in concepts}
    lengths = {concept: len(column) for concept, column in each.items()}
    if len(set(lengths.values())) > 1:
        raise DataError(f"NUS-WIDE: the {part} labels have different numbers of lines: {lengths}")
    marks = np.column_stack(list(each.values()))
    chosen = np.flatnonzero(marks.sum(axis=1) == 1) if len(concepts) > 1 else np.arange(len(marks))
    if rows is not None:
        chosen = chosen[: check_integer("rows", rows, least=1)]
    labels = marks[chosen, 0].astype(np.int64)
    if len(np.unique(labels)) < 2:
        raise DataError(f"NUS-WIDE: the {len(chosen)} images of {', '.join(concepts)} are all of one class")
    folder = _folder(root, "features")
    blocks = [
        _numbers(
            _file(folder, [f"{part}_Normalized_{kind}.dat", f"{part}_{kind}.dat"]), width, chosen, len(marks)
        )
        for kind, width in FEATURES.items()
    ]
    tags_file = _file(_folder(root, "tags"), [f"{part}_Tags1k.dat"])
    tags = _numbers(tags_file, TAGS, chosen, len(marks))
    if not np.isin(tags, (0.0, 1.0)).all():
        raise DataError(f"{tags_file.name}: tags are 0 or 1, and there are other numbers")
    columns = {
        "B": tuple(f"{kind}_{place}" for kind, width in FEATURES.items() for place in range(width)),
        "A": tuple(f"tag_{place}" for place in range(TAGS)),
    }
    return VerticalData("NUS-WIDE", {"B": np.hstack(blocks), "A": tags}, columns, labels, "A", chosen)


def _folder(root: Path, what: str) -> Path:
    for name in _FOLDERS[what]:
        if (root / name).is_dir():
            return root / name
    raise DataError(f"NUS-WIDE: no folder {_FOLDERS[what][0]} in {root}; get it from {NUS_WIDE.where}")


def _file(folder: Path, names: Sequence[str]) -> Path:
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise DataError(f"NUS-WIDE: no {names[0]} in {folder}; get it from {NUS_WIDE.where}")


def _labels(root: Path, concept: str, part: str) -> NDArray[np.int64]:
    path = _file(_folder(root, "labels"), [f"Labels_{concept}_{part}.txt"])
    marks: list[int] = []
    for line, text in _lines(path):
        if text not in (b"0", b"1"):
            raise DataError(f"{path.name}: line {line} is {text[:20]!r}, 0 or 1 is expected")
        marks.append(int(text))
    if not marks:
        raise DataError(f"{path.name}: the file is empty")
    return np.array(marks, dtype=np.int64)


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Lines with their numbers, without what ends them; empty lines at the end are left out."""
    empty = 0
    with path.open("rb") as stream:
        for number, text in enumerate(stream, 1):
            stripped = text.strip()
            if not stripped:
                empty += 1
                continue
            if empty:
                raise DataError(f"{path.name}: line {number - 1} is empty")
            yield number, stripped


def _numbers(path: Path, width: int, chosen: NDArray[np.intp], count: int) -> NDArray[np.float64]:
    """The chosen lines of a file that has to have `count` lines of `width` numbers, separated by blanks."""
    wanted = np.zeros(count, dtype=bool)
    wanted[chosen] = True
    table = np.empty((len(chosen), width))
    place = total = 0
    for line, text in _lines(path):
        total = line
        if line > count or not wanted[line - 1]:
            continue
        fields = text.split()
        if len(fields) != width:
            raise DataError(
                f"{path.name}: line {line} has {len(fields)} fields between blanks, {width} are expected"
            )
        try:
            table[place] = [float(field) for field in fields]
        except ValueError:
            raise DataError(f"{path.name}: line {line} has something that is not a number") from None
        place += 1
    if total != count:
        raise DataError(f"{path.name}: {total} lines, {count} are expected, as many as labels")
    if not np.isfinite(table).all():
        raise DataError(f"{path.name}: a number is not finite")
    return table
