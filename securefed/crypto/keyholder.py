"""The key-holder: the only object that has a secret key.

It opens only masked ciphertexts, never the same one twice, and counts openings. It sees uniform numbers and
returns masked values.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from numpy.typing import ArrayLike

from securefed.crypto.errors import OpeningRefused, WrongKey
from securefed.crypto.fixed import FixedPoint, checked_array
from securefed.crypto.memory import OpeningMemory
from securefed.crypto.scheme import Encrypted, Floats, Masked, Opened, PublicKey, SecretKey

__all__ = ["KeyHolder"]


class KeyHolder:
    """The owner of a secret key, who answers openings."""

    def __init__(self, secret: SecretKey) -> None:
        self._secret = secret
        self._lock = Lock()
        self.openings = 0
        """Openings answered since the key was loaded."""

    @property
    def public(self) -> PublicKey:
        return self._secret.public

    @property
    def memory(self) -> OpeningMemory:
        """The memory of opened ciphertexts. It is in a file where a run must survive its process."""
        return self._secret.memory

    def encrypt(self, values: ArrayLike, fixed: FixedPoint) -> Encrypted:
        """Encrypt as `public.encrypt` does, but faster."""
        array = checked_array(values)
        fixed.check(array)
        encrypted = self._secret.encrypt(array, fixed)
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
        """Admit one opening at a time: check before it, count after it."""
        if not isinstance(masked, Masked):
            raise OpeningRefused(
                f"a {type(masked).__name__} given; a key-holder opens only masked ciphertexts"
            )
        if masked.public.key_id != self.public.key_id:
            raise WrongKey(f"masked under {masked.public!r}, this key-holder has {self.public!r}")
        digest = hashlib.sha256(masked.to_bytes()).digest()
        with self._lock:
            self.memory.check([digest])
            yield
            self.memory.admit([digest])
            self.openings += 1

    def __repr__(self) -> str:
        return f"<key-holder of {self.public!r}, {self.openings} openings>"
