"""Linear and Network: outputs, derivatives, parameters, shards."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from securefed.errors import DataError, SettingError
from securefed.models.local import (
    ACTIVATIONS,
    HiddenLayer,
    LinearModel,
    LocalModel,
    NetworkModel,
    from_arrays,
    get_activation,
    sigmoid,
)

Array = NDArray[np.float64]
Check = Callable[[Array, Callable[[Array], Array], Array], None]

ROWS, COLUMNS = 11, 4

MODELS: dict[str, Callable[[], LinearModel | NetworkModel]] = {
    "linear": lambda: LinearModel(COLUMNS),
    "linear-bias": lambda: LinearModel(COLUMNS, bias=True),
    "tanh": lambda: NetworkModel(COLUMNS, hidden=(5,), activation="tanh", seed=1),
    "sigmoid-deep": lambda: NetworkModel(COLUMNS, hidden=(5, 3, 2), activation="sigmoid", seed=2),
    "relu": lambda: NetworkModel(COLUMNS, hidden=(6, 3), activation="relu", seed=3),
}


@pytest.fixture(params=sorted(MODELS))
def model(request: pytest.FixtureRequest) -> LinearModel | NetworkModel:
    model = MODELS[request.param]()
    model.parameters = np.random.default_rng(7).normal(size=model.size)
    return model


@pytest.fixture
def X() -> Array:
    return np.random.default_rng(8).normal(size=(ROWS, COLUMNS))


def at(model: LocalModel, X: Array) -> Callable[[Array], Array]:
    def output(parameters: Array) -> Array:
        before = model.parameters
        model.parameters = parameters
        result = model.forward(X)
        model.parameters = before
        return result

    return output


def test_is_a_local_model(model: LinearModel | NetworkModel) -> None:
    assert isinstance(model, LocalModel)
    assert model.is_linear == isinstance(model, LinearModel)


def test_jacobian_against_differences(
    model: LinearModel | NetworkModel, X: Array, assert_derivative: Check
) -> None:
    assert model.jacobian(X).shape == (model.size, ROWS)
    assert_derivative(model.jacobian(X), at(model, X), model.parameters)


def test_vjp_is_the_jacobian_times_the_residual(model: LinearModel | NetworkModel, X: Array) -> None:
    residual = np.random.default_rng(9).normal(size=ROWS)
    jacobian = model.jacobian(X)
    # Two orders of summing ROWS products, or of the layers' products within each: a few roundings per term.
    tolerance = 64 * np.finfo(np.float64).eps * (np.abs(jacobian) @ np.abs(residual) + 1)
    assert (np.abs(model.vjp(X, residual) - jacobian @ residual) <= tolerance).all()


def test_jacobian_depends_on_parameters_only_if_not_linear(
    model: LinearModel | NetworkModel, X: Array
) -> None:
    before = model.jacobian(X)
    model.parameters = model.parameters + 0.5
    assert np.array_equal(before, model.jacobian(X)) == model.is_linear


def test_linear_is_the_product_with_the_bias_last(X: Array) -> None:
    model = LinearModel(COLUMNS, bias=True)
    assert not model.parameters.any()
    model.parameters = np.array([1.0, -2.0, 0.5, 3.0, 10.0])
    assert model.forward(X) == pytest.approx(X @ [1.0, -2.0, 0.5, 3.0] + 10.0, abs=1e-13)
    assert np.array_equal(model.jacobian(X), np.vstack([X.T, np.ones(ROWS)]))
    assert np.array_equal(LinearModel(COLUMNS).jacobian(X), X.T)


def test_network_by_hand() -> None:
    model = NetworkModel(2, hidden=(2,), activation="relu", seed=0)
    #                          W1 (2x2), b1,          W2,         b2
    model.parameters = np.array([1, -1, 2, 1, 0.5, 0.5, 3.0, 4.0, 0.25])
    # z = (1*1 + 2*3 + .5, -1*1 + 1*3 + .5) = (7.5, 2.5); H = 22.5 + 10 + .25
    assert model.forward([[1.0, 3.0]]) == pytest.approx([32.75])
    # z = (-2.5, 1.5): the first unit is off
    assert model.forward([[-1.0, -1.0]]).tolist() == pytest.approx([4.0 * 0.5 + 0.25])


def test_network_start_is_glorot_and_from_the_seed() -> None:
    first, again, other = (NetworkModel(30, hidden=(20,), seed=seed).parameters for seed in (5, 5, 6))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    weights, biases = first[:600], first[600:620]
    limit = np.sqrt(6 / 50)
    assert not biases.any()
    assert np.abs(weights).max() <= limit
    # Uniform on +-limit: variance limit^2/3; the sample's standard error is limit^2 * sqrt(4/45/600).
    assert abs(weights.var() - limit**2 / 3) < 5 * limit**2 * np.sqrt(4 / 45 / 600)
    assert not np.array_equal(NetworkModel(30, seed=None).parameters, NetworkModel(30, seed=None).parameters)


def test_parameters_are_copies(model: LinearModel | NetworkModel, X: Array) -> None:
    given = model.parameters
    given += 1.0
    assert not np.array_equal(given, model.parameters)
    model.parameters = given
    output = model.forward(X)
    given += 1.0
    assert np.array_equal(output, model.forward(X))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_parameters_must_be_finite_and_fit(model: LinearModel | NetworkModel, bad: float) -> None:
    values = model.parameters
    values[-1] = bad
    with pytest.raises(DataError, match=f"finite, but 1 of {model.size}"):
        model.parameters = values
    with pytest.raises(DataError, match="shape"):
        model.parameters = values[:-1]


def test_wrong_shapes_are_refused(model: LinearModel | NetworkModel, X: Array) -> None:
    for call in (model.forward, model.jacobian):
        with pytest.raises(DataError, match=rf"\(rows, {COLUMNS}\), not \({ROWS}, {COLUMNS - 1}\)"):
            call(X[:, :-1])
        with pytest.raises(DataError, match="X must have shape"):
            call(X[0])
    with pytest.raises(DataError, match="X must be a matrix of numbers"):
        model.forward([["a"] * COLUMNS])


def test_shard_through_a_file_without_pickle(model: LinearModel | NetworkModel, X: Array) -> None:
    file = io.BytesIO()
    shard: dict[str, Any] = dict(model.to_arrays())
    np.savez(file, **shard)
    file.seek(0)
    with np.load(file, allow_pickle=False) as stored:
        loaded = from_arrays(dict(stored))
    assert type(loaded) is type(model) and repr(loaded) == repr(model)
    assert np.array_equal(loaded.parameters, model.parameters)
    assert np.array_equal(loaded.forward(X), model.forward(X))


def test_bad_shards_are_refused() -> None:
    good = NetworkModel(3, hidden=(2,), seed=0).to_arrays()
    missing = {name: array for name, array in good.items() if name != "parameters"}
    for bad, message in [
        ({}, "no word 'model'; it holds nothing"),
        ({"model": np.array("tree")}, "'tree' model; allowed are"),
        ({"model": np.array(3)}, "no word 'model'"),
        (missing, "cannot be read: 'parameters'"),
        (good | {"arguments": np.array("{}")}, "missing 1 required positional argument: 'd'"),
        (good | {"arguments": np.array('{"d": 0}')}, "d must be an integer of at least 1, not 0"),
        (good | {"arguments": np.array("words")}, "cannot be read"),
        (good | {"arguments": np.array('{"d": 2, "hidden": [2]}')}, r"must have shape \(9,\), not \(11,\)"),
        (good | {"parameters": np.full(11, np.nan)}, "finite"),
        (good | {"parameters": np.full(11, "x")}, "could not convert"),
        (good | {"arguments": np.array('{"d": 3, "activation": "step"}')}, "activation must be one of"),
        (
            LinearModel(2).to_arrays() | {"arguments": np.array('{"d": 2, "bias": 2}')},
            "bias must be True or False",
        ),
    ]:
        with pytest.raises(DataError, match=message):
            from_arrays(bad)
    for wrong in (LinearModel, HiddenLayer):
        with pytest.raises(DataError, match="holds a 'network' model"):
            wrong.from_arrays(good)


def test_bad_settings_are_one_line_by_name() -> None:
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: LinearModel(0), "d must be an integer of at least 1, not 0"),
        (lambda: LinearModel(2.0), "d must be an integer of at least 1, not 2.0"),  # type: ignore[arg-type]
        (lambda: LinearModel(True), "d must be an integer"),
        (lambda: LinearModel(2, bias=1), "bias must be True or False, not 1"),  # type: ignore[arg-type]
        (lambda: NetworkModel(2, hidden=()), r"hidden must be a non-empty sequence .*, not \(\)"),
        (lambda: NetworkModel(2, hidden=16), "hidden must be a non-empty sequence"),  # type: ignore[arg-type]
        (lambda: NetworkModel(2, hidden=(4, 0)), "hidden must be an integer of at least 1, not 0"),
        (
            lambda: NetworkModel(2, activation="gelu"),
            "activation must be one of 'tanh', 'sigmoid', 'relu', not 'gelu'",
        ),
        (lambda: NetworkModel(2, seed=-1), "seed must be an integer of at least 0, not -1"),
    ]
    for call, message in calls:
        with pytest.raises(SettingError, match=message) as caught:
            call()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_activation_slopes_against_differences(name: str, assert_derivative: Check) -> None:
    activation = get_activation(name)
    for z in (-20.0, -3.0, -0.01, 0.3, 2.0, 19.0):
        assert_derivative(
            activation.slope(np.array([[z]]))[0:1, 0], lambda p: activation.value(p)[0], np.array([z])
        )


def test_activations_at_the_ends() -> None:
    far = np.array([-1e4, -800.0, 0.0, 800.0, 1e4])
    assert sigmoid(far).tolist() == [0.0, 0.0, 0.5, 1.0, 1.0]
    for activation in ACTIVATIONS.values():
        assert np.isfinite(activation.value(far)).all() and np.isfinite(activation.slope(far)).all()
    # 1 - s cancels in the right tail; the slope there keeps its digits.
    assert get_activation("sigmoid").slope(np.array([40.0]))[0] == pytest.approx(np.exp(-40.0), rel=1e-12)
    assert get_activation("tanh").slope(np.array([20.0]))[0] == pytest.approx(4 * np.exp(-40.0), rel=1e-12)
    assert get_activation("relu").slope(np.array([0.0]))[0] == 0.0
