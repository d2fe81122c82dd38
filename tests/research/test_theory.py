"""Theorem 2 on least-squares problems whose constants are known exactly.

FedBCD-p is written out here directly from the paper's Algorithm 4 (the compact form of Algorithm 2) on the
joined data, and shares nothing with the package. Expectations are taken by following every sequence of
mini-batches, so nothing in these tests is random but the fixed problem.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from research.theory import (
    LipschitzConstants,
    convergence_bound,
    lipschitz_constants,
    proven_step_size,
    step_size_bound,
)
from securefed.errors import DataError, SettingError

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Problem:
    """1/2N ||X Theta - y||^2 + l2/2 ||Theta||^2, its columns divided among the parties."""

    X: Array
    y: Array
    cuts: tuple[int, ...]
    l2: float

    @property
    def blocks(self) -> list[slice]:
        return [slice(start, stop) for start, stop in pairwise((0, *self.cuts, self.X.shape[1]))]

    def loss(self, theta: Array) -> float:
        residual = self.X @ theta - self.y
        return float(residual @ residual / (2 * len(self.y)) + self.l2 / 2 * theta @ theta)

    def gradient(self, theta: Array, rows: NDArray[np.intp]) -> Array:
        X, y = self.X[rows], self.y[rows]
        result: Array = X.T @ (X @ theta - y) / len(rows) + self.l2 * theta
        return result

    @property
    def optimum(self) -> Array:
        hessian = self.X.T @ self.X / len(self.y) + self.l2 * np.eye(self.X.shape[1])
        return np.linalg.solve(hessian, self.X.T @ self.y / len(self.y)).astype(np.float64)


def problem(parties: int, seed: int = 0, rows: int = 24, columns: int = 6, l2: float = 0.01) -> Problem:
    generator = np.random.default_rng(seed)
    # Correlated columns, so that blocks depend on each other and stale messages matter.
    X = generator.normal(size=(rows, columns)) + 0.7 * generator.normal(size=(rows, 1))
    y = X @ generator.normal(size=columns) + 0.3 * generator.normal(size=rows)
    cuts = tuple(int(cut) for cut in np.linspace(0, columns, parties + 1)[1:-1])
    return Problem(X, y, cuts, l2)


def local_steps(
    task: Problem, theta: Array, rows: NDArray[np.intp], eta: float, Q: int
) -> tuple[list[Array], list[Array]]:
    """One round of Algorithm 4 on one mini-batch: the Q + 1 Thetas, and G = [g_k(y_k)] of its Q steps."""
    start, thetas, gradients = theta, [theta], []
    for _ in range(Q):
        combined = np.empty_like(theta)
        for block in task.blocks:
            local = start.copy()  # y_k: everybody else as at the last exchange
            local[block] = thetas[-1][block]
            combined[block] = task.gradient(local, rows)[block]
        gradients.append(combined)
        thetas.append(thetas[-1] - eta * combined)
    return thetas, gradients


def expected_run(
    task: Problem, batches: list[NDArray[np.intp]], eta: float, Q: int, rounds: int
) -> tuple[float, float]:
    """The exact left-hand side, and sigma^2/S: a block's largest variance at any step of any path."""
    everything = np.arange(len(task.y))
    total, variance = 0.0, 0.0
    paths = [np.zeros(task.X.shape[1])]
    for _ in range(rounds):
        following = []
        for theta in paths:
            runs = [local_steps(task, theta, rows, eta, Q) for rows in batches]
            for step in range(Q):
                norms = [float((task.gradient(thetas[step], everything) ** 2).sum()) for thetas, _ in runs]
                total += sum(norms) / len(norms) / len(paths)
                for block in task.blocks:
                    drawn = np.array([gradients[step][block] for _, gradients in runs])
                    variance = max(variance, float(((drawn - drawn.mean(axis=0)) ** 2).sum(axis=1).mean()))
            following += [thetas[-1] for thetas, _ in runs]
        paths = following
    return total / (rounds * Q), variance


def constants(task: Problem, batches: list[NDArray[np.intp]] | None = None) -> LipschitzConstants:
    return lipschitz_constants([task.X[:, block] for block in task.blocks], l2=task.l2, batches=batches)


@pytest.mark.parametrize("choice", ["printed", "proven"])
@pytest.mark.parametrize("parties", [1, 2, 3, 6])
@pytest.mark.parametrize("Q", [1, 2, 5, 20])
def test_bound_holds_with_full_batches(parties: int, Q: int, choice: str) -> None:
    task = problem(parties)
    known = constants(task)
    eta = {"printed": step_size_bound, "proven": proven_step_size}[choice](Q, known.L, known.L_k)
    everything = [np.arange(len(task.y))]
    gap = task.loss(np.zeros(6)) - task.loss(task.optimum)
    for rounds in (1, 3, 40):
        average, variance = expected_run(task, everything, eta, Q, rounds)
        assert variance == 0.0
        assert average <= convergence_bound(eta, rounds * Q, Q, parties, known.L_k, 0.0, len(task.y), gap)


@pytest.mark.parametrize("choice", ["printed", "proven"])
@pytest.mark.parametrize(("parties", "Q"), [(1, 3), (2, 1), (2, 3), (3, 2), (3, 5)])
def test_bound_holds_in_expectation_over_mini_batches(parties: int, Q: int, choice: str) -> None:
    task = problem(parties, seed=1)
    batches = [np.arange(start, 24, 3) for start in range(3)]
    size = len(batches[0])
    known = constants(task, batches)
    eta = {"printed": step_size_bound, "proven": proven_step_size}[choice](Q, known.L, known.L_k)
    gap = task.loss(np.zeros(6)) - task.loss(task.optimum)
    for rounds in (1, 3, 6):
        average, variance = expected_run(task, batches, eta, Q, rounds)
        assert variance > 0.0
        sigma2 = variance * size
        assert average <= convergence_bound(eta, rounds * Q, Q, parties, known.L_k, sigma2, size, gap)


def test_the_variance_terms_are_needed() -> None:
    """Without them the inequality fails: the test above does test them."""
    given = problem(2, seed=1, l2=0.0)
    # Shifted so that the start, 0, is the optimum: the gap is 0, and a mini-batch moves away from it.
    task = Problem(given.X, given.y - given.X @ given.optimum, given.cuts, l2=0.0)
    batches = [np.arange(start, 24, 3) for start in range(3)]
    known = constants(task, batches)
    eta = proven_step_size(3, known.L, known.L_k)
    average, variance = expected_run(task, batches, eta, 3, 5)
    gap = max(0.0, task.loss(np.zeros(6)) - task.loss(task.optimum))
    assert gap < 1e-12
    assert average > convergence_bound(eta, 15, 3, 2, known.L_k, 0.0, 8, gap)
    assert average <= convergence_bound(eta, 15, 3, 2, known.L_k, variance * 8, 8, gap)


@pytest.mark.parametrize(("parties", "Q"), [(2, 1), (3, 5), (6, 5)])
def test_too_large_a_step_breaks_the_bound(parties: int, Q: int) -> None:
    task = problem(parties)
    known = constants(task)
    eta = 12 * step_size_bound(Q, known.L, known.L_k)
    gap = task.loss(np.zeros(6)) - task.loss(task.optimum)
    average, _ = expected_run(task, [np.arange(24)], eta, Q, 30)
    assert average > convergence_bound(eta, 30 * Q, Q, parties, known.L_k, 0.0, 24, gap)


def test_constants_are_those_of_assumption_a1() -> None:
    task = problem(3, seed=2)
    known = constants(task)
    generator = np.random.default_rng(3)
    everything = np.arange(24)
    hessian = task.X.T @ task.X / 24 + task.l2 * np.eye(6)
    for _ in range(50):
        first, second = generator.normal(size=(2, 6))
        change = task.gradient(first, everything) - task.gradient(second, everything)
        distance = np.linalg.norm(first - second)
        assert np.linalg.norm(change) <= known.L * distance * (1 + 1e-12)
        for block, constant in zip(task.blocks, known.L_k, strict=True):
            assert np.linalg.norm(change[block]) <= constant * distance * (1 + 1e-12)
    # And they are the smallest such: along the right singular vectors they are reached.
    for rows, constant in [(slice(0, 6), known.L), *zip(task.blocks, known.L_k, strict=True)]:
        direction = np.linalg.svd(hessian[rows])[2][0]
        assert np.linalg.norm(hessian[rows] @ direction) == pytest.approx(constant, rel=1e-12)
    assert math.hypot(*known.L_k) >= known.L * (1 - 1e-12)


def test_constants_for_the_other_losses_and_batches() -> None:
    task = problem(2, seed=4)
    blocks = [task.X[:, block] for block in task.blocks]
    linear = lipschitz_constants(blocks, loss="linear")
    for loss, curvature in (("logistic", 0.25), ("squared_hinge", 2.0)):
        other = lipschitz_constants(blocks, loss=loss)
        largest = other.L
        assert largest == pytest.approx(curvature * linear.L)
        assert other.L_k == pytest.approx([curvature * constant for constant in linear.L_k])
    with_ridge = lipschitz_constants(blocks, l2=0.5).L
    assert with_ridge == pytest.approx(linear.L + 0.5)
    batches = [np.arange(12), np.arange(12, 24)]
    each = [lipschitz_constants([block[rows] for block in blocks]).L_k for rows in batches]
    over = lipschitz_constants(blocks, batches=batches)
    assert over.L == linear.L
    assert over.L_k == pytest.approx([max(*pair) for pair in zip(*each, strict=True)])
    assert all(larger >= smaller for larger, smaller in zip(over.L_k, linear.L_k, strict=True))


def test_step_sizes_by_hand() -> None:
    # sum L_j^2 + 3 max L_k^2 = 9 + 16 + 48 = 73
    assert step_size_bound(2, 1.0, [3.0, 4.0]) == pytest.approx(math.sqrt(2) / (4 * math.sqrt(73)))
    # 1/L is the smaller of the two
    assert step_size_bound(1, 100.0, [3.0, 4.0]) == pytest.approx(0.01)
    # One party, Q = 1, L_1 = L = 1: 8 eta^2 + eta = 1
    assert proven_step_size(1, 1.0, [1.0]) == pytest.approx((math.sqrt(33) - 1) / 16)


def test_step_sizes_fall_with_every_constant() -> None:
    for size in (step_size_bound, proven_step_size):
        over_Q = [size(Q, 2.0, [1.0, 1.5]) for Q in range(1, 60)]
        assert all(later < earlier for earlier, later in pairwise(over_Q))
        over_L = [size(3, L, [1.0, 1.5]) for L in np.linspace(0.1, 80, 60)]
        assert all(later <= earlier for earlier, later in pairwise(over_L)) and over_L[-1] < over_L[0]
        over_parties = [size(3, 2.0, [1.0] * parties) for parties in range(1, 20)]
        assert all(later < earlier for earlier, later in pairwise(over_parties))
        over_block = [size(3, 2.0, [1.0, block]) for block in np.linspace(0.1, 5, 20)]
        assert all(later < earlier for earlier, later in pairwise(over_block))


def test_the_proofs_condition() -> None:
    """It holds with equality at the proven step, and fails at the printed one: why both are here."""
    for Q in (1, 3, 20):
        for L in (0.01, 1.0, 14.2, 1000.0):
            L_k = [3.0, 4.0]

            def slack(eta: float, Q: int = Q, L: float = L) -> float:
                return 1 - L * eta - 2 * eta**2 * Q**2 * 73

            printed, proven = step_size_bound(Q, L, L_k), proven_step_size(Q, L, L_k)
            assert slack(proven) == pytest.approx(0.0, abs=1e-12)
            assert slack(printed) < 0
            assert (math.sqrt(5) - 1) / 2 * printed <= proven * (1 + 1e-12) and proven < printed


def test_bound_by_hand() -> None:
    # 2*5/(.1*10) + 2*.01*5*4*(9+16)*3/6 + 2*2*3/6
    assert convergence_bound(0.1, 10, 2, 2, [3.0, 4.0], 3.0, 6, 5.0) == pytest.approx(10 + 5 + 2)


def test_bad_arguments_are_one_line_by_name() -> None:
    good: dict[str, Any] = {
        "eta": 0.1,
        "T": 10,
        "Q": 2,
        "K": 2,
        "L_k": [1.0, 1.0],
        "sigma2": 1.0,
        "S": 4,
        "initial_gap": 1.0,
    }
    changes: list[tuple[dict[str, Any], str]] = [
        ({"eta": 0.0}, "eta must be a finite number greater than 0, not 0.0"),
        ({"T": 0}, "T must be an integer of at least 1, not 0"),
        ({"Q": 0}, "Q must be"),
        ({"K": 3}, "L_k must have one constant per party, K = 3, not 2"),
        ({"L_k": [1.0, -1.0]}, "L_k must be a finite number of at least 0, not -1.0"),
        ({"sigma2": -1.0}, "sigma2 must be"),
        ({"S": 0}, "S must be"),
        ({"initial_gap": math.nan}, "initial_gap must be"),
    ]
    for change, message in changes:
        with pytest.raises(SettingError, match=message):
            convergence_bound(**{**good, **change})
    for size in (step_size_bound, proven_step_size):
        for arguments, message in [
            ((0, 1.0, [1.0]), "Q must be an integer of at least 1, not 0"),
            ((1, 0.0, [1.0]), "L must be a finite number greater than 0, not 0.0"),
            ((1, 1.0, []), r"L_k must hold at least one constant greater than 0, not \[\]"),
            ((1, 1.0, [0.0]), "L_k must hold at least one"),
        ]:
            with pytest.raises(SettingError, match=message):
                size(*arguments)
    X = np.ones((4, 2))
    cases: list[tuple[list[Array], dict[str, Any], str]] = [
        ([], {}, "blocks must be matrices"),
        ([X, X[:3]], {}, r"not of shapes \[\(4, 2\), \(3, 2\)\]"),
        ([X[:, 0]], {}, "blocks must be matrices"),
        ([X * np.nan], {}, "finite"),
        ([X[:0]], {}, "at least one row"),
        ([X], {"batches": [[0, 4]]}, "rows from 0 to 3"),
        ([X], {"batches": [[]]}, "rows from 0 to 3"),
        ([X], {"loss": "hinge"}, "loss must be one of"),
        ([X], {"l2": -1.0}, "l2 must be"),
    ]
    for blocks, options, message in cases:
        with pytest.raises((DataError, SettingError), match=message):
            lipschitz_constants(blocks, **options)
