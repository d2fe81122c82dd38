"""Targets of a fit that bring least squares near to logistic regression.

A blind fit is least squares. Least squares is linear in its targets, and only the label party knows these. So
it can make steps towards the exact loss: from log odds eta and probabilities p, each of a model that did not
learn from the row, it trains on

    eta + w (y - p) / v        y = 1 for rows of the class, else 0; w the row's weight

which is one step of Newton's method with one curvature v for all rows: the slope of p by eta over the rows.
Newton's own, the mean of p (1 - p), is smaller where classes hardly overlap, and then the step goes too far.
The slope leaves the targets uncorrelated with what the first fit knew of other rows' labels. What it was
chosen by is in docs/choosing.md.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from securefed.labels.calibration import softmax
from securefed.models.local import sigmoid
from securefed.protocols.losses import Loss

Array = NDArray[np.float64]
SIZE = 2.0
"""The root of the mean square of targets: the largest that shares are made for (GRADIENT_BOUND)."""
LEAST_CURVATURE = 1e-3
LARGEST_SCORE = 24.0
"""That a target asks for. Scores are opened modulo 64 (RANGE_BITS); a fit may go beyond its targets."""


def working_targets(odds: Array, positive: NDArray[np.bool_], weights: Array | None = None) -> Array:
    """Return targets from log odds: (rows,) of the second class, or (rows, classes)."""
    several = odds.ndim == 2
    odds = odds - odds.mean(axis=1, keepdims=True) if several else odds
    likely = softmax(odds) if several else sigmoid(odds)
    spread = np.maximum(odds.var(axis=0), 1e-12)
    slope = ((odds - odds.mean(axis=0)) * likely).mean(axis=0) / spread
    mean = np.maximum((likely * (1.0 - likely)).mean(axis=0), LEAST_CURVATURE)
    left = positive - likely if weights is None else weights * (positive - likely)
    targets: Array = odds + left / np.maximum(slope, mean)
    return targets


def scaled(z: Array, loss: Loss, most: float) -> tuple[Array, float]:
    """Return labels whose least squares fit, under the Taylor loss, is that of z but for its size, and what
    scores are times. Shares bear the size, no label is larger than `most`, and no score has to wrap.
    """
    each = loss.margin_weight / abs(loss.label_weight)
    labels, most = z * each, min(most, LARGEST_SCORE * each)
    size = float(np.sqrt(np.mean(labels**2))) or 1.0
    factor = min(SIZE / size, most / max(float(np.abs(labels).max()), size))
    return labels * factor, 1.0 / factor
