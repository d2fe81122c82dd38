"""What a key-holder remembers of its openings, in a process and beyond one."""

from __future__ import annotations

import hashlib
import stat
from pathlib import Path

import numpy as np
import pytest

from securefed.crypto import FixedPoint, KeyHolder, generate, keyholder
from securefed.crypto.keyholder import OpeningMemory
from securefed.crypto.paillier.arrays import PaillierMasked
from securefed.crypto.paillier.keys import PaillierSecretKey
from securefed.crypto.wire import Frame, Kind
from securefed.errors import OpeningRefused

FIXED = FixedPoint(bound=1.0, fraction_bits=24)


def digest(number: int) -> bytes:
    return hashlib.sha256(str(number).encode()).digest()


def restarted(holder: KeyHolder) -> KeyHolder:
    """The same key in a new process."""
    frame = Frame.from_bytes(holder._secret.to_bytes(), Kind.SECRET_KEY)
    return KeyHolder(PaillierSecretKey.from_frame(frame))


def test_a_replay_after_a_restart(tmp_path: Path) -> None:
    """Without a file a key opens again what it opened in its last process; with one it does not, even where
    the ciphertexts come in another block.
    """
    file, first = tmp_path / "openings.log", generate("paillier", key_bits=2048)
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
    holder.memory.keep(tmp_path / "openings.log")
    masked, _ = holder.public.encrypt(np.zeros(3), FIXED).mask()
    holder.open(masked)
    again = OpeningMemory()
    again.keep(tmp_path / "openings.log")
    with pytest.raises(OpeningRefused):
        again.admit([hashlib.sha256(part).digest() for part in masked.fresh_parts()])


def test_what_a_kill_cut_short_is_passed_over(tmp_path: Path) -> None:
    file, one = tmp_path / "openings.log", OpeningMemory()
    one.keep(file)
    one.admit([digest(1), digest(2)])
    assert one.count("shop: residuals, round 3", 7) == 7
    assert one.count("shop: residuals, round 3", 7) == 14
    with open(file, "ab") as log:
        log.write(b'nonsense\ne x "y"\ne 5 not-json\nc 00zz' + b"z" * 28 + b"\nc 0123")
    other = OpeningMemory()
    other.keep(file)
    other.keep(file)  # once is enough
    assert len(other) == 2
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


def test_it_is_bounded_and_forgets_the_oldest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyholder, "MOST", 8)
    file, record = tmp_path / "openings.log", OpeningMemory()
    record.keep(file)
    record.count("block", 3)
    for number in range(30):
        record.admit([digest(number)])
        assert len(record) <= 8
    again = OpeningMemory()
    again.keep(file)
    assert len(again) == len(record) and again.count("block", 1) == 4
    with pytest.raises(OpeningRefused):
        again.admit([digest(29)])
    again.admit([digest(0)])


def test_what_cannot_be_remembered_is_not_opened(tmp_path: Path) -> None:
    record = OpeningMemory()
    record.keep(tmp_path / "nowhere" / "openings.log")
    with pytest.raises(OpeningRefused, match=r"cannot write .*: No such file"):
        record.admit([digest(1)])
