"""Identifiers in one agreed form, so that the same person has the same id at every party.

The form: text in Unicode NFC, without white space at its ends, each run of white space inside as one space.
Integers are their decimal digits, so that 17 and "17" are the same person, and so are 17.0 and "17.0", which
is what a table reader makes of a whole-number column with gaps. What else is folded is agreed (`id_form`):

    exact       nothing: case, leading zeros and look-alike characters (NFKC would make "x²" and "x2" one
                person) stay apart
    caseless    upper and lower case are the same
    loose       also without spaces, punctuation and leading zeros: "AB-007" and "ab 7" are one
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from numbers import Integral, Real
from typing import Any

from securefed.declare import check_choice
from securefed.errors import DataError, plain_text

ID_FORMS = ("exact", "caseless", "loose")
FEW_MEET = "do all name the same kind of id under `id`, and would id_form = 'caseless' or 'loose' help?"
"""What all parties are told where ids do not meet."""

_SHOWN = 3
_POINT_ZERO = re.compile(r"-?[0-9]+\.0+")
_EXACT = 2**53
"""Whole numbers beyond this are not all different as floating-point numbers."""


def normalise_id(value: object, form: str = "exact") -> str:
    """The agreed form of one id, "" where there is none."""
    text = _text(value)
    if _POINT_ZERO.fullmatch(text):
        text = text.partition(".")[0]
    if form != "exact":
        text = unicodedata.normalize("NFC", text.casefold())
    if form == "loose":
        text = "".join(c for c in text if unicodedata.category(c)[0] in "LNM")
        text = re.sub(r"(?<![0-9])0+(?=[0-9])", "", text)
    return text


def _text(value: object) -> str:
    if isinstance(value, str):
        text = " ".join(unicodedata.normalize("NFC", value).split())
        if not text.isprintable() and any(unicodedata.category(c) in ("Cc", "Cs") for c in text):
            raise DataError(f"{plain_text(repr(value), 40)} has control characters in it")
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
    raise DataError(f"{plain_text(repr(value), 40)} is neither text nor a whole number")


def normalise_ids(values: Iterable[object], owner: str, form: str = "exact") -> list[str]:
    """All ids of `owner` in the agreed form, in their order; each occurs once."""
    listed: list[Any] = list(values.tolist() if hasattr(values, "tolist") else values)
    texts = list(normalised(listed, owner, form))
    if len(counts := Counter(texts)) < len(texts):
        raise repeated_ids(texts, owner, form, [row for row, text in enumerate(texts) if counts[text] > 1])
    return texts


def normalised(values: Iterable[object], owner: str, form: str) -> Iterator[str]:
    """Yield ids in the agreed form, without a look whether one occurs twice. At the end, refuse bad ones."""
    check_choice("id_form", form, ID_FORMS)
    refused, empty, count = list[str](), list[str](), 0
    for count, value in enumerate(values, 1):
        try:
            text = normalise_id(value, form)
        except DataError as error:
            refused.append(f"row {count - 1}: {error}")
            continue
        if not text:
            empty.append(f"row {count - 1}")
        elif not refused and not empty:
            yield text
    if not count:
        raise DataError(f"{owner}: no ids given")
    if refused:
        raise DataError(f"{owner}: {len(refused)} of {count} ids cannot be used ({_few(refused)})")
    if empty:
        raise DataError(f"{owner}: {len(empty)} of {count} ids are empty ({_few(empty)}); each row needs one")


def repeated_ids(values: Iterable[object], owner: str, form: str, rows: Collection[int]) -> DataError:
    """What is wrong with ids that occur again in these rows."""
    wanted = set(rows)
    again = {normalise_id(value, form): None for row, value in enumerate(values) if row in wanted}
    named = _few(plain_text(repr(each), 40) for each in again)
    return DataError(f"{owner}: {len(again)} ids occur more than once ({named})")


def _few(items: Iterable[str]) -> str:
    first = list(islice(items, _SHOWN + 1))
    return ", ".join(first[:_SHOWN]) + (", ..." if len(first) > _SHOWN else "")
