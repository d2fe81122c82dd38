"""How a setting is declared: once, with its name, type, default, check and documentation.

    @dataclass(frozen=True, kw_only=True, repr=False)
    class Blind(Declared):
        score_precision: int = setting(10, integer(least=0), "Bits after the point that a score shows.")

Everything else derives from the declaration: the check when a value is made, the keys of party.toml and its
template, the table in docs/reference.md, what parties compare when they meet, and estimators' parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from difflib import get_close_matches
from functools import cache
from typing import Any, ClassVar

from securefed.checks import check_choice, check_flag, check_integer, check_number
from securefed.errors import SettingError

__all__ = [
    "Check",
    "Declared",
    "Setting",
    "anything",
    "check_keys",
    "check_names",
    "check_text",
    "choice",
    "declared",
    "flag",
    "integer",
    "number",
    "optional",
    "setting",
    "word_or",
]

Check = Callable[[str, Any], Any]
"""Takes a setting's name and value. Returns the value in its plain form, or raises SettingError."""
KEY = "setting"


@dataclass(frozen=True)
class Setting:
    """What is declared about one setting."""

    name: str
    kind: str
    """Its type, as the class says it."""
    default: Any
    check: Check
    doc: str
    objectives: tuple[str, ...]
    """The objectives that it belongs to; empty: all."""
    in_file: bool
    """Whether party.toml has it. Other settings are for runs in one process."""
    example: Any
    """What the template shows in place of a default that TOML cannot write."""

    def belongs_to(self, objective: str) -> bool:
        return not self.objectives or objective in self.objectives


def setting(
    default: Any,
    check: Check,
    doc: str,
    *,
    objectives: tuple[str, ...] = (),
    in_file: bool = True,
    example: Any = None,
) -> Any:
    """Declare one setting as a field of a dataclass. A default of MISSING makes it required."""
    facts = {"check": check, "doc": doc, "objectives": objectives, "in_file": in_file, "example": example}
    if default is MISSING:
        return field(metadata={KEY: facts})
    return field(default=default, metadata={KEY: facts})


class Declared:
    """The base of classes whose fields are settings: every value is checked when it is made."""

    title: ClassVar[str] = ""
    """What the docs call the group."""

    def __post_init__(self) -> None:
        for name, each in declared(type(self)).items():
            object.__setattr__(self, name, each.check(name, getattr(self, name)))
        self.check()

    def check(self) -> None:
        """Raise SettingError where settings do not go together."""

    def __repr__(self) -> str:
        told = [
            f"{name}={getattr(self, name)!r}"
            for name, each in declared(type(self)).items()
            if getattr(self, name) != each.default
        ]
        return f"{type(self).__name__}({', '.join(told)})"

    def to_table(self, objective: str) -> dict[str, Any]:
        """The values that party.toml has, as TOML writes them."""
        found = {}
        for name, each in declared(type(self)).items():
            value = getattr(self, name)
            if each.in_file and each.belongs_to(objective):
                found[name] = list(value) if isinstance(value, tuple) else value
        return found


def declared(cls: type[Any]) -> Mapping[str, Setting]:
    """The settings of a class, by name."""
    kind: Any = cls
    return _declared(kind)


@cache
def _declared(cls: Any) -> Mapping[str, Setting]:
    return {each.name: _setting(each) for each in fields(cls) if KEY in each.metadata}


def _setting(each: Field[Any]) -> Setting:
    return Setting(name=each.name, kind=str(each.type), default=each.default, **each.metadata[KEY])


# Checks: functions of a setting's name and value.


def flag(name: str, value: Any) -> bool:
    return check_flag(name, value)


def anything(name: str, value: Any) -> Any:
    """Accept every value: whoever uses the setting checks it."""
    return value


def integer(*, least: int, most: int | None = None) -> Check:
    return lambda name, value: check_integer(name, value, least=least, most=most)


def number(*, least: float | None = None, above: float | None = None, below: float | None = None) -> Check:
    return lambda name, value: check_number(name, value, least=least, above=above, below=below)


def choice(words: Iterable[str]) -> Check:
    """One of some words; a registry is read when a value is checked."""
    return lambda name, value: check_choice(name, value, words)


def optional(check: Check) -> Check:
    """None, or what the check allows."""
    return lambda name, value: None if value is None else check(name, value)


def word_or(word: str, check: Check) -> Check:
    """One word, or what the check allows."""
    return lambda name, value: word if isinstance(value, str) and value == word else check(name, value)


# Checks of what a TOML table holds.


def check_keys(where: str, table: Mapping[str, Any], known: Iterable[str]) -> None:
    """Refuse a key that nobody reads, and name the nearest one that somebody does."""
    names = list(known)
    for key in table:
        if key not in names:
            near = get_close_matches(key, names, 1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; {', '.join(names)} are allowed"
            raise SettingError(f"{where}: unknown key {key!r}{hint}")


def check_text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise SettingError(f"{name} must be a text that is not empty, not {value!r}")
    return value


def check_names(name: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) and item for item in value):
        raise SettingError(f"{name} must be a list of names, not {value!r}")
    if len(set(value)) != len(value):
        raise SettingError(f"{name} names something twice: {', '.join(value)}")
    return tuple(value)
