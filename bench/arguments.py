"""Lists on the command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TypeVar

Number = TypeVar("Number", int, float)


def numbers(kind: type[Number]) -> Callable[[str], tuple[Number, ...]]:
    """A parser of numbers separated by commas."""

    def parse(text: str) -> tuple[Number, ...]:
        try:
            found = tuple(kind(part) for part in text.split(","))
        except ValueError:
            found = ()
        if not found or min(found) <= 0:
            raise argparse.ArgumentTypeError(f"{text!r} given, positive numbers with commas are allowed")
        return found

    return parse


def seed_list(text: str) -> tuple[int, ...]:
    """0,3,7 or 0-4."""
    found: list[int] = []
    try:
        for part in text.split(","):
            first, _, last = part.partition("-")
            found += range(int(first), int(last or first) + 1)
    except ValueError:
        found = []
    if not found or len(set(found)) < len(found):
        raise argparse.ArgumentTypeError(f"{text!r} given, different seeds as 0,3 or 0-4 are allowed")
    return tuple(found)
