"""MIMIC-III in-hospital mortality: 714 features of 17,903 and 3,236 ICU stays (the paper's MIMIC-LR).

Johnson et al. (2016); access needs credentials, and nothing of it is stored by securefed unless
`extract_mimic` is called. Read from what the public benchmark (Harutyunyan et al. 2019) makes of it:

    in-hospital-mortality/{train,test}/listfile.csv   stay,y_true
    in-hospital-mortality/{train,test}/<stay>.csv     a stay's time series

or from features that are already extracted: an NPZ file with train_X, train_y, test_X and test_y (what
`extract_mimic` writes), or two CSV files with the columns stay, the 714 features, y_true. NaN and empty
fields are gaps: they get the training mean, then every column is standardised on the training rows. Parties
are divided by variable.
"""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import StandardScaler

from research.data.arrays import read_npz
from research.data.mimic_features import FEATURE_NAMES, PER_VARIABLE, VARIABLES, stay_features
from research.data.sources import Source
from research.data.splits import column_groups
from research.data.tables import as_integers, read_table
from research.data.vertical import VerticalData
from securefed.crypto.scheme import SERIAL, Mapper
from securefed.errors import DataError

MIMIC = Source(
    "MIMIC-III",
    ("mimic3_ihm.npz", "mimic3_ihm_train.csv", "in-hospital-mortality"),
    "https://physionet.org/content/mimiciii/1.4/ (with credentials), prepared by"
    " https://github.com/YerevaNN/mimic3-benchmarks (create_in_hospital_mortality)",
)

Array = NDArray[np.float64]
Part = tuple[Array, NDArray[np.int64], NDArray[np.str_]]
"""Features with gaps, labels, names of the stays."""


def load_mimic(
    path: str | PathLike[str] | None = None, *, parties: int = 2, mapper: Mapper = SERIAL
) -> tuple[VerticalData, VerticalData]:
    """Training and test stays, standardised, with the 17 variables divided over `parties` (P1, P2, ...);
    the last one has the labels. Label 1: the patient died in hospital.
    """
    train, test = _read(MIMIC.find(path), mapper)
    imputer = SimpleImputer(strategy="mean", keep_empty_features=True).fit(train[0])
    scaler = StandardScaler().fit(imputer.transform(train[0]))

    def ready(part: Part) -> VerticalData:
        features = scaler.transform(imputer.transform(part[0]))
        return by_variable("MIMIC-III", features, part[1], part[2], parties)

    return ready(train), ready(test)


def by_variable(
    name: str,
    features: Array,
    labels: NDArray[np.int64],
    ids: NDArray[np.str_],
    parties: int,
    generated: bool = False,
) -> VerticalData:
    """The 714 columns, each party with all features of consecutive variables."""
    parts: dict[str, Array] = {}
    columns: dict[str, tuple[str, ...]] = {}
    for place, group in enumerate(column_groups(len(VARIABLES), parties), 1):
        own = slice(group.start * PER_VARIABLE, group.stop * PER_VARIABLE)
        parts[f"P{place}"] = features[:, own]
        columns[f"P{place}"] = FEATURE_NAMES[own]
    return VerticalData(name, parts, columns, labels, f"P{parties}", ids, generated)


def extract_mimic(
    folder: str | PathLike[str], output: str | PathLike[str], *, mapper: Mapper = SERIAL
) -> None:
    """Write the features of the benchmark's folder into an NPZ file, so that the next `load_mimic` is
    quick.
    """
    train, test = _read_folder(Path(folder), mapper)
    arrays = {
        f"{part}_{key}": array
        for part, values in (("train", train), ("test", test))
        for key, array in zip(("X", "y", "stays"), values, strict=True)
    }
    try:
        np.savez_compressed(output, allow_pickle=False, **arrays)
    except OSError as error:
        raise DataError(f"{output}: cannot be written ({error.strerror})") from None


def _read(path: Path, mapper: Mapper) -> tuple[Part, Part]:
    if path.is_dir():
        if (path / "mimic3_ihm_train.csv").exists():
            path = path / "mimic3_ihm_train.csv"
        else:
            return _read_folder(path, mapper)
    if path.suffix == ".npz":
        return _read_npz(path)
    return _read_csv(path), _read_csv(path.with_name(path.name.replace("train", "test")))


def _read_folder(folder: Path, mapper: Mapper) -> tuple[Part, Part]:
    train, test = (_read_part(folder / name, mapper) for name in ("train", "test"))
    return train, test


def _read_part(folder: Path, mapper: Mapper) -> Part:
    path = folder / "listfile.csv"
    if not path.is_file():
        raise DataError(f"MIMIC-III: no {path}; it comes from {MIMIC.where}")
    table = read_table(path)
    table.require(("stay", "y_true"))
    stays = table.column("stay")
    if len(set(stays)) < len(stays):
        raise DataError(f"{path}: {len(stays) - len(set(stays))} stays are listed more than once")
    for stay in stays:
        # The list names files beside it, and nothing else on this machine.
        if Path(stay).name != stay or not (folder / stay).is_file():
            raise DataError(f"{path}: lists {stay[:60]!r}, which is not a file in {folder}")
    labels = as_integers(table.name, "y_true", table.numbers(["y_true"])[:, 0], (0, 1))
    work: Callable[[Path], Array] = stay_features
    rows = mapper.map(work, [folder / stay for stay in stays])
    return np.vstack(rows), labels, np.array(stays)


def _read_npz(path: Path) -> tuple[Part, Part]:
    arrays = read_npz(path, ("train_X", "train_y", "test_X", "test_y"))
    parts: list[Part] = []
    for part in ("train", "test"):
        features, labels = arrays[f"{part}_X"], arrays[f"{part}_y"]
        stays = arrays.get(f"{part}_stays", np.array([f"{part}-{row}" for row in range(labels.size)]))
        parts.append(_checked(path.name, part, features, labels, stays))
    train, test = parts
    return train, test


def _read_csv(path: Path) -> Part:
    if not path.is_file():
        raise DataError(f"MIMIC-III: no {path}; the training and the test file belong together")
    table = read_table(path)
    if len(table.header) != len(FEATURE_NAMES) + 2 or (table.header[0], table.header[-1]) != (
        "stay",
        "y_true",
    ):
        raise DataError(
            f"{path.name}: {len(table.header)} columns from {table.header[0]!r} to {table.header[-1]!r};"
            f" stay, {len(FEATURE_NAMES)} features and y_true are expected"
        )
    features = table.numbers(table.header[1:-1], gaps=True)
    labels = table.numbers(["y_true"])[:, 0]
    return _checked(path.name, "y_true", features, labels, np.array(table.column("stay")))


def _checked(
    name: str,
    part: str,
    features: NDArray[np.generic],
    labels: NDArray[np.generic],
    stays: NDArray[np.generic],
) -> Part:
    if features.dtype.kind not in "fiu" or labels.dtype.kind not in "fiub" or labels.ndim != 1:
        raise DataError(f"{name}: {part} has features of type {features.dtype}, labels of {labels.dtype}")
    if features.shape != (len(labels), len(FEATURE_NAMES)) or stays.shape != labels.shape or not len(labels):
        raise DataError(
            f"{name}: {part} has features of shape {features.shape} for {len(labels)} labels,"
            f" {len(FEATURE_NAMES)} columns are expected"
        )
    numbers = features.astype(np.float64)
    if np.isinf(numbers).any():
        raise DataError(f"{name}: {part} has infinite features")
    whole = as_integers(name, part, labels.astype(np.float64), (0, 1))
    return numbers, whole, stays.astype(np.str_)
