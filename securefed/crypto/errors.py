"""The crypto layer's errors.

    CryptoError
    |-- RangeError        a value is not finite, or outside the declared range      (also a ValueError)
    |-- ShapeError        arrays that do not fit together                           (also a ValueError)
    |-- CapacityError     a sum or product would leave the plaintext space
    |-- FormatError       bytes that are not what they announce                     (also a ValueError)
    |-- BadKey            a key that is malformed, too small or weak                (also a ValueError)
    |-- BadCiphertext     a ciphertext that no honest party makes                   (also a ValueError)
    |-- WrongKey          a ciphertext of another key or parameter set
    |-- MaskError         a mask used twice, or a reply that is not its own
    |-- OpeningRefused    opened before, or the key has answered often enough
    `-- KeyFileError
        |-- WrongPassphrase
        |-- DamagedKeyFile
        |   |-- TruncatedKeyFile
        |   `-- AlteredKeyFile
        `-- UnsafeKeyFile

A check raises before any arithmetic on its argument. Messages contain no key, no mask and no data of another
party. A range error does state how large the caller's own value was.
"""

from __future__ import annotations

from securefed.errors import SecurefedError

__all__ = [
    "AlteredKeyFile",
    "BadCiphertext",
    "BadKey",
    "CapacityError",
    "CryptoError",
    "DamagedKeyFile",
    "FormatError",
    "KeyFileError",
    "MaskError",
    "OpeningRefused",
    "RangeError",
    "ShapeError",
    "TruncatedKeyFile",
    "UnsafeKeyFile",
    "WrongKey",
    "WrongPassphrase",
]


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
    """A key file cannot be written or read."""


class WrongPassphrase(KeyFileError):
    """The file is undamaged, but the passphrase is wrong."""


class DamagedKeyFile(KeyFileError):
    """The file was cut short or altered."""


class TruncatedKeyFile(DamagedKeyFile):
    """The file is shorter than its header announces."""


class AlteredKeyFile(DamagedKeyFile):
    """The file's bytes were changed after writing."""


class UnsafeKeyFile(KeyFileError):
    """Other users can read the file, or it exists already."""
