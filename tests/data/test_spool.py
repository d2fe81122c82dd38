"""Records that need not fit into memory: sorted, shuffled and searched as if they did; and an intersection
whose memory hardly grows with the ids.
"""

from __future__ import annotations

import errno
import hashlib
import os
import tracemalloc
from collections.abc import Iterable, Sequence

import numpy as np
import pytest

from securefed.data import curve, psi, psi_local
from securefed.errors import DataError
from tests.data.test_psi import align


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psi_local, "BUCKET", 16)
    monkeypatch.setattr(psi_local, "_BLOCK", 30)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("rows", [10, 100])
def test_a_table_is_in_memory_or_in_a_file(rows: int) -> None:
    table = psi_local.records(rows, 2)
    table[:] = np.arange(2 * rows).reshape(rows, 2)
    assert isinstance(table, np.memmap) == (rows > 16)
    np.testing.assert_array_equal(table[5:9], np.arange(10, 18).reshape(4, 2))


def test_a_full_disk_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without room set aside, the first page that does not fit kills the process."""

    def full(file: int, start: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        psi_local.records(psi_local.BUCKET + 1, 2)


@pytest.mark.usefixtures("small")
def test_tables_hold_what_belongs_to_them() -> None:
    rows = np.frombuffer(os.urandom(64 * 100), dtype=np.uint64).reshape(100, 8)
    tables = psi_local.by_table(rows, 70)
    assert len(tables) == psi_local.table_count(70) == 5
    together = np.concatenate([each[np.argsort(rows[each, 2])] for each in tables])
    np.testing.assert_array_equal(together, np.argsort(rows[:, 2]))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("distance", [0, 1, 30, 90])
def test_what_came_twice_is_found_wherever_it_was(distance: int) -> None:
    rows = np.frombuffer(os.urandom(16 * 100), dtype=np.uint64).reshape(100, 2).copy()
    rows[distance] = rows[0]
    order, twice = psi_local.repeated(rows)
    assert twice == ([distance] if distance else [])
    assert [rows[row].tobytes() for row in order] == sorted(row.tobytes() for row in rows)


@pytest.mark.usefixtures("small")
def test_ids_are_sorted_by_their_hash_and_shuffled_by_nothing() -> None:
    ids = [f"client-{i}" for i in range(200)]
    digests = [hashlib.sha256(text.encode()).digest() for text in ids]
    kept, rows = psi_local.sorted_ids(ids, "bank", "exact")
    assert rows.tolist() == sorted(range(200), key=digests.__getitem__)
    assert kept.tobytes() == b"".join(digests)
    orders = [psi_local.shuffled(200) for _ in range(2)]
    assert all(sorted(each) == list(range(200)) for each in orders)
    places = np.stack(orders).astype(np.float64)
    assert abs(np.corrcoef([*places, np.arange(200.0)])[np.triu_indices(3, 1)]).max() < 0.4  # 6 deviations


def test_repeated_ids_are_named_by_what_they_are() -> None:
    with pytest.raises(DataError, match=r"bank: 2 ids occur more than once \('[72]', '[72]'\)"):
        psi_local.sorted_ids([7, 1, "7", 2, " 2", 7.0], "bank", "exact")


def test_tables_have_room_for_ten_deviations() -> None:
    """The sum of the binomial tails above the room, by Chernoff's bound, is below 2^-60 at any size."""
    for count in (65_537, 100_000, 1_000_000, psi.MAX_IDS):
        mean = count / psi_local.table_count(count)
        more = psi_local.capacity(count) / mean
        log_tail = -mean * (more * np.log(more) - more + 1) / np.log(2) + np.log2(
            psi_local.table_count(count)
        )
        assert log_tail < -60
        assert more < 1.06


def test_memory_hardly_grows_with_the_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """With points that cost nothing: what the two parties hold together, and the tables on their way, which
    in one process lie in memory.
    """

    def hashed(messages: Sequence[bytes], tag: bytes) -> list[bytes]:
        return [hashlib.sha256(message).digest()[:31] + b"\1" for message in messages]

    def multiply(scalar: bytes, points: Iterable[bytes]) -> list[bytes]:
        return list(points)

    monkeypatch.setattr(curve, "hash_to_curve", hashed)
    monkeypatch.setattr(curve, "multiply", multiply)
    monkeypatch.setattr(psi_local, "BUCKET", 256)
    monkeypatch.setattr(psi, "BLOCK", 128)
    monkeypatch.setattr(psi_local, "_BLOCK", 128)
    peaks = []
    for count in (1_024, 1_024, 4_096):  # the first one also imports
        ids = {"a": list(range(count)), "b": list(range(count // 2, count + count // 2))}
        tracemalloc.start()
        try:
            assert len(align(ids).outcomes["a"]) == count // 2
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert 0 < (peaks[2] - peaks[1]) / (4_096 - 1_024) < 160
