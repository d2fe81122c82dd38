"""The transfer objective in plain: gradients against the loss, training against Algorithms 1 to 3."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from securefed.errors import DataError
from securefed.protocols.own_gradient.openings import levelled, row_by_row
from securefed.protocols.schedules import Algorithm, FedBCD, FedSGD, InverseSqrt
from securefed.protocols.steps import SGD, Adam
from tests.covering import all_pairs
from tests.protocols import federation, reference
from tests.protocols.federation import KEYS, Federation, Shared, shared_people

Array = NDArray[np.float64]
WIDTH, GAMMA, L2 = 3, 0.05, 0.01
PEOPLE = {
    "all shared, all labelled": shared_people(more_a=0, more_b=0, unlabelled=0),
    "all shared, some unlabelled": shared_people(more_a=0, more_b=0, unlabelled=3),
    "partly shared, all labelled": shared_people(more_a=5, more_b=3, unlabelled=0),
    "partly shared, some unlabelled": shared_people(more_a=5, more_b=3, unlabelled=4),
}


def problem(
    people: Shared, activation: str, gamma: float = GAMMA, l2: float = L2
) -> reference.TransferProblem:
    return reference.TransferProblem(
        people.a, people.b, people.rows_a, people.rows_b, people.labels, WIDTH, activation, gamma, l2
    )


def one_opening(made: Federation, name: str, peer: str) -> Array:
    """The sums that the party would open now, from the peer's contribution in the clear."""
    contribution = made.sides[peer].contribution()
    return np.einsum("jai,ij->aj", made.sides[name].multipliers(), contribution)


@pytest.mark.parametrize(
    ("activation", "who", "gamma"), all_pairs(["sigmoid", "tanh", "relu"], list(PEOPLE), [0.0, 0.3])
)
def test_opened_sums_give_the_gradient_of_the_loss(activation: str, who: str, gamma: float) -> None:
    people = PEOPLE[who]
    made = federation.transfer(people, KEYS, width=WIDTH, activation=activation, gamma=gamma, l2=0.2)
    oracle = problem(people, activation, gamma, 0.2)
    batch = np.array([0, 2, 3, 7], dtype=np.intp)
    for side in made.sides.values():
        side.begin(batch)
    thetas = list(made.parameters.values())
    for k, (name, peer) in enumerate((("B", "A"), ("A", "B"))):
        opened = one_opening(made, name, peer)
        direct = made.sides[name].sums(made.sides[peer].contribution())
        assert np.abs(direct - opened).max() <= 1e-12 * (1 + np.abs(opened).max())
        found = made.sides[name].gradient(opened, False)
        expected = oracle.gradient(k, thetas, batch)
        assert np.abs(found - expected).max() <= 1e-13 * (1 + np.abs(expected).max())
        assert np.abs(expected).max() > 1e-3


def many_columns(n: int, columns: int) -> Shared:
    rng = np.random.default_rng(0)
    return Shared(
        rng.normal(size=(n, columns)),
        rng.normal(size=(n, columns)),
        np.arange(n),
        np.arange(n),
        np.where(rng.random(n) > 0.5, 1.0, -1.0),
    )


def test_a_plain_step_holds_no_tensor_of_multipliers() -> None:
    n, columns, width = 200, 150, 16
    made = federation.transfer(many_columns(n, columns), KEYS, width=width, rounds=1)
    tensor = 8 * width * (columns + 1) * (n + width)
    tracemalloc.start()
    try:
        made.run()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < tensor / 2


def test_nor_does_the_way_of_an_encrypted_step() -> None:
    """Everything before the products; those of each scheme: tests/crypto/test_contract.py."""
    made = federation.transfer(many_columns(1000, 120), KEYS, width=64)
    for name, peer in (("B", "A"), ("A", "B")):
        side, values = made.sides[name], made.sides[peer].contribution()
        encrypted = KEYS.holder("plain").encrypt(values, made.sides[peer].fixed())
        tracemalloc.start()
        try:
            multipliers, powers = levelled(side.multipliers())
            assert not row_by_row(multipliers, 1000)
            found = encrypted.contract(multipliers).values * powers
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 8 * np.prod(multipliers.shape) / 4
        direct = side.sums(values)
        assert np.abs(found - direct).max() <= 1e-12 * (1 + np.abs(direct).max())
        assert multipliers.largest.min() >= 0.5 and multipliers.largest.max() < 1.0


def test_gradients_of_the_reference_agree_with_differences() -> None:
    """The oracle's complex steps, by themselves, against central differences of the same loss."""
    people = PEOPLE["partly shared, some unlabelled"]
    oracle = problem(people, "sigmoid")
    made = federation.transfer(people, KEYS, width=WIDTH, activation="sigmoid")
    theta_b, theta_a = made.parameters.values()
    rows = np.arange(9, dtype=np.intp)
    exact = oracle.gradient(0, [theta_b, theta_a], rows)
    step = 1e-5
    for i in range(theta_b.size):
        unit = np.zeros(theta_b.size)
        unit[i] = step
        difference = oracle.loss(theta_b + unit, theta_a, rows) - oracle.loss(theta_b - unit, theta_a, rows)
        # The error of a central difference: step^2/6 times a third derivative of order one, and rounding.
        assert abs(difference / (2 * step) - exact[i]) <= 1e-9


def test_no_opened_sum_concerns_one_person() -> None:
    """Every entry of what is opened mixes all rows of the batch: multipliers by row are not one-hot."""
    made = federation.transfer(shared_people(), KEYS, activation="sigmoid")
    for side in made.sides.values():
        rows = len(side._rows)
        weights = np.asarray(side.multipliers())[:, :, :rows]
        assert (np.count_nonzero(weights, axis=2) > 1).all()


SCHEDULES: dict[str, Algorithm] = {
    "FedSGD": FedSGD(),
    "FedBCD-p": FedBCD(4),
    "FedBCD-s": FedBCD(3, "sequential"),
    "FedPBCD-p": FedBCD(4, proximal=0.3),
    "FedPBCD-s": FedBCD(3, "sequential", proximal=0.3),
}


@pytest.mark.parametrize(
    ("schedule", "activation", "optimiser", "batch"),
    all_pairs(list(SCHEDULES), ["sigmoid", "tanh", "relu"], ["sgd", "adam"], [None, 6]),
)
def test_every_schedule_follows_the_paper(
    schedule: str, activation: str, optimiser: str, batch: int | None
) -> None:
    adam = optimiser == "adam"
    people = PEOPLE["partly shared, some unlabelled"]
    algorithm = SCHEDULES[schedule]
    made = federation.transfer(
        people,
        KEYS,
        width=WIDTH,
        activation=activation,
        gamma=GAMMA,
        l2=L2,
        algorithm=algorithm,
        rate=InverseSqrt(0.05 if adam else 0.5),
        batch=batch,
        optimiser=Adam() if adam else SGD(),
    )
    start = list(made.parameters.values())
    expected = reference.block_descent(
        start,
        problem(people, activation).gradient,
        rounds=3,
        local_steps=algorithm.local_steps,
        sequential=algorithm.order == "sequential",
        proximal=algorithm.proximal,
        eta=made.agreement.learning_rate,
        batch=made.agreement.batches.batch,
        adam=adam,
    )
    made.run()
    for found, theta, first in zip(made.parameters.values(), expected, start, strict=True):
        assert np.abs(found - theta).max() <= 1e-10
        assert np.abs(found - first).max() > 1e-3


@settings(max_examples=8)
@given(st.integers(1, 4), st.integers(1, 5), st.sampled_from(["parallel", "sequential"]), st.data())
def test_any_width_and_number_of_local_steps(width: int, steps: int, order: Any, data: st.DataObject) -> None:
    people = data.draw(st.sampled_from(list(PEOPLE.values())))
    made = federation.transfer(people, KEYS, width=width, algorithm=FedBCD(steps, order), rounds=2)
    oracle = reference.TransferProblem(
        people.a, people.b, people.rows_a, people.rows_b, people.labels, width, "tanh", GAMMA, L2
    )
    expected = reference.block_descent(
        list(made.parameters.values()),
        oracle.gradient,
        rounds=2,
        local_steps=steps,
        sequential=order == "sequential",
        proximal=0.0,
        eta=made.agreement.learning_rate,
        batch=made.agreement.batches.batch,
    )
    made.run()
    for found, theta in zip(made.parameters.values(), expected, strict=True):
        assert np.abs(found - theta).max() <= 1e-10


def test_fedbcd_p_with_one_local_step_is_fedsgd_and_zero_pull_is_none() -> None:
    results: dict[str, Array] = {}
    for name, algorithm in {
        "sgd": FedSGD(),
        "one": FedBCD(1),
        "four": FedBCD(4),
        "four, zero": FedBCD(4, proximal=0.0),
    }.items():
        made = federation.transfer(shared_people(), KEYS, algorithm=algorithm)
        made.run()
        results[name] = made.flat
    assert np.array_equal(results["sgd"], results["one"])
    assert np.array_equal(results["four"], results["four, zero"])
    assert not np.allclose(results["one"], results["four"])


def test_an_activation_past_its_declared_bound_stops_training_in_one_line() -> None:
    made = federation.transfer(shared_people(), KEYS, activation="relu", activation_bound=0.1)
    with pytest.raises(
        DataError, match=r"hidden unit reached .*, above activation_bound=0\.1; lower"
    ) as caught:
        made.run()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("n", [2, 7, 30, 64])
@pytest.mark.parametrize("activation", ["sigmoid", "tanh", "relu"])
def test_contributions_stay_within_the_range_that_they_declare(activation: str, n: int) -> None:
    """At the largest activations that are possible, all of one sign: labels all +1, u all at the bound."""
    people = shared_people(n=n, unlabelled=0)
    people.labels[:] = 1.0
    made = federation.transfer(people, KEYS, activation=activation, gamma=0.7, activation_bound=3.0)
    for side in made.sides.values():
        weights = np.zeros((side.model.columns + 1, side.model.width))
        weights[-1] = 3.0 if activation == "relu" else 50.0
        side.model.parameters = weights.ravel()
        contribution, fixed = side.contribution(), side.fixed()
        assert np.abs(contribution).max() <= fixed.bound
