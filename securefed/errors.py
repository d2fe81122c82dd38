"""The errors that every layer may raise.

    SecurefedError
    |-- SettingError    a setting is not one of the allowed values   (also a ValueError)
    |-- DataError       somebody's data cannot be used as it is      (also a ValueError)
    |   `-- NotFitted   securefed.api.federated: no model yet        (also scikit-learn's NotFittedError)
    |-- MissingExtra    an optional dependency is not installed      (also an ImportError)
    `-- CryptoError     keys, ciphertexts, masks, openings

Every message is one line that names what was given and what is allowed; data with several faults has one
line for each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType

MOST_SHOWN = 20
MOST_CHARACTERS = 300


class SecurefedError(Exception):
    """The root of everything that securefed raises on purpose."""


class SettingError(SecurefedError, ValueError):
    """A setting has a value that is not allowed."""


class DataError(SecurefedError, ValueError):
    """A party's data cannot be used as given. `problems`: one line for each thing that is wrong."""

    def __init__(self, text: str, problems: Sequence[str] = ()) -> None:
        super().__init__(text)
        self.problems = tuple(problems) or (text,)


def plain_text(value: object, most: int = MOST_CHARACTERS) -> str:
    """Return what somebody else said as one bounded line without control characters.

    Everything that a peer says passes through here before it is logged, shown or put into an error.
    """
    text = str(value)[: 4 * most]
    line = " ".join("".join(c if c.isprintable() else " " if c.isspace() else "?" for c in text).split())
    return line if len(line) <= most and len(text) == len(str(value)) else f"{line[: most - 3]}..."


class Problems:
    """Everything that is wrong with somebody's data, so that nobody mends one thing to hear of the next."""

    def __init__(self, owner: str) -> None:
        self._owner, self._problems = owner, dict[str, None]()

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Collect DataErrors of the block and continue."""
        try:
            yield
        except DataError as error:
            self._problems |= dict.fromkeys(error.problems)

    def check(self) -> None:
        """DataError with all of them, if there are any."""
        texts = list(self._problems)
        if len(texts) == 1:
            raise DataError(texts[0])
        if texts:
            listed = "".join(f"\n  - {text}" for text in texts[:MOST_SHOWN])
            if len(texts) > MOST_SHOWN:
                listed += f"\n  - and {len(texts) - MOST_SHOWN} more"
            raise DataError(f"{self._owner}: {len(texts)} problems in the data{listed}", texts)


class MissingExtra(SecurefedError, ImportError):
    """An optional dependency is needed and missing; the message says what to install."""


def require(module: str, *, extra: str) -> ModuleType:
    """The module of that name, from a package that securefed[extra] installs."""
    package = module.partition(".")[0]
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != package:
            raise
        raise MissingExtra(
            f"{package} is not installed and is needed here: pip install 'securefed[{extra}]'", name=package
        ) from None


class CryptoError(SecurefedError):
    """The root of the crypto layer's errors. They contain no key, no mask and no data of another party."""


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
