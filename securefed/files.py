"""Files: written whole or not at all, read with bounds, and named for a run, a party and a release.

A run may be killed, or meet a full disk, at any moment. The old file or the new one is then on disk, never
half of one. docs/operations.md lists the files of a run's directory.

Checkpoints, transcripts and model shards name the release that wrote them and the number of their format.
A file of another format is refused. Checkpoints and transcripts of another minor release are refused too.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
import stat
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from secrets import token_hex
from typing import Any, Self

from securefed.errors import DataError, SecurefedError, SettingError, plain_text


class Closing:
    """A context manager that closes at its end."""

    def close(self) -> None:
        """Nothing to close."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


PACKAGES = ("securefed", "numpy", "scikit-learn", "cryptography", "gmpy2")
"""What decides about numbers, keys and the wire."""


@cache
def release() -> str:
    return versions()["securefed"]


def minor_version(whole: str | None = None) -> str:
    """The part of a release that all parties of a run have to share, such as "0.1"."""
    return ".".join((whole or release()).split(".")[:2])


def check_release(what: str, wrote: object, remedy: str) -> None:
    """Refuse a file that another minor release wrote. `what` names it, `remedy` says what to do."""
    if minor_version(str(wrote) or "unknown") != minor_version():
        raise DataError(
            f"{what} was written by securefed {plain_text(wrote, 20)}, this is {release()}; {remedy}"
        )


def versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "not installed"
    return versions


class RunDirectory:
    """The paths of one party's files in one run."""

    def __init__(self, folder: str | os.PathLike[str], party: str) -> None:
        self.folder = Path(folder)
        self.result = self.folder / "result.json"
        self.timing = self.folder / "timing.json"
        self.report = self.folder / "report.html"
        self.transcript = self.folder / f"transcript-{party}.jsonl"
        self.signatures = self.folder / f"signatures-{party}.json"
        self.alignment = self.folder / f"alignment-{party}.jsonl"
        self.prediction = self.folder / f"prediction-{party}.jsonl"
        self.prediction_signatures = self.folder / f"prediction-signatures-{party}.json"
        self.shard = self.folder / f"shard-{party}.npz"
        self.preparation = self.folder / f"preparation-{party}.npz"
        self.checkpoints = self.folder / f"checkpoints-{party}.sfc"
        self.openings = self.folder / f"openings-{party}.db"
        self.lock = self.folder / f".lock-{party}"
        self.alignments = self.folder / f".alignments-{party}"
        self.prediction_alignments = self.folder / f".prediction-alignments-{party}"

    def make(self) -> None:
        make_folder(self.folder, private=True)

    @property
    def finished(self) -> bool:
        return self.result.exists()

    def write(self, result: dict[str, Any], timing: dict[str, Any], report: str) -> None:
        """The report first: whoever finds result.json finds the rest."""
        self.make()
        write_json(self.timing, timing)
        write_atomically(self.report, report.encode(), mode=0o644)
        write_json(self.result, result)

    def read(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return read_json(self.result, "run's result"), read_json(self.timing, "run's timing")


UNREADABLE = (ValueError, KeyError, OSError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)
"""What numpy and zipfile raise for bytes that are not an archive of arrays; a damaged header can ask for an
encryption, a compression or a version that there is none of.
"""


class StorageError(SecurefedError):
    """The disk is full, read-only or not there; what was on it before still is."""


class UnsafeFile(StorageError):
    """A file that is not a regular one, or that other users of the machine can reach."""


def storage_error(path: Path, error: OSError) -> StorageError:
    hint = "; free some space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
    return StorageError(f"cannot write {path}: {error.strerror or error}{hint}")


def make_folder(path: Path, *, private: bool = False) -> None:
    """The folder and those above it; a private one is for its owner alone."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        if private:
            path.chmod(0o700)
    except OSError as error:
        raise storage_error(path, error) from None


def write_atomically(path: Path, data: bytes, *, mode: int = 0o600, overwrite: bool = True) -> None:
    """Write a file as a whole, with the permissions `mode`. It is on disk when this returns.

    Raises FileExistsError if the name is taken (without `overwrite`), StorageError if it cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{token_hex(8)}")
    try:
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            with os.fdopen(descriptor, "wb") as file:
                os.fchmod(descriptor, mode)
                file.write(data)
                file.flush()
                os.fsync(descriptor)
            if overwrite:
                temporary.replace(path)
            else:
                path.hardlink_to(temporary)  # unlike rename, this fails if the name is taken
        finally:
            temporary.unlink(missing_ok=True)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)  # a new name lasts once its folder is on disk
        finally:
            os.close(folder)
    except FileExistsError:
        raise
    except OSError as error:
        if not overwrite and error.errno in (errno.EPERM, errno.EOPNOTSUPP):
            raise StorageError(f"cannot write {path}: its file system has no hard links") from None
        raise storage_error(path, error) from None


def read_bounded(path: Path, most: int, *, private: bool) -> bytes:
    """Read a regular file of at most `most` bytes.

    Raises UnsafeFile if it is no regular file, or if it is `private` and others can reach it. Raises
    StorageError if it cannot be read or is larger.
    """
    try:
        # Not blocking, so that a pipe in the file's place is refused and not waited for.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)  # of the open file: no gap between check and use
            if not stat.S_ISREG(status.st_mode):
                raise UnsafeFile(f"{path} is not a regular file")
            if private and status.st_mode & 0o077:
                mode = stat.S_IMODE(status.st_mode)
                raise UnsafeFile(f"{path} has mode {mode:04o}, others can reach it; chmod 600 it")
            data = file.read(most + 1)
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}") from None
    if len(data) > most:
        raise StorageError(f"{path} is too large: at most {most} bytes are allowed")
    return data


@contextmanager
def only_process(path: Path) -> Iterator[None]:
    """Hold a lock file until the block ends, or this process does. Its children do not inherit the lock."""
    make_folder(path.parent)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise storage_error(path, error) from None
    try:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(descriptor, 32).decode("ascii", "replace").strip() or "unknown"
            raise SettingError(
                f"{path.parent} is in use by another securefed process (process {holder}); "
                "wait until it ends, or stop it first"
            ) from None
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(descriptor)


def check_writable(name: str, path: Path) -> None:
    """Refuse the setting `name`, a file that is written much later, if it cannot be; nothing is left here."""
    trial = path.with_name(f".{path.name}.{token_hex(8)}")
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        os.close(os.open(trial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        trial.unlink()
    except OSError as error:
        raise SettingError(f"{name}: {path} cannot be written: {error.strerror}") from None


def write_json(path: Path, value: Any, *, mode: int = 0o644) -> None:
    text = json.dumps(value, indent=2, allow_nan=False) + "\n"
    write_atomically(path, text.encode(), mode=mode)


def read_json(path: Path, what: str) -> dict[str, Any]:
    """An object out of a file; `what` names it in the error."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path}: no {what} there ({error.strerror})") from None
    except ValueError:
        raise DataError(f"{path}: not a {what}: its JSON cannot be read") from None
    if not isinstance(value, dict):
        raise DataError(f"{path}: not a {what}: an object is expected")
    return value
