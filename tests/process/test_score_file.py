"""The score ledger on disk: it survives, it is whole or not there, and it belongs to a key."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import warnings
from contextlib import closing
from multiprocessing import get_context
from pathlib import Path

import pytest

from securefed.errors import DataError, SecurefedError
from securefed.protocols.scoring.score_ledger import ScoreGuard, ScoreRefusal

KEY = bytes(range(32))


def ledger(path: Path, key: bytes = KEY) -> ScoreGuard:
    return ScoreGuard(key, party="shop", path=path)


def ask(held: ScoreGuard, question: bytes) -> int:
    return held.book([b"ann", b"bob"], question, 10, 50.0).scorings


def test_a_restart_forgets_nothing(tmp_path: Path) -> None:
    path = tmp_path / "score-ledger.bin"
    assert ask(ledger(path), b"1") == 1
    assert ask(ledger(path), b"1") == 1
    assert ask(ledger(path), b"2") == 2
    with pytest.raises(ScoreRefusal, match="scored 3 times"):
        ask(ledger(path), b"3")
    assert path.stat().st_mode & 0o777 == 0o600
    assert b"ann" not in path.read_bytes()


def test_two_runs_of_a_party_see_each_other(tmp_path: Path) -> None:
    path = tmp_path / "score-ledger.bin"
    one, other = ledger(path), ledger(path)
    assert ask(one, b"1") == 1
    assert ask(other, b"2") == 2
    with pytest.raises(ScoreRefusal):
        ask(one, b"3")


def tried(path: Path, question: int) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return str(ask(ledger(path), b"%d" % question))
        except ScoreRefusal:
            return "refused"


def test_nothing_comes_between_reading_and_booking(tmp_path: Path) -> None:
    """Processes that ask at once: as many are answered as are allowed."""
    path = tmp_path / "score-ledger.bin"
    with get_context("fork").Pool(4) as pool:
        said = pool.starmap(tried, [(path, question) for question in range(8)], chunksize=2)
    assert sorted(said) == ["1", "2", *["refused"] * 6]
    assert ledger(path).total_bits == 2 * 2 * 16


def die_before_the_commit(path: Path) -> None:
    """Book a question as the ledger does, and die with the transaction open and written out."""
    held = ledger(path)
    with held._opened() as database:
        database.execute("PRAGMA cache_spill = 1")
        database.execute("PRAGMA cache_size = 1")
        held._ask(database, [b"%d" % number for number in range(20_000)])
        held._write(database, held._name(b"2", b"", b""), 16)
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_booking_that_was_cut_off_never_was(tmp_path: Path) -> None:
    path = tmp_path / "score-ledger.bin"
    ask(ledger(path), b"1")
    whole = path.stat().st_size
    process = get_context("fork").Process(target=die_before_the_commit, args=(path,))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert path.stat().st_size > whole and path.with_name(f"{path.name}-journal").exists()
    assert ledger(path).total_bits == 2 * 16
    assert ask(ledger(path), b"2") == 2


def test_a_file_that_was_never_written_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "score-ledger.bin"
    path.touch()
    assert ask(ledger(path), b"1") == 1
    assert ask(ledger(path), b"2") == 2


@pytest.mark.parametrize("left", ["a record less", "nothing", "no file"])
def test_a_ledger_that_lost_records_is_refused_with_the_remedy(tmp_path: Path, left: str) -> None:
    path = tmp_path / "score-ledger.bin"
    ask(ledger(path), b"1")
    short = path.read_bytes()
    ask(ledger(path), b"2")
    if left == "no file":
        path.unlink()
    else:
        path.write_bytes(short if left == "a record less" else b"")
    with pytest.raises(DataError, match=r"put the file back from a backup\. Only if .* move it"):
        ask(ledger(path), b"3")
    path.with_suffix(".mark").unlink()
    assert ask(ledger(path), b"3") >= 1


def test_another_key_or_another_file_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "score-ledger.bin"
    ask(ledger(path), b"1")
    with pytest.raises(DataError, match=r"score-ledger\.bin has a damaged mark"):
        ask(ledger(path, bytes(32)), b"1")
    path.with_suffix(".mark").unlink()
    with pytest.raises(DataError, match=r"score-ledger\.bin is damaged, or under another"):
        ask(ledger(path, bytes(32)), b"1")
    path.write_bytes(b"something else altogether, of some length")
    with pytest.raises(DataError, match="no score ledger"):
        ask(ledger(path), b"1")


def test_every_damaged_byte_of_a_record_is_found(tmp_path: Path) -> None:
    """Everybody is found again, or the file is refused, whatever byte is another and wherever it is cut."""
    path = tmp_path / "score-ledger.bin"
    ask(ledger(path), b"1")
    ask(ledger(path), b"2")
    data, found = path.read_bytes(), 0
    with closing(sqlite3.connect(path)) as database:
        records = [part for row in database.execute("SELECT * FROM told") for part in row[:4]]
    for part in records:
        place = data.index(part)
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(DataError, match="put the file back"):
            ask(ledger(path), b"1")
    for place in range(0, len(data), 97):
        for changed in (data[:place], data[:place] + bytes([data[place] ^ 255]) + data[place + 1 :]):
            path.write_bytes(changed)
            try:
                assert ledger(path).total_bits == 4 * 16 and ask(ledger(path), b"2") == 2
            except SecurefedError:
                found += 1
    assert found > len(data) / 97


def test_another_thread_that_waits_does_not_end_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "score-ledger.bin"
    first, second = (ScoreGuard(bytes(32), path=path) for _ in range(2))
    assert first.total_bits == 0
    code = (
        "import sqlite3, sys; sqlite3.connect(sys.argv[1], timeout=0, isolation_level=None)"
        ".execute('BEGIN IMMEDIATE')"
    )
    waiting = threading.Thread(target=lambda: second.total_bits)
    with first._opened():
        waiting.start()
        waiting.join(0.5)
        other = subprocess.run(
            [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False
        )
    waiting.join()
    assert "database is locked" in other.stderr
