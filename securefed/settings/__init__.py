"""Every setting, declared once (securefed.declare says how).

protection    Blind, OwnGradient, Plain
objectives    the settings of each objective: estimators have all of them, [run] those that parties share
run, party    [run] and the other tables of party.toml
describe      the template of party.toml, docstrings
"""

from __future__ import annotations

from securefed.settings.objectives import (
    Labels,
    LinearSettings,
    Monitoring,
    ObjectiveSettings,
    Simulation,
    TransferSettings,
)
from securefed.settings.protection import Blind, OwnGradient, Plain, Protection

__all__ = [
    "Blind",
    "Labels",
    "LinearSettings",
    "Monitoring",
    "ObjectiveSettings",
    "OwnGradient",
    "Plain",
    "Protection",
    "Simulation",
    "TransferSettings",
]
