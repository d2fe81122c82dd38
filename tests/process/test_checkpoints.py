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
    HEAD,
    KEPT,
    LEAST_GROWTH,
    POINTS,
    Checkpoint,
    CheckpointStore,
    Record,
    kept_rounds,
)

KEY = bytes(range(32))


def store(folder: Path, key: bytes = KEY, party: str = "bank", run: str = "r") -> CheckpointStore:
    return CheckpointStore(folder / "checkpoints.sfc", key, party=party, run=run)


def begun(folder: Path) -> CheckpointStore:
    """A store with its alignment."""
    made = store(folder)
    made.write_alignment(Checkpoint({"rows": np.arange(5)}, {"rows": 5, "instance": "ab"}))
    return made


def some(value: float) -> Checkpoint:
    return Checkpoint({"parameters": np.full(4, value), "round": np.array(3)}, {"done": False})


def lasting(number: int) -> Checkpoint:
    """A checkpoint of some thousand bytes with the point of its round."""
    return Checkpoint({"parameters": np.full(999, number)}, {POINTS: [[number - 1, 0.5 * number]]})


def test_what_is_written_is_read(tmp_path: Path) -> None:
    kept = store(tmp_path)
    assert kept.rounds() == [] and not kept.aligned
    kept = begun(tmp_path)
    kept.write(1, some(1.5))
    assert kept.aligned and kept.rounds() == [1]
    found = store(tmp_path).read(1)
    assert np.array_equal(found.arrays["parameters"], np.full(4, 1.5))
    assert found.meta == {"done": False, POINTS: []}
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
    kept = begun(tmp_path)
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
    kept = begun(tmp_path)
    for number in range(1, 8):
        kept.write(number, some(number))
    assert kept.rounds() == list(range(8 - KEPT, 8)) and KEPT >= 2
    kept.write(6, some(66))
    assert kept.rounds() == [4, 5, 6]
    assert kept.read(6).arrays["parameters"][0] == 66


@pytest.mark.parametrize(("back", "left"), [(3, [1, 2, 3]), (2, [1, 2]), (0, [])])
def test_a_run_that_went_back_is_killed_before_its_next_round(
    tmp_path: Path, back: int, left: list[int]
) -> None:
    """The others may have made the next round anew by then, with other shares than this party's old ones."""
    kept = begun(tmp_path)
    for number in (1, 2, 3):
        kept.write(number, lasting(number))
    store(tmp_path).go_back(back)
    found = store(tmp_path)
    assert found.rounds() == left and found.set_aside_damage() is None
    assert all(found.read(number).arrays["parameters"][0] == number for number in left)
    found.write(back + 1, lasting(back + 1))
    assert found.rounds() == [*left, back + 1][-KEPT:]
    assert found.read_alignment().meta["instance"] == "ab"


def test_damage_does_not_bring_back_the_rounds_that_a_run_went_back_from(tmp_path: Path) -> None:
    kept = begun(tmp_path)
    for number in (1, 2, 3, 4):
        kept.write(number, lasting(number))
    kept.go_back(3)
    path = tmp_path / "checkpoints.sfc"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    found = store(tmp_path)
    assert found.set_aside_damage() is not None
    assert found.rounds() == [1, 2]


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
    store_ = CheckpointStore(tmp_path / "checkpoints.sfc", KEY, party="a", run="r", lockstep=False)
    store_.write_alignment(some(0))
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
    kept = begun(tmp_path)
    kept.write(4, some(1))
    begun(tmp_path)
    assert kept.rounds() == []


def test_the_file_stays_small_and_keeps_what_each_round_took(tmp_path: Path) -> None:
    """A run that goes back writes some rounds twice. The second time counts."""
    kept, sizes = begun(tmp_path), []
    for number in (*range(1, 150), *range(148, 300)):
        kept.write(number, lasting(number))
        sizes.append((tmp_path / "checkpoints.sfc").stat().st_size)
    assert max(sizes) < 3 * LEAST_GROWTH and sizes != sorted(sizes)
    assert kept.rounds() == [297, 298, 299]
    found = store(tmp_path).read(298)
    assert found.arrays["parameters"][0] == 298
    assert found.meta[POINTS] == [[number - 1, 0.5 * number] for number in range(1, 299)]
    assert kept.read_alignment().meta["instance"] == "ab"


@pytest.mark.parametrize("lockstep", [True, False])
def test_a_kill_in_any_write_leaves_the_rounds_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lockstep: bool
) -> None:
    """A kill may leave any part of the record that is appended, or come while the file is replaced."""
    path = tmp_path / "checkpoints.sfc"
    kept = CheckpointStore(path, KEY, party="bank", run="r", lockstep=lockstep)
    kept.write_alignment(some(0))
    kept.write(1, some(1))
    before = path.read_bytes()
    kept.write(2, some(2))
    whole = path.read_bytes()
    for size in range(len(before), len(whole), 7):
        path.write_bytes(whole[:size])
        again = store(tmp_path)
        damaged = again.set_aside_damage()
        assert (damaged is None) == (size == len(before))
        assert again.rounds() == [1] and again.read(1).arrays["parameters"][0] == 1
        again.write(2, some(22))
        assert again.rounds() == [1, 2] and again.read(2).arrays["parameters"][0] == 22

    def killed(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", killed)
    again = store(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        for number in range(3, 100):
            again.write(number, lasting(number))
    assert store(tmp_path).rounds() == [number - 2, number - 1, number]


def test_a_checkpoint_of_another_beginning_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "checkpoints.sfc"
    kept = begun(tmp_path)
    first = len(path.read_bytes())
    kept.write(1, some(1.5))
    record = path.read_bytes()[first:]
    begun(tmp_path)
    with path.open("ab") as file:
        file.write(record)
    with pytest.raises(DataError, match=r"checkpoints\.sfc: round 1 is damaged"):
        store(tmp_path).read(1)


def test_nothing_of_it_can_be_read_without_the_key(tmp_path: Path) -> None:
    kept = begun(tmp_path)
    secret = np.array([3.14159265358979])
    kept.write(1, Checkpoint({"parameters": secret}, {"note": "very secret words"}))
    (path,) = tmp_path.iterdir()
    blob = path.read_bytes()
    assert secret.tobytes() not in blob and b"secret words" not in blob and b"parameters" not in blob
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(DataError, match="another checkpoint-key"):
        store(tmp_path, key=bytes(32)).read(1)


@pytest.mark.parametrize("change", [{"party": "shop"}, {"run": "other"}])
def test_a_checkpoint_of_somebody_else_is_refused(tmp_path: Path, change: dict[str, str]) -> None:
    begun(tmp_path).write(1, some(1))
    with pytest.raises(DataError, match="not checkpoints of"):
        store(tmp_path, **change).read(1)  # type: ignore[arg-type]


def test_a_checkpoint_under_another_rounds_name_is_refused(tmp_path: Path) -> None:
    kept = begun(tmp_path)
    kept.write(1, some(1))
    path = tmp_path / "checkpoints.sfc"
    last = kept._read()[-1]
    assert isinstance(last, Record) and path.read_bytes().endswith(last.data)
    path.write_bytes(path.read_bytes()[: -len(last.data)] + HEAD.pack(len(last.data) - HEAD.size, 2, False))
    with path.open("ab") as file:
        file.write(last.data[HEAD.size :])
    assert kept.rounds() == [2]
    with pytest.raises(DataError, match="round 2 is damaged"):
        kept.read(2)


def test_damage_anywhere_is_found(tmp_path: Path) -> None:
    kept = begun(tmp_path)
    kept.write(1, some(1))
    path = tmp_path / "checkpoints.sfc"
    whole = path.read_bytes()
    for place in range(0, len(whole), 5):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(DataError):
            kept.read(1)
    for size in [0, 3, 40, 200, len(whole) - 1]:
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
