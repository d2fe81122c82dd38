"""Checks of what a TOML table holds: keys that nobody reads, texts, lists of names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from securefed.errors import SettingError

__all__ = ["check_keys", "check_names", "check_text"]


def check_keys(where: str, table: Mapping[str, Any], known: Sequence[str]) -> None:
    """Refuse keys that nobody reads, with the nearest one that somebody does."""
    for key in table:
        if key not in known:
            near = get_close_matches(key, known, 1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; {', '.join(known)} are allowed"
            raise SettingError(f"{where}: unknown key {key!r}{hint}")


def check_text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise SettingError(f"{name} must be a text that is not empty, not {value!r}")
    return value


def check_names(name: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise SettingError(f"{name} must be a list of names, not {value!r}")
    if len(set(value)) != len(value):
        raise SettingError(f"{name} names something twice: {', '.join(value)}")
    return tuple(value)
