"""A small numpy network whose scalar output is H^k (the paper's Figure 1a).

Its Jacobian gives one plaintext multiplier per parameter and row. Encrypted training computes the gradient as
`jacobian(X) @ residual` with the residual encrypted. The Jacobian depends on the parameters, so unlike
`LinearModel` each local step opens one aggregated gradient.

Flat order of the parameters: layer by layer, each layer's weights (inputs x outputs, row by row), then its
biases.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from securefed.checks import check_integer
from securefed.errors import DataError, SettingError
from securefed.models.activations import get_activation
from securefed.models.local import Array, as_parameters, as_residual, as_rows, take_array, take_word

__all__ = ["NetworkModel", "glorot"]


def glorot(inputs: int, outputs: int, generator: np.random.Generator) -> Array:
    """Draw Glorot and Bengio's uniform start: +-sqrt(6 / (inputs + outputs))."""
    limit = np.sqrt(6.0 / (inputs + outputs))
    return generator.uniform(-limit, limit, size=(inputs, outputs))


class NetworkModel:
    """Dense layers d -> hidden... -> 1 with one activation between them and a plain sum at the end.

    The start is drawn from `seed` (None: random). Parties must not share a seed: a party's seed determines
    its starting parameters.
    """

    kind = "network"

    def __init__(
        self, d: int, hidden: Sequence[int] = (16,), activation: str = "tanh", seed: int | None = None
    ) -> None:
        columns = check_integer("d", d, least=1)
        if isinstance(hidden, (str, bytes)) or not isinstance(hidden, Sequence) or not hidden:
            raise SettingError(
                f"hidden must be a non-empty sequence of layer widths, such as (16,), not {hidden!r}"
            )
        self._widths = (columns, *(check_integer("hidden", width, least=1) for width in hidden), 1)
        self._activation = get_activation(activation)
        generator = np.random.default_rng(None if seed is None else check_integer("seed", seed, least=0))
        self._layers = [
            (glorot(inputs, outputs, generator), np.zeros(outputs))
            for inputs, outputs in pairwise(self._widths)
        ]

    def __repr__(self) -> str:
        return f"NetworkModel(d={self.columns}, hidden={self.hidden}, activation={self.activation!r})"

    @property
    def columns(self) -> int:
        return self._widths[0]

    @property
    def hidden(self) -> tuple[int, ...]:
        return self._widths[1:-1]

    @property
    def activation(self) -> str:
        return self._activation.name

    @property
    def size(self) -> int:
        return sum((inputs + 1) * outputs for inputs, outputs in pairwise(self._widths))

    @property
    def is_linear(self) -> bool:
        return False

    @property
    def parameters(self) -> Array:
        return np.concatenate([part.ravel() for layer in self._layers for part in layer])

    @parameters.setter
    def parameters(self, values: Array) -> None:
        flat = as_parameters(values, (self.size,))
        layers, start = [], 0
        for inputs, outputs in pairwise(self._widths):
            middle = start + inputs * outputs
            layers.append((flat[start:middle].reshape(inputs, outputs), flat[middle : middle + outputs]))
            start = middle + outputs
        self._layers = layers

    def forward(self, X: ArrayLike) -> Array:
        return self._run(as_rows(X, self.columns))[2]

    def jacobian(self, X: ArrayLike) -> Array:
        rows = as_rows(X, self.columns)
        blocks = []
        for inputs, deltas in self._backward(rows, np.ones(rows.shape[0])):
            # Per row the outer product of a layer's input and its delta; the row index goes last.
            blocks.append(np.einsum("si,so->ios", inputs, deltas).reshape(-1, rows.shape[0]))
            blocks.append(deltas.T)
        return np.concatenate(blocks)

    def vjp(self, X: ArrayLike, residual: ArrayLike) -> Array:
        rows = as_rows(X, self.columns)
        values = as_residual(residual, rows.shape[0])
        blocks = []
        for inputs, deltas in self._backward(rows, values):
            blocks.append((inputs.T @ deltas).ravel())
            blocks.append(deltas.sum(axis=0))
        return np.concatenate(blocks)

    def to_arrays(self) -> dict[str, NDArray[np.generic]]:
        arrays: dict[str, NDArray[np.generic]] = {
            "model": np.array(self.kind),
            "activation": np.array(self.activation),
        }
        for number, (weights, bias) in enumerate(self._layers):
            arrays[f"weights_{number}"] = weights.copy()
            arrays[f"bias_{number}"] = bias.copy()
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[np.generic]]) -> Self:
        if (kind := take_word(arrays, "model")) != cls.kind:
            raise DataError(f"shard holds a {kind!r} model, not {cls.kind!r}")
        layers: list[tuple[Array, Array]] = []
        while not layers or f"weights_{len(layers)}" in arrays:
            number = len(layers)
            layers.append(
                (take_array(arrays, f"weights_{number}", 2), take_array(arrays, f"bias_{number}", 1))
            )
        widths = [layers[0][0].shape[0], *(weights.shape[1] for weights, _ in layers)]
        fits = all(
            weights.shape == pair and bias.shape == pair[1:]
            for (weights, bias), pair in zip(layers, pairwise(widths), strict=True)
        )
        if len(layers) < 2 or widths[-1] != 1 or not fits:
            shapes = ", ".join(f"{weights.shape}+{bias.shape}" for weights, bias in layers)
            raise DataError(f"shard's layers do not form a network with one output: {shapes}")
        model = cls(widths[0], hidden=tuple(widths[1:-1]), activation=take_word(arrays, "activation"), seed=0)
        model._layers = layers
        return model

    def _run(self, rows: Array) -> tuple[list[Array], list[Array], Array]:
        """Return every layer's input, every hidden pre-activation, and the output."""
        inputs, pre_activations = [rows], []
        for weights, bias in self._layers[:-1]:
            pre_activations.append(inputs[-1] @ weights + bias)
            inputs.append(self._activation.value(pre_activations[-1]))
        weights, bias = self._layers[-1]
        return inputs, pre_activations, (inputs[-1] @ weights + bias)[:, 0]

    def _backward(self, rows: Array, values: Array) -> list[tuple[Array, Array]]:
        """Return per layer its input (S x in) and values_i * dH_i/dz (S x out), first layer first."""
        inputs, pre_activations, _ = self._run(rows)
        deltas = [values[:, None]]
        for (weights, _), z in zip(reversed(self._layers[1:]), reversed(pre_activations), strict=True):
            deltas.append((deltas[-1] @ weights.T) * self._activation.slope(z))
        return list(zip(inputs, reversed(deltas), strict=True))
