"""How a setting is declared: once, with its name, type, default, check and documentation.

    @dataclass(frozen=True, kw_only=True, repr=False)
    class Blind(Declared):
        score_precision: int = setting(10, integer(least=0), "Bits after the point that a score shows.")

Everything else derives from the declaration: the check when a value is made, the keys of party.toml and its
template, the table in docs/reference.md, what parties compare when they meet, and estimators' parameters.

A check refuses a value in one line that names the setting, what was given and what is allowed. It returns the
value in its plain Python type, so that numpy scalars do not travel on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from difflib import get_close_matches
from numbers import Integral, Real
from typing import Any

from securefed.errors import SettingError


def check_integer(name: str, value: object, *, least: int, most: int | None = None) -> int:
    """An integer in [least, most]; True and False are not integers here."""
    number = int(value) if not isinstance(value, bool) and isinstance(value, Integral) else least - 1
    if number < least or (most is not None and number > most):
        allowed = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise SettingError(f"{name} must be an integer {allowed}, not {value!r}")
    return number


Limit = float | None


def check_number(
    name: str, value: object, *, least: Limit = None, above: Limit = None, below: Limit = None
) -> float:
    """A finite real number, with `least` allowed and `above` and `below` excluded, where given."""
    number = float(value) if not isinstance(value, bool) and isinstance(value, Real) else math.nan
    high_enough = (least is None or number >= least) and (above is None or number > above)
    if not math.isfinite(number) or not high_enough or (below is not None and number >= below):
        limits = {"of at least": least, "greater than": above, "less than": below}
        allowed = " and ".join(f"{words} {limit:g}" for words, limit in limits.items() if limit is not None)
        raise SettingError(f"{name} must be {f'a finite number {allowed}'.strip()}, not {value!r}")
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


Check = Callable[[str, Any], Any]
"""Takes a setting's name and value. Returns the value in its plain form, or raises SettingError."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What is declared about one setting."""

    name: str = ""
    kind: str = ""
    """Its type, as the class says it."""
    default: Any
    check: Check
    doc: str
    objectives: tuple[str, ...] = ()
    """The objectives that it belongs to; empty: all."""
    in_file: bool = True
    """Whether party.toml has it. Other settings are for runs in one process."""
    example: Any = None
    """What the template shows in place of a default that TOML cannot write."""

    def belongs_to(self, objective: str) -> bool:
        return not self.objectives or objective in self.objectives


def setting(default: Any, check: Check, doc: str, **facts: Any) -> Any:
    """Declare one setting as a field of a dataclass; `facts` are other fields of `Setting`.

    A default of MISSING makes it required.
    """
    metadata = {"setting": {"check": check, "doc": doc, **facts}}
    return field(metadata=metadata) if default is MISSING else field(default=default, metadata=metadata)


def again(cls: type[Any], name: str, **changes: Any) -> Any:
    """Declare a setting of another class once more, with another default, check or documentation."""
    known = vars(declared(cls)[name])
    return setting(**{key: value for key, value in known.items() if key not in ("name", "kind")} | changes)


def declared(cls: type[Any]) -> dict[str, Setting]:
    """The settings of a class, by name: its own ones first."""
    known = [each for each in fields(cls) if "setting" in each.metadata]
    return {
        each.name: Setting(
            name=each.name, kind=str(each.type), default=each.default, **each.metadata["setting"]
        )
        for each in sorted(known, key=lambda each: each.name not in cls.__annotations__)
    }


def in_file(cls: type[Any], objective: str) -> dict[str, Setting]:
    """The settings of a class that party.toml has, in a run of this objective."""
    known = declared(cls).items()
    return {name: each for name, each in known if each.in_file and each.belongs_to(objective)}


class Declared:
    """The base of classes whose fields are settings: every value is checked when it is made."""

    def __post_init__(self) -> None:
        for name, each in declared(type(self)).items():
            object.__setattr__(self, name, each.check(name, getattr(self, name)))
        self.check()

    def check(self) -> None:
        """Raise SettingError where settings do not go together."""

    def __repr__(self) -> str:
        changed = [
            f"{name}={getattr(self, name)!r}"
            for name, each in declared(type(self)).items()
            if getattr(self, name) != each.default
        ]
        return f"{type(self).__name__}({', '.join(changed)})"

    def to_table(self, objective: str) -> dict[str, Any]:
        """The values that party.toml has, as TOML writes them."""
        values = {name: getattr(self, name) for name in in_file(type(self), objective)}
        return {name: list(each) if isinstance(each, tuple) else each for name, each in values.items()}


# Checks: functions of a setting's name and value.

flag = check_flag


def anything(name: str, value: Any) -> Any:
    """Accept every value: whoever uses the setting checks it."""
    return value


def integer(*, least: int, most: int | None = None) -> Check:
    return lambda name, value: check_integer(name, value, least=least, most=most)


def number(*, least: Limit = None, above: Limit = None, below: Limit = None) -> Check:
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


def instance(*kinds: type[Any]) -> Check:
    """A value of one of some classes."""

    def check(name: str, value: Any) -> Any:
        if not isinstance(value, kinds):
            allowed = " or ".join(f"{kind.__name__}(...)" for kind in kinds)
            raise SettingError(f"{name}: {value!r} given, {allowed} is allowed")
        return value

    return check


def accepted(check: Callable[[Any], Any]) -> Check:
    """A value that some other check takes; it stays as it is."""

    def accept(name: str, value: Any) -> Any:
        check(value)
        return value

    return accept


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
