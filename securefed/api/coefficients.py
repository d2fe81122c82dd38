"""What a linear model says about columns, where their party knows its own parameters: after release=True,
with own gradients, or in plain.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefed.api.party import Fitted
from securefed.errors import DataError
from securefed.labels.label_model import LabelModel
from securefed.models import LinearModel

__all__ = ["coefficients", "intercept", "log_odds"]

Array = NDArray[np.float64]


def coefficients(
    shards: Mapping[str, Any], fitted: Mapping[str, Fitted], labels: LabelModel
) -> dict[str, dict[str, float]]:
    """Each party's own, by column, in the columns' own units."""
    found = {}
    for name, model in linear(shards).items():
        columns = fitted[name].columns
        weights = _parameters(name, model, shards, labels)[: model.columns] / columns.scale * labels.scale
        found[name] = dict(zip(columns.names, weights.tolist(), strict=True))
    return found


def intercept(shards: Mapping[str, Any], fitted: Mapping[str, Fitted], labels: LabelModel) -> float:
    """What all coefficients are added to."""
    total = labels.mean
    for name, weights in coefficients(shards, fitted, labels).items():
        total -= float(np.dot(list(weights.values()), fitted[name].columns.mean))
    for name, model in linear(shards).items():
        total += labels.scale * float(_parameters(name, model, shards, labels)[model.columns :].sum())
    return total


def log_odds(
    shards: Mapping[str, Any], fitted: Mapping[str, Fitted], labels: LabelModel
) -> tuple[float, dict[str, dict[str, float]]]:
    """Return intercept and coefficients of the log odds of the second class, as a logistic regression has."""
    slope, offset = labels.log_odds
    weights = {
        name: {column: slope * weight for column, weight in each.items()}
        for name, each in coefficients(shards, fitted, labels).items()
    }
    return slope * intercept(shards, fitted, labels) + offset, weights


def _parameters(name: str, model: LinearModel, shards: Mapping[str, Any], labels: LabelModel) -> Array:
    """Of the model; at the label party, the last, with those of its own fit where there is one."""
    if labels.own is None:
        return model.parameters
    found = labels.own.step * model.parameters
    if name == list(shards)[-1]:
        if len(found) == model.columns:  # without an intercept of the joint fit
            found = np.append(found, 0.0)
        found = found + labels.own.coefficients
    return found


def linear(shards: Mapping[str, Any]) -> dict[str, LinearModel]:
    found = {}
    for name, shard in shards.items():
        if not isinstance(shard, LinearModel):
            raise DataError(f"coef_: {name} does not know its parameters; release=True opens them to it")
        found[name] = shard
    return found
