"""torch modules as local models; all but one of these tests need torch."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from research.half_image_cnn import half_image_cnn
from securefed.errors import DataError, MissingExtra, SettingError
from securefed.models.local import LocalModel, NetworkModel, from_arrays
from securefed.models.torch import TorchModel

Array = NDArray[np.float64]
Check = Callable[[Array, Callable[[Array], Array], Array], None]

pytestmark = pytest.mark.slow  # loading torch takes seconds


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


def twin(torch: Any, network: NetworkModel) -> TorchModel:
    """The same network as a float64 torch module."""
    layers: list[Any] = []
    for layer in network._layers:
        linear = torch.nn.Linear(len(layer) - 1, layer.shape[1], dtype=torch.float64)
        with torch.no_grad():
            linear.weight.copy_(torch.from_numpy(layer[:-1].T.copy()))
            linear.bias.copy_(torch.from_numpy(layer[-1]))
        layers += [linear, torch.nn.Tanh()]
    module = torch.nn.Sequential(*layers[:-1])
    return TorchModel(module)


def test_without_torch_the_hint_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    # None in sys.modules is how Python itself marks a module that cannot be imported.
    monkeypatch.setitem(sys.modules, "torch", None)
    calls: list[Callable[[], TorchModel]] = [lambda: TorchModel(object()), lambda: half_image_cnn(seed=0)]
    for call in calls:
        with pytest.raises(MissingExtra, match=r"pip install .securefed\[torch\]") as caught:
            call()
        assert "\n" not in str(caught.value)


def test_equals_the_numpy_network(torch: Any) -> None:
    network = NetworkModel(5, hidden=(4, 3), activation="tanh", seed=3)
    model = twin(torch, network)
    generator = np.random.default_rng(4)
    X, residual = generator.normal(size=(7, 5)), generator.normal(size=7)
    assert isinstance(model, LocalModel) and not model.is_linear
    assert model.size == network.size
    assert model.forward(X) == pytest.approx(network.forward(X), abs=1e-13)
    # torch keeps weights as (out, in): compare the gradients as multisets of the same numbers.
    assert np.sort(model.vjp(X, residual)) == pytest.approx(np.sort(network.vjp(X, residual)), abs=1e-12)


def test_vjp_against_differences(torch: Any, assert_derivative: Check) -> None:
    model = twin(torch, NetworkModel(3, hidden=(4,), activation="tanh", seed=5))
    generator = np.random.default_rng(6)
    X, residual = generator.normal(size=(6, 3)), generator.normal(size=6)

    def weighted_sum(parameters: Array) -> Array:
        before = model.parameters
        model.parameters = parameters
        result = np.array([residual @ model.forward(X)])
        model.parameters = before
        return result

    assert_derivative(model.vjp(X, residual).reshape(-1, 1), weighted_sum, model.parameters)


def test_parameters_round_trip(torch: Any) -> None:
    model = half_image_cnn(seed=1, height=6, width=4, channels=2, dense=3)
    values = np.linspace(-1, 1, model.size)
    model.parameters = values
    assert np.array_equal(model.parameters, values.astype(np.float32).astype(np.float64))
    model.parameters = model.parameters
    with pytest.raises(DataError, match="finite"):
        model.parameters = np.full(model.size, np.inf)
    with pytest.raises(DataError, match="shape"):
        model.parameters = values[:-1]


def test_frozen_and_unused_parameters(torch: Any) -> None:
    class Odd(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.used = torch.nn.Linear(2, 1, bias=False)
            self.unused = torch.nn.Linear(3, 1, bias=False)
            self.frozen = torch.nn.Linear(2, 1)
            self.frozen.requires_grad_(False)

        def forward(self, x: Any) -> Any:
            return self.used(x) + self.frozen(x)

    model = TorchModel(Odd())
    assert model.size == 5
    assert model.vjp([[1.0, 2.0], [3.0, 4.0]], [1.0, -1.0]).tolist() == [-2.0, -2.0, 0.0, 0.0, 0.0]


def test_rows_are_taken_in_slices_only_where_that_changes_nothing(torch: Any) -> None:
    rows = np.random.default_rng(0).normal(size=(200, 3))
    module = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1)).double()
    model = TorchModel(module)
    whole = module(torch.from_numpy(rows)).detach().numpy()[:, 0]
    np.testing.assert_allclose(model.forward(rows), whole, rtol=1e-12)
    assert not np.allclose(model.forward(rows[:64]), whole[:64]), "normalised by the rows that are there"
    module.eval()
    whole = module(torch.from_numpy(rows)).detach().numpy()[:, 0]
    np.testing.assert_allclose(model.forward(rows), whole, rtol=1e-12)
    np.testing.assert_allclose(model.forward(rows[:1]), whole[:1], rtol=1e-12)
    assert model.forward(rows[:0]).shape == (0,)


def test_the_papers_network_for_half_an_image(torch: Any) -> None:
    model = half_image_cnn(seed=0)
    layers = (1 * 9 * 64 + 64, 64 * 9 * 64 + 64, 28 * 14 * 64 * 256 + 256, 256)
    assert model.size == sum(layers)
    X = np.random.default_rng(0).random((3, 28 * 14))
    assert model.forward(X).shape == (3,)
    assert model.vjp(X, np.ones(3)).shape == (model.size,)
    pooled = half_image_cnn(seed=0, pool=2)
    assert pooled.size == sum(layers) - 28 * 14 * 64 * 256 + 14 * 7 * 64 * 256
    assert np.array_equal(model.forward(X), half_image_cnn(seed=0).forward(X))
    assert not np.array_equal(model.forward(X), half_image_cnn(seed=1).forward(X))


def test_the_cnn_learns_and_leaves_the_global_generator_alone(torch: Any) -> None:
    torch.manual_seed(9)
    expected = torch.rand(1)
    torch.manual_seed(9)
    model = half_image_cnn(seed=2, height=8, width=4, channels=4, dense=8)
    assert torch.equal(torch.rand(1), expected)
    generator = np.random.default_rng(3)
    X = generator.normal(size=(64, 32))
    y = np.sign(X[:, :16].sum(axis=1) - X[:, 16:].sum(axis=1))

    def loss() -> float:
        return float(np.logaddexp(0, -y * model.forward(X)).mean())

    before = loss()
    for _ in range(200):
        residual = -y / (1 + np.exp(y * model.forward(X)))
        model.parameters = model.parameters - 0.3 * model.vjp(X, residual) / len(y)
    assert loss() < 0.3 * before


def test_shard(torch: Any) -> None:
    def small(seed: int) -> TorchModel:
        return half_image_cnn(seed, height=6, width=4, channels=2, dense=3)

    model, other = small(1), small(2)
    X = np.random.default_rng(1).random((2, 24))
    file = io.BytesIO()
    shard: dict[str, Any] = dict(model.to_arrays())
    np.savez(file, **shard)
    file.seek(0)
    with np.load(file, allow_pickle=False) as stored:
        arrays = dict(stored)
    assert not np.array_equal(model.forward(X), other.forward(X))
    loaded = TorchModel.from_arrays(arrays, other.module)
    assert np.array_equal(model.forward(X), loaded.forward(X))
    with pytest.raises(DataError, match="torch shards"):
        from_arrays(arrays)
    with pytest.raises(DataError, match=r"shard and module differ: .*Unexpected key.*extra"):
        TorchModel.from_arrays(arrays | {"state.extra": np.zeros(1)}, other.module)
    with pytest.raises(DataError, match=r"size mismatch for 9.weight"):
        TorchModel.from_arrays(arrays | {"state.9.weight": np.zeros((1, 4))}, other.module)
    with pytest.raises(DataError, match="not finite"):
        TorchModel.from_arrays(arrays | {"state.9.weight": np.full((1, 3), np.nan)}, other.module)


def test_refusals(torch: Any) -> None:
    with pytest.raises(SettingError, match=r"module must be a torch.nn.Module, not object"):
        TorchModel(object())
    with pytest.raises(SettingError, match="at least one parameter"):
        TorchModel(torch.nn.ReLU())
    model = TorchModel(torch.nn.Linear(3, 1))
    with pytest.raises(SettingError, match='only in scheme "plain"'):
        model.jacobian(np.ones((2, 3)))
    with pytest.raises(DataError, match=r"one output per row, shape \(4,\), not \(4, 2\)"):
        TorchModel(torch.nn.Linear(3, 2)).forward(np.ones((4, 3)))
    for options, message in [
        ({"pool": 15}, "pool must be an integer from 1 to 14"),
        ({"channels": 0}, "channels must be an integer of at least 1"),
        ({"seed": -1}, "seed must be"),
    ]:
        with pytest.raises(SettingError, match=message):
            half_image_cnn(**{"seed": 0, **options})
