"""Estimators and assemblies from flat names, for experiments whose settings come from tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from securefed.assembly import LinearAssembly, TransferAssembly
from securefed.settings import LinearSettings, Monitoring, TransferSettings
from securefed.settings.declare import declared
from securefed.settings.flat import flat_names, grouped, settings_from, structured
from securefed.settings.objectives import OBJECTIVE_SETTINGS

__all__ = ["estimator", "linear_assembly", "run_table", "transfer_assembly"]


def estimator(cls: Any, *positional: Any, **flat: Any) -> Any:
    """An estimator; what `scheme`, `reveal` and others say becomes a protection, and so on."""
    words = {**dict(zip(cls.positional, positional, strict=False)), **flat}
    values, _ = grouped(cls.assembly.settings_class, cls.local, words)
    return cls(**values)


def run_table(table: Mapping[str, Any]) -> dict[str, Any]:
    """The table [run] of party.toml, from flat names."""
    kind = OBJECTIVE_SETTINGS[table.get("objective", "linear")]
    names = flat_names(kind) - declared(Monitoring).keys()
    words = {name: value for name, value in table.items() if name in names}
    found = {name: value for name, value in table.items() if name not in names}
    if words:
        protection = structured(kind, words)["protection"]
        told = protection.to_table(kind.objective)
        own = {name: value for name, value in told.items() if value is not None}
        found["protection"] = {"kind": protection.kind, **own}
    return found


def linear_assembly(**flat: Any) -> LinearAssembly:
    return LinearAssembly(settings_from(LinearSettings, **flat))


def transfer_assembly(**flat: Any) -> TransferAssembly:
    return TransferAssembly(settings_from(TransferSettings, **flat))
