"""Curves that show how good a model of two classes is: ROC and calibration. They stay at the label party."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefed.labels.metrics import Answers

__all__ = ["calibration_curve", "curves", "roc_curve"]

Array = NDArray[np.float64]
MOST_POINTS = 100
GROUPS = 10
LEAST_GROUP = 5
"""People of a group; fewer say little."""


def roc_curve(truth: Array, scores: Array) -> list[tuple[float, float]]:
    """Return points (share of the first class, share of the second class) with scores above each line.

    Parameters
    ----------
    truth: 0 and 1, 1 for the second class.
    scores: as many; the larger, the likelier.
    """
    order = np.argsort(-scores, kind="stable")
    positive, ends = truth[order] > 0, np.append(np.diff(scores[order]) != 0, True)
    found, false = np.cumsum(positive)[ends], np.cumsum(~positive)[ends]
    points = [(0.0, 0.0), *zip(false / false[-1], found / found[-1], strict=True)]
    if len(points) > MOST_POINTS:
        chosen = np.unique(np.linspace(0, len(points) - 1, MOST_POINTS).round().astype(int))
        points = [points[place] for place in chosen.tolist()]
    return [(float(x), float(y)) for x, y in points]


def calibration_curve(truth: Array, probabilities: Array) -> list[tuple[float, float, int]]:
    """Return (mean probability, share of the second class, people) of equal groups, by probability."""
    order = np.argsort(probabilities, kind="stable")
    groups = max(1, min(GROUPS, len(order) // LEAST_GROUP))
    return [
        (float(probabilities[part].mean()), float(truth[part].mean()), len(part))
        for part in np.array_split(order, groups)
    ]


def curves(answers: Answers) -> dict[str, Any]:
    """Return the curves that these answers allow, ready for JSON."""
    if answers.kind != "two classes" or answers.scores is None or not answers.both_classes:
        return {}
    found: dict[str, Any] = {"roc": [list(point) for point in roc_curve(answers.truth, answers.scores)]}
    if answers.probabilities is not None:
        groups = calibration_curve(answers.truth, answers.probabilities)
        found["calibration"] = [list(group) for group in groups]
    return found
