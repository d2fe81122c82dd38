"""Breast cancer and vehicles: scikit-learn's table and FATE's divided files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from research.data.paired import load_breast, load_breast_hetero, load_vehicle
from securefed.errors import DataError
from tests.data.layouts import edit, paired_csv


def test_the_bundled_table_needs_no_file() -> None:
    data = load_breast()
    assert (data.rows, int(data.labels.sum())) == (569, 357)
    assert (data.parts["A"].shape[1], data.parts["B"].shape[1]) == (10, 20)
    assert data.columns["A"][0] == "mean radius"
    assert data.columns["B"][-1] == "worst fractal dimension"
    assert not data.generated


@pytest.mark.parametrize(
    ("load", "stem", "widths", "classes"),
    [
        (load_breast_hetero, "breast_hetero", (10, 20), 2),
        (load_vehicle, "vehicle_scale_hetero", (9, 9), 4),
    ],
)
def test_rows_are_joined_by_id(
    data: Path, load: Callable[..., object], stem: str, widths: tuple[int, int], classes: int
) -> None:
    paired_csv(data, stem, widths, classes)
    found = load(verify=False)
    assert tuple(found.parts[name].shape[1] for name in "AB") == widths
    assert found.ids.tolist() == [str(row) for row in range(20)]
    assert np.unique(found.labels).tolist() == list(range(classes))
    host = (data / f"{stem}_host.csv").read_text().splitlines()
    last = [float(field) for field in host[1].split(",")]
    np.testing.assert_array_equal(found.parts["B"][int(last[0])], last[1:])


DEFECTS: list[tuple[str, Callable[[list[str]], list[str]], str]] = [
    ("guest", lambda lines: [line.replace("y,", "z,") for line in lines], "guest.csv: no column y"),
    ("guest", lambda lines: [line.replace(",", "\t") for line in lines], "guest.csv: .* separated by tabs"),
    ("guest", lambda lines: [*lines[:-1], lines[-1][:30]], "guest.csv: line 21 has"),
    ("guest", lambda lines: [*lines, lines[-1]], "guest.csv: 1 ids occur more than once"),
    (
        "guest",
        lambda lines: [*lines[:2], lines[2].replace(",1,", ",7,", 1), *lines[3:]],
        "y such as 7, 0 to 1",
    ),
    ("host", lambda lines: lines[:-2], "not about the same people: 2 ids are in one of them only"),
    (
        "host",
        lambda lines: [*lines, "99" + lines[-1][lines[-1].index(",") :]],
        "not about the same people: 1",
    ),
    ("host", lambda lines: [line.rsplit(",", 1)[0] + "\n" for line in lines], "host.csv: no column x19"),
    (
        "host",
        lambda lines: [*lines[:1], "19,a" + ",0" * 19 + "\n", *lines[2:]],
        "host.csv: line 2: x0 is 'a'",
    ),
    ("host", lambda lines: [], "host.csv: the file is empty"),
]


@pytest.mark.parametrize(("side", "change", "message"), DEFECTS)
def test_each_defect_is_one_line(
    data: Path, side: str, change: Callable[[list[str]], list[str]], message: str
) -> None:
    edit(paired_csv(data, "breast_hetero", (10, 20), 2) / f"breast_hetero_{side}.csv", change)
    with pytest.raises(DataError, match=message) as caught:
        load_breast_hetero(data, verify=False)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_the_published_one(data: Path) -> None:
    paired_csv(data, "breast_hetero", (10, 20), 2)
    with pytest.raises(
        DataError, match=r"breast_hetero_guest.csv: sha256 .*, the published file has 6b258b15"
    ):
        load_breast_hetero()


def test_one_file_without_the_other(data: Path) -> None:
    (paired_csv(data, "vehicle_scale_hetero", (9, 9), 4) / "vehicle_scale_hetero_host.csv").unlink()
    with pytest.raises(DataError, match=r"no vehicle_scale_hetero_host.csv in"):
        load_vehicle()


def test_the_published_files(real: Path) -> None:
    breast, vehicle = load_breast_hetero(), load_vehicle()
    assert (breast.rows, vehicle.rows) == (569, 846)
    assert int(breast.labels.sum()) in (212, 357)
    assert np.unique(vehicle.labels).tolist() == [0, 1, 2, 3]
