"""The errors that every layer may raise.

    SecurefedError
    |-- SettingError    a setting is not one of the allowed values   (also a ValueError)
    |-- DataError       somebody's data cannot be used as it is      (also a ValueError)
    |   `-- NotFitted   securefed.api.predictor: no model yet        (also scikit-learn's NotFittedError)
    |-- MissingExtra    an optional dependency is not installed      (also an ImportError)
    `-- CryptoError     securefed.crypto.errors: keys, ciphertexts, masks, openings

Every message is one line that names what was given and what is allowed; data with several faults has one
line for each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

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

    Everything that a peer says passes through here before it is logged, shown or put into an error: terminal
    escapes, line breaks and text of any length come out as harmless words.
    """
    text = str(value)[: 4 * most]
    line = " ".join("".join(c if c.isprintable() else " " if c.isspace() else "?" for c in text).split())
    return line if len(line) <= most and len(text) == len(str(value)) else f"{line[: most - 3]}..."


class Problems:
    """Everything that is wrong with somebody's data, so that nobody mends one thing to hear of the next."""

    def __init__(self, owner: str) -> None:
        self._owner, self._found = owner, list[str]()

    def add(self, text: str) -> None:
        if text not in self._found:
            self._found.append(text)

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """What the block refuses is kept, and the next thing is looked at."""
        try:
            yield
        except DataError as error:
            for text in error.problems:
                self.add(text)

    def check(self) -> None:
        """DataError with all of them, if there are any."""
        if len(self._found) == 1:
            raise DataError(self._found[0])
        if self._found:
            listed = "".join(f"\n  - {text}" for text in self._found[:MOST_SHOWN])
            if len(self._found) > MOST_SHOWN:
                listed += f"\n  - and {len(self._found) - MOST_SHOWN} more"
            raise DataError(f"{self._owner}: {len(self._found)} problems in the data{listed}", self._found)


class MissingExtra(SecurefedError, ImportError):
    """An optional dependency is needed and missing; the message says what to install."""
