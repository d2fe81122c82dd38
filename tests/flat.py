"""Estimators, settings and assemblies from flat names, so that tests can vary any setting by its name."""

from __future__ import annotations

from typing import Any

from research.assemblies import estimator, run_table
from research.assemblies import linear_assembly as linear
from research.assemblies import transfer_assembly as transfer
from securefed.settings import LinearSettings, TransferSettings

__all__ = ["estimator", "linear", "linear_settings", "run_table", "transfer", "transfer_settings"]


def linear_settings(**flat: Any) -> LinearSettings:
    return linear(**flat).settings


def transfer_settings(**flat: Any) -> TransferSettings:
    return transfer(**flat).settings
