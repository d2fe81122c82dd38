"""SGD and Adam on flat vectors."""

from __future__ import annotations

import math

import numpy as np
import pytest

from securefed.errors import SettingError
from securefed.protocols.steps import SGD, Adam, Optimiser, get_optimiser


def adam_by_hand(
    theta: float, gradients: list[float], rates: list[float], b1: float, b2: float, e: float
) -> float:
    """Kingma and Ba's Algorithm 1 for one number, with the moments as sums instead of recursions."""
    for step in range(1, len(gradients) + 1):
        past = gradients[:step]
        m = (1 - b1) * sum(b1 ** (step - 1 - i) * g for i, g in enumerate(past)) / (1 - b1**step)
        v = (1 - b2) * sum(b2 ** (step - 1 - i) * g * g for i, g in enumerate(past)) / (1 - b2**step)
        theta -= rates[step - 1] * m / (math.sqrt(v) + e)
    return theta


def test_sgd_by_hand() -> None:
    theta, gradient = np.array([1.0, -2.0]), np.array([0.5, 4.0])
    assert SGD().step(theta, gradient, 0.1).tolist() == pytest.approx([0.95, -2.4])
    assert theta.tolist() == [1.0, -2.0] and gradient.tolist() == [0.5, 4.0]
    assert SGD().step(theta, gradient, 0.0).tolist() == theta.tolist()


@pytest.mark.parametrize("settings", [(0.9, 0.999, 1e-8), (0.5, 0.7, 1e-3), (0.0, 0.0, 0.1)])
def test_adam_against_the_formula(settings: tuple[float, float, float]) -> None:
    generator = np.random.default_rng(1)
    start, gradients = generator.normal(size=3), generator.normal(size=(6, 3))
    rates = [0.1 / math.sqrt(t + 1) for t in range(6)]
    adam, theta = Adam(*settings), start
    for gradient, rate in zip(gradients, rates, strict=True):
        theta = adam.step(theta, gradient, rate)
    expected = [adam_by_hand(start[i], gradients[:, i].tolist(), rates, *settings) for i in range(3)]
    assert theta == pytest.approx(expected, rel=1e-12)


def test_adams_first_step_has_the_size_of_the_rate() -> None:
    theta = Adam().step(np.zeros(3), np.array([1e-3, -5.0, 0.0]), 0.07)
    assert theta == pytest.approx([-0.07, 0.07, 0.0], rel=1e-4)


@pytest.mark.parametrize("optimiser", [SGD(), Adam(0.8, 0.9)])
def test_restored_optimiser_goes_on_the_same_way(optimiser: Optimiser) -> None:
    generator = np.random.default_rng(2)
    first, second = optimiser.clone(), optimiser.clone()
    theta = generator.normal(size=4)
    for gradient in generator.normal(size=(3, 4)):
        theta = first.step(theta, gradient, 0.1)
    kept = first.state()
    second.restore(kept)
    gradient = generator.normal(size=4)
    expected = first.step(theta, gradient, 0.1)
    # The state is a copy: the step above must not have changed it.
    third = optimiser.clone()
    third.restore(kept)
    assert np.array_equal(second.step(theta, gradient, 0.1), expected)
    assert np.array_equal(third.step(theta, gradient, 0.1), expected)
    assert all(array.dtype != object for array in kept.values())


def test_a_fresh_adams_state_restores() -> None:
    adam = Adam()
    adam.step(np.ones(2), np.ones(2), 0.1)
    adam.restore(Adam().state())
    assert np.array_equal(adam.step(np.ones(3), np.ones(3), 0.1), Adam().step(np.ones(3), np.ones(3), 0.1))


def test_clone_keeps_settings_and_forgets_history() -> None:
    adam = Adam(0.8, 0.9, 1e-5)
    adam.step(np.ones(2), np.ones(2), 0.1)
    clone = adam.clone()
    assert repr(clone) == "Adam(beta1=0.8, beta2=0.9, epsilon=1e-05)"
    assert int(clone.state()["steps"]) == 0
    assert clone.step(np.ones(5), np.ones(5), 0.1).shape == (5,)
    assert int(adam.state()["steps"]) == 1


def test_by_name() -> None:
    assert isinstance(get_optimiser("sgd"), SGD) and isinstance(get_optimiser("adam"), Adam)
    given = Adam(0.5)
    assert repr(get_optimiser(given)) == repr(given) and get_optimiser(given) is not given
    for bad in ("rmsprop", Adam, None):
        with pytest.raises(SettingError, match="optimiser must be one of 'sgd', 'adam', not "):
            get_optimiser(bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("optimiser", [SGD(), Adam()])
def test_bad_steps(optimiser: Optimiser) -> None:
    for rate in (-0.1, math.nan):
        with pytest.raises(SettingError, match="learning_rate must be a finite number of at least 0"):
            optimiser.step(np.zeros(2), np.zeros(2), rate)


def test_bad_settings() -> None:
    for options, message in [
        ({"beta1": 1.0}, "beta1 must be a finite number of at least 0 and less than 1, not 1.0"),
        ({"beta2": -0.1}, "beta2 must be"),
        ({"epsilon": 0.0}, "epsilon must be a finite number greater than 0, not 0.0"),
    ]:
        with pytest.raises(SettingError, match=message):
            Adam(**options)
