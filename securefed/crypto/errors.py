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

A check raises before any arithmetic is done on what it checks. Messages contain no key, no mask and nothing
of another party; a range error does say how large the caller's own value was.
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
    """The key-holder does not open this."""


class KeyFileError(CryptoError):
    """A key file cannot be written or read."""


class WrongPassphrase(KeyFileError):
    """The file is whole, and the passphrase is not its own."""


class DamagedKeyFile(KeyFileError):
    """The file was cut short or altered."""


class TruncatedKeyFile(DamagedKeyFile):
    """The file ends before what it announces."""


class AlteredKeyFile(DamagedKeyFile):
    """The file's bytes are not those that were written."""


class UnsafeKeyFile(KeyFileError):
    """The file can be read by others, or exists already."""
