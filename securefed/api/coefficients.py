"""Coefficients of a linear model, where each party knows its own parameters.

Parties know them with Blind(release=True), OwnGradient() and Plain().
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefed.api.party import Fitted
from securefed.labels.label_model import LabelModel
from securefed.models import LinearModel

__all__ = ["coefficients", "intercept", "log_odds"]

Array = NDArray[np.float64]


def coefficients(
    shards: Mapping[str, Any], fitted: Mapping[str, Fitted], labels: LabelModel, asked: str = "coef_"
) -> dict[str, dict[str, float]]:
    """Return each party's own coefficients by column, in the columns' own units.

    `asked`: the attribute that an error names.
    """
    found = {}
    for name, model in known_models(shards, asked).items():
        columns = fitted[name].columns
        weights = _parameters(name, model, shards, labels)[: model.columns] / columns.scale * labels.scale
        found[name] = dict(zip(columns.names, weights.tolist(), strict=True))
    return found


def intercept(
    shards: Mapping[str, Any], fitted: Mapping[str, Fitted], labels: LabelModel, asked: str = "intercept_"
) -> float:
    """Return the number to which all coefficients are added."""
    total = labels.mean
    for name, weights in coefficients(shards, fitted, labels, asked).items():
        total -= float(np.dot(list(weights.values()), fitted[name].columns.mean))
    for name, model in known_models(shards, asked).items():
        total += labels.scale * float(_parameters(name, model, shards, labels)[model.columns :].sum())
    return total


def log_odds(
    shards: Mapping[str, Any], fitted: Mapping[str, Fitted], labels: LabelModel
) -> tuple[float, dict[str, dict[str, float]]]:
    """Return intercept and coefficients of the log odds of the second class, as a logistic regression has."""
    weights = coefficients(shards, fitted, labels, "log_odds_")
    slope, offset = labels.log_odds
    scaled = {
        name: {column: slope * weight for column, weight in each.items()} for name, each in weights.items()
    }
    return slope * intercept(shards, fitted, labels) + offset, scaled


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


def known_models(shards: Mapping[str, Any], asked: str) -> dict[str, LinearModel]:
    """Return every party's linear model. AttributeError, in the name of `asked`, where one is hidden."""
    for name, shard in shards.items():
        if not isinstance(shard, LinearModel):
            raise AttributeError(
                f"{asked}: {name} does not know its parameters;"
                " protection=Blind(release=True) opens them to it"
            )
    return dict(shards)
