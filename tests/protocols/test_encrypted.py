"""Encrypted training follows plain training of the same loss, within the bound derived in error_bounds.py."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from securefed.protocols.schedules import Algorithm, Constant, FedBCD, FedSGD, InverseSqrt
from securefed.protocols.steps import SGD, Adam
from tests.protocols import error_bounds, federation
from tests.protocols.error_bounds import Observed, observe
from tests.protocols.federation import Federation, Keys, blobs, shared_people, split

Array = NDArray[np.float64]
SCHEDULES: dict[str, Algorithm] = {
    "FedSGD": FedSGD(),
    "FedBCD-p": FedBCD(3),
    "FedBCD-s": FedBCD(2, "sequential"),
    "FedPBCD-p": FedBCD(3, proximal=0.2),
    "FedPBCD-s": FedBCD(2, "sequential", proximal=0.2),
}
ROUNDS, L2, HIDDEN, GAMMA = 3, 0.01, 2, 0.05


@dataclass(frozen=True)
class Objective:
    """One way to set up a run, and the bound on its Hessian."""

    name: str
    parties: int = 2
    exchange: str = "star"
    local: str = "linear"
    loss: str = "logistic"
    activation: str = "sigmoid"

    def make(self, keys: Keys, scheme: str, algorithm: Algorithm, **options: Any) -> Federation:
        if self.name == "transfer":
            return federation.transfer(
                self.people,
                keys,
                scheme=scheme,
                algorithm=algorithm,
                width=HIDDEN,
                activation=self.activation,
                gamma=GAMMA,
                l2=L2,
                rounds=ROUNDS,
                rate=InverseSqrt(0.1),
                batch=6,
                **options,
            )
        _, labels = blobs(12, 6, seed=2)
        return federation.linear(
            self.blocks,
            labels,
            keys,
            scheme=scheme,
            algorithm=algorithm,
            rounds=ROUNDS,
            rate=InverseSqrt(self.rate),
            batch=8,
            l2=L2,
            loss=self.loss,
            exchange=self.exchange,
            local=self.local,
            hidden=(HIDDEN,),
            **options,
        )

    @property
    def rate(self) -> float:
        """Where the curvature is large, small steps keep the bound meaningful."""
        if self.local == "network":
            return 0.02
        return 0.03 if self.loss == "squared_hinge" else 0.1

    @property
    def blocks(self) -> list[Array]:
        # Networks bend less on small inputs, and a smaller bound on their Hessian says more.
        return split((0.5 if self.local == "network" else 1.0) * blobs(12, 6, seed=2)[0], self.parties)

    @property
    def people(self) -> federation.Shared:
        return shared_people(n=8, more_a=2, more_b=1, unlabelled=2)

    def smoothness(self, made: Federation, watched: dict[str, Observed]) -> float:
        if self.name == "transfer":
            return error_bounds.transfer_smoothness(self.people, HIDDEN, self.activation, GAMMA, L2)
        weight = {"logistic": 0.25, "linear": 1.0, "squared_hinge": 2.0}[self.loss]
        if self.local == "network":
            largest = [max(float(np.abs(c).max()) for c in w.contributions) for w in watched.values()]
            residual = error_bounds.SLACK * sum(largest)
            return error_bounds.network_smoothness(self.blocks, watched, HIDDEN, weight, L2, residual)
        batches = [made.agreement.batches.batch(t) for t in range(ROUNDS)]
        return error_bounds.linear_smoothness(self.blocks, batches, weight, L2)


OBJECTIVES = {
    o.name: o
    for o in (
        Objective("pair"),
        Objective("star", parties=3),
        Objective("pairwise", parties=3, exchange="pairwise"),
        Objective("network", local="network"),
        Objective("network star", parties=3, local="network"),
        Objective("linear loss", loss="linear"),
        Objective("squared hinge", loss="squared_hinge"),
        Objective("transfer"),
    )
}


def compare(objective: Objective, algorithm: Algorithm, scheme: str, keys: Keys, **options: Any) -> None:
    """The plain run gives the numbers for the bound; the encrypted run has to stay within it."""
    plain = objective.make(keys, "plain", algorithm)
    start, watched = plain.flat, observe(plain)
    plain.run()
    encrypted = objective.make(keys, scheme, algorithm, **options)
    error = error_bounds.gradient_error(encrypted, watched_as(encrypted, watched))
    bound = error_bounds.trajectory_error(encrypted, objective.smoothness(plain, watched), error)
    encrypted.run()
    distance = float(np.linalg.norm(encrypted.flat - plain.flat))
    assert distance <= bound
    # The bound says something: it is small beside the way that the parameters went. And it was not plain.
    assert bound < (0.03 if scheme == "ckks" else 1e-3) * float(np.linalg.norm(plain.flat - start))
    assert distance > 0.0


def watched_as(encrypted: Federation, watched: dict[str, Observed]) -> dict[str, Observed]:
    assert list(encrypted.sides) == list(watched)
    return watched


LONG = {("paillier", "pairwise"), ("paillier", "network star")}


def cells() -> list[Any]:
    """Every schedule with every objective, under one scheme or the other in turn.

    Quick: every objective with one of the schedules in turn, under both schemes but where Paillier takes
    long; every schedule with a pair, under the faster scheme.
    """
    found = []
    for (place, objective), (turn, schedule) in product(enumerate(OBJECTIVES), enumerate(SCHEDULES)):
        for number, scheme in enumerate(("paillier", "ckks")):
            first = turn == place % len(SCHEDULES) and (scheme, objective) not in LONG
            first |= objective == "pair" and scheme == "ckks"
            if first or (place + turn + number) % 2 or turn == place % len(SCHEDULES):
                marks = () if first else pytest.mark.slow
                found.append(pytest.param(scheme, objective, schedule, marks=marks))
    return found


@pytest.mark.parametrize(("scheme", "objective", "schedule"), cells())
def test_every_schedule_objective_and_scheme(scheme: str, objective: str, schedule: str, keys: Keys) -> None:
    compare(OBJECTIVES[objective], SCHEDULES[schedule], scheme, keys)


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["pair", "star", "pairwise", "network", "transfer"])
def test_one_schedule_at_3072_bits(objective: str, keys: Keys) -> None:
    """The size of the key decides how many values a ciphertext takes, which the schedule has no part in."""
    compare(OBJECTIVES[objective], SCHEDULES["FedBCD-p"], "paillier", keys, bits=3072)


@pytest.mark.parametrize(
    ("scheme", "objective", "adam"),
    [
        ("paillier", "pair", True),
        ("paillier", "transfer", True),
        ("ckks", "pair", True),
        ("ckks", "star", False),
        ("ckks", "network", False),
        pytest.param("paillier", "star", False, marks=pytest.mark.slow),
        pytest.param("paillier", "network", False, marks=pytest.mark.slow),
        pytest.param("ckks", "transfer", True, marks=pytest.mark.slow),
    ],
)
def test_every_single_gradient_is_the_plain_one_at_the_same_place(
    scheme: str, objective: str, adam: bool, keys: Keys
) -> None:
    """What holds for one step holds for any optimiser: here nothing is propagated.

    At each local step of the encrypted run, the opened sums are compared with the sums of what the parties
    encrypted in that round, and the step with the optimiser's step from that very gradient.
    """
    fresh = Adam() if adam else SGD()
    made = OBJECTIVES[objective].make(keys, scheme, FedBCD(3), optimiser=fresh)
    watched = observe(made)
    made.run()
    errors = error_bounds.gradient_error(made, watched) * made.agreement.batches.effective_size
    steps = made.agreement.algorithm.local_steps
    for name, side in watched.items():
        peers = [w for other, w in watched.items() if other != name]
        star = not made.agreement.mutual
        # Around a star everybody but the label party holds the sum with its own contribution in it.
        parts = [*peers, side] if star and name != made.agreement.label_party else peers
        replay, optimiser = side.visited[0], fresh.clone()
        each = 1 if made.agreement.members[0].is_linear else steps
        for t in range(ROUNDS):
            held = sum(np.atleast_2d(part.contributions[t].T).T for part in parts)
            for q in range(steps):
                opened = t * each + (q if each > 1 else 0)
                exact = np.einsum("jai,ij->aj", side.factors[opened], held)
                found = side.sums[t * steps + q].reshape(exact.shape)
                assert np.abs(found - exact).max() <= errors
                gradient = side.gradients[t * steps + q]
                replay = optimiser.step(replay, gradient, made.agreement.learning_rate(t))
                assert np.array_equal(replay, side.visited[t * steps + q + 1])


@pytest.mark.parametrize("scheme", ["paillier", "ckks"])
def test_columns_of_very_different_sizes_keep_their_gradients(scheme: str, keys: Keys) -> None:
    """A column of ten millions beside one of one: the gradient by each is as precise as by itself."""
    features, labels = blobs(12, 4, seed=2)
    blocks = [features[:, :2] * np.array([1e7, 1.0]), features[:, 2:] * np.array([1.0, 1e-7])]

    def moved(chosen: str) -> Array:
        made = federation.linear(blocks, labels, keys, scheme=chosen, rounds=1, rate=Constant(1e-6))
        made.run()
        return np.concatenate([side.parameters for side in made.sides.values()])

    plain = moved("plain")
    assert (np.abs(plain) > 0).all()
    assert (np.abs(moved(scheme) / plain - 1) < 1e-4).all()
