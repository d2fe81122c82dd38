"""Every setting, declared once.

declare       how a setting is declared, and the checks
protection    Blind, OwnGradient, Plain
objectives    the settings of each objective, which all parties share
estimator     what runs in one process have besides
run, party    [run] and the other tables of party.toml
describe      the template of party.toml, the tables in the docs, docstrings
flat          settings by flat names, as version 0.1 had them
"""

from __future__ import annotations

from securefed.settings.estimator import Labels, Simulation
from securefed.settings.objectives import LinearSettings, Monitoring, ObjectiveSettings, TransferSettings
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
