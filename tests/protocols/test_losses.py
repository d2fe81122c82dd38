"""The losses, their derivatives and their Taylor polynomials."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from securefed.errors import DataError, SettingError
from securefed.protocols.losses import LOSSES, Loss, get_loss
from tests.protocols.taylor import exact_value, taylor_residual, taylor_value

STEP = 1e-4


@pytest.fixture(params=sorted(LOSSES))
def loss(request: pytest.FixtureRequest) -> Loss:
    return get_loss(request.param)


def grid(loss: Loss) -> tuple[np.ndarray, np.ndarray]:
    """Margins on both sides of everything, none within two steps of the hinge's corner at yH = 1."""
    labels = (-1.0, 1.0) if loss.binary else (-2.5, 0.0, 0.3)
    H, y = np.meshgrid(np.linspace(-6.03, 6.11, 41), labels)
    return H.ravel(), y.ravel()


@pytest.mark.parametrize("form", ["exact", "taylor"])
def test_residual_is_the_derivative(loss: Loss, form: str) -> None:
    value, residual = {
        "exact": (partial(exact_value, loss), loss.residual),
        "taylor": (partial(taylor_value, loss), partial(taylor_residual, loss)),
    }[form]
    H, y = grid(loss)
    assert np.abs(np.abs(H) - 1).min() > 2 * STEP
    near = (value(H + STEP, y) - value(H - STEP, y)) / (2 * STEP)
    far = (value(H + 2 * STEP, y) - value(H - 2 * STEP, y)) / (4 * STEP)
    # Truncation is a third of |far - near|; rounding a few units of the value over the step.
    tolerance = np.abs(far - near) + 16 * np.finfo(np.float64).eps * (1 + np.abs(value(H, y))) / STEP
    assert (np.abs(residual(H, y) - near) <= tolerance).all()
    assert tolerance.max() < 1e-7


def test_taylor_polynomial_agrees_to_second_order_at_zero(loss: Loss) -> None:
    for y in (-1.0, 1.0):
        zero, label = np.zeros(1), np.full(1, y)
        assert taylor_residual(loss, zero, label) == pytest.approx(loss.residual(zero, label), abs=1e-15)
        slope = (loss.residual(zero + STEP, label) - loss.residual(zero - STEP, label)) / (2 * STEP)
        # The residual's third derivative is at most 1/8 for the logistic loss and 0 for the others near 0.
        assert slope == pytest.approx(loss.margin_weight, abs=STEP**2 / 48 + 1e-11)


def test_the_public_weights(loss: Loss) -> None:
    weights = {"logistic": (-0.5, 0.25), "linear": (-1.0, 1.0), "squared_hinge": (-2.0, 2.0)}
    assert (loss.label_weight, loss.margin_weight) == weights[loss.name]


def test_margin_weight_bounds_the_curvature(loss: Loss) -> None:
    H = np.linspace(-8, 8, 4001)
    for y in (-1.0, 1.0):
        rise = np.diff(loss.residual(H, np.full(H.size, y))) / np.diff(H)
        assert (rise >= -1e-12).all() and (rise <= loss.margin_weight + 1e-12).all()


def test_how_far_the_polynomials_reach() -> None:
    H = np.linspace(-10, 10, 2001)
    y = np.where(np.arange(H.size) % 2 == 0, 1.0, -1.0)
    logistic, hinge, linear = get_loss("logistic"), get_loss("squared_hinge"), get_loss("linear")
    off = np.abs(taylor_residual(logistic, H, y) - logistic.residual(H, y))
    assert (off <= np.abs(H) ** 3 / 48 + 1e-15).all() and off.max() > 1
    inside = y * H <= 1
    assert np.allclose(
        taylor_value(hinge, H, y)[inside], exact_value(hinge, H, y)[inside], rtol=1e-14, atol=1e-14
    )
    assert not np.allclose(taylor_value(hinge, H, y)[~inside], exact_value(hinge, H, y)[~inside])
    assert np.allclose(taylor_value(linear, H, y), exact_value(linear, H, y), rtol=1e-14, atol=1e-14)


def test_residuals_by_hand() -> None:
    H, y = np.array([0.0, 2.0, -2.0]), np.array([1.0, 1.0, 1.0])
    assert get_loss("linear").residual(H, y) == pytest.approx([-1.0, 1.0, -3.0])
    assert get_loss("squared_hinge").residual(H, y) == pytest.approx([-2.0, 0.0, -6.0])
    assert get_loss("logistic").residual(H, y) == pytest.approx(
        [-0.5, -1 / (1 + np.exp(2)), -1 / (1 + np.exp(-2))]
    )


def test_logistic_is_stable_far_out() -> None:
    logistic = get_loss("logistic")
    H, y = np.array([1e4, -1e4, 745.0, -745.0]), np.ones(4)
    with np.errstate(over="raise", invalid="raise"):
        assert logistic.residual(H, y) == pytest.approx([0.0, -1.0, 0.0, -1.0], abs=1e-300)
    # In the tail the residual is -exp(-H) to all digits, not 0 from 1 - 1. exp(-H) itself is only as good as
    # 40 ulps of its argument's rounding, hence rel=1e-12.
    tail = logistic.residual(np.array([40.0]), np.ones(1))
    assert tail[0] == pytest.approx(-np.exp(-40.0), rel=1e-12, abs=0)


def test_labels() -> None:
    assert get_loss("logistic").check_labels([1, -1, 1]).dtype == np.float64
    assert get_loss("linear").check_labels([0.5, 7]).tolist() == [0.5, 7.0]
    cases: list[tuple[list[Any], str]] = [
        ([0, 1, 1], "labels must be -1 or \\+1 for the loss 'logistic'; found 0, 1"),
        ([1, np.nan], "finite"),
        (["yes", "no"], "must be numbers"),
    ]
    for labels, message in cases:
        with pytest.raises(DataError, match=message):
            get_loss("logistic").check_labels(labels)
    with pytest.raises(DataError, match="finite"):
        get_loss("linear").check_labels([np.inf])


def test_by_name() -> None:
    assert get_loss("linear") == get_loss("linear") != get_loss("logistic")
    with pytest.raises(SettingError) as caught:
        get_loss("hinge")
    assert str(caught.value) == "loss must be one of 'logistic', 'linear', 'squared_hinge', not 'hinge'"
