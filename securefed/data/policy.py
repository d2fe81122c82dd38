"""What a party decides about its own columns: gaps, dates, categories. The same in Python and in party.toml.

    impute    "refuse"         a gap is an error
              "median"         of the training rows; the most frequent word in a column of words
              "most-frequent"  of the training rows, numbers too
              "indicator"      the median, and a column that says where it was missing; "missing" is a
                               category of its own in a column of words
              or a table: one of these for each column that is named
    dates     by column: "age" or "parts" (securefed.data.dates)
    missing   words that mean "not known", besides the empty field
    rare      categories with fewer training rows than this are put together
    unknown   categories at a prediction that training did not have: "ignore" (counted and told), "refuse"

Without `impute`, gaps are refused, and marked by transform "auto". What is fitted is fitted on the party's
own training rows, is kept with its part of the model, and nobody else sees it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from securefed.checks import check_choice, check_integer
from securefed.data.dates import DATE_FORMS
from securefed.errors import SettingError

__all__ = ["IMPUTES", "UNKNOWNS", "Policy"]

IMPUTES = ("refuse", "median", "most-frequent", "indicator")
UNKNOWNS = ("ignore", "refuse")
_NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Policy:
    """One party's decisions; values are checked by name."""

    impute: str | Mapping[str, str] | None = None
    dates: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    missing: tuple[str, ...] = ()
    rare: int | None = None
    unknown: str = "ignore"

    def __post_init__(self) -> None:
        if isinstance(self.impute, Mapping):
            for column, way in self.impute.items():
                check_choice(f"impute of {column}", way, IMPUTES)
        elif self.impute is not None:
            check_choice("impute", self.impute, IMPUTES)
        if not isinstance(self.dates, Mapping):
            raise SettingError(f"dates: {self.dates!r} given; which column becomes what, as born = 'age'")
        for column, form in self.dates.items():
            check_choice(f"dates: {column}", form, tuple(DATE_FORMS))
        given: Any = self.missing
        if isinstance(given, str) or not all(isinstance(each, str) for each in given):
            raise SettingError(f"missing: {given!r} given, a list of words is allowed")
        object.__setattr__(self, "missing", tuple(given))
        if self.rare is not None:
            check_integer("rare", self.rare, least=1)
        check_choice("unknown", self.unknown, UNKNOWNS)

    @property
    def plain(self) -> bool:
        """Nothing was decided."""
        return self == Policy()

    @property
    def columns(self) -> list[str]:
        """Those that are named."""
        named = self.impute if isinstance(self.impute, Mapping) else {}
        return list(dict.fromkeys([*named, *self.dates]))

    def way(self, column: str, transform: str) -> str:
        """How gaps of a column are filled."""
        default = "indicator" if transform == "auto" else "refuse"
        if isinstance(self.impute, Mapping):
            return self.impute.get(column, default)
        return default if self.impute is None else self.impute
