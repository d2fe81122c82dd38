"""What a key-holder remembers of its openings, in a process and beyond one."""

from __future__ import annotations

import hashlib
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from securefed.crypto import FixedPoint, KeyHolder, generate
from securefed.crypto.keyholder import OpeningMemory
from securefed.crypto.paillier.arrays import PaillierMasked
from securefed.crypto.paillier.keys import PaillierSecretKey
from securefed.crypto.wire import Frame, Kind
from securefed.errors import OpeningRefused
from securefed.files import StorageError

FIXED = FixedPoint(bound=1.0, fraction_bits=24)


def digest(number: int) -> bytes:
    return hashlib.sha256(str(number).encode()).digest()


def restarted(holder: KeyHolder) -> KeyHolder:
    """The same key in a new process."""
    frame = Frame.from_bytes(holder._secret.to_bytes(), Kind.SECRET_KEY)
    return KeyHolder(PaillierSecretKey.from_frame(frame))


def remembered(memory: OpeningMemory) -> int:
    """The number of ciphertexts in a memory."""
    return int(memory._database.execute("SELECT count(*) FROM ciphertexts").fetchone()[0])


def test_a_replay_after_a_restart(tmp_path: Path) -> None:
    """Without a file a key opens again what it opened in its last process; with one it does not, even where
    the ciphertexts come in another block.
    """
    file, first = tmp_path / "openings.db", generate("paillier", key_bits=2048)
    first.memory.keep(file)
    masked, _ = first.public.encrypt(np.zeros((2, 40)), FIXED).mask()
    assert isinstance(masked, PaillierMasked) and masked.ciphertexts > 1
    first.open(masked)
    naive = restarted(first)
    assert naive.open(masked).to_bytes()
    ours = restarted(first)
    ours.memory.keep(file)
    with pytest.raises(OpeningRefused, match="opened before"):
        ours.open(masked)
    with pytest.raises(OpeningRefused, match="opened before"):
        ours.open(PaillierMasked(masked.public, (40,), masked.integers[-1:]))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize("scheme", ["paillier", "ckks", "plain"])
def test_every_scheme_has_one(scheme: str, tmp_path: Path) -> None:
    holder = generate(scheme, key_bits=2048)
    holder.memory.keep(tmp_path / "openings.db")
    masked, _ = holder.public.encrypt(np.zeros(3), FIXED).mask()
    holder.open(masked)
    again = OpeningMemory()
    again.keep(tmp_path / "openings.db")
    with pytest.raises(OpeningRefused):
        again.admit([hashlib.sha256(part).digest() for part in masked.fresh_parts()])


def test_it_goes_on_in_another_process(tmp_path: Path) -> None:
    file, one = tmp_path / "openings.db", OpeningMemory()
    one.keep(file)
    one.admit([digest(1), digest(2)])
    assert one.count("shop: residuals, round 3", 7) == 7
    assert one.count("shop: residuals, round 3", 7) == 14
    other = OpeningMemory()
    other.keep(file)
    other.keep(file)  # once is enough
    assert remembered(other) == 2
    assert other.count("shop: residuals, round 3", 7) == 21
    assert other.count("shop: residuals, round 4", 7) == 7
    with pytest.raises(OpeningRefused):
        other.admit([digest(3), digest(2)])
    other.admit([digest(3)])  # nothing of a refused block was kept


def test_one_process_counts_nothing_across_runs() -> None:
    record = OpeningMemory()
    assert record.count("shop: residuals, round 0", 7) == record.count("shop: residuals, round 0", 7) == 0


def test_a_ciphertext_twice_in_one_block() -> None:
    with pytest.raises(OpeningRefused):
        OpeningMemory().admit([digest(1), digest(1)])


def test_what_was_opened_before_there_was_a_file_is_remembered(tmp_path: Path) -> None:
    record = OpeningMemory()
    record.admit([digest(1)])
    record.keep(tmp_path / "openings.db")
    with pytest.raises(OpeningRefused):
        record.admit([digest(1)])
    again = OpeningMemory()
    again.keep(tmp_path / "openings.db")
    with pytest.raises(OpeningRefused):
        again.admit([digest(1)])


KILLED = """
import hashlib, os, pathlib, signal, sys
from securefed.crypto.keyholder import OpeningMemory
record = OpeningMemory()
record.keep(pathlib.Path(sys.argv[1]))
record.admit([hashlib.sha256(b"1").digest()])
record.count("block", 3)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_kill_loses_nothing(tmp_path: Path) -> None:
    file = tmp_path / "openings.db"
    killed = subprocess.run([sys.executable, "-c", KILLED, str(file)], check=False)
    assert killed.returncode == -9
    record = OpeningMemory()
    record.keep(file)
    assert record.count("block", 1) == 4
    with pytest.raises(OpeningRefused):
        record.admit([digest(1)])


def test_a_crash_of_the_machine_loses_the_last_writes_and_not_the_file(tmp_path: Path) -> None:
    """Nothing that was written since the system last wrote to the disk is there, or only a part of it."""
    record = OpeningMemory()
    record.keep(tmp_path / "openings.db")
    record.admit([digest(number) for number in range(500)])
    record.admit([digest(number) for number in range(500, 1000)])
    files = {path.name: path.read_bytes() for path in tmp_path.glob("openings.db*")}
    written = "openings.db-wal" if "openings.db-wal" in files else "openings.db"
    sizes = set[int]()
    for tenth in range(10):
        crashed = tmp_path / str(tenth)
        crashed.mkdir()
        for name, content in files.items():
            part = len(content) * tenth // 10 if name == written else len(content)
            (crashed / name).write_bytes(content[:part])
        again = OpeningMemory()
        again.keep(crashed / "openings.db")
        sizes.add(remembered(again))
        again.admit([digest(1000)])
    assert sizes == {0, 500}


def test_what_cannot_be_remembered_is_not_opened(tmp_path: Path) -> None:
    record = OpeningMemory()
    with pytest.raises(StorageError, match=r"cannot write .*: No such file"):
        record.keep(tmp_path / "nowhere" / "openings.db")
    other = tmp_path / "other"
    other.write_text("something else, which is longer than the head of a database" * 10)
    with pytest.raises(OpeningRefused, match=r"cannot write .*: file is not a database"):
        record.keep(other)
    full = OpeningMemory()
    full.keep(tmp_path / "openings.db")
    full._database.execute("PRAGMA max_page_count = 1")
    with pytest.raises(StorageError, match=r"cannot write .*: database or disk is full"):
        full.admit([digest(number) for number in range(10_000)])
