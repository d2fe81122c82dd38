"""A scheme from outside the package, a toy: whole numbers in the clear under a name of their own. It shows
where a scheme meets the package, not how to encrypt.
"""

from __future__ import annotations

import numpy as np

import securefed.crypto
from securefed.crypto import KeyKind, SchemeEntry
from securefed.crypto.fixed import FixedPoint, Floats
from securefed.crypto.plain import PlainEncrypted, PlainPublicKey, PlainSecretKey
from securefed.crypto.wire import Frame, fingerprint


def on_grid(values: Floats, fixed: FixedPoint) -> Floats:
    return np.asarray(np.rint(values * fixed.scale) / fixed.scale)


class ToyPublicKey(PlainPublicKey):
    """Encodes in fixed point, as a scheme of whole numbers does."""

    parameters = fingerprint(b"toy")
    scheme = "toy"

    def _encrypt(self, values: Floats, fixed: FixedPoint) -> PlainEncrypted:
        return PlainEncrypted(self, on_grid(values, fixed), fixed.bound)


class ToySecretKey(PlainSecretKey):
    def __init__(self, token: bytes | None = None) -> None:
        super().__init__(token)
        self.public = ToyPublicKey(self._token)

    @classmethod
    def from_frame(cls, frame: Frame) -> ToySecretKey:
        key = cls(frame.payload)
        frame.expect(ToyPublicKey.scheme, ToyPublicKey.parameters, key.public.key_id)
        return key


def generate_secret_key() -> ToySecretKey:
    return ToySecretKey()


def strong_parameters() -> dict[str, str]:
    """None: it protects nothing."""
    return {}


kind = KeyKind(__name__, "ToyPublicKey", "ToySecretKey", protects=False)
securefed.crypto.register("toy", SchemeEntry(opens="toy"), {"toy": kind}, {"toy": 200})
