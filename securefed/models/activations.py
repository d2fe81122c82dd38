"""Activation functions of the local networks, each with the derivative by its input.

`sigmoid` is also the logistic loss's probability; it is written so that neither tail overflows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from securefed.checks import check_choice

__all__ = ["ACTIVATIONS", "Activation", "get_activation", "sigmoid"]

Array = NDArray[np.float64]


def sigmoid(z: Array) -> Array:
    """Return 1 / (1 + exp(-z)) without overflow: exp gets only numbers that are not positive."""
    small = np.exp(-np.abs(z))
    result: Array = np.where(z >= 0, 1.0, small) / (1.0 + small)
    return result


def _sigmoid_slope(z: Array) -> Array:
    # s(1 - s) by the symmetric form: 1 - s would lose every digit in the right tail.
    small = np.exp(-np.abs(z))
    result: Array = small / (1.0 + small) ** 2
    return result


def _tanh(z: Array) -> Array:
    return np.tanh(z)


def _tanh_slope(z: Array) -> Array:
    # 1 - tanh^2 = 4 s(2z)(1 - s(2z)): again no subtraction of nearly equal numbers.
    return 4.0 * _sigmoid_slope(2.0 * z)


def _relu(z: Array) -> Array:
    return np.maximum(z, 0.0)


def _relu_slope(z: Array) -> Array:
    # The subgradient at 0 is taken as 0, as everybody does.
    return (z > 0.0).astype(np.float64)


@dataclass(frozen=True)
class Activation:
    """An element-wise function and its derivative, both of the pre-activation z."""

    name: str
    value: Callable[[Array], Array]
    slope: Callable[[Array], Array]


ACTIVATIONS: Mapping[str, Activation] = MappingProxyType(
    {
        activation.name: activation
        for activation in (
            Activation("tanh", _tanh, _tanh_slope),
            Activation("sigmoid", sigmoid, _sigmoid_slope),
            Activation("relu", _relu, _relu_slope),
        )
    }
)


def get_activation(name: str) -> Activation:
    """Return the activation of that name: "tanh", "sigmoid" or "relu"."""
    return ACTIVATIONS[check_choice("activation", name, ACTIVATIONS)]
