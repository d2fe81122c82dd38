"""The linear local model: H_i^k = x_i^k theta_k (the paper's Section 4), with an optional bias.

Linear in its parameters, so with the second-order Taylor loss a whole round of Q local steps needs one
opening. At most one party needs a bias, since the H^k are added up; it is the last parameter.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from securefed.checks import check_flag, check_integer
from securefed.errors import DataError
from securefed.models.local import Array, as_parameters, as_residual, as_rows, take_array, take_word

__all__ = ["LinearModel"]


class LinearModel:
    """The model x theta (+ bias), starting at zero, which reveals nothing."""

    kind = "linear"

    def __init__(self, d: int, bias: bool = False) -> None:
        self._columns = check_integer("d", d, least=1)
        self._bias = check_flag("bias", bias)
        self._theta: Array = np.zeros(self._columns + int(self._bias))

    def __repr__(self) -> str:
        return f"LinearModel(d={self._columns}, bias={self._bias})"

    @property
    def columns(self) -> int:
        return self._columns

    @property
    def bias(self) -> bool:
        return self._bias

    @property
    def size(self) -> int:
        return self._theta.size

    @property
    def is_linear(self) -> bool:
        return True

    @property
    def parameters(self) -> Array:
        return self._theta.copy()

    @parameters.setter
    def parameters(self, values: Array) -> None:
        self._theta = as_parameters(values, self._theta.shape)

    def forward(self, X: ArrayLike) -> Array:
        rows = as_rows(X, self._columns)
        result = rows @ self._theta[: self._columns]
        if self._bias:
            result += self._theta[-1]
        return result

    def jacobian(self, X: ArrayLike) -> Array:
        rows = as_rows(X, self._columns)
        if not self._bias:
            return rows.T.copy()
        return np.vstack([rows.T, np.ones((1, rows.shape[0]))])

    def vjp(self, X: ArrayLike, residual: ArrayLike) -> Array:
        rows = as_rows(X, self._columns)
        values = as_residual(residual, rows.shape[0])
        gradient = rows.T @ values
        return np.append(gradient, values.sum()) if self._bias else gradient

    def to_arrays(self) -> dict[str, NDArray[np.generic]]:
        return {
            "model": np.array(self.kind),
            "weights": self._theta[: self._columns].copy(),
            "bias": self._theta[self._columns :].copy(),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[np.generic]]) -> Self:
        if (kind := take_word(arrays, "model")) != cls.kind:
            raise DataError(f"shard holds a {kind!r} model, not {cls.kind!r}")
        weights, bias = take_array(arrays, "weights", 1), take_array(arrays, "bias", 1)
        if bias.size > 1:
            raise DataError(f"shard array 'bias' must hold at most one number, not {bias.size}")
        model = cls(weights.size, bias=bool(bias.size))
        model.parameters = np.concatenate([weights, bias])
        return model
