"""Key files: what goes in comes out, and everything else has an error of its own."""

from __future__ import annotations

import hashlib
import os
import re
import stat
import struct
import threading
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given, settings
from hypothesis import strategies as st

from securefed.crypto import keyfile
from securefed.crypto.keyfile import KeyFile, read_key_file, write_key_file
from securefed.errors import (
    KeyFileError,
    WrongPassphrase,
)
from securefed.files import StorageError

SECRET = bytes(range(200))
PASSPHRASE = "correct horse"
SALT, NONCE = bytes(range(16)), bytes(range(12))
# Offsets in the file.
LOG2_N_AT, SALT_AT, NONCE_AT, CHECK_AT, LABEL_AT, CIPHERTEXT_AT = 6, 14, 30, 42, 58, 62


def seal(secret: bytes = SECRET, log2_n: int = keyfile.LOG2_N_TEST) -> bytes:
    return keyfile._seal(secret, PASSPHRASE.encode(), b"bank", log2_n, SALT, NONCE)


def unseal(blob: bytes, passphrase: str = PASSPHRASE) -> KeyFile:
    return keyfile._unseal(blob, passphrase.encode(), keyfile.LOG2_N_TEST)


def with_digest(body: bytes) -> bytes:
    """What somebody writes who alters a file and knows its format."""
    return body + hashlib.sha256(body).digest()


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "bank.skf"
    write_key_file(path, SECRET, PASSPHRASE, label="bank", weak_for_tests=True)
    return path


def test_what_was_written_is_read(key_file: Path) -> None:
    assert read_key_file(key_file, PASSPHRASE, weak_for_tests=True) == KeyFile("bank", SECRET)
    assert read_key_file(key_file, PASSPHRASE.encode(), weak_for_tests=True).secret == SECRET


def test_the_default_cost_works_and_is_the_declared_one(tmp_path: Path) -> None:
    path = tmp_path / "strong.skf"
    write_key_file(path, SECRET, PASSPHRASE, label="bank")
    assert path.read_bytes()[LOG2_N_AT : LOG2_N_AT + 3] == bytes([17, 8, 1])
    assert read_key_file(path, PASSPHRASE).secret == SECRET


def test_known_answer_from_an_independent_implementation() -> None:
    output = hashlib.scrypt(PASSPHRASE.encode(), salt=SALT, n=1024, r=8, p=1, dklen=48)
    fields = (b"SFKF", 1, 1, 10, 8, 1, 4, len(SECRET), SALT, NONCE, output[32:])
    header = struct.pack(">4s6BI16s12s16s", *fields) + b"bank"
    expected = with_digest(header + AESGCM(output[:32]).encrypt(NONCE, SECRET, header))
    assert seal() == expected
    assert hashlib.sha256(expected).hexdigest() == (
        "c15ee68fae6a65fe816b4251a7d93299b66d1ed5e8c668613b6e87ed7335002d"
    )


def test_fresh_randomness_each_time(tmp_path: Path) -> None:
    paths = [tmp_path / "a.skf", tmp_path / "b.skf"]
    for path in paths:
        write_key_file(path, SECRET, PASSPHRASE, label="bank", weak_for_tests=True)
    first, second = (keyfile.HEADER.unpack_from(path.read_bytes()) for path in paths)
    assert first[8] != second[8], "salt"
    assert first[9] != second[9], "nonce"


def test_the_secret_is_not_in_the_file_nor_in_the_repr(key_file: Path) -> None:
    assert SECRET not in key_file.read_bytes()
    assert repr(KeyFile("bank", b"hunter2")) == "KeyFile(label='bank')"
    assert "hunter2" not in f"{KeyFile('bank', b'hunter2')}"


@pytest.mark.parametrize("guess", ["correct hors", "Correct horse", "x"])
def test_wrong_passphrase(key_file: Path, guess: str) -> None:
    with pytest.raises(WrongPassphrase, match="does not open"):
        read_key_file(key_file, guess, weak_for_tests=True)


def test_a_passphrase_is_the_same_however_its_letters_are_composed(tmp_path: Path) -> None:
    path = tmp_path / "key.skf"
    write_key_file(path, SECRET, "caf\u00e9", label="bank", weak_for_tests=True)
    assert read_key_file(path, "cafe\u0301", weak_for_tests=True).secret == SECRET


@pytest.mark.parametrize("passphrase", ["", b"", None, "\ud800"])
def test_a_passphrase_that_is_none_is_refused_in_both_directions(key_file: Path, passphrase: str) -> None:
    with pytest.raises(KeyFileError, match="passphrase"):
        write_key_file(key_file, SECRET, passphrase, label="bank", overwrite=True, weak_for_tests=True)
    with pytest.raises(KeyFileError, match="passphrase"):
        read_key_file(key_file, passphrase, weak_for_tests=True)
    assert read_key_file(key_file, PASSPHRASE, weak_for_tests=True).secret == SECRET, "kept as it was"


@pytest.mark.parametrize("secret", [b"", bytes(keyfile.MOST_SECRET + 1)])
def test_a_secret_that_cannot_be_stored(tmp_path: Path, secret: bytes) -> None:
    with pytest.raises(KeyFileError, match="secret"):
        write_key_file(tmp_path / "key.skf", secret, PASSPHRASE, label="bank", weak_for_tests=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("label", ["", "x" * 256, "two\nlines", None])
def test_a_label_that_cannot_be_stored(tmp_path: Path, label: str) -> None:
    with pytest.raises(KeyFileError, match="label"):
        write_key_file(tmp_path / "key.skf", SECRET, PASSPHRASE, label=label, weak_for_tests=True)


def test_every_truncation_is_reported_as_such() -> None:
    whole = seal()
    for length in range(len(whole)):
        with pytest.raises(KeyFileError, match="cut short"):
            unseal(whole[:length])


def test_every_flipped_byte_is_damage_or_another_kind_of_file() -> None:
    whole = seal()
    for at in range(len(whole)):
        altered = bytearray(whole)
        altered[at] ^= 0x40
        with pytest.raises(KeyFileError) as caught:
            unseal(bytes(altered))
        if at >= len(keyfile.MAGIC):
            assert re.match("cut short|altered", str(caught.value)), at
        if not 9 <= at < 14 and at >= len(keyfile.MAGIC):  # a flipped size looks like a missing end
            assert str(caught.value).startswith("altered"), at


def test_bytes_after_the_end_are_an_alteration() -> None:
    with pytest.raises(KeyFileError, match="altered"):
        unseal(seal() + b"\0")
    with pytest.raises(KeyFileError, match="altered"):
        unseal(with_digest(seal()[:-32] + b"\0"))


def test_an_alteration_with_a_renewed_digest_is_found_by_authentication() -> None:
    body = seal()[:-32]
    tag_at = len(body) - 16
    for at in (NONCE_AT, LABEL_AT, CIPHERTEXT_AT, tag_at):
        altered = bytearray(body)
        altered[at] ^= 1
        with pytest.raises(KeyFileError, match=r"altered.*not authentic"):
            unseal(with_digest(bytes(altered)))


@pytest.mark.parametrize("at", [SALT_AT, CHECK_AT])
def test_an_altered_derivation_never_yields_a_secret(at: int) -> None:
    altered = bytearray(seal()[:-32])
    altered[at] ^= 1
    with pytest.raises(WrongPassphrase):
        unseal(with_digest(bytes(altered)))


@pytest.mark.parametrize(
    ("at", "value"), [(5, 2), (LOG2_N_AT, 9), (LOG2_N_AT, 21), (LOG2_N_AT, 255), (7, 255), (8, 0), (8, 255)]
)
def test_hostile_costs_are_refused_before_anything_is_derived(
    at: int, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = bytearray(seal()[:-32])
    body[at] = value

    def derive(*_: object) -> tuple[bytes, bytes]:
        pytest.fail("scrypt was run with a cost that was not allowed")

    monkeypatch.setattr(keyfile, "_derive", derive)
    with pytest.raises(KeyFileError, match="allowed: kdf 1"):
        unseal(with_digest(bytes(body)))


def test_another_version_is_named() -> None:
    body = bytearray(seal()[:-32])
    body[4] = 2
    with pytest.raises(KeyFileError, match="version 2"):
        unseal(with_digest(bytes(body)))


def test_a_file_made_for_tests_is_not_read_without_the_word(key_file: Path) -> None:
    with pytest.raises(KeyFileError, match=r"cheap to guess: kdf 1 with n = 2\*\*10"):
        read_key_file(key_file, PASSPHRASE)


@settings(deadline=None, max_examples=200)
@given(st.one_of(st.binary(max_size=400), st.binary(max_size=400).map(lambda tail: keyfile.MAGIC + tail)))
def test_arbitrary_bytes_raise_a_key_file_error(blob: bytes) -> None:
    for candidate in (blob, with_digest(blob)):
        with pytest.raises(KeyFileError):
            unseal(candidate)


def test_mode_0600_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        write_key_file(tmp_path / "open.skf", SECRET, PASSPHRASE, label="bank", weak_for_tests=True)
        os.umask(0o777)
        write_key_file(tmp_path / "shut.skf", SECRET, PASSPHRASE, label="bank", weak_for_tests=True)
    finally:
        os.umask(before)
    for name in ("open.skf", "shut.skf"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601, 0o777])
def test_a_file_that_others_can_reach_is_refused(key_file: Path, mode: int) -> None:
    key_file.chmod(mode)
    with pytest.raises(KeyFileError, match=f"mode {mode:04o}.*chmod 600"):
        read_key_file(key_file, PASSPHRASE, weak_for_tests=True)


def test_an_existing_file_is_kept_unless_told_otherwise(key_file: Path) -> None:
    before = key_file.read_bytes()
    with pytest.raises(KeyFileError, match="exists already"):
        write_key_file(key_file, b"other", PASSPHRASE, label="bank", weak_for_tests=True)
    assert key_file.read_bytes() == before
    write_key_file(key_file, b"other", PASSPHRASE, label="bank", overwrite=True, weak_for_tests=True)
    assert read_key_file(key_file, PASSPHRASE, weak_for_tests=True).secret == b"other"
    assert [path.name for path in key_file.parent.iterdir()] == [key_file.name], "no temporary file is left"


def test_overwriting_a_file_that_others_could_read_closes_it(key_file: Path) -> None:
    key_file.chmod(0o644)
    write_key_file(key_file, b"other", PASSPHRASE, label="bank", overwrite=True, weak_for_tests=True)
    assert stat.S_IMODE(key_file.stat().st_mode) == 0o600


def test_of_several_writers_one_wins(tmp_path: Path) -> None:
    path = tmp_path / "key.skf"
    refused: list[str] = []

    def write(secret: bytes) -> None:
        try:
            write_key_file(path, secret, PASSPHRASE, label="bank", weak_for_tests=True)
        except KeyFileError as error:
            refused.append(str(error))

    writers = [threading.Thread(target=write, args=(bytes([number]),)) for number in range(1, 7)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(refused) == len(writers) - 1
    assert len(read_key_file(path, PASSPHRASE, weak_for_tests=True).secret) == 1


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_failed_write_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overwrite: bool
) -> None:
    path = tmp_path / "key.skf"
    path.write_bytes(b"before")
    if not overwrite:
        path.unlink()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(keyfile.os, "fsync", full)
    with pytest.raises(StorageError, match="No space left"):
        write_key_file(path, SECRET, PASSPHRASE, label="bank", overwrite=overwrite, weak_for_tests=True)
    assert [file.read_bytes() for file in tmp_path.iterdir()] == ([b"before"] if overwrite else [])


def test_what_is_not_there_or_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="No such file"):
        read_key_file(tmp_path / "missing.skf", PASSPHRASE)
    with pytest.raises(StorageError, match="No such file"):
        write_key_file(tmp_path / "no" / "key.skf", SECRET, PASSPHRASE, label="bank", weak_for_tests=True)
    with pytest.raises(KeyFileError):
        read_key_file(tmp_path, PASSPHRASE)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    with pytest.raises(KeyFileError, match="not a regular file"):
        read_key_file(pipe, PASSPHRASE)


def test_an_oversized_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "huge.skf"
    path.touch(0o600)
    os.truncate(path, keyfile.MOST_SECRET + 4096)  # sparse
    with pytest.raises(KeyFileError, match="too large"):
        read_key_file(path, PASSPHRASE)


def test_the_other_kinds_of_file_are_told_apart_from_damage(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.touch(0o600)
    path.write_text("not a key at all, but long enough to hold a header and then some more text")
    with pytest.raises(KeyFileError, match="not a securefed key file"):
        read_key_file(path, PASSPHRASE)
