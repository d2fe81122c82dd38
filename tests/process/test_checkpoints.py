"""Checkpoints: whole or not there, of their owner alone, and unreadable to others."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securefed.errors import DataError
from securefed.files import StorageError, write_atomically
from securefed.process.checkpoints import (
    KEPT,
    Checkpoint,
    CheckpointStore,
    kept_rounds,
    remove_folder,
)

KEY = bytes(range(32))


def store(folder: Path, key: bytes = KEY, party: str = "bank", run: str = "r") -> CheckpointStore:
    return CheckpointStore(folder / "checkpoints", key, party=party, run=run)


def some(value: float) -> Checkpoint:
    return Checkpoint(
        {"parameters": np.full(4, value), "round": np.array(3)}, {"instance": "ab", "done": False}
    )


def test_what_is_written_is_read(tmp_path: Path) -> None:
    kept = store(tmp_path)
    assert kept.rounds() == [] and not kept.aligned
    kept.write_alignment(Checkpoint({"rows": np.arange(5)}, {"rows": 5, "instance": "ab"}))
    kept.write(1, some(1.5))
    assert kept.aligned and kept.rounds() == [1]
    found = store(tmp_path).read(1)
    assert np.array_equal(found.arrays["parameters"], np.full(4, 1.5))
    assert found.meta == {"instance": "ab", "done": False}
    assert np.array_equal(kept.read_alignment().arrays["rows"], np.arange(5))


def test_arrays_keep_their_types_and_shapes(tmp_path: Path) -> None:
    arrays: dict[str, np.ndarray[Any, Any]] = {
        "transposed": np.arange(6.0).reshape(2, 3).T,
        "none": np.zeros((0, 3)),
        "flag": np.array(True),
        "words": np.array(["a", "bcd"]),
        "shares": np.array([2**64 - 1], dtype=np.uint64),
        "last": np.zeros(0, np.int8),
    }
    kept = store(tmp_path)
    kept.write(1, Checkpoint(arrays, {}))
    found = kept.read(1).arrays
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype and found[name].shape == array.shape
        assert np.array_equal(found[name], array) and found[name].flags.writeable
    for odd in (np.array([None]), np.zeros(1, dtype=[("a", "f8")])):
        with pytest.raises(TypeError, match="odd"):
            kept.write(2, Checkpoint({"odd": odd}, {}))
    assert kept.rounds() == [1]


def test_the_last_rounds_are_kept_and_going_back_drops_what_came_after(tmp_path: Path) -> None:
    kept = store(tmp_path)
    for number in range(1, 8):
        kept.write(number, some(number))
    assert kept.rounds() == list(range(8 - KEPT, 8)) and KEPT >= 2
    kept.write(6, some(66))
    assert kept.rounds() == [5, 6]
    assert kept.read(6).arrays["parameters"][0] == 66


def test_parties_that_are_apart_have_a_round_in_common(tmp_path: Path) -> None:
    """Kept as they are written, one round after the other; at most twice as far back as they are apart."""
    kept: set[int] = set()
    history = []
    for number in range(1, 400):
        kept = kept_rounds({*kept, number}, lockstep=False)
        assert len(kept) < 60
        history.append({0, *kept})
    for behind in range(0, 399, 7):
        for ahead in range(behind, 399, 5):
            common = history[behind] & history[ahead]
            assert max(common) >= behind + 1 - 2 * (ahead - behind)
    store_ = CheckpointStore(tmp_path / "checkpoints", KEY, party="a", run="r", lockstep=False)
    for number in range(1, 40):
        store_.write(number, some(number))
    assert set(store_.rounds()) == history[38] - {0}


@pytest.mark.parametrize("each", [13, 20, 27])
def test_nobody_goes_back_behind_an_evaluation_that_all_have_stored(each: int) -> None:
    """A party is killed some rounds after it; the label party and the helper go on until the next one."""
    questions = range(each, 6 * each, each)
    stores, kept = [set[int]()], {0}
    for number in range(1, 6 * each):
        stores.append(kept)
        kept = kept_rounds({*kept, number}, lockstep=False, questions=questions)
    stores.append(kept)
    for question in questions[:-1]:
        for lag in range(each):
            common = stores[question + lag + 1] & stores[question + each + 1]
            assert max(common) >= question


def test_a_new_alignment_is_a_new_beginning(tmp_path: Path) -> None:
    kept = store(tmp_path)
    kept.write(4, some(1))
    kept.write_alignment(some(0))
    assert kept.rounds() == []


def test_a_checkpoint_of_another_beginning_is_refused(tmp_path: Path) -> None:
    kept = store(tmp_path)
    kept.write_alignment(Checkpoint({"rows": np.arange(5)}, {"rows": 5, "instance": "ab"}))
    kept.write(1, some(1.5))
    file = tmp_path / "checkpoints" / "round-1.sfc"
    before = file.read_bytes()
    kept.write_alignment(Checkpoint({"rows": np.arange(5)}, {"rows": 5, "instance": "cd"}))
    file.write_bytes(before)
    with pytest.raises(DataError, match=r"round-1\.sfc: from an earlier start of the run"):
        kept.read(1)


def test_nothing_of_it_can_be_read_without_the_key(tmp_path: Path) -> None:
    kept = store(tmp_path)
    secret = np.array([3.14159265358979])
    kept.write(1, Checkpoint({"parameters": secret}, {"note": "very secret words"}))
    (path,) = (tmp_path / "checkpoints").iterdir()
    blob = path.read_bytes()
    assert secret.tobytes() not in blob and b"secret words" not in blob and b"parameters" not in blob
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(DataError, match="another checkpoint-key"):
        store(tmp_path, key=bytes(32)).read(1)


@pytest.mark.parametrize("change", [{"party": "shop"}, {"run": "other"}])
def test_a_checkpoint_of_somebody_else_is_refused(tmp_path: Path, change: dict[str, str]) -> None:
    store(tmp_path).write(1, some(1))
    with pytest.raises(DataError, match="not a checkpoint of"):
        store(tmp_path, **change).read(1)  # type: ignore[arg-type]


def test_a_checkpoint_of_another_round_under_this_rounds_name_is_refused(tmp_path: Path) -> None:
    kept = store(tmp_path)
    kept.write(1, some(1))
    folder = tmp_path / "checkpoints"
    (folder / "round-2.sfc").write_bytes((folder / "round-1.sfc").read_bytes())
    with pytest.raises(DataError, match="not a checkpoint"):
        kept.read(2)


def test_damage_anywhere_is_found(tmp_path: Path) -> None:
    kept = store(tmp_path)
    kept.write(1, some(1))
    path = tmp_path / "checkpoints" / "round-1.sfc"
    whole = path.read_bytes()
    for place in [0, 5, 20, len(whole) // 2, len(whole) - 1]:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(DataError):
            kept.read(1)
    for size in [0, 3, 40, len(whole) - 1]:
        path.write_bytes(whole[:size])
        with pytest.raises(DataError):
            kept.read(1)


def test_a_full_disk_is_one_line_and_the_old_file_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="No space left on device; free some space") as caught:
        write_atomically(path, b"new and longer")
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path], "nothing half-written stays behind"


def test_files_that_are_not_checkpoints_are_left_alone(tmp_path: Path) -> None:
    kept = store(tmp_path)
    kept.write(1, some(1))
    (tmp_path / "checkpoints" / "round-x.sfc").write_text("mine")
    (tmp_path / "checkpoints" / ".round-2.sfc.0011").write_text("half")
    assert kept.rounds() == [1]


def test_a_removal_that_is_interrupted_leaves_no_run_that_could_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlink, gone = Path.unlink, []

    def until(most: int) -> None:
        gone.clear()

        def some(path: Path, *given: bool, **named: bool) -> None:
            if len(gone) == most:
                raise KeyboardInterrupt
            gone.append(path)
            unlink(path, *given, **named)

        monkeypatch.setattr(Path, "unlink", some)

    for remove in (CheckpointStore.clear, lambda kept: remove_folder(kept._folder)):
        for most in (1, 2):
            kept = store(tmp_path)
            monkeypatch.setattr(Path, "unlink", unlink)
            kept.write_alignment(some(0))
            kept.write(1, some(1))
            kept.write(2, some(2))
            until(most)
            with pytest.raises(KeyboardInterrupt):
                remove(kept)
            assert not kept.aligned
