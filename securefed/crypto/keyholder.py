"""The key-holder: the only object that has a secret key.

It opens masked ciphertexts and nothing else, never the same one twice, and keeps a record of each opening
for the audit. What it returns is still masked; what it sees is uniform.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import cast

from numpy.typing import ArrayLike

from securefed.crypto.errors import OpeningRefused, WrongKey
from securefed.crypto.fixed import FixedPoint, checked_array
from securefed.crypto.hidden import HiddenArray, HiddenBlock, HidingSecret, Range, Wide
from securefed.crypto.memory import OpeningMemory
from securefed.crypto.scheme import Encrypted, Floats, Masked, Opened, PublicKey, SecretKey

__all__ = ["KeyHolder", "OpeningRecord"]


@dataclass(frozen=True)
class OpeningRecord:
    """What an audit needs of one opening; nothing secret."""

    digest: str
    shape: tuple[int, ...]
    ciphertexts: int
    purpose: str
    """"opened" for the requester, "received" as this key-holder's own result, or "read under masks"."""


class KeyHolder:
    """Holds a secret key and answers openings."""

    def __init__(self, secret: SecretKey) -> None:
        self._secret = secret
        self._lock = Lock()
        self.records: list[OpeningRecord] = []

    @property
    def public(self) -> PublicKey:
        return self._secret.public

    @property
    def memory(self) -> OpeningMemory:
        """What was opened; kept in a file where a run has to survive its process."""
        return self._secret.memory

    def encrypt(self, values: ArrayLike, fixed: FixedPoint) -> Encrypted:
        """The owner's encryption: as `public.encrypt`, faster."""
        array = checked_array(values)
        fixed.check(array)
        encrypted = self._secret.encrypt(array, fixed)
        encrypted.origin = "fresh"
        return encrypted

    def open(self, masked: Masked) -> Opened:
        """Open a masked block for its requester."""
        with self._admitted(masked, "opened"):
            return self._secret.open(masked)

    def receive(self, masked: Masked, disclosure: bytes) -> Floats:
        """Open a masked block that was computed for this key-holder, with the mask that came along."""
        with self._admitted(masked, "received"):
            return self._secret.receive(masked, disclosure)

    @cached_property
    def hides(self) -> bool:
        """Whether arrays can be hidden under this key."""
        return isinstance(self._secret, HidingSecret)

    def open_twice(self, masked: Masked, width: int) -> tuple[Opened, Opened]:
        """A masked block as it is, to judge it by, and flooded, to answer with (range checks). `width`: of
        the slots, where values lie in such.
        """
        with self._admitted(masked, "checked"):
            return self._hiding().open_twice(masked, width)

    def open_noise(self, masked: Masked) -> tuple[Opened, Opened]:
        """The same of encryptions of zero (checks of keys)."""
        with self._admitted(masked, "checked"):
            both: tuple[Opened, Opened] = getattr(self._hiding(), "open_noise")(masked)  # noqa: B009
            return both

    def read(self, block: HiddenBlock) -> Wide:
        """value + mask, entry by entry, of a hidden block; what is read is still masked."""
        with self._admitted(block, "read under masks"):
            return self._hiding().read(block)

    def conceal(self, integers: Wide, range_: Range, blocks: int = 1) -> HiddenArray:
        """A fresh hidden array, of what was read under masks."""
        return self._hiding().conceal(integers, range_, blocks)

    def _hiding(self) -> HidingSecret:
        if not self.hides:
            raise OpeningRefused(f"{self.public!r} hides no arrays")
        return cast(HidingSecret, self._secret)

    def switching(self, strides: Sequence[int]) -> bytes:
        """Keys for merging hidden sums, where the scheme needs them; nothing secret."""
        make = getattr(self._secret, "switching", None)
        return b"" if make is None else bytes(make(strides))

    @contextmanager
    def _admitted(self, masked: Masked, purpose: str) -> Iterator[None]:
        """One opening at a time: checked before, recorded after it was done."""
        if not isinstance(masked, Masked):
            raise OpeningRefused(
                f"a {type(masked).__name__} given; a key-holder opens only masked ciphertexts"
            )
        if masked.public.key_id != self.public.key_id:
            raise WrongKey(f"masked under {masked.public!r}, this key-holder has {self.public!r}")
        digest = hashlib.sha256(masked.to_bytes())
        with self._lock:
            self.memory.check([digest.digest()])
            yield
            self.memory.admit([digest.digest()])
            self.records.append(OpeningRecord(digest.hexdigest(), masked.shape, masked.ciphertexts, purpose))

    def __repr__(self) -> str:
        return f"<key-holder of {self.public!r}, {len(self.records)} openings>"
