"""Settings by flat names, as version 0.1 of the estimators and of party.toml had them.

scheme, reveal, loss_form    become a protection
its other settings           go into it
evaluate_every, target, ...  go into Monitoring
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from securefed.checks import check_choice
from securefed.crypto import DEFAULT_SCHEME, SCHEMES, protects
from securefed.errors import SettingError
from securefed.settings.declare import Declared, declared
from securefed.settings.estimator import Labels, Simulation
from securefed.settings.objectives import Monitoring, ObjectiveSettings
from securefed.settings.protection import DEFAULTS, PROTECTIONS, Blind, OwnGradient, Plain, Protection

__all__ = ["flat_names", "grouped", "settings_from", "structured", "warn_of_names"]

S = TypeVar("S", bound=ObjectiveSettings)
REVEALS = ("nothing", "own-gradient")
WORDS = ("scheme", "reveal", "loss_form")
GROUPS: dict[str, type[Declared]] = {"labels": Labels, "simulation": Simulation}
REFUSED = ("batch_size", "exchange", "optimiser", "local_model", "dp_noise", "release")
"""Refused where the protection does not have them. Others, which change nothing there, are left out."""


def flat_names(cls: type[ObjectiveSettings]) -> set[str]:
    """Names that stand for a part of a grouped setting."""
    of_protections = {
        name
        for kind in PROTECTIONS.values()
        for name, each in declared(kind).items()
        if each.belongs_to(cls.objective)
    }
    return {*WORDS, *of_protections, *declared(Monitoring)} - declared(cls).keys()


def structured(cls: type[ObjectiveSettings], flat: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a class from flat names; other names stay as they are."""
    names = flat_names(cls)
    parts = {name: value for name, value in flat.items() if name in names}
    found = {name: value for name, value in flat.items() if name not in names}
    watched = {name: parts.pop(name) for name in declared(Monitoring) if name in parts}
    if watched:
        found["monitoring"] = Monitoring(**watched)
    if parts:
        # In the clear, version 0.1 learnt from held-out rows again where `reveal` was "nothing" alone.
        in_clear = not protects(parts.get("scheme", DEFAULT_SCHEME))
        if in_clear and parts.get("reveal") == "own-gradient" and "refit" in declared(cls):
            found.setdefault("refit", False)
        found["protection"] = _protection(parts, cls)
    return found


def _protection(parts: dict[str, Any], cls: type[ObjectiveSettings]) -> Protection:
    scheme = check_choice("scheme", parts.pop("scheme", DEFAULT_SCHEME), SCHEMES)
    reveal = check_choice("reveal", parts.pop("reveal", "nothing"), REVEALS)
    form = check_choice("loss_form", parts.pop("loss_form", "auto"), ("auto", "exact", "taylor"))
    kind: type[Protection] = Blind if reveal == "nothing" else OwnGradient
    if not protects(scheme):
        kind = Plain
        if form == "taylor":
            parts["like"] = "blind" if reveal == "nothing" else "own-gradient"
    elif form == "exact":
        raise SettingError(f"loss_form: 'exact' given, which takes Plain(); scheme {scheme!r} protects")
    own = declared(kind)
    for name, value in parts.items():
        if name not in own and name in REFUSED and value not in (None, DEFAULTS[name]):
            takes = " or ".join(each.__name__ for each in PROTECTIONS.values() if name in declared(each))
            raise SettingError(f"{name}: {value!r} given, {kind.__name__}(...) has none; {takes} takes it")
    return kind(scheme=scheme, **{name: value for name, value in parts.items() if name in own})


def grouped(
    cls: type[ObjectiveSettings], local: type[Declared], flat: Mapping[str, Any]
) -> tuple[dict[str, Any], set[str]]:
    """An estimator's parameters from flat names, and the names of version 0.1 among them."""
    values = dict(flat)
    if isinstance(values.get("protection"), str):  # a scheme in third place
        values["scheme"] = values.pop("protection")
    old = flat_names(cls) & values.keys()
    found = structured(cls, values)
    if "key_holder" in found:
        old.add("key_holder")
        found["protection"] = _helped(cls, found.get("protection", Blind()), found.pop("key_holder"))
    for group, kind in GROUPS.items():
        parts = {name: found.pop(name) for name in declared(kind) if name in found}
        if parts and group in declared(local):
            old |= parts.keys()
            found[group] = kind(**parts)
        else:
            found |= parts
    return found, old


def _helped(cls: type[ObjectiveSettings], protection: Protection, helper: str | None) -> Protection:
    if isinstance(protection, Blind):
        return replace(protection, helper=helper)
    cls(protection=protection).check_key_holder(helper, 2)
    return protection


def settings_from(cls: type[S], **flat: Any) -> S:
    """The settings of a class from flat names."""
    return cls(**structured(cls, flat))


def warn_of_names(where: str, names: set[str], made: Mapping[str, Any], *, stacklevel: int) -> None:
    """Say the new form of names that keep working for one version."""
    new = ", ".join(
        f"{name}={made[name]!r}" for name in ("protection", "monitoring", *GROUPS) if name in made
    )
    warnings.warn(
        f"{where}: {', '.join(sorted(names))} will go with the next version; write {new}",
        DeprecationWarning,
        stacklevel=stacklevel,
    )
