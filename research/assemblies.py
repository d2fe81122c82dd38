"""Estimators and assemblies from flat names, for experiments whose settings come from tables.

scheme, reveal, loss_form    become a protection
its other settings           go into it
evaluate_every, target, ...  go into Monitoring, and so on
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from securefed.assembly import LinearAssembly, TransferAssembly
from securefed.crypto import DEFAULT_SCHEME, protects
from securefed.declare import declared
from securefed.errors import SettingError
from securefed.settings import LinearSettings, Monitoring, ObjectiveSettings, TransferSettings
from securefed.settings.objectives import OBJECTIVE_SETTINGS, Labels, Simulation
from securefed.settings.protection import DEFAULTS, Blind, Plain, Protection, protection_from_words

GROUPS = {"monitoring": Monitoring, "labels": Labels, "simulation": Simulation}


def estimator(cls: Any, *positional: Any, **flat: Any) -> Any:
    """An estimator; what `scheme`, `reveal` and others say becomes a protection, and so on."""
    return cls(*positional, **_structured(cls.assembly.settings_class, flat))


def linear_assembly(**flat: Any) -> LinearAssembly:
    return LinearAssembly(LinearSettings(**_structured(LinearSettings, flat)))


def transfer_assembly(**flat: Any) -> TransferAssembly:
    return TransferAssembly(TransferSettings(**_structured(TransferSettings, flat)))


def run_table(table: Mapping[str, Any]) -> dict[str, Any]:
    """The table [run] of party.toml, from flat names."""
    kind = OBJECTIVE_SETTINGS[table.get("objective", "linear")]
    names = _protection_names(kind)
    words = {name: value for name, value in table.items() if name in names}
    found = {name: value for name, value in table.items() if name not in names}
    if words:
        protection = _protection(words)
        told = protection.to_table(kind.objective)
        own = {name: value for name, value in told.items() if value is not None}
        found["protection"] = {"kind": protection.kind, **own}
    return found


def _protection_names(kind: type[ObjectiveSettings]) -> set[str]:
    return {*DEFAULTS, "reveal", "loss_form"} - declared(kind).keys()


def _structured(kind: type[ObjectiveSettings], flat: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a class from flat names; other names stay as they are."""
    found, own = dict(flat), declared(kind)
    for group, members in GROUPS.items():
        parts = {name: found.pop(name) for name in declared(members) if name in found and name not in own}
        if parts:
            found[group] = members(**parts)
    words = {name: found.pop(name) for name in _protection_names(kind) if name in found}
    if words:
        in_clear = not protects(words.get("scheme", DEFAULT_SCHEME))
        if in_clear and words.get("reveal") == "own-gradient" and "refit" in own:
            found.setdefault("refit", False)  # as where gradients are opened
        found["protection"] = _protection(words)
    return found


def _protection(words: dict[str, Any]) -> Protection:
    base = protection_from_words(words, Blind())
    form, reveal = words.get("loss_form", "auto"), words.get("reveal", "nothing")
    own = declared(type(base))
    options = {name: value for name, value in words.items() if name in own}
    if isinstance(base, Plain) and form == "taylor":
        options["like"] = "blind" if reveal == "nothing" else "own-gradient"
    elif form == "exact" and not isinstance(base, Plain):
        raise SettingError(f"loss_form: 'exact' given, which takes Plain(); scheme {base.scheme!r} protects")
    for name in words.keys() - own.keys() - {"reveal", "loss_form"}:
        if words[name] not in (None, DEFAULTS[name]) and name in REFUSED:
            raise SettingError(f"{name}: {words[name]!r} given, {type(base).__name__}(...) has none")
    return type(base)(**{**options, "scheme": base.scheme})


REFUSED = ("batch_size", "exchange", "optimiser", "local_model", "dp_noise", "release")
"""Refused where the protection does not have them. Others, which change nothing there, are left out."""
