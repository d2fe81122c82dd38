"""Files of the published layouts with generated contents, for the loaders' tests."""

from __future__ import annotations

import csv
import gzip
import struct
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from research.data.mimic_features import VARIABLES
from research.data.nus_wide import FEATURES, TAGS

CREDIT_COLUMNS = [
    *("ID", "LIMIT_BAL", "SEX", "EDUCATION", "MARRIAGE", "AGE"),
    *("PAY_0", "PAY_2", "PAY_3", "PAY_4", "PAY_5", "PAY_6"),
    *(f"BILL_AMT{month}" for month in range(1, 7)),
    *(f"PAY_AMT{month}" for month in range(1, 7)),
    "default.payment.next.month",
]


def write_csv(path: Path, lines: Iterable[Sequence[object]], delimiter: str = ",") -> Path:
    with path.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream, delimiter=delimiter).writerows(lines)
    return path


def edit(path: Path, change: Callable[[list[str]], list[str]]) -> Path:
    """Change the lines of a text file."""
    path.write_text("".join(change(path.read_text().splitlines(keepends=True))))
    return path


def credit_rows(count: int, seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [
        [
            *(
                row,
                int(rng.integers(1, 80)) * 10_000,
                1 + row % 2,
                row % 7,
                row % 4,
                int(rng.integers(21, 79)),
            ),
            *rng.integers(-2, 9, 6).tolist(),
            *rng.integers(-100_000, 900_000, 6).tolist(),
            *rng.integers(0, 90_000, 6).tolist(),
            int(rng.random() < 0.3),
        ]
        for row in range(1, count + 1)
    ]


def credit_csv(path: Path, count: int = 60) -> Path:
    return write_csv(path, [CREDIT_COLUMNS, *credit_rows(count)])


def two_headers(count: int = 60) -> list[list[object]]:
    """UCI's own sheet: numbered columns, then names."""
    names = [*CREDIT_COLUMNS[:-1], "default payment next month"]
    return [["", *(f"X{i}" for i in range(1, 24)), "Y"], names, *credit_rows(count)]


def write_xls(path: Path, lines: list[list[object]]) -> Path:
    """A worksheet in the oldest Excel format (BIFF 2): text and numbers, one record a cell."""
    records = [struct.pack("<HHHH", 0x0009, 4, 2, 0x0010)]
    for row, line in enumerate(lines):
        for column, value in enumerate(line):
            place = struct.pack("<HH3x", row, column)
            if isinstance(value, str):
                text = value.encode("ascii")
                body = place + bytes([len(text)]) + text
                records.append(struct.pack("<HH", 0x0004, len(body)) + body)
            else:
                body = place + struct.pack("<d", value)
                records.append(struct.pack("<HH", 0x0003, len(body)) + body)
    path.write_bytes(b"".join(records) + struct.pack("<HH", 0x000A, 0))
    return path


def paired_csv(folder: Path, stem: str, widths: tuple[int, int], classes: int, count: int = 20) -> Path:
    rng = np.random.default_rng(1)
    names = [[f"x{i}" for i in range(width)] for width in widths]
    guest = [[row, row % classes, *rng.standard_normal(widths[0]).round(6)] for row in range(count)]
    host = [[row, *rng.standard_normal(widths[1]).round(6)] for row in reversed(range(count))]
    write_csv(folder / f"{stem}_guest.csv", [["id", "y", *names[0]], *guest])
    write_csv(folder / f"{stem}_host.csv", [["id", *names[1]], *host])
    return folder


def idx(array: np.ndarray) -> bytes:
    shape = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes([0, 0, 8, array.ndim]) + shape + array.astype(np.uint8).tobytes()


def digits(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, 28, 28), dtype=np.uint8), (np.arange(count) % 10).astype(np.uint8)


def mnist_idx(folder: Path, counts: tuple[int, int] = (60, 30), zipped: bool = False) -> Path:
    for part, count in zip(("train", "t10k"), counts, strict=True):
        images, labels = digits(count, count)
        for name, array in ((f"{part}-images-idx3-ubyte", images), (f"{part}-labels-idx1-ubyte", labels)):
            if zipped:
                (folder / f"{name}.gz").write_bytes(gzip.compress(idx(array)))
            else:
                (folder / name).write_bytes(idx(array))
    return folder


def nus_wide(root: Path, count: int = 12, part: str = "Train") -> Path:
    rng = np.random.default_rng(2)
    labels = root / "Groundtruth" / "TrainTestLabels"
    for folder in (root / "Low_Level_Features", root / "NUS_WID_Tags", labels):
        folder.mkdir(parents=True, exist_ok=True)
    for kind, width in FEATURES.items():
        numbers = rng.random((count, width)).round(5)
        lines = [" ".join(map(str, row)) + " \n" for row in numbers.tolist()]
        (root / "Low_Level_Features" / f"{part}_Normalized_{kind}.dat").write_text("".join(lines))
    tags = (rng.random((count, TAGS)) < 0.01).astype(int)
    (root / "NUS_WID_Tags" / f"{part}_Tags1k.dat").write_text(
        "".join("\t".join(map(str, row)) + "\t\n" for row in tags.tolist())
    )
    for place, concept in enumerate(("person", "animal", "sky")):
        marks = [int(row % 3 == place or row % 5 == 4) for row in range(count)]
        (labels / f"Labels_{concept}_{part}.txt").write_text("".join(f"{mark}\n" for mark in marks))
    return root


def stay_lines(seed: int) -> list[list[object]]:
    """A stay: hours and 17 variables, many fields empty, Height never and pH not always measured, the coma
    scale in words.
    """
    rng = np.random.default_rng(seed)
    words = {
        "Glascow coma scale eye opening": ["4 Spontaneously", "To Pain", "None", "3 To speech"],
        "Glascow coma scale motor response": ["6 Obeys Commands", "No response", "Abnormal Flexion"],
        "Glascow coma scale verbal response": ["5 Oriented", "1.0 ET/Trach", "No Response-ETT", "Confused"],
    }
    lines: list[list[object]] = [["Hours", *VARIABLES]]
    for hour in np.sort(rng.random(12) * 48).round(4).tolist():
        line: list[object] = [hour]
        for variable in VARIABLES:
            if rng.random() < 0.6 or variable == "Height" or (variable == "pH" and seed % 2):
                line.append("")
            elif variable in words:
                line.append(str(rng.choice(words[variable])))
            else:
                line.append(round(float(rng.normal(60, 20)), 2))
        lines.append(line)
    return lines


def mimic_folder(root: Path, counts: tuple[int, int] = (8, 4)) -> Path:
    for part, count in zip(("train", "test"), counts, strict=True):
        folder = root / part
        folder.mkdir(parents=True, exist_ok=True)
        names = [f"{row}_episode1_timeseries.csv" for row in range(count)]
        for seed, name in enumerate(names):
            write_csv(folder / name, stay_lines(seed + (100 if part == "test" else 0)))
        write_csv(folder / "listfile.csv", [["stay", "y_true"], *[[n, i % 2] for i, n in enumerate(names)]])
    return root
