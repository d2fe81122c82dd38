"""The checks of settings: one line that names the setting, what was given and what is allowed.

Configuration values call these from `__post_init__` or `__init__`, so that a bad value is refused where it
is written and not somewhere inside a run. They return the value in its plain Python type, so that numpy
scalars do not travel on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Integral, Real

from securefed.errors import SettingError


def check_integer(name: str, value: object, *, least: int, most: int | None = None) -> int:
    """An integer in [least, most]; True and False are not integers here."""
    allowed = f"an integer of at least {least}" if most is None else f"an integer from {least} to {most}"
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise SettingError(f"{name} must be {allowed}, not {value!r}")
    number = int(value)
    if number < least or (most is not None and number > most):
        raise SettingError(f"{name} must be {allowed}, not {number}")
    return number


def check_number(
    name: str,
    value: object,
    *,
    least: float | None = None,
    above: float | None = None,
    below: float | None = None,
) -> float:
    """A finite real number, with `least` allowed and `above` and `below` excluded, where given."""
    limits = [
        f"{words} {limit:g}"
        for words, limit in (("of at least", least), ("greater than", above), ("less than", below))
        if limit is not None
    ]
    allowed = " ".join(["a finite number", " and ".join(limits)]).strip()
    if isinstance(value, bool) or not isinstance(value, Real):
        raise SettingError(f"{name} must be {allowed}, not {value!r}")
    number = float(value)
    if (
        not math.isfinite(number)
        or (least is not None and number < least)
        or (above is not None and number <= above)
        or (below is not None and number >= below)
    ):
        raise SettingError(f"{name} must be {allowed}, not {number!r}")
    return number


def check_choice(name: str, value: object, allowed: Iterable[str]) -> str:
    """One of a few words."""
    words = list(allowed)
    if not isinstance(value, str) or value not in words:
        raise SettingError(f"{name} must be one of {', '.join(map(repr, words))}, not {value!r}")
    return value


def check_flag(name: str, value: object) -> bool:
    """True or False, and nothing that merely counts as one."""
    if not isinstance(value, bool):
        raise SettingError(f"{name} must be True or False, not {value!r}")
    return value
