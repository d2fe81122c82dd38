"""The score ledger on disk: it survives, it is whole or not there, and it belongs to a key."""

from __future__ import annotations

import warnings
from multiprocessing import get_context
from pathlib import Path

import pytest

from securefed.errors import DataError
from securefed.process.model_files import ScoreFile
from securefed.protocols.scoring.score_ledger import ScoreLedger, ScoreRefusal

KEY = bytes(range(32))


def ledger(path: Path, key: bytes = KEY) -> ScoreLedger:
    return ScoreLedger(key, store=ScoreFile(path, key))


def ask(held: ScoreLedger, question: bytes) -> int:
    return held.book("shop", [b"ann", b"bob"], question, 10, 50.0).scorings


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


@pytest.mark.parametrize("lost", [1, 20, 40])
def test_a_record_that_was_cut_off_is_written_anew(tmp_path: Path, lost: int) -> None:
    path = tmp_path / "score-ledger.bin"
    ask(ledger(path), b"1")
    whole, mark = path.read_bytes(), path.with_suffix(".mark").read_bytes()
    ask(ledger(path), b"2")
    path.write_bytes(path.read_bytes()[:-lost])
    path.with_suffix(".mark").write_bytes(mark)  # a crash comes before the new mark
    assert ask(ledger(path), b"2") == 2
    assert path.read_bytes().startswith(whole)
    assert ask(ledger(path), b"2") == 2


@pytest.mark.parametrize("length", range(0, 21, 5))
def test_a_file_whose_head_was_cut_off_begins_anew(tmp_path: Path, length: int) -> None:
    path = tmp_path / "score-ledger.bin"
    ask(ledger(path), b"1")
    path.write_bytes(path.read_bytes()[:length])
    path.with_suffix(".mark").unlink()  # a crash comes before the first mark
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
    with pytest.raises(DataError, match=r"put the file back from a backup\. Only if .* delete score-ledger"):
        ask(ledger(path), b"3")
    path.with_suffix(".mark").unlink()
    assert ask(ledger(path), b"3") >= 1


def test_another_key_or_another_file_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "score-ledger.bin"
    ask(ledger(path), b"1")
    with pytest.raises(DataError, match=r"score-ledger\.bin: a score ledger under another key"):
        ask(ledger(path, bytes(32)), b"1")
    data = bytearray(path.read_bytes())
    data[40] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(DataError, match=r"score-ledger\.bin: score ledger: damaged at byte 0"):
        ask(ledger(path), b"1")
    path.write_bytes(b"something else altogether, of some length")
    with pytest.raises(DataError, match="not a score ledger"):
        ask(ledger(path), b"1")
