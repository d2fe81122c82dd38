"""MNIST from IDX and NPZ files, cut into halves, with each kind of defect."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from research.data.mnist import load_mnist
from securefed.errors import DataError, SettingError
from tests.data.layouts import digits, idx, mnist_idx


@pytest.mark.parametrize("zipped", [False, True])
def test_idx_files_have_their_own_test_rows(data: Path, zipped: bool) -> None:
    mnist_idx(data, zipped=zipped)
    train, test = load_mnist()
    assert (train.rows, test.rows) == (12, 6)
    images, labels = digits(60, 60)
    rows = np.flatnonzero(np.isin(labels, (3, 8)))
    np.testing.assert_array_equal(train.labels, labels[rows] == 8)
    np.testing.assert_array_equal(train.ids, rows)
    np.testing.assert_allclose(train.parts["A"].reshape(-1, 28, 14), images[rows][:, :, :14] / 255)
    np.testing.assert_allclose(train.parts["B"].reshape(-1, 28, 14), images[rows][:, :, 14:] / 255)
    assert train.columns["A"][15] == "pixel_1_1"
    assert train.columns["B"][15] == "pixel_1_15"


def test_a_folder_can_be_given_and_names_may_have_dots(data: Path, tmp_path: Path) -> None:
    mnist_idx(data)
    for path in list(data.iterdir()):
        path.rename(path.with_name(path.name.replace("-idx", ".idx")))
    assert load_mnist(data, digits=(0, 1))[0].rows == 12
    with pytest.raises(DataError, match="no train-images-idx3-ubyte in"):
        load_mnist(tmp_path)


def write_npz(path: Path, count: int = 200) -> Path:
    images, labels = digits(count)
    np.savez_compressed(path, images=images, labels=labels)
    return path


def test_an_npz_file_is_divided_by_seed(data: Path) -> None:
    write_npz(data / "mnist10k.npz")
    train, test = load_mnist(seed=1)
    assert (train.rows, test.rows) == (30, 10)
    assert not set(train.ids) & set(test.ids)
    assert load_mnist(seed=1)[1].ids.tolist() == test.ids.tolist() != load_mnist(seed=2)[1].ids.tolist()


@pytest.mark.parametrize("pair", [(3, 3), (0, 0)])
def test_two_different_digits(pair: tuple[int, int]) -> None:
    with pytest.raises(DataError, match="two different ones"):
        load_mnist(digits=pair)
    with pytest.raises(SettingError, match="digits"):
        load_mnist(digits=(3, 10))


Change = Callable[[bytes], bytes]
IDX_DEFECTS: list[tuple[str, Change, str]] = [
    (
        "train-images-idx3-ubyte",
        lambda b: b[:-1],
        "train-images-idx3-ubyte: .* announced .* the file is cut off",
    ),
    ("train-images-idx3-ubyte", lambda b: b[:10], "not an IDX file of bytes with 3 axes"),
    ("train-images-idx3-ubyte", lambda b: b + b"x", "there is more after them"),
    ("train-images-idx3-ubyte", lambda b: b"\0\0\x0d" + b[3:], "not an IDX file of bytes with 3 axes"),
    ("train-images-idx3-ubyte", lambda b: b[:4] + b"\xff" * 12 + b[16:], "more than MNIST has"),
    ("train-images-idx3-ubyte", lambda b: idx(np.zeros((60, 14, 56))), "MNIST: images of shape"),
    ("train-labels-idx1-ubyte", lambda b: idx(np.zeros(59)), "60 images and 59 labels in the train files"),
    ("train-labels-idx1-ubyte", lambda b: idx(np.full(60, 200)), "a label is 200"),
    ("t10k-labels-idx1-ubyte", lambda b: idx(np.zeros(30)), "does not have both digits 3 and 8"),
    ("t10k-labels-idx1-ubyte", lambda b: b"", "t10k-labels-idx1-ubyte: not an IDX file"),
]


@pytest.mark.parametrize(("name", "change", "message"), IDX_DEFECTS)
def test_each_defect_of_an_idx_file(data: Path, name: str, change: Change, message: str) -> None:
    path = mnist_idx(data) / name
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DataError, match=message) as caught:
        load_mnist()
    assert "\n" not in str(caught.value)


def damage(blob: bytes) -> bytes:
    middle = len(blob) // 2
    return blob[:middle] + bytes([blob[middle] ^ 255]) + blob[middle + 1 :]


@pytest.mark.parametrize("change", [lambda b: b[: len(b) // 2], lambda b: b"not gzip", damage, lambda b: b""])
def test_a_damaged_gzip_file(data: Path, change: Change) -> None:
    path = mnist_idx(data, zipped=True) / "train-images-idx3-ubyte.gz"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DataError, match=r"^train-images-idx3-ubyte.gz: ") as caught:
        load_mnist()
    assert "\n" not in str(caught.value)


def test_a_gzip_file_that_holds_more(data: Path) -> None:
    path = mnist_idx(data, zipped=True) / "train-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()) + bytes(1 << 20)))
    with pytest.raises(DataError, match="there is more after them"):
        load_mnist()


def test_a_missing_idx_file(data: Path) -> None:
    (mnist_idx(data) / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match=r"no t10k-labels-idx1-ubyte \(or .gz\) in"):
        load_mnist()


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": np.zeros((2, 28, 28), np.uint8)}, "mnist.npz: no array labels"),
        ({"x": np.zeros(3)}, "mnist.npz: no array images, labels; images, labels are expected"),
        ({"images": np.zeros((2, 28, 28)), "labels": np.array([3, 8])}, "images are float64"),
        ({"images": np.zeros((2, 28, 28), np.uint8), "labels": np.array([3.0, 8.0])}, "labels float64"),
        ({"images": np.zeros((2, 784), np.uint8), "labels": np.array([3, 8])}, "images of shape"),
        (
            {"images": np.zeros((2, 28, 28), np.uint8), "labels": np.array([-3, 8])},
            "bytes and 0 to 9 are expected",
        ),
        ({"images": np.array([None, {}]), "labels": np.array([3, 8])}, "not an NPZ file that can be read"),
    ],
)
def test_each_defect_of_an_npz_file(data: Path, arrays: dict[str, np.ndarray], message: str) -> None:
    np.savez(data / "mnist.npz", **arrays)
    with pytest.raises(DataError, match=message) as caught:
        load_mnist()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "change", [lambda b: b[: len(b) // 2], lambda b: b"\x93NUMPY", lambda b: b"", damage]
)
def test_a_damaged_npz_file(data: Path, change: Change) -> None:
    path = write_npz(data / "mnist.npz")
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DataError, match=r"^mnist.npz: ") as caught:
        load_mnist()
    assert "\n" not in str(caught.value)


def test_real_digits(real: Path) -> None:
    train, test = load_mnist(real / "mnist10k.npz")
    assert train.rows + test.rows == 1032 + 944
    assert train.parts["A"].max() == 1.0
