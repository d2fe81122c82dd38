"""Local models: functions of a party's own columns, and their derivatives. They stay with the party.

In the generalised linear objective (the paper's equation 2 and its Figure 1a) party k computes a scalar H_i^k
from its own columns, and the parties' H_i^k add up to H_i. Transfer learning takes a representation u of each
row instead (`HiddenLayer`).

`vjp` adds over rows and does not divide. Encrypted runs open this sum and divide by the batch size
afterwards. Plain runs do the same, so that both are comparable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import ClassVar, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from securefed.declare import check_choice, check_flag, check_integer
from securefed.errors import DataError, SettingError

Array = NDArray[np.float64]
Arrays = Mapping[str, NDArray[np.generic]]


@runtime_checkable
class LocalModel(Protocol):
    """A model with one scalar output per row.

    `parameters` is one flat float64 vector: reading gives a copy, writing replaces all of it. `is_linear`
    says that `forward` is linear in the parameters. Then `jacobian(X)` does not depend on them, and the Q
    local steps of a round need a single opening.
    """

    @property
    def parameters(self) -> Array: ...

    @parameters.setter
    def parameters(self, values: Array) -> None: ...

    @property
    def size(self) -> int:
        """P, the number of parameters."""

    @property
    def is_linear(self) -> bool: ...

    def forward(self, X: ArrayLike) -> Array:
        """Return H^k, shape (S,)."""

    def jacobian(self, X: ArrayLike) -> Array:
        """Return each row's derivative by each parameter, (P, S): the multipliers of encrypted residuals."""

    def vjp(self, X: ArrayLike, residual: ArrayLike) -> Array:
        """Return `jacobian(X) @ residual`, (P,), without forming the Jacobian."""

    def to_arrays(self) -> dict[str, NDArray[np.generic]]:
        """Return the party's shard: arrays by name, storable in an .npz file without pickle."""


# Activations


def sigmoid(z: Array) -> Array:
    """Return 1 / (1 + exp(-z)) without overflow: exp gets only numbers that are not positive."""
    small = np.exp(-np.abs(z))
    return np.where(z >= 0, 1.0, small) / (1.0 + small)


def _sigmoid_slope(z: Array) -> Array:
    # s(1 - s) by the symmetric form: 1 - s would lose every digit in the right tail.
    small = np.exp(-np.abs(z))
    return small / (1.0 + small) ** 2


@dataclass(frozen=True)
class Activation:
    """An element-wise function and its derivative, both of the pre-activation z."""

    name: str
    value: Callable[[Array], Array]
    slope: Callable[[Array], Array]


ACTIVATIONS: Mapping[str, Activation] = MappingProxyType(
    {
        # 1 - tanh^2 = 4 s(2z)(1 - s(2z)): no subtraction of nearly equal numbers.
        "tanh": Activation("tanh", np.tanh, lambda z: 4.0 * _sigmoid_slope(2.0 * z)),
        "sigmoid": Activation("sigmoid", sigmoid, _sigmoid_slope),
        "relu": Activation("relu", lambda z: np.maximum(z, 0.0), lambda z: (z > 0.0).astype(np.float64)),
    }
)


def get_activation(name: str) -> Activation:
    """Return the activation of that name: "tanh", "sigmoid" or "relu"."""
    return ACTIVATIONS[check_choice("activation", name, ACTIVATIONS)]


# Checks


def as_rows(X: ArrayLike, columns: int) -> Array:
    """Return X as a float64 matrix with that many columns."""
    try:
        rows = np.asarray(X, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"X must be a matrix of numbers: {error}") from None
    if rows.ndim != 2 or rows.shape[1] != columns:
        raise DataError(f"X must have shape (rows, {columns}), not {rows.shape}")
    return rows


def as_parameters(values: ArrayLike, shape: tuple[int, ...]) -> Array:
    """Return a finite float64 copy of that shape. A diverging run first shows here as NaN."""
    copy = np.array(values, dtype=np.float64)
    if copy.shape != shape:
        raise DataError(f"parameters must have shape {shape}, not {copy.shape}")
    if bad := copy.size - int(np.isfinite(copy).sum()):
        raise DataError(
            f"parameters must be finite, but {bad} of {copy.size} are not; a smaller learning rate may help"
        )
    return copy


def _take(arrays: Arrays, name: str, kind: str) -> NDArray[np.generic]:
    if name not in arrays:
        raise DataError(f"shard has no {kind} {name!r}; it holds {', '.join(sorted(arrays)) or 'nothing'}")
    return np.asarray(arrays[name])


def take_array(arrays: Arrays, name: str, dimensions: int) -> Array:
    """Return the finite float64 array of that name in a shard."""
    array = _take(arrays, name, "array")
    if array.dtype.kind not in "fiu" or array.ndim != dimensions:
        raise DataError(
            f"shard array {name!r} must hold numbers in {dimensions} dimensions,"
            f" not {array.dtype} in {array.ndim}"
        )
    return as_parameters(array.astype(np.float64), array.shape)


def take_word(arrays: Arrays, name: str) -> str:
    """Return the word stored under that name in a shard."""
    array = _take(arrays, name, "entry")
    if array.dtype.kind != "U" or array.size != 1:
        raise DataError(f"shard entry {name!r} must be one word, not {array.dtype} of size {array.size}")
    return str(array.reshape(-1)[0])


def take_kind(arrays: Arrays, kind: str) -> None:
    """Raise DataError unless the shard holds a model of that kind."""
    if (word := take_word(arrays, "model")) != kind:
        raise DataError(f"shard holds a {word!r} model, not {kind!r}")


def from_arrays(arrays: Arrays) -> LinearModel | NetworkModel | HiddenLayer:
    """Return the numpy model that a shard's arrays (`to_arrays`) contain."""
    kind = take_word(arrays, "model")
    for model in (LinearModel, NetworkModel, HiddenLayer):
        if model.kind == kind:
            return model.from_arrays(arrays)
    raise DataError(
        f"shard holds a {kind!r} model; allowed are 'linear', 'network' and 'hidden-layer'"
        " (torch shards: securefed.models.torch.TorchModel.from_arrays)"
    )


# Models


class _Layers:
    """Dense layers. Each is one matrix whose last row is the bias, if it has one."""

    kind: ClassVar[str]
    _layers: list[Array]

    @property
    def size(self) -> int:
        return sum(layer.size for layer in self._layers)

    @property
    def parameters(self) -> Array:
        return np.concatenate([layer.ravel() for layer in self._layers])

    @parameters.setter
    def parameters(self, values: Array) -> None:
        flat, layers = as_parameters(values, (self.size,)), self._layers
        parts = np.split(flat, np.cumsum([layer.size for layer in layers])[:-1])
        self._layers = [part.reshape(layer.shape) for part, layer in zip(parts, layers, strict=True)]


class LinearModel(_Layers):
    """The model x theta (the paper's Section 4), starting at zero, which reveals nothing.

    The bias is the last parameter. At most one party needs one, since the H^k are added up.
    """

    kind = "linear"
    is_linear = True

    def __init__(self, d: int, bias: bool = False) -> None:
        self.columns = check_integer("d", d, least=1)
        self.bias = check_flag("bias", bias)
        self._layers = [np.zeros(self.columns + int(self.bias))]

    def __repr__(self) -> str:
        return f"LinearModel(d={self.columns}, bias={self.bias})"

    def forward(self, X: ArrayLike) -> Array:
        (theta,) = self._layers
        result = as_rows(X, self.columns) @ theta[: self.columns]
        if self.bias:
            result += theta[-1]
        return result

    def jacobian(self, X: ArrayLike) -> Array:
        rows = as_rows(X, self.columns)
        return np.vstack([rows.T, np.ones((int(self.bias), rows.shape[0]))])

    def vjp(self, X: ArrayLike, residual: ArrayLike) -> Array:
        rows = as_rows(X, self.columns)
        values = np.asarray(residual, dtype=np.float64)
        gradient = rows.T @ values
        return np.append(gradient, values.sum()) if self.bias else gradient

    def to_arrays(self) -> dict[str, NDArray[np.generic]]:
        weights, bias = np.split(self.parameters, [self.columns])
        return {"model": np.array(self.kind), "weights": weights, "bias": bias}

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Self:
        take_kind(arrays, cls.kind)
        weights, bias = take_array(arrays, "weights", 1), take_array(arrays, "bias", 1)
        if bias.size > 1:
            raise DataError(f"shard array 'bias' must hold at most one number, not {bias.size}")
        model = cls(weights.size, bias=bool(bias.size))
        model.parameters = np.concatenate([weights, bias])
        return model


class _NonLinear(_Layers):
    """Layers with an activation. The start is Glorot and Bengio's, drawn from `seed` (None: random)."""

    is_linear = False

    def __init__(self, widths: Sequence[int], activation: str, seed: int | None) -> None:
        self._activation = get_activation(activation)
        generator = np.random.default_rng(None if seed is None else check_integer("seed", seed, least=0))
        self._layers = []
        for inputs, outputs in pairwise(widths):
            limit = np.sqrt(6.0 / (inputs + outputs))
            weights = generator.uniform(-limit, limit, size=(inputs, outputs))
            self._layers.append(np.vstack([weights, np.zeros(outputs)]))

    @property
    def activation(self) -> str:
        return self._activation.name

    @property
    def columns(self) -> int:
        return len(self._layers[0]) - 1


def _times(rows: Array, layer: Array) -> Array:
    """Return rows times the weights, and the bias; a copy of the rows with ones would cost more."""
    return rows @ layer[:-1] + layer[-1:]


def with_ones(rows: Array) -> Array:
    """Return the rows with a column of ones."""
    return np.hstack([rows, np.ones((len(rows), 1))])


class NetworkModel(_NonLinear):
    """Dense layers d -> hidden... -> 1 with one activation between them (the paper's Figure 1a).

    Parties must not share a seed: a party's seed determines its starting parameters. The parameters are in
    the order of the layers, each layer's weights (inputs x outputs, row by row), then its biases. The
    Jacobian depends on them, so each local step opens one aggregated gradient.
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
        self.hidden = tuple(check_integer("hidden", width, least=1) for width in hidden)
        super().__init__((columns, *self.hidden, 1), activation, seed)

    def __repr__(self) -> str:
        return f"NetworkModel(d={self.columns}, hidden={self.hidden}, activation={self.activation!r})"

    def forward(self, X: ArrayLike) -> Array:
        return self._run(as_rows(X, self.columns))[2]

    def jacobian(self, X: ArrayLike) -> Array:
        rows = as_rows(X, self.columns)
        # Per row the outer product of a layer's input and its delta; the row index goes last.
        blocks = [
            np.einsum("si,so->ios", inputs, deltas).reshape(-1, len(rows))
            for inputs, deltas in self._backward(rows, np.ones(len(rows)))
        ]
        return np.concatenate(blocks)

    def vjp(self, X: ArrayLike, residual: ArrayLike) -> Array:
        rows = as_rows(X, self.columns)
        layers = self._backward(rows, np.asarray(residual, dtype=np.float64))
        return np.concatenate([(inputs.T @ deltas).ravel() for inputs, deltas in layers])

    def to_arrays(self) -> dict[str, NDArray[np.generic]]:
        arrays: dict[str, NDArray[np.generic]] = {
            "model": np.array(self.kind),
            "activation": np.array(self.activation),
        }
        for number, layer in enumerate(self._layers):
            arrays[f"weights_{number}"], arrays[f"bias_{number}"] = layer[:-1].copy(), layer[-1].copy()
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Self:
        take_kind(arrays, cls.kind)
        layers: list[tuple[Array, Array]] = []
        while not layers or f"weights_{len(layers)}" in arrays:
            weights = take_array(arrays, f"weights_{len(layers)}", 2)
            layers.append((weights, take_array(arrays, f"bias_{len(layers)}", 1)))
        widths = [layers[0][0].shape[0], *(weights.shape[1] for weights, _ in layers)]
        fits = all(
            weights.shape == pair and bias.shape == pair[1:]
            for (weights, bias), pair in zip(layers, pairwise(widths), strict=True)
        )
        if len(layers) < 2 or widths[-1] != 1 or not fits:
            shapes = ", ".join(f"{weights.shape}+{bias.shape}" for weights, bias in layers)
            raise DataError(f"shard's layers do not form a network with one output: {shapes}")
        model = cls(widths[0], hidden=tuple(widths[1:-1]), activation=take_word(arrays, "activation"), seed=0)
        model._layers = [np.vstack(layer) for layer in layers]
        return model

    def _run(self, rows: Array) -> tuple[list[Array], list[Array], Array]:
        """Return every layer's input, every hidden pre-activation, and the output."""
        inputs, pre_activations = [rows], []
        for layer in self._layers[:-1]:
            pre_activations.append(_times(inputs[-1], layer))
            inputs.append(self._activation.value(pre_activations[-1]))
        return inputs, pre_activations, _times(inputs[-1], self._layers[-1])[:, 0]

    def _backward(self, rows: Array, values: Array) -> list[tuple[Array, Array]]:
        """Return per layer its input with ones and values_i * dH_i/dz (S x out), first layer first."""
        inputs, pre_activations, _ = self._run(rows)
        deltas = [values[:, None]]
        for layer, z in zip(reversed(self._layers[1:]), reversed(pre_activations), strict=True):
            deltas.append((deltas[-1] @ layer[:-1].T) * self._activation.slope(z))
        return list(zip(map(with_ones, inputs), reversed(deltas), strict=True))


class HiddenLayer(_NonLinear):
    """The hidden layer of transfer learning, u = act(X W + b), of width h.

    W and b are one matrix (d + 1, h) whose last row is the bias, and X has a column of ones. With T_i =
    (x_i, 1) and dL/du (n x h), the gradient of that matrix is sum_i T_i' (dL/du_i * act'(z_i)): a contraction
    of the owner's plaintext multipliers (`augmented`, `derivative`) with dL/du, which may be encrypted.
    """

    kind = "hidden-layer"

    def __init__(self, d: int, h: int, activation: str = "sigmoid", seed: int | None = None) -> None:
        widths = check_integer("d", d, least=1), check_integer("h", h, least=1)
        super().__init__(widths, activation, seed)

    def __repr__(self) -> str:
        return f"HiddenLayer(d={self.columns}, h={self.width}, activation={self.activation!r})"

    @property
    def width(self) -> int:
        """h, the width of the representation."""
        return int(self._layers[0].shape[1])

    @property
    def weights(self) -> Array:
        """W with the bias as the last row, (d + 1, h); a copy."""
        return self._layers[0].copy()

    def augmented(self, X: ArrayLike) -> Array:
        """Return X with a column of ones, (n, d + 1)."""
        return with_ones(as_rows(X, self.columns))

    def forward(self, X: ArrayLike) -> Array:
        """Return u, (n, h)."""
        return self._activation.value(_times(as_rows(X, self.columns), self._layers[0]))

    def derivative(self, X: ArrayLike) -> Array:
        """Return act'(z), (n, h)."""
        return self._activation.slope(_times(as_rows(X, self.columns), self._layers[0]))

    def vjp(self, X: ArrayLike, G: ArrayLike) -> Array:
        """Return the gradient of `weights`, (d + 1, h), for G = dL/du (n, h): a sum over rows, not a mean."""
        rows = self.augmented(X)
        return rows.T @ (np.asarray(G, dtype=np.float64) * self._activation.slope(rows @ self._layers[0]))

    def to_arrays(self) -> dict[str, NDArray[np.generic]]:
        return {
            "model": np.array(self.kind),
            "activation": np.array(self.activation),
            "weights": self.weights,
        }

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Self:
        take_kind(arrays, cls.kind)
        weights = take_array(arrays, "weights", 2)
        if weights.shape[0] < 2 or weights.shape[1] < 1:
            raise DataError(f"shard array 'weights' must have shape (d + 1, h), not {weights.shape}")
        model = cls(len(weights) - 1, weights.shape[1], activation=take_word(arrays, "activation"), seed=0)
        model._layers = [weights]
        return model
