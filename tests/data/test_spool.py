"""Records that need not fit into memory: sorted, shuffled and searched as if they did; and an intersection
whose memory hardly grows with the ids.
"""

from __future__ import annotations

import hashlib
import os
import tracemalloc
from collections.abc import Iterable, Sequence

import numpy as np
import pytest

from securefed.data import curve, psi, psi_local
from securefed.data.psi_local import Buckets, RepeatCheck
from securefed.errors import DataError
from tests.data.test_psi import align


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psi_local, "BUCKET", 16)


@pytest.mark.usefixtures("small")
def test_rows_come_back_in_memory_and_from_the_file() -> None:
    rows = np.arange(90, dtype=np.uint64).reshape(30, 3)
    kept = psi_local.spool(3)
    for start in range(0, 30, 7):
        kept.append(rows[start : start + 7])
        np.testing.assert_array_equal(kept.read(0, 30), rows[: start + 7])
    np.testing.assert_array_equal(kept.read(5, 9), rows[5:9])
    assert [len(block) for block in kept.blocks(8)] == [8, 8, 8, 6]


@pytest.mark.usefixtures("small")
def test_buckets_hold_what_was_dealt_to_them() -> None:
    rows = np.frombuffer(os.urandom(8 * 200), dtype=np.uint64).reshape(100, 2)
    dealt = Buckets(2, 5)
    for start in range(0, 100, 9):
        part = rows[start : start + 9]
        dealt.add(part, psi_local.bucket_of(part[:, 0], 5))
    together = np.concatenate([each[np.argsort(each[:, 0])] for each in dealt])
    np.testing.assert_array_equal(together, rows[np.argsort(rows[:, 0])])


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("distance", [0, 1, 90])
def test_what_came_twice_is_found_wherever_it_was(distance: int) -> None:
    rows = np.frombuffer(os.urandom(16 * 100), dtype=np.uint64).reshape(100, 2).copy()
    rows[distance] = rows[0]
    seen = RepeatCheck(100)
    for start in range(0, 100, 30):
        seen.add(rows[start : start + 30])
    assert seen.found() == (distance > 0)


@pytest.mark.usefixtures("small")
def test_ids_are_sorted_by_their_hash_and_shuffled_by_nothing() -> None:
    ids = [f"client-{i}" for i in range(200)]
    digests = [hashlib.sha256(text.encode()).digest() for text in ids]
    in_order, rows = psi_local.sorted_ids(ids, "bank", "exact")
    assert rows.tolist() == sorted(range(200), key=digests.__getitem__)
    assert in_order.read(0, 200).astype(">u8").tobytes() == b"".join(sorted(digests))
    one, other = (psi_local.shuffled(in_order).read(0, 200) for _ in range(2))
    for each in (one, other):
        np.testing.assert_array_equal(each[np.argsort(each[:, 4]), :4], in_order.read(0, 200))
    places = np.stack([one[:, 4], other[:, 4]]).astype(np.float64)
    assert abs(np.corrcoef([*places, np.arange(200.0)])[np.triu_indices(3, 1)]).max() < 0.4  # 6 deviations


def test_repeated_ids_are_named_by_what_they_are() -> None:
    with pytest.raises(DataError, match=r"bank: 2 ids occur more than once \('[72]', '[72]'\)"):
        psi_local.sorted_ids([7, 1, "7", 2, " 2", 7.0], "bank", "exact")


def test_tables_have_room_for_ten_deviations() -> None:
    """The sum of the binomial tails above the room, by Chernoff's bound, is below 2^-60 at any size."""
    for count in (65_537, 100_000, 1_000_000, psi.MAX_IDS):
        mean = count / psi_local.bucket_count(count)
        more = psi_local.capacity(count) / mean
        log_tail = -mean * (more * np.log(more) - more + 1) / np.log(2) + np.log2(
            psi_local.bucket_count(count)
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
    for count in (1_024, 4_096):
        ids = {"a": list(range(count)), "b": list(range(count // 2, count + count // 2))}
        tracemalloc.start()
        try:
            assert len(align(ids).outcomes["a"]) == count // 2
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert (peaks[1] - peaks[0]) / (4_096 - 1_024) < 160
