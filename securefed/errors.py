"""The errors that every layer may raise.

    SecurefedError
    |-- SettingError    a setting is not one of the allowed values   (also a ValueError)
    |-- DataError       somebody's data cannot be used as it is      (also a ValueError)
    |-- MissingExtra    an optional dependency is not installed      (also an ImportError)
    `-- CryptoError     securefed.crypto.errors: keys, ciphertexts, masks, openings

Every message is one line that names what was given and what is allowed.
"""

from __future__ import annotations

__all__ = ["DataError", "MissingExtra", "SecurefedError", "SettingError"]


class SecurefedError(Exception):
    """The root of everything that securefed raises on purpose."""


class SettingError(SecurefedError, ValueError):
    """A setting has a value that is not allowed."""


class DataError(SecurefedError, ValueError):
    """A party's data cannot be used as given."""


class MissingExtra(SecurefedError, ImportError):
    """An optional dependency is needed and missing; the message says what to install."""
