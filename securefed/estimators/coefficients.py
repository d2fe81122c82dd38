"""What a linear model says about columns, where their party knows its own parameters: after release=True,
with own gradients, or in plain.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from securefed.errors import DataError
from securefed.measure.labels import LabelSide
from securefed.models import Linear
from securefed.party import Fitted

__all__ = ["coefficients", "intercept"]


def coefficients(
    shards: Mapping[str, Any], fitted: Mapping[str, Fitted], labels: LabelSide
) -> dict[str, dict[str, float]]:
    """Each party's own, by column, in the columns' own units."""
    found = {}
    for name, model in linear(shards).items():
        columns = fitted[name].columns
        weights = model.parameters[: model.columns] / columns.scale * labels.scale
        found[name] = dict(zip(columns.names, weights.tolist(), strict=True))
    return found


def intercept(shards: Mapping[str, Any], fitted: Mapping[str, Fitted], labels: LabelSide) -> float:
    """What all coefficients are added to."""
    total = labels.mean
    for name, weights in coefficients(shards, fitted, labels).items():
        total -= float(np.dot(list(weights.values()), fitted[name].columns.mean))
    for model in linear(shards).values():
        total += labels.scale * float(model.parameters[model.columns :].sum())
    return total


def linear(shards: Mapping[str, Any]) -> dict[str, Linear]:
    found = {}
    for name, shard in shards.items():
        if not isinstance(shard, Linear):
            raise DataError(f"coef_: {name} does not know its parameters; release=True opens them to it")
        found[name] = shard
    return found
