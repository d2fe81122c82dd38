"""Optimisers on flat parameter vectors. Every party has its own, and its state stays with the party.

`SGD` is the paper's update theta <- theta - eta g (equation 9). `Adam` (Kingma and Ba 2015) scales each
coordinate by running moments of the party's own gradients. It needs nothing from other parties, so it fits
between an opening and the next exchange. The schedule decides the learning rate of each step.

State is a dictionary of arrays, storable without pickle. A checkpoint resumes with the same moments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from securefed.checks import check_choice, check_number
from securefed.errors import DataError, SettingError

__all__ = ["SGD", "Adam", "Optimiser", "get_optimiser"]

Array = NDArray[np.float64]


@runtime_checkable
class Optimiser(Protocol):
    """An update rule: gradient in, new parameters out."""

    def step(self, parameters: Array, gradient: Array, learning_rate: float) -> Array:
        """Return new parameters. The arguments do not change."""
        ...

    def state(self) -> dict[str, NDArray[np.generic]]:
        """Return a copy of everything that the next step depends on besides its arguments."""
        ...

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Continue from a `state()` of an optimiser with the same settings."""
        ...

    def clone(self) -> Optimiser:
        """Return an optimiser with the same settings and no history."""
        ...


class SGD:
    """Gradient descent: theta - eta g (equation 9)."""

    def __repr__(self) -> str:
        return "SGD()"

    def step(self, parameters: Array, gradient: Array, learning_rate: float) -> Array:
        _check_step(parameters, gradient, learning_rate)
        return parameters - learning_rate * gradient

    def state(self) -> dict[str, NDArray[np.generic]]:
        return {}

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        _check_names(state, set())

    def clone(self) -> SGD:
        return SGD()


class Adam:
    """Adam with bias correction and its authors' defaults."""

    def __init__(self, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8) -> None:
        self._beta1 = check_number("beta1", beta1, least=0.0, below=1.0)
        self._beta2 = check_number("beta2", beta2, least=0.0, below=1.0)
        self._epsilon = check_number("epsilon", epsilon, above=0.0)
        self._steps = 0
        self._first: Array = np.zeros(0)
        self._second: Array = np.zeros(0)

    def __repr__(self) -> str:
        return f"Adam(beta1={self._beta1}, beta2={self._beta2}, epsilon={self._epsilon})"

    def step(self, parameters: Array, gradient: Array, learning_rate: float) -> Array:
        _check_step(parameters, gradient, learning_rate)
        if self._steps == 0:
            self._first, self._second = np.zeros(parameters.shape), np.zeros(parameters.shape)
        elif self._first.shape != parameters.shape:
            raise DataError(
                f"this Adam has moments of shape {self._first.shape}, not {parameters.shape};"
                " clone() gives a fresh one"
            )
        self._steps += 1
        self._first = self._beta1 * self._first + (1.0 - self._beta1) * gradient
        self._second = self._beta2 * self._second + (1.0 - self._beta2) * gradient**2
        first = self._first / (1.0 - self._beta1**self._steps)
        second = self._second / (1.0 - self._beta2**self._steps)
        result: Array = parameters - learning_rate * first / (np.sqrt(second) + self._epsilon)
        return result

    def state(self) -> dict[str, NDArray[np.generic]]:
        return {"steps": np.array(self._steps), "first": self._first.copy(), "second": self._second.copy()}

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        _check_names(state, {"steps", "first", "second"})
        steps = np.asarray(state["steps"])
        first, second = (np.array(state[name], dtype=np.float64) for name in ("first", "second"))
        if steps.shape != () or steps.dtype.kind not in "iu" or int(steps) < 0:
            raise DataError("Adam's 'steps' must be one integer of at least 0")
        if first.shape != second.shape or first.ndim != 1:
            raise DataError(
                f"Adam's moments must be two vectors of one length, not {first.shape} and {second.shape}"
            )
        if not (np.isfinite(first).all() and np.isfinite(second).all() and (second >= 0).all()):
            raise DataError("Adam's moments must be finite, and the second ones not negative")
        self._steps, self._first, self._second = int(steps), first, second

    def clone(self) -> Adam:
        return Adam(self._beta1, self._beta2, self._epsilon)


def get_optimiser(optimiser: str | Optimiser) -> Optimiser:
    """Return a new optimiser, by name ("sgd" or "adam") or with the settings of `optimiser`."""
    # A class has the same attributes as its instances and would pass for one.
    if isinstance(optimiser, Optimiser) and not isinstance(optimiser, type):
        return optimiser.clone()
    return SGD() if check_choice("optimiser", optimiser, ("sgd", "adam")) == "sgd" else Adam()


def _check_step(parameters: Array, gradient: Array, learning_rate: float) -> None:
    if parameters.ndim != 1 or parameters.shape != gradient.shape:
        raise DataError(
            "parameters and gradient must be vectors of one length,"
            f" not {parameters.shape} and {gradient.shape}"
        )
    # Zero is allowed: it freezes a party.
    check_number("learning_rate", learning_rate, least=0.0)


def _check_names(state: Mapping[str, NDArray[np.generic]], expected: set[str]) -> None:
    if set(state) != expected:
        raise SettingError(
            f"optimiser state must hold {', '.join(sorted(expected)) or 'nothing'},"
            f" not {', '.join(sorted(state)) or 'nothing'}"
        )
