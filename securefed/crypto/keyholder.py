"""The key-holder: the only object that has a secret key, and its memory.

It opens only masked ciphertexts, never the same one twice, and counts openings. It sees uniform numbers and
returns masked values.
"""

from __future__ import annotations

import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any

from numpy.typing import ArrayLike

from securefed.crypto.fixed import FixedPoint, Floats
from securefed.crypto.scheme import Encrypted, Masked, Opened, PublicKey
from securefed.errors import OpeningRefused, WrongKey
from securefed.files import write_atomically

MOST = 1 << 20
DIGEST = 16


class OpeningMemory:
    """Which ciphertexts a key opened, and how many equations for which party (own_gradient.ledger).

    A peer that breaks a connection could ask a new process again. So `keep` stores the memory in a file, and
    writes it before an opening leaves. Past `MOST` ciphertexts it drops the older half. Its lines:

        c <hex>                        a ciphertext, by the first 16 bytes of its SHA-256
        e <equations> <JSON string>    equations of a block of secrets
    """

    def __init__(self) -> None:
        self._ciphertexts: dict[bytes, None] = {}
        self._equations: dict[str, int] = {}
        self._path: Path | None = None

    def keep(self, path: Path) -> None:
        """Load the file, if there is one, and append to it from now on."""
        if self._path == path:
            return
        self._path = path
        for line in path.read_bytes().split(b"\n")[:-1] if path.exists() else ():
            self._read(line)
        self._bound()

    def _read(self, line: bytes) -> None:
        """Parse a line. A kill may cut a line short, but only before its ciphertext is opened."""
        kind, _, rest = line.partition(b" ")
        try:
            if kind == b"c" and len(rest) == 2 * DIGEST:
                self._ciphertexts[bytes.fromhex(rest.decode("ascii"))] = None
            elif kind == b"e":
                equations, _, block = rest.partition(b" ")
                name = str(json.loads(block))
                self._equations[name] = self._equations.get(name, 0) + int(equations)
        except ValueError:
            return

    def admit(self, digests: Sequence[bytes]) -> None:
        """Record ciphertexts, by their SHA-256, as opened, or raise OpeningRefused if one was before."""
        short = [digest[:DIGEST] for digest in digests]
        if len(set(short)) < len(short) or any(digest in self._ciphertexts for digest in short):
            raise OpeningRefused(
                "a ciphertext of this block was opened before; each opening takes a fresh mask"
            )
        self._ciphertexts.update(dict.fromkeys(short))
        self._append("".join(f"c {digest.hex()}\n" for digest in short))
        self._bound()

    def count(self, block: str, equations: int) -> int:
        """Return the equations of a block in all processes of the run, including these; 0 without a file."""
        if self._path is None:
            return 0
        self._equations[block] = self._equations.get(block, 0) + equations
        self._append(f"e {equations} {json.dumps(block)}\n")
        return self._equations[block]

    def _append(self, text: str) -> None:
        if self._path is None:
            return
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            with os.fdopen(descriptor, "ab") as file:
                file.write(text.encode("ascii"))
        except OSError as error:
            # What cannot be remembered is not opened.
            raise OpeningRefused(f"cannot write {self._path}: {error.strerror}") from None

    def _bound(self) -> None:
        if len(self._ciphertexts) <= MOST:
            return
        self._ciphertexts = dict.fromkeys(islice(self._ciphertexts, MOST // 2, None))
        if self._path is not None:
            lines = [f"e {count} {json.dumps(block)}\n" for block, count in self._equations.items()]
            lines += [f"c {digest.hex()}\n" for digest in self._ciphertexts]
            write_atomically(self._path, "".join(lines).encode("ascii"))

    def __len__(self) -> int:
        return len(self._ciphertexts)


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
        return f"<{self.public.scheme.name} secret key of {self.public.key_id.hex()[:8]}>"


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
