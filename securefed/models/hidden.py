"""The hidden layer of federated transfer learning: u = act(X W + b), one representation of width h per row.

W and b are kept as one matrix of shape (d + 1, h) whose last row is the bias, and X is taken with a column
of ones. With T_i = (x_i, 1) and a given dL/du (n x h), the gradient of that matrix is sum_i T_i' (dL/du_i *
act'(z_i)): a contraction over rows of plaintext multipliers of the owner (`augmented`, `derivative`) with
dL/du, which may be encrypted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from securefed.checks import check_integer
from securefed.errors import DataError
from securefed.models.activations import get_activation
from securefed.models.local import Array, as_parameters, as_rows, take_array, take_word
from securefed.models.network import glorot

__all__ = ["HiddenLayer"]


class HiddenLayer:
    """A dense layer of width h, with Glorot weights from `seed` (None: random) and zero biases.

    Parties must not share a seed: a party's seed determines its starting parameters.
    """

    kind = "hidden-layer"
    is_linear = False

    def __init__(self, d: int, h: int, activation: str = "sigmoid", seed: int | None = None) -> None:
        columns, width = check_integer("d", d, least=1), check_integer("h", h, least=1)
        self._activation = get_activation(activation)
        generator = np.random.default_rng(None if seed is None else check_integer("seed", seed, least=0))
        self._weights: Array = np.vstack([glorot(columns, width, generator), np.zeros((1, width))])

    def __repr__(self) -> str:
        return f"HiddenLayer(d={self.columns}, h={self.width}, activation={self.activation!r})"

    @property
    def columns(self) -> int:
        return int(self._weights.shape[0]) - 1

    @property
    def width(self) -> int:
        """h, the width of the representation."""
        return int(self._weights.shape[1])

    @property
    def activation(self) -> str:
        return self._activation.name

    @property
    def size(self) -> int:
        return self._weights.size

    @property
    def weights(self) -> Array:
        """W with the bias as the last row, (d + 1, h); a copy."""
        return self._weights.copy()

    @weights.setter
    def weights(self, values: Array) -> None:
        self._weights = as_parameters(values, self._weights.shape)

    @property
    def parameters(self) -> Array:
        """`weights` row by row as one flat vector; a copy."""
        return self._weights.ravel().copy()

    @parameters.setter
    def parameters(self, values: Array) -> None:
        self._weights = as_parameters(values, (self.size,)).reshape(self._weights.shape)

    def augmented(self, X: ArrayLike) -> Array:
        """Return X with a column of ones, (n, d + 1)."""
        rows = as_rows(X, self.columns)
        return np.hstack([rows, np.ones((rows.shape[0], 1))])

    def forward(self, X: ArrayLike) -> Array:
        """Return u, (n, h)."""
        return self._activation.value(self._pre_activation(X))

    def derivative(self, X: ArrayLike) -> Array:
        """Return act'(z), (n, h)."""
        return self._activation.slope(self._pre_activation(X))

    def vjp(self, X: ArrayLike, G: ArrayLike) -> Array:
        """Return the gradient of `weights`, (d + 1, h), for G = dL/du (n, h): a sum over rows, not a mean."""
        rows = self.augmented(X)
        outer = np.asarray(G, dtype=np.float64)
        if outer.shape != (rows.shape[0], self.width):
            raise DataError(f"G must have shape ({rows.shape[0]}, {self.width}), like u, not {outer.shape}")
        gradient: Array = rows.T @ (outer * self._activation.slope(rows @ self._weights))
        return gradient

    def to_arrays(self) -> dict[str, NDArray[np.generic]]:
        return {
            "model": np.array(self.kind),
            "activation": np.array(self.activation),
            "weights": self._weights.copy(),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[np.generic]]) -> Self:
        if (kind := take_word(arrays, "model")) != cls.kind:
            raise DataError(f"shard holds a {kind!r} model, not {cls.kind!r}")
        weights = take_array(arrays, "weights", 2)
        if weights.shape[0] < 2 or weights.shape[1] < 1:
            raise DataError(f"shard array 'weights' must have shape (d + 1, h), not {weights.shape}")
        model = cls(
            weights.shape[0] - 1, weights.shape[1], activation=take_word(arrays, "activation"), seed=0
        )
        model.weights = weights
        return model

    def _pre_activation(self, X: ArrayLike) -> Array:
        rows = as_rows(X, self.columns)
        result: Array = rows @ self._weights[:-1] + self._weights[-1]
        return result
