"""The values of the losses and of their Taylor polynomials, which the package needs only by residuals."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from securefed.protocols.losses import Loss

__all__ = ["exact_value", "taylor_residual", "taylor_value"]

Array = NDArray[np.float64]
VALUES: dict[str, Callable[[Array, Array], Array]] = {
    "logistic": lambda H, y: np.logaddexp(0.0, -y * H),
    "linear": lambda H, y: 0.5 * (H - y) ** 2,
    "squared_hinge": lambda H, y: np.maximum(0.0, 1.0 - y * H) ** 2,
}


def exact_value(loss: Loss, H: Array, y: Array) -> Array:
    """Return f(H, y)."""
    return VALUES[loss.name](H, y)


def taylor_value(loss: Loss, H: Array, y: Array) -> Array:
    """Return the second-order Taylor polynomial of f around H = 0."""
    slope = loss.label_weight * y + 0.5 * loss.margin_weight * H
    return exact_value(loss, np.zeros_like(H), y) + slope * H


def taylor_residual(loss: Loss, H: Array, y: Array) -> Array:
    """Return the derivative of that polynomial."""
    return loss.label_weight * y + loss.margin_weight * H
