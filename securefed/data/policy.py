"""What a party decides about its own columns. The same settings are in `Party(...)` and in party.toml.

    impute     "refuse"         a gap is an error
               "median"         of the training rows; the most frequent word in a column of words
               "most-frequent"  of the training rows, numbers too
               "indicator"      the median, and a column that says where it was missing; "missing" is a
                                category of its own in a column of words
               or a table: one of these for each column that is named
    dates      by column: "age" or "parts" (securefed.data.dates)
    missing    words that mean "not known", besides the empty field
    rare       categories with fewer training rows than this are put together
    unknown    categories at a prediction that training did not have: "ignore" (counted and told), "refuse"
    one_hot    columns of numbers that are codes; if given, no other column may hold words
    decimal    "," or ".": the sign before the decimals; the other one may separate thousands
    dayfirst   true: 03/01/2024 is in January; false: it is in March
    separator  the sign between the fields of a text file

Without `impute`, gaps are refused; transform "auto" marks them. Without `decimal`, `dayfirst` and `separator`
the reader recognises what is clear, and refuses what is not (securefed.data.readings). Everything is fitted
on the party's own training rows, is kept with its part of the model, and nobody else sees it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from securefed.checks import check_choice, check_flag, check_integer
from securefed.data.column_types import all_forms, type_of_form
from securefed.data.readings import Form
from securefed.errors import SettingError

__all__ = ["IMPUTES", "POLICY", "UNKNOWNS", "Policy"]

IMPUTES = ("refuse", "median", "most-frequent", "indicator")
UNKNOWNS = ("ignore", "refuse")
DECIMALS = (".", ",")
_NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Policy:
    """One party's decisions; values are checked by name."""

    impute: str | Mapping[str, str] | None = None
    dates: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    missing: Sequence[str] = ()
    rare: int | None = None
    unknown: str = "ignore"
    one_hot: Sequence[str] | None = None
    decimal: str | None = None
    dayfirst: bool | None = None
    separator: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.impute, Mapping):
            for column, way in self.impute.items():
                check_choice(f"impute of {column}", way, IMPUTES)
        elif self.impute is not None:
            check_choice("impute", self.impute, IMPUTES)
        if not isinstance(self.dates, Mapping):
            raise SettingError(f"dates: {self.dates!r} given; which column becomes what, as born = 'age'")
        for column, form in self.dates.items():
            check_choice(f"dates: {column}", form, tuple(all_forms()))
        for name in ("missing", "one_hot"):
            words: Any = getattr(self, name)
            if words is None and name == "one_hot":
                continue
            if isinstance(words, str) or not all(isinstance(each, str) for each in words):
                what = "words" if name == "missing" else "column names"
                raise SettingError(f"{name}: {words!r} given, a list of {what} is allowed")
            object.__setattr__(self, name, tuple(words))
        if self.rare is not None:
            check_integer("rare", self.rare, least=1)
        check_choice("unknown", self.unknown, UNKNOWNS)
        if self.decimal is not None:
            check_choice("decimal", self.decimal, DECIMALS)
        if self.dayfirst is not None:
            check_flag("dayfirst", self.dayfirst)
        if self.separator is not None and (not isinstance(self.separator, str) or len(self.separator) != 1):
            raise SettingError(f"separator: {self.separator!r} given, one sign such as ';' is allowed")

    @property
    def plain(self) -> bool:
        """Nothing was decided."""
        return self == Policy()

    @property
    def form(self) -> Form:
        """How values are written."""
        return Form(self.decimal, self.dayfirst, self.missing)

    @property
    def columns(self) -> list[str]:
        """The columns that are named."""
        named = self.impute if isinstance(self.impute, Mapping) else {}
        return list(dict.fromkeys([*(self.one_hot or ()), *named, *self.dates]))

    def kind(self, column: str) -> str | None:
        """The type that the settings give a column, if they do."""
        return type_of_form(self.dates[column]).name if column in self.dates else None

    def way(self, column: str, transform: str) -> str:
        """How gaps of a column are filled."""
        default = "indicator" if transform == "auto" else "refuse"
        if isinstance(self.impute, Mapping):
            return self.impute.get(column, default)
        return default if self.impute is None else self.impute


POLICY = Policy()
"""Nothing decided."""
