"""Gaussian noise on whole numbers, exactly (Canonne, Kamath and Steinke, "The Discrete Gaussian for
Differential Privacy", 2020, algorithms 1 to 3).

No floating point: noise that has only as many digits as a float leaves the last bits of an exact sum as they
are. Everything is decided by uniform integers from the operating system.
"""

from __future__ import annotations

from secrets import randbelow

from securefed.errors import SettingError

__all__ = ["discrete_gaussian"]


def discrete_gaussian(deviation: int) -> int:
    """An integer x with probability proportional to exp(-x**2 / (2 deviation**2))."""
    if not isinstance(deviation, int) or isinstance(deviation, bool) or deviation < 1:
        raise SettingError(f"deviation: {deviation!r} given, an integer of at least 1 is allowed")
    scale, square = deviation + 1, deviation * deviation
    while True:
        found = _discrete_laplace(scale)
        if _with_exp((abs(found) * scale - square) ** 2, 2 * square * scale * scale):
            return found


def _discrete_laplace(scale: int) -> int:
    """x with probability proportional to exp(-|x| / scale)."""
    while True:
        low = randbelow(scale)
        if not _with_exp(low, scale):
            continue
        high = 0
        while _with_exp(1, 1):
            high += 1
        size, negative = low + scale * high, bool(randbelow(2))
        if size or not negative:  # there is one 0
            return -size if negative else size


def _with_exp(numerator: int, denominator: int) -> bool:
    """True with probability exp(-numerator / denominator)."""
    while numerator > denominator:
        if not _with_small_exp(1, 1):
            return False
        numerator -= denominator
    return _with_small_exp(numerator, denominator)


def _with_small_exp(numerator: int, denominator: int) -> bool:
    """The same for at most 1: the parity of how often a chance of numerator / (denominator k) comes true."""
    times = 1
    while randbelow(denominator * times) < numerator:
        times += 1
    return times % 2 == 1
