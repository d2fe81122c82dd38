"""MNIST digits cut in two: each party sees one half of every image (the paper's MNIST-CNN).

LeCun, Cortes and Burges, CC BY-SA 3.0. The four original files (IDX, gzipped or not) give the published
training and test rows; an NPZ file with `images` and `labels` is divided by seed. The task is binary: the
authors' own script tells 3 from 8.
"""

from __future__ import annotations

import gzip
import zlib
from os import PathLike
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from research.data.arrays import read_npz
from research.data.sources import Source, data_folders
from research.data.vertical import VerticalData
from securefed.declare import check_integer
from securefed.errors import DataError

MNIST = Source(
    "MNIST",
    ("mnist.npz", "mnist10k.npz"),
    "https://ossci-datasets.s3.amazonaws.com/mnist/ (train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz,"
    " t10k-images-idx3-ubyte.gz, t10k-labels-idx1-ubyte.gz; or an NPZ file with images and labels)",
)
_SIDE, _HALF = 28, 14
_PARTS = ("train", "t10k")

Bytes = NDArray[np.uint8]


def load_mnist(
    path: str | PathLike[str] | None = None,
    *,
    digits: tuple[int, int] = (3, 8),
    seed: int = 0,
    test: float = 0.25,
) -> tuple[VerticalData, VerticalData]:
    """Training and test rows of two digits, label 1 for the second. Each party has 392 columns from 0 to 1
    (reshape to (28, 14)): A, who has the labels, the left half, B the right.

    `path`: a folder with the IDX files, or an NPZ file, of which `test` is set apart.
    """
    for digit in digits:
        check_integer("digits", digit, least=0, most=9)
    if digits[0] == digits[1]:
        raise DataError(f"digits: {digits} given, two different ones are allowed")
    folder = _idx_folder(path)
    if folder is not None:
        train, out = (_divide(*_read_idx_pair(folder, part), digits) for part in _PARTS)
        return train, out
    return _divide(*_read_npz(MNIST.find(path)), digits).split(test, seed)


def _idx_folder(path: str | PathLike[str] | None) -> Path | None:
    folders = data_folders() if path is None else [Path(path)]
    present = [f for f in folders if f.is_dir() and any(f.glob("train-images?idx3-ubyte*"))]
    if path is not None and folders[0].is_dir() and not present:
        raise DataError(f"MNIST: no train-images-idx3-ubyte in {path}; get it from {MNIST.where}")
    return present[0] if present else None


def _divide(images: Bytes, labels: Bytes, digits: tuple[int, int]) -> VerticalData:
    if images.ndim != 3 or images.shape[1:] != (_SIDE, _SIDE) or labels.shape != (len(images),):
        raise DataError(f"MNIST: images of shape {images.shape} and labels of shape {labels.shape}")
    if labels.size and labels.max() > 9:
        raise DataError(f"MNIST: a label is {labels.max()}, 0 to 9 is allowed")
    rows = np.flatnonzero(np.isin(labels, digits))
    if len(np.unique(labels[rows])) < 2:
        raise DataError(f"MNIST: the file does not have both digits {digits[0]} and {digits[1]}")
    chosen = images[rows].astype(np.float64) / 255.0
    halves = {"B": chosen[:, :, _HALF:], "A": chosen[:, :, :_HALF]}
    columns = {
        name: tuple(
            f"pixel_{r}_{c + (_HALF if name == 'B' else 0)}" for r in range(_SIDE) for c in range(_HALF)
        )
        for name in halves
    }
    parts = {name: half.reshape(len(rows), -1) for name, half in halves.items()}
    return VerticalData("MNIST", parts, columns, (labels[rows] == digits[1]).astype(np.int64), "A", rows)


def _read_idx_pair(folder: Path, part: str) -> tuple[Bytes, Bytes]:
    images = _read_idx(_idx_file(folder, f"{part}-images", 3), 3)
    labels = _read_idx(_idx_file(folder, f"{part}-labels", 1), 1)
    if len(images) != len(labels):
        raise DataError(f"MNIST: {len(images)} images and {len(labels)} labels in the {part} files")
    return images, labels


def _idx_file(folder: Path, stem: str, axes: int) -> Path:
    names = [f"{stem}{dash}idx{axes}-ubyte{end}" for dash in "-." for end in ("", ".gz")]
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise DataError(f"MNIST: no {names[0]} (or .gz) in {folder}; get it from {MNIST.where}")


def _read_idx(path: Path, axes: int) -> Bytes:
    """An IDX file: 0, 0, 8 (bytes), the number of axes, their lengths as big-endian 32-bit numbers, the
    bytes.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            head = stream.read(4 + 4 * axes)
            if head[:4] != bytes([0, 0, 8, axes]) or len(head) < 4 + 4 * axes:
                raise DataError(f"{path.name}: not an IDX file of bytes with {axes} axes")
            shape = tuple(int.from_bytes(head[4 + 4 * i : 8 + 4 * i], "big") for i in range(axes))
            size = int(np.prod(shape, dtype=object))
            if size > 1 << 31:
                raise DataError(f"{path.name}: {size} bytes announced, more than MNIST has")
            body = stream.read(size + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path.name}: cannot be read ({error}); the file may be cut off") from None
    if len(body) != size:
        word = "the file is cut off" if len(body) < size else "there is more after them"
        raise DataError(f"{path.name}: {size} bytes announced for shape {shape}, {word}")
    return np.frombuffer(body, dtype=np.uint8).reshape(shape)


def _read_npz(path: Path) -> tuple[Bytes, Bytes]:
    arrays = read_npz(path, ("images", "labels"))
    images, labels = arrays["images"], arrays["labels"]
    if images.dtype != np.uint8 or labels.dtype.kind not in "iu" or not np.isin(labels, np.arange(10)).all():
        raise DataError(
            f"{path.name}: images are {images.dtype} and labels {labels.dtype}; bytes and 0 to 9 are expected"
        )
    return images.astype(np.uint8), labels.astype(np.uint8)
