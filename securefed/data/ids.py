"""Identifiers in one agreed form, so that the same person has the same id at every party.

The form: text in Unicode NFC, without white space at its ends, each run of white space inside as one space.
Integers are their decimal digits, so that 17 and "17" are the same person, and so is 17.0, which is what a
table reader makes of a whole-number column with gaps. Nothing else is folded: upper and lower case, leading
zeros and look-alike characters (NFKC would make "x²" and "x2" one person) stay apart. What is empty, no
id at all, or occurs twice in that form is refused, with the count and a few examples.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any

from securefed.errors import DataError

__all__ = ["normalise_id", "normalise_ids"]

_SHOWN = 3
_EXACT = 2**53
"""Whole numbers beyond this are not all different as floating-point numbers."""


def normalise_id(value: object) -> str:
    """The agreed form of one id, "" where there is none; what cannot be an id is refused."""
    if isinstance(value, str):
        text = " ".join(unicodedata.normalize("NFC", value).split())
        if not text.isprintable() and any(unicodedata.category(c) in ("Cc", "Cs") for c in text):
            raise DataError(f"{_shown(value)} has control characters in it")
        return text
    if value is None:
        return ""
    if isinstance(value, bool):
        raise DataError(f"{value} is neither text nor a whole number")
    if isinstance(value, Integral):
        return str(int(value))
    if isinstance(value, Real):
        number = float(value)
        if number != number:
            return ""
        if number.is_integer() and abs(number) < _EXACT:
            return str(int(number))
    raise DataError(f"{_shown(value)} is neither text nor a whole number")


def normalise_ids(values: Iterable[object], owner: str) -> list[str]:
    """All ids of `owner` in the agreed form, in their order; each occurs once."""
    given: list[Any] = list(values.tolist() if hasattr(values, "tolist") else values)
    if not given:
        raise DataError(f"{owner}: no ids given")
    found: list[str] = []
    refused: list[str] = []
    for row, value in enumerate(given):
        try:
            found.append(normalise_id(value))
        except DataError as error:
            refused.append(f"row {row}: {error}")
    if refused:
        raise DataError(f"{owner}: {_of(refused, len(given))} cannot be used ({_few(refused)})")
    empty = [f"row {row}" for row, text in enumerate(found) if not text]
    if empty:
        raise DataError(f"{owner}: {_of(empty, len(given))} are empty ({_few(empty)}); each row needs one")
    if len(set(found)) < len(found):
        repeated = [_shown(text) for text, count in Counter(found).items() if count > 1]
        raise DataError(f"{owner}: {len(repeated)} ids occur more than once ({_few(repeated)})")
    return found


def _of(bad: list[str], count: int) -> str:
    return f"{len(bad)} of {count} ids"


def _few(items: list[str]) -> str:
    return ", ".join(items[:_SHOWN]) + (", ..." if len(items) > _SHOWN else "")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
