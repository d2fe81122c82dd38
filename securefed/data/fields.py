"""The fields of one column, as a file or a frame has them, become numbers, words or dates.

Nothing is guessed that matters. A column is numbers if all its fields are, or are one of the usual words for
"not known" (NA, null, ?); dates if all are; else words. A column of numbers with a few other fields in it is
most often a slip (a decimal comma, a remark), and is refused rather than taken as categories.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefed.data.dates import AMBIGUOUS, parse_date
from securefed.errors import DataError

__all__ = ["KINDS", "field_kind", "typed"]

KINDS = {"f": "number", "M": "date"}
"""By numpy's kind; all others are words."""
UNKNOWN = frozenset({"na", "n/a", "#n/a", "nan", "null", "none", "?", "-", "."})
"""In a column of numbers or dates these are no slips: the value is not known."""
NEARLY = 0.8
"""A column with this part of numbers is one of numbers, with slips."""

_COMMA = re.compile(r"[+-]?\d+,\d+")


def field_kind(values: NDArray[Any]) -> str:
    """ "number", "date" or "words"."""
    return KINDS.get(values.dtype.kind, "words")


def typed(
    fields: Sequence[object],
    name: str,
    owner: str,
    *,
    missing: Collection[str] = (),
    kind: str | None = None,
    texts: bool = True,
) -> NDArray[Any]:
    """Floats with NaN, days with NaT, or words with "" for what is not known.

    `missing`: words that mean so, besides the empty field. `kind`: what the column has to be, where that is
    known. `texts`: a text of digits is a number, as in a file; in a frame it is a word.
    """
    if texts and not missing and kind in (None, "number"):
        with suppress(TypeError, ValueError):  # the usual case, and the fast way
            return np.array(fields, dtype=np.float64)
    known = [not _gone(value, missing) for value in fields]
    words = np.array([_word(value) if there else "" for value, there in zip(fields, known, strict=True)])
    if kind == "words":
        return words
    meant = [there and word.lower() not in UNKNOWN for there, word in zip(known, words.tolist(), strict=True)]
    if kind == "date":
        days = [parse_date(value, digits=True) if there else None
                for value, there in zip(fields, meant, strict=True)]  # fmt: skip
        strange = [place for place, there in enumerate(meant) if there and days[place] is None]
        if strange:
            raise DataError(_no_dates(words, strange, name, owner))
        return _days(days)
    numbers = [_number(value, texts) if there else None for value, there in zip(fields, meant, strict=True)]
    odd = [place for place, there in enumerate(meant) if there and numbers[place] is None]
    if not odd:
        return np.array([np.nan if value is None else value for value in numbers], dtype=np.float64)
    count = sum(meant) - len(odd)
    if kind == "number" or count >= NEARLY * sum(meant):
        raise DataError(_slips(words, odd, name, owner))
    days = [parse_date(value) if there else None for value, there in zip(fields, meant, strict=True)]
    strange = [place for place, there in enumerate(meant) if there and days[place] is None]
    if not strange:
        return _days(days)
    known_days = sum(meant) - len(strange)
    if known_days >= NEARLY * sum(meant) or all(AMBIGUOUS.fullmatch(words[place]) for place in strange):
        raise DataError(_no_dates(words, strange, name, owner))
    return words


def _gone(value: object, missing: Collection[str]) -> bool:
    """None, NaN, NaT, pandas' NA, an empty text, or a word that means so."""
    if isinstance(value, str):
        return not value.strip() or value.strip() in missing
    same = value == value
    return value is None or not isinstance(same, bool | np.bool_) or not same


def _word(value: object) -> str:
    return str(value).strip()


def _number(value: object, texts: bool) -> float | None:
    if isinstance(value, str) and not texts:
        return None
    if not isinstance(value, str | int | float | np.number | np.bool_):
        try:  # a Decimal and the like
            return float(value) if hasattr(value, "__float__") else None
        except (TypeError, ValueError):
            return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _days(days: Sequence[np.datetime64 | None]) -> NDArray[Any]:
    return np.array([np.datetime64("NaT") if day is None else day for day in days], dtype="datetime64[D]")


def _slips(words: NDArray[Any], odd: Sequence[int], name: str, owner: str) -> str:
    shown = str(words[odd[0]])
    why = "; is it a decimal comma?" if _COMMA.fullmatch(shown) else ""
    return (
        f"{owner}: column {name!r} is numbers but for {_few(len(odd))}, the first {_cut(shown)} in row "
        f"{odd[0] + 1}{why}; mend {'it' if len(odd) == 1 else 'them'}, say missing = [{_cut(shown)}] if that"
        f" means not known, or one_hot = [{name!r}] if the numbers are codes"
    )


def _no_dates(words: NDArray[Any], odd: Sequence[int], name: str, owner: str) -> str:
    shown = str(words[odd[0]])
    if AMBIGUOUS.fullmatch(shown):
        why = "may be day or month first; write dates as 2024-12-31"
    else:
        why = (
            f"is no date, as 2024-12-31 is; mend it, or say missing = [{_cut(shown)}] if that means not known"
        )
    return f"{owner}: column {name!r}: {_cut(shown)} in row {odd[0] + 1} {why}"


def _few(count: int) -> str:
    return "one field" if count == 1 else f"{count} fields"


def _cut(text: str) -> str:
    return repr(text if len(text) <= 30 else text[:27] + "...")
