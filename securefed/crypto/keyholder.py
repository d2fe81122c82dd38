"""The key-holder: the only object that has a secret key, and its memory.

It opens only masked ciphertexts, never the same one twice, and counts openings. It sees uniform numbers and
returns masked values.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

from numpy.typing import ArrayLike

from securefed.crypto.fixed import FixedPoint, Floats
from securefed.crypto.scheme import Encrypted, Masked, Opened, PublicKey
from securefed.errors import OpeningRefused, WrongKey
from securefed.files import StorageError

DIGEST = 16
"""Bytes of a ciphertext's SHA-256 that are kept."""
TABLES = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
CREATE TABLE IF NOT EXISTS ciphertexts (digest BLOB PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS equations (block TEXT PRIMARY KEY, count INTEGER) WITHOUT ROWID;
"""
COUNT = """
INSERT INTO equations VALUES (?, ?)
ON CONFLICT (block) DO UPDATE SET count = count + excluded.count RETURNING count
"""


class OpeningMemory:
    """Which ciphertexts a key opened, and how many equations for which party (own_gradient.ledger).

    A peer that breaks a connection could ask a new process again. So `keep` moves the memory to a file, which
    is written before an opening leaves. A kill loses nothing of it. A machine that crashes may lose the last
    openings, and not the file.
    """

    def __init__(self) -> None:
        self._path: Path | None = None
        self._database = self._connected(":memory:")

    def _connected(self, name: str | Path) -> sqlite3.Connection:
        database = sqlite3.connect(name, check_same_thread=False)
        weakref.finalize(self, database.close)
        database.executescript(TABLES)
        return database

    def keep(self, path: Path) -> None:
        """Go on with the memory of a file, and with what was opened before."""
        if self._path == path:
            return
        before = self._database.execute("SELECT digest FROM ciphertexts").fetchall()
        with self._transaction(path):
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
            self._database = self._connected(path)
        with self._transaction(path) as database:
            database.executemany("INSERT OR IGNORE INTO ciphertexts VALUES (?)", before)
        self._path = path

    @contextmanager
    def _transaction(self, path: Path | None) -> Iterator[sqlite3.Connection]:
        """Write all or nothing. What cannot be remembered is not opened."""
        try:
            with self._database as database:
                yield database
        except sqlite3.IntegrityError:
            raise OpeningRefused(
                "a ciphertext of this block was opened before; each opening takes a fresh mask"
            ) from None
        except (OSError, sqlite3.OperationalError) as error:
            reason = getattr(error, "strerror", None) or error
            raise StorageError(f"cannot write {path}: {reason}") from None
        except sqlite3.Error as error:
            raise OpeningRefused(f"cannot write {path}: {error}") from None

    def admit(self, digests: Sequence[bytes]) -> None:
        """Record ciphertexts, by their SHA-256, as opened, or raise OpeningRefused if one was before."""
        with self._transaction(self._path) as database:
            rows = [(digest[:DIGEST],) for digest in digests]
            database.executemany("INSERT INTO ciphertexts VALUES (?)", rows)

    def count(self, block: str, equations: int) -> int:
        """Return the equations of a block in all processes of the run, including these; 0 without a file."""
        if self._path is None:
            return 0
        with self._transaction(self._path) as database:
            ((total,),) = database.execute(COUNT, (block, equations))
            return int(total)


class SecretKey(ABC):
    """A key pair. Only a `KeyHolder` has one."""

    public: PublicKey

    def encrypt(self, values: Floats, fixed: FixedPoint) -> Encrypted:
        """Encrypt as PublicKey.encrypt does, in the same distribution; faster where the key helps."""
        return self.public._encrypt(values, fixed)

    @abstractmethod
    def open(self, masked: Any) -> Opened:
        """Decrypt a masked block. The result is still masked."""

    @abstractmethod
    def receive(self, masked: Any, disclosure: bytes) -> Floats:
        """Decrypt a masked block whose mask its sender disclosed to the key-holder."""

    @abstractmethod
    def to_bytes(self) -> bytes:
        """Return a frame of kind SECRET_KEY, for a key file."""

    def __repr__(self) -> str:
        return f"<{self.public.scheme} secret key of {self.public.key_id.hex()[:8]}>"


class KeyHolder:
    """The owner of a secret key, who answers openings."""

    def __init__(self, secret: SecretKey) -> None:
        self._secret, self.public = secret, secret.public
        self._lock = Lock()
        self.memory = OpeningMemory()
        self.openings = 0
        """Openings answered since the key was loaded."""

    def encrypt(self, values: ArrayLike, fixed: FixedPoint) -> Encrypted:
        """Encrypt as `public.encrypt` does, but faster."""
        encrypted = self._secret.encrypt(fixed.checked(values), fixed)
        encrypted.origin = "fresh"
        return encrypted

    def open(self, masked: Masked) -> Opened:
        """Open a masked block for its requester."""
        with self._admitted(masked):
            return self._secret.open(masked)

    def receive(self, masked: Masked, disclosure: bytes) -> Floats:
        """Open a masked block that was computed for this key-holder, with its disclosed mask."""
        with self._admitted(masked):
            return self._secret.receive(masked, disclosure)

    @contextmanager
    def _admitted(self, masked: Masked) -> Iterator[None]:
        """Admit one opening at a time, and every ciphertext once, in whatever block it is."""
        if not isinstance(masked, Masked):
            raise OpeningRefused(
                f"a {type(masked).__name__} given; a key-holder opens only masked ciphertexts"
            )
        if masked.public.key_id != self.public.key_id:
            raise WrongKey(f"masked under {masked.public!r}, this key-holder has {self.public!r}")
        digests = [hashlib.sha256(part).digest() for part in masked.fresh_parts()]
        with self._lock:
            self.memory.admit(digests)
            yield
            self.openings += 1

    def __repr__(self) -> str:
        return f"<key-holder of {self.public!r}, {self.openings} openings>"
