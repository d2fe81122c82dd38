"""The Taylor polynomial of a loss, which the package needs only by its residual."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from securefed.protocols.losses import Loss

__all__ = ["taylor_value"]

Array = NDArray[np.float64]


def taylor_value(loss: Loss, H: Array, y: Array) -> Array:
    """Return the second-order Taylor polynomial of f around H = 0."""
    slope = loss.label_weight * y + 0.5 * loss.margin_weight * H
    result: Array = loss.value(np.zeros_like(H), y) + slope * H
    return result
