"""Local models: functions of a party's own columns, and their derivatives. They stay with the party.

In the generalised linear objective (the paper's equation 2 and its Figure 1a) party k computes a scalar H_i^k
from its own columns, and the parties' H_i^k add up to H_i. Transfer learning takes a representation u of each
row instead (`HiddenLayer`).

`vjp` adds over rows and does not divide. Encrypted runs open this sum and divide by the batch size
afterwards. Plain runs do the same, so that both are comparable.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from securefed.declare import check_choice, check_flag, check_integer
from securefed.errors import DataError, SettingError

Array = NDArray[np.float64]
ArrayMapping = Mapping[str, NDArray[np.generic]]


@runtime_checkable
class LocalModel(Protocol):
    """A model with one scalar output per row.

    `parameters` is one flat float64 vector: reading gives a copy, writing replaces all of it. `is_linear`
    says that `forward` is linear in the parameters. Then `jacobian(X)` does not depend on them, and the Q
    local steps of a round need a single opening.
    """

    parameters: Array

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


class Activation(NamedTuple):
    """An element-wise function and its derivative, both of the pre-activation z."""

    value: Callable[[Array], Array]
    slope: Callable[[Array], Array]


ACTIVATIONS: Mapping[str, Activation] = {
    # 1 - tanh^2 = 4 s(2z)(1 - s(2z)): no subtraction of nearly equal numbers.
    "tanh": Activation(np.tanh, lambda z: 4.0 * _sigmoid_slope(2.0 * z)),
    "sigmoid": Activation(sigmoid, _sigmoid_slope),
    "relu": Activation(lambda z: np.maximum(z, 0.0), lambda z: (z > 0.0).astype(np.float64)),
}
IDENTITY = Activation(lambda z: z, np.ones_like)
"""The activation of a last layer, whose output is the model's."""


def get_activation(name: str) -> Activation:
    return ACTIVATIONS[check_choice("activation", name, ACTIVATIONS)]


# Checks


def as_rows(X: ArrayLike, columns: int) -> Array:
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


def take_word(arrays: ArrayMapping, name: str) -> str:
    array = np.asarray(arrays.get(name))
    if array.dtype.kind != "U" or array.size != 1:
        names = ", ".join(sorted(arrays)) or "nothing"
        raise DataError(f"shard has no word {name!r}; it holds {names}")
    return str(array.reshape(-1)[0])


def take_kind(arrays: ArrayMapping, kind: str) -> None:
    if (word := take_word(arrays, "model")) != kind:
        raise DataError(f"shard holds a {word!r} model, not {kind!r}")


def from_arrays(arrays: ArrayMapping) -> LinearModel | NetworkModel | HiddenLayer:
    """Return the numpy model that a shard's arrays (`to_arrays`) contain."""
    models = {model.kind: model for model in (LinearModel, NetworkModel, HiddenLayer)}
    if (kind := take_word(arrays, "model")) not in models:
        raise DataError(
            f"shard holds a {kind!r} model; allowed are {', '.join(map(repr, models))}"
            " (torch shards: securefed.models.torch.TorchModel.from_arrays)"
        )
    return models[kind].from_arrays(arrays)


# Models


class _Layers:
    """Dense layers, each a matrix whose last row is the bias if it has one, and an activation.

    `arguments`: of the constructor, which its shard repeats. `starts`: the layers before training.
    """

    kind: ClassVar[str]
    is_linear = False

    def __init__(
        self, arguments: dict[str, Any], starts: Iterable[Array], activations: Iterable[Activation]
    ) -> None:
        self._arguments, self._layers, self._activations = arguments, list(starts), list(activations)
        self.columns: int = arguments["d"]

    def __repr__(self) -> str:
        words = ", ".join(f"{name}={each!r}" for name, each in self._arguments.items())
        return f"{type(self).__name__}({words})"

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

    def _run(self, X: ArrayLike) -> tuple[list[Array], list[Array]]:
        """Return every layer's input, with the output last, and every layer's pre-activation."""
        values, sums = [as_rows(X, self.columns)], []
        for layer, activation in zip(self._layers, self._activations, strict=True):
            width = values[-1].shape[1]
            # A copy of the rows with ones would cost more.
            sums.append(values[-1] @ layer[:width] + layer[width:].sum(axis=0))
            values.append(activation.value(sums[-1]))
        return values, sums

    def _backward(self, X: ArrayLike, outer: Array) -> list[tuple[Array, Array]]:
        """Return per layer its input and outer_i * d output_i/dz (S x out), first layer first."""
        if self.is_linear:  # nothing depends on the parameters
            rows = as_rows(X, self.columns)
            return [(rows, np.broadcast_to(outer, (len(rows), 1)))]
        values, sums = self._run(X)
        slopes = [each.slope(z) for each, z in zip(self._activations, sums, strict=True)]
        deltas = [outer * slopes[-1]]
        for layer, slope in zip(reversed(self._layers[1:]), reversed(slopes[:-1]), strict=True):
            deltas.append((deltas[-1] @ layer[:-1].T) * slope)
        return list(zip(values[:-1], reversed(deltas), strict=True))

    def forward(self, X: ArrayLike) -> Array:
        return self._run(X)[0][-1][:, 0]

    def jacobian(self, X: ArrayLike) -> Array:
        # Per row the outer product of a layer's input and its delta; the row index goes last.
        blocks = []
        for (inputs, deltas), layer in zip(self._backward(X, np.ones(1)), self._layers, strict=True):
            products = np.einsum("si,so->ios", inputs, deltas).reshape(-1, len(inputs))
            blocks.append(np.vstack([products, deltas.T])[: layer.size])
        return np.concatenate(blocks)

    def vjp(self, X: ArrayLike, residual: ArrayLike) -> Array:
        outer = np.asarray(residual, dtype=np.float64)
        layers = self._backward(X, outer if outer.ndim == 2 else outer[:, None])
        flat = []
        for (inputs, deltas), layer in zip(layers, self._layers, strict=True):
            whole = np.vstack([inputs.T @ deltas, deltas.sum(axis=0)])
            flat.append(whole[: len(layer)].ravel())
        return np.concatenate(flat)

    def to_arrays(self) -> dict[str, NDArray[np.generic]]:
        arguments = np.array(json.dumps(self._arguments))
        return {"model": np.array(self.kind), "arguments": arguments, "parameters": self.parameters}

    @classmethod
    def from_arrays(cls, arrays: ArrayMapping) -> Self:
        take_kind(arrays, cls.kind)
        try:
            model = cls(**json.loads(take_word(arrays, "arguments")))
            model.parameters = np.asarray(arrays["parameters"], dtype=np.float64)
        except (SettingError, KeyError, TypeError, ValueError, MemoryError) as error:
            raise DataError(f"shard's model cannot be read: {error}") from None
        return model


class LinearModel(_Layers):
    """The model x theta (the paper's Section 4), starting at zero, which reveals nothing.

    The bias is the last parameter. At most one party needs one, since the H^k are added up.
    """

    kind = "linear"
    is_linear = True

    def __init__(self, d: int, bias: bool = False) -> None:
        arguments = {"d": check_integer("d", d, least=1), "bias": check_flag("bias", bias)}
        super().__init__(arguments, [np.zeros((arguments["d"] + arguments["bias"], 1))], [IDENTITY])


def _glorot(widths: Sequence[int], seed: int | None) -> Iterator[Array]:
    """Yield layers at Glorot and Bengio's start, drawn from `seed` (None: random)."""
    generator = np.random.default_rng(None if seed is None else check_integer("seed", seed, least=0))
    for inputs, outputs in pairwise(widths):
        limit = np.sqrt(6.0 / (inputs + outputs))
        weights = generator.uniform(-limit, limit, size=(inputs, outputs))
        yield np.vstack([weights, np.zeros(outputs)])


def with_ones(rows: Array) -> Array:
    return np.hstack([rows, np.ones((len(rows), 1))])


class NetworkModel(_Layers):
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
        widths = tuple(check_integer("hidden", width, least=1) for width in hidden)
        between = [get_activation(activation)] * len(widths)
        arguments = {"d": columns, "hidden": widths, "activation": activation}
        super().__init__(arguments, _glorot((columns, *widths, 1), seed), [*between, IDENTITY])


class HiddenLayer(_Layers):
    """The hidden layer of transfer learning, u = act(X W + b), of width h.

    W and b are one matrix (d + 1, h) whose last row is the bias. Its gradient is sum_i (x_i, 1)' (dL/du_i *
    act'(z_i)): plaintext multipliers (`augmented`, `derivative`), and dL/du, which may be encrypted.
    """

    kind = "hidden-layer"

    def __init__(self, d: int, h: int, activation: str = "sigmoid", seed: int | None = None) -> None:
        self.width = check_integer("h", h, least=1)
        arguments = {"d": check_integer("d", d, least=1), "h": self.width, "activation": activation}
        self.activation = activation
        super().__init__(arguments, _glorot((d, h), seed), [get_activation(activation)])

    def augmented(self, X: ArrayLike) -> Array:
        """Return X with a column of ones, (n, d + 1)."""
        return with_ones(as_rows(X, self.columns))

    def forward(self, X: ArrayLike) -> Array:
        """Return u, (n, h)."""
        return self._run(X)[0][-1]

    def derivative(self, X: ArrayLike) -> Array:
        """Return act'(z), (n, h)."""
        return self._activations[0].slope(self._run(X)[1][0])

    def vjp(self, X: ArrayLike, G: ArrayLike) -> Array:
        """Return the gradient of `weights`, (d + 1, h), for G = dL/du (n, h): a sum over rows, not a mean."""
        return super().vjp(X, G).reshape(-1, self.width)
