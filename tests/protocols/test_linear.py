"""The generalised linear objective in plain, against SGD on the joined columns and Algorithms 1 to 3."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from securefed.errors import DataError
from securefed.protocols.schedules import Algorithm, Constant, FedBCD, FedSGD, InverseSqrt, InverseSqrtParties
from securefed.protocols.steps import SGD, Adam
from tests.covering import all_pairs
from tests.protocols import federation, reference
from tests.protocols.federation import KEYS, Federation, blobs, split

Array = NDArray[np.float64]
ROWS, COLUMNS = 40, 20


def centralised(made: Federation, features: Array, labels: Array, loss: str, exact: bool, l2: float) -> Array:
    agreement = made.agreement
    return reference.centralised(
        features,
        labels,
        loss=loss,
        exact=exact,
        l2=l2,
        rounds=agreement.stopping.rounds,
        eta=agreement.learning_rate,
        batch=agreement.batches.batch,
    )


@st.composite
def column_splits(draw: st.DrawFn, parties: int) -> list[list[int]]:
    """Every column at exactly one party, at least one column each, in any order."""
    order = draw(st.permutations(range(COLUMNS)))
    between, count = st.integers(1, COLUMNS - 1), parties - 1
    cuts = draw(st.lists(between, min_size=count, max_size=count, unique=True))
    return [list(order[a:b]) for a, b in pairwise([0, *sorted(cuts), COLUMNS])]


@pytest.mark.parametrize("parties", [2, 5, pytest.param(17, marks=pytest.mark.slow)])
@pytest.mark.parametrize("exact", [True, False], ids=["exact", "taylor"])
@settings(max_examples=5)
@given(data=st.data())
def test_fedsgd_is_sgd_on_the_joined_columns(parties: int, exact: bool, data: st.DataObject) -> None:
    columns = data.draw(column_splits(parties))
    loss = data.draw(st.sampled_from(["logistic", "linear", "squared_hinge"]))
    exchange = data.draw(st.sampled_from(["star", "pairwise"]))
    features, labels = blobs(ROWS, COLUMNS)
    made = federation.linear(
        [features[:, chosen] for chosen in columns],
        labels,
        KEYS,
        exact=exact,
        loss=loss,
        exchange=exchange,
        rate=InverseSqrt(0.1),
        rounds=8,
        batch=data.draw(st.sampled_from([None, 16])),
        l2=1e-2,
    )
    made.run()
    expected = centralised(made, features, labels, loss, exact, 1e-2)
    found = np.zeros(COLUMNS)
    for chosen, part in zip(columns, made.parameters.values(), strict=True):
        found[chosen] = part
    assert np.abs(found - expected).max() <= 1e-10
    assert np.abs(expected).max() > 0.05  # it went somewhere


@pytest.mark.parametrize("parties", [2, 3])
@pytest.mark.parametrize("exact", [True, False], ids=["exact", "taylor"])
def test_fedbcd_p_with_one_local_step_is_fedsgd(parties: int, exact: bool) -> None:
    features, labels = blobs(ROWS, 6)
    results = []
    for algorithm in (FedSGD(), FedBCD(1), FedBCD(1, proximal=0.7), FedSGD(proximal=0.7)):
        made = federation.linear(
            split(features, parties), labels, KEYS, algorithm=algorithm, exact=exact, batch=16, rounds=6
        )
        made.run()
        results.append(made.flat)
    for other in results[1:]:  # the pull is zero where a round begins, so one step does not feel it
        assert np.array_equal(results[0], other)


@pytest.mark.parametrize("order", ["parallel", "sequential"])
@pytest.mark.parametrize("parties", [2, 3])
@pytest.mark.parametrize("exact", [True, False], ids=["exact", "taylor"])
def test_a_proximal_weight_of_zero_is_none_and_another_pulls(order: Any, parties: int, exact: bool) -> None:
    features, labels = blobs(ROWS, 6)

    def run(algorithm: Algorithm) -> Array:
        made = federation.linear(
            split(features, parties), labels, KEYS, algorithm=algorithm, exact=exact, batch=16, rounds=4
        )
        made.run()
        return made.flat

    without = run(FedBCD(4, order))
    assert np.array_equal(without, run(FedBCD(4, order, proximal=0.0)))
    pulled = run(FedBCD(4, order, proximal=0.5))
    assert np.linalg.norm(pulled) < np.linalg.norm(without) - 1e-3


# FedBCD-s "with one party". A federation has two parties at least, so one party means that one alone has
# something to learn: the others' columns are all zero (their H is zero and their gradients vanish), or they
# stay where they are.


@pytest.mark.parametrize("alone", ["label party", "other party"])
@pytest.mark.parametrize("parties", [2, 3])
@pytest.mark.parametrize("exact", [True, False], ids=["exact", "taylor"])
def test_fedbcd_s_with_one_party_is_sgd_by_that_party(alone: str, parties: int, exact: bool) -> None:
    features, labels = blobs(ROWS, 4)
    place = parties - 1 if alone == "label party" else 0
    blocks = [features if k == place else np.zeros((ROWS, 2)) for k in range(parties)]
    made = federation.linear(
        blocks, labels, KEYS, algorithm=FedBCD(1, "sequential"), exact=exact, batch=16, rounds=6, l2=1e-2
    )
    made.run()
    expected = centralised(made, features, labels, "logistic", exact, 1e-2)
    for k, part in enumerate(made.parameters.values()):
        assert np.abs(part - (expected if k == place else 0.0)).max() <= 1e-10
    # With Q steps a round there is nobody to wait for either: parallel and sequential are the same.
    results = []
    for order in ("parallel", "sequential"):
        made = federation.linear(blocks, labels, KEYS, algorithm=FedBCD(3, order), exact=exact, rounds=4)
        made.run()
        results.append(made.flat)
    assert np.abs(results[0] - results[1]).max() <= 1e-12


class Frozen(SGD):
    """A party that stays where it is."""

    def step(self, parameters: Array, gradient: Array, learning_rate: float) -> Array:
        return super().step(parameters, gradient, 0.0)


@pytest.mark.parametrize("moving", [0, 1, 2])
def test_fedbcd_s_with_one_moving_party_is_fedsgd_with_one_moving_party(moving: int) -> None:
    features, labels = blobs(ROWS, 7)
    results = []
    for algorithm in (FedSGD(), FedBCD(1, "sequential")):
        made = federation.linear(split(features, 3), labels, KEYS, algorithm=algorithm, batch=16, rounds=5)
        for k, name in enumerate(made.sides):
            made.sides[name].parameters = np.full(made.sides[name].parameters.shape, 0.1 * (k + 1))
            made.optimisers[name] = SGD() if k == moving else Frozen()
        made.run()
        results.append(made.flat)
    assert np.abs(results[0] - results[1]).max() <= 1e-12


# Algorithms 1 to 3, against reference.py.

SCHEDULES: dict[str, Algorithm] = {
    "FedSGD": FedSGD(),
    "FedBCD-p": FedBCD(4),
    "FedBCD-s": FedBCD(3, "sequential"),
    "FedPBCD-p": FedBCD(4, proximal=0.3),
    "FedPBCD-s": FedBCD(3, "sequential", proximal=0.3),
}


def check(
    made: Federation, gradient: Callable[[int, Any, NDArray[np.intp]], Array], *, adam: bool = False
) -> None:
    """Run it both ways from the same start."""
    start = list(made.parameters.values())
    agreement, algorithm = made.agreement, made.agreement.algorithm
    expected = reference.block_descent(
        start,
        gradient,
        rounds=agreement.stopping.rounds,
        local_steps=algorithm.local_steps,
        sequential=algorithm.order == "sequential",
        proximal=algorithm.proximal,
        eta=agreement.learning_rate,
        batch=agreement.batches.batch,
        adam=adam,
    )
    made.run()
    for found, theta, first in zip(made.parameters.values(), expected, start, strict=True):
        assert np.abs(found - theta).max() <= 1e-10
        assert np.abs(found - first).max() > 1e-3


@pytest.mark.parametrize(
    ("schedule", "optimiser", "form", "exchange", "local"),
    all_pairs(
        list(SCHEDULES),
        ["sgd", "adam"],
        ["exact", "taylor"],
        ["2 in a star", "3 in a star", "4 pairwise"],
        ["linear", "network"],
    ),
)
def test_every_schedule_follows_the_paper(
    schedule: str, optimiser: str, form: str, exchange: str, local: str
) -> None:
    parties, exchange = int(exchange[0]), exchange.split()[-1]
    adam, exact = optimiser == "adam", form == "exact"
    features, labels = blobs(24, 9, seed=3)
    blocks = split(features, parties)
    made = federation.linear(
        blocks,
        labels,
        KEYS,
        algorithm=SCHEDULES[schedule],
        rate=InverseSqrt(0.05 if adam else 0.3),
        rounds=4,
        batch=10,
        exact=exact,
        exchange=exchange,
        local=local,
        hidden=(3,),
        bias=True,
        l2=0.02,
        optimiser=Adam() if adam else SGD(),
    )
    hidden = 3 if local == "network" else None
    gradient = reference.generalised_linear_gradient(
        blocks, labels, exact=exact, l2=0.02, hidden=hidden, bias=True
    )
    check(made, gradient, adam=adam)


@pytest.mark.parametrize("loss", ["linear", "squared_hinge"])
@pytest.mark.parametrize("schedule", ["FedBCD-p", "FedPBCD-s"])
@pytest.mark.parametrize("exact", [True, False], ids=["exact", "taylor"])
def test_the_other_losses_follow_the_paper(loss: str, schedule: str, exact: bool) -> None:
    features, labels = blobs(24, 6, seed=4)
    labels = labels if loss == "squared_hinge" else labels + 0.3 * features[:, 0]
    blocks = split(features, 3)
    rate = InverseSqrtParties(0.1, 3)
    made = federation.linear(
        blocks,
        labels,
        KEYS,
        algorithm=SCHEDULES[schedule],
        rate=rate,
        rounds=4,
        batch=12,
        exact=exact,
        loss=loss,
        l2=0.1,
    )
    check(made, reference.generalised_linear_gradient(blocks, labels, loss=loss, exact=exact, l2=0.1))


def test_the_sequential_schedule_differs_from_the_parallel_one() -> None:
    """So that agreement with the reference is no accident of equal forms."""
    features, labels = blobs(24, 6)
    results = []
    for order in ("parallel", "sequential"):
        made = federation.linear(split(features, 3), labels, KEYS, algorithm=FedBCD(3, order), rounds=2)
        made.run()
        results.append(made.flat)
    assert np.abs(results[0] - results[1]).max() > 1e-3


@settings(max_examples=10)
@given(st.integers(1, 6), st.sampled_from(["parallel", "sequential"]), st.floats(0.0, 1.0))
@example(1, "parallel", 0.0)
def test_any_number_of_local_steps_and_any_pull(steps: int, order: Any, proximal: float) -> None:
    features, labels = blobs(20, 5, seed=5)
    blocks = split(features, 2)
    made = federation.linear(
        blocks, labels, KEYS, algorithm=FedBCD(steps, order, proximal), rate=Constant(0.2), rounds=3, batch=7
    )
    check(made, reference.generalised_linear_gradient(blocks, labels))


def test_a_margin_past_its_declared_bound_stops_training_in_one_line() -> None:
    features, labels = blobs(20, 4)
    for exact in (False, True):
        made = federation.linear(
            split(100 * features, 2), labels, KEYS, rate=Constant(5.0), exact=exact, margin_bound=2.0
        )
        with pytest.raises(
            DataError, match=r"score part reached .*, above margin_bound=2; lower the learning"
        ) as caught:
            made.run()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("loss", ["logistic", "linear", "squared_hinge"])
@pytest.mark.parametrize("exact", [True, False], ids=["exact", "taylor"])
def test_the_whole_margin_may_be_used(loss: str, exact: bool) -> None:
    """Margins just below the declared bound, and labels of either sign on top, are no error."""
    features, labels = blobs(20, 4)
    made = federation.linear(
        split(features, 2),
        labels,
        KEYS,
        exact=exact,
        loss=loss,
        margin_bound=40.0,
        rounds=1,
        rate=Constant(1e-3),
    )
    for block, side in zip(split(features, 2), made.sides.values(), strict=True):
        side.parameters = np.full(2, 39.9 / np.abs(block.sum(axis=1)).max())
    made.run()
