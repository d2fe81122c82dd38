"""The hidden layer of transfer learning."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from securefed.errors import DataError, SettingError
from securefed.models.local import HiddenLayer, from_arrays

Array = NDArray[np.float64]
Check = Callable[[Array, Callable[[Array], Array], Array], None]
N, D, H = 9, 4, 3


@pytest.fixture(params=["sigmoid", "tanh", "relu"])
def layer(request: pytest.FixtureRequest) -> HiddenLayer:
    layer = HiddenLayer(D, H, activation=request.param, seed=1)
    layer.parameters = np.random.default_rng(2).normal(size=(D + 1) * H)
    return layer


def weights(layer: HiddenLayer) -> Array:
    return layer.parameters.reshape(D + 1, H)


@pytest.fixture
def X() -> Array:
    return np.random.default_rng(3).normal(size=(N, D))


def test_forward_by_definition(layer: HiddenLayer, X: Array) -> None:
    z = X @ weights(layer)[:D] + weights(layer)[D]
    expected = {"sigmoid": 1 / (1 + np.exp(-z)), "tanh": np.tanh(z), "relu": np.where(z > 0, z, 0)}
    assert layer.forward(X) == pytest.approx(expected[layer.activation], abs=1e-14)
    assert layer.augmented(X)[:, :D] == pytest.approx(X, abs=0)
    assert layer.augmented(X) @ weights(layer) == pytest.approx(z, abs=1e-13)


def test_vjp_against_differences(layer: HiddenLayer, X: Array, assert_derivative: Check) -> None:
    G = np.random.default_rng(4).normal(size=(N, H))

    def weighted_sum(parameters: Array) -> Array:
        other = HiddenLayer(D, H, activation=layer.activation, seed=0)
        other.parameters = parameters
        return np.array([(G * other.forward(X)).sum()])

    claimed = layer.vjp(X, G)
    assert claimed.shape == (D + 1, H)
    assert_derivative(claimed.reshape(-1, 1), weighted_sum, layer.parameters)


def test_vjp_is_the_contraction_that_encryption_uses(layer: HiddenLayer, X: Array) -> None:
    G = np.random.default_rng(5).normal(size=(N, H))
    by_rows = np.einsum("na,nh->ah", layer.augmented(X), G * layer.derivative(X))
    assert layer.vjp(X, G) == pytest.approx(by_rows, abs=1e-13)


def test_start(X: Array) -> None:
    layer = HiddenLayer(D, H, seed=6)
    assert np.array_equal(weights(layer), weights(HiddenLayer(D, H, seed=6)))
    assert not np.array_equal(weights(layer), weights(HiddenLayer(D, H, seed=7)))
    assert not weights(layer)[D].any()
    assert 0 < np.abs(weights(layer)[:D]).max() <= np.sqrt(6 / (D + H))
    assert layer.size == layer.parameters.size == (D + 1) * H


def test_parameters_are_the_weights_row_by_row(layer: HiddenLayer) -> None:
    layer.parameters = np.arange((D + 1) * H, dtype=float)
    assert weights(layer)[D].tolist() == [12.0, 13.0, 14.0]
    copy = layer.parameters
    copy[0] = 99.0
    assert layer.parameters[0] == 0.0


def test_shard(layer: HiddenLayer, X: Array) -> None:
    file = io.BytesIO()
    shard: dict[str, Any] = dict(layer.to_arrays())
    np.savez(file, **shard)
    file.seek(0)
    with np.load(file, allow_pickle=False) as stored:
        loaded = from_arrays(dict(stored))
    assert isinstance(loaded, HiddenLayer) and loaded.activation == layer.activation
    assert np.array_equal(loaded.forward(X), layer.forward(X))
    with pytest.raises(DataError, match=r"must have shape \(15,\), not \(3,\)"):
        HiddenLayer.from_arrays(layer.to_arrays() | {"parameters": np.zeros(3)})


def test_refusals(layer: HiddenLayer, X: Array) -> None:
    with pytest.raises(DataError, match="X must have shape"):
        layer.forward(X[:, 1:])
    with pytest.raises(DataError, match="shape"):
        layer.parameters = np.zeros(D * H)
    with pytest.raises(DataError, match="finite"):
        layer.parameters = np.full(layer.size, np.nan)
    with pytest.raises(SettingError, match="h must be an integer of at least 1, not 0"):
        HiddenLayer(D, 0)
    with pytest.raises(SettingError, match="activation must be one of"):
        HiddenLayer(D, H, activation="softplus")
