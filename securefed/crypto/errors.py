"""The crypto layer's errors.

A check raises before any arithmetic on its argument. Messages contain no key, no mask and no data of another
party. A range error does state how large the caller's own value was.
"""

from __future__ import annotations

from securefed.errors import SecurefedError


class CryptoError(SecurefedError):
    """The root of the crypto layer's errors."""


class RangeError(CryptoError, ValueError):
    """A value is NaN, infinite or outside the declared range."""


class ShapeError(CryptoError, ValueError):
    """Arrays whose shapes do not fit the operation, or that are empty."""


class CapacityError(CryptoError):
    """The result would not fit the plaintext space; nothing was computed."""


class FormatError(CryptoError, ValueError):
    """Bytes with a wrong magic, version, kind, length or checksum."""


class BadKey(CryptoError, ValueError):
    """A key that is malformed, below the least size, or of a weak form."""


class BadCiphertext(CryptoError, ValueError):
    """A ciphertext that is out of range or not a unit: no honest party sends one."""


class WrongKey(CryptoError):
    """A ciphertext, reply or mask that belongs to another key or parameter set."""


class MaskError(CryptoError):
    """A mask that was used already, or an answer to another question."""


class OpeningRefused(CryptoError):
    """The key-holder refuses to open a block."""


class KeyFileError(CryptoError):
    """A key file cannot be written or read, was damaged, or is not safe."""


class WrongPassphrase(KeyFileError):
    """The file is undamaged, but the passphrase is wrong."""
