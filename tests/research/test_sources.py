"""Where files are looked for, and what is said when they are not there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from research.data import load_breast_hetero, load_credit, load_mimic, load_mnist, load_nus_wide, load_vehicle
from research.data.paired import check_sha256
from research.data.sources import Source, data_folders
from securefed.errors import DataError

THING = Source("Thing", ("thing.csv", "thing.npz"), "https://example.org/thing", {"thing.csv": "abc123"})


def test_the_named_folder_comes_before_the_cache(data: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache" / "securefed"
    cache.mkdir(parents=True)
    assert data_folders() == [data, cache]
    (cache / "thing.csv").touch()
    assert THING.find() == cache / "thing.csv"
    (data / "thing.npz").touch()
    assert THING.find() == data / "thing.npz"


def test_without_a_named_folder_there_is_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SECUREFED_DATA")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert data_folders() == [Path("/home/somebody/.cache/securefed")]
    with pytest.raises(DataError, match="SECUREFED_DATA can name another folder"):
        THING.find()


def test_a_folder_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECUREFED_DATA", "/no/such/folder")
    with pytest.raises(DataError, match=r"^SECUREFED_DATA names /no/such/folder, which is not a folder$"):
        THING.find()


def test_what_is_missing_is_said_in_one_line(data: Path) -> None:
    with pytest.raises(DataError) as caught:
        THING.find()
    text = str(caught.value)
    assert "\n" not in text
    for part in ("no thing.csv or thing.npz in", str(data), "https://example.org/thing", "thing.csv: abc123"):
        assert part in text


@pytest.mark.parametrize(
    ("load", "words"),
    [
        (load_credit, ["UCI_Credit_Card.csv", "archive.ics.uci.edu", "a0f0ab49"]),
        (load_breast_hetero, ["breast_hetero_guest.csv", "FATE", "6b258b15"]),
        (load_vehicle, ["vehicle_scale_hetero_guest.csv", "FATE", "43034770"]),
        (load_mnist, ["mnist.npz", "train-images-idx3-ubyte.gz"]),
        (load_nus_wide, ["NUS_WIDE", "lms.comp.nus.edu.sg"]),
        (load_mimic, ["in-hospital-mortality", "physionet.org", "mimic3-benchmarks"]),
    ],
)
def test_each_loader_says_where_to_get_it(load: Callable[[], object], words: list[str]) -> None:
    with pytest.raises(DataError) as caught:
        load()
    text = str(caught.value)
    assert "\n" not in text
    assert all(word in text for word in words)


@pytest.mark.parametrize("load", [load_credit, load_mnist, load_nus_wide, load_mimic])
def test_a_path_that_does_not_exist(load: Callable[[str], object]) -> None:
    with pytest.raises(DataError, match="/no/such/file does not exist"):
        load("/no/such/file")


def test_a_checksum(data: Path) -> None:
    path = data / "thing.csv"
    path.write_text("abc")
    check_sha256(path, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad")
    with pytest.raises(
        DataError, match=r"^thing.csv: sha256 ba7816bf.*, the published file has 0000; get it again"
    ):
        check_sha256(path, "0000")
