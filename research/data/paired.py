"""Small tables that come divided by columns: breast cancer and vehicle silhouettes.

Breast cancer (Wolberg, Street and Mangasarian 1995, UCI, CC BY 4.0) is part of scikit-learn, so
`load_breast` needs no file. FATE's examples hold the same people divided between a guest with the labels
and 10 standardised columns and a host with 20 (`load_breast_hetero`), and likewise the vehicles (Mowforth
and Shepherd 1987, UCI Statlog, CC BY 4.0): four classes, 9 columns each (`load_vehicle`). A is the guest, B
the host.
"""

from __future__ import annotations

import hashlib
from os import PathLike
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer

from research.data.sources import Source
from research.data.tables import Table, as_integers, read_table
from research.data.vertical import VerticalData
from securefed.errors import DataError

_FATE = "https://github.com/FederatedAI/FATE/tree/v1.11.4/examples/data"
_SUMS = {
    "breast_hetero_guest.csv": "6b258b1514181bd645ea37a9ba3795a014075f465dfa51af08ecf19f068baeae",
    "breast_hetero_host.csv": "8f9edc41763176ba12598f86646a177e347c1b85b5549896044f9532d964ea6f",
    "vehicle_scale_hetero_guest.csv": "43034770a34993675fdf34525f7f20805f1570066dfcb31f6145d5a70204a7ed",
    "vehicle_scale_hetero_host.csv": "ded56f6e71c96e9305f7bc3f283dc5e9e25ec52ede13d7db4ab6a86218e3314c",
}


def load_breast() -> VerticalData:
    """scikit-learn's table, not standardised: A has the labels (1 = benign) and the 10 means, B the 20
    other columns.
    """
    bunch = load_breast_cancer()
    names = [str(name) for name in bunch.feature_names]
    features = np.asarray(bunch.data, dtype=np.float64)
    parts = {"B": features[:, 10:], "A": features[:, :10]}
    columns = {"B": tuple(names[10:]), "A": tuple(names[:10])}
    labels = np.asarray(bunch.target, dtype=np.int64)
    return VerticalData("Breast cancer", parts, columns, labels, "A", np.arange(len(labels)))


def load_breast_hetero(folder: str | PathLike[str] | None = None, *, verify: bool = True) -> VerticalData:
    """FATE's division of breast cancer, standardised: A has the labels (1 = malignant) and 10 columns, B
    20.
    """
    return _load("Breast cancer (FATE)", "breast_hetero", folder, (10, 20), (0, 1), verify)


def load_vehicle(folder: str | PathLike[str] | None = None, *, verify: bool = True) -> VerticalData:
    """FATE's division of the vehicles, scaled to -1 to 1: A has the labels (0 to 3) and 9 columns, B 9."""
    return _load("Vehicle", "vehicle_scale_hetero", folder, (9, 9), (0, 3), verify)


def _load(
    title: str,
    stem: str,
    folder: str | PathLike[str] | None,
    sizes: tuple[int, int],
    classes: tuple[int, int],
    verify: bool,
) -> VerticalData:
    tables: list[Table] = []
    paths: list[Path] = []
    for side, first in (("guest", ["id", "y"]), ("host", ["id"])):
        name = f"{stem}_{side}.csv"
        source = Source(title, (name,), _FATE, {name: _SUMS[name]})
        path = source.find(None if folder is None else Path(folder) / name)
        table = read_table(path)
        table.require([*first, *_columns(sizes[len(tables)])])
        tables.append(table)
        paths.append(path)
    guest, host = tables
    order = {value: row for row, value in enumerate(_ids(host))}
    ids = _ids(guest)
    if set(ids) != set(order):
        raise DataError(
            f"{guest.name} and {host.name} are not about the same people:"
            f" {len(set(ids) ^ set(order))} ids are in one of them only"
        )
    if verify:
        for path in paths:
            check_sha256(path, _SUMS[path.name])
    a, b = _columns(sizes[0]), _columns(sizes[1])
    labels = as_integers(guest.name, "y", guest.numbers(["y"])[:, 0], classes)
    rows = np.array([order[value] for value in ids], dtype=np.intp)
    parts = {"B": host.numbers(b)[rows], "A": guest.numbers(a)}
    return VerticalData(title, parts, {"B": tuple(b), "A": tuple(a)}, labels, "A", np.array(ids))


def check_sha256(path: Path, expected: str) -> None:
    """Raise DataError unless the file is the published one."""
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest != expected:
        raise DataError(
            f"{path.name}: sha256 {digest}, the published file has {expected};"
            " get it again, or pass verify=False to use this one"
        )


def _columns(count: int) -> list[str]:
    return [f"x{place}" for place in range(count)]


def _ids(table: Table) -> list[str]:
    ids = [text.strip() for text in table.column("id")]
    if len(set(ids)) < len(ids):
        raise DataError(f"{table.name}: {len(ids) - len(set(ids))} ids occur more than once")
    return ids
