"""Steps that cannot diverge: the loss of the batch falls in every round, whatever the columns are."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.datasets import (
    load_breast_cancer,
    load_diabetes,
    load_digits,
    load_iris,
    load_linnerud,
    load_wine,
)

from securefed import Monitoring, OwnGradient, Plain
from securefed.assembly import LinearAssembly
from securefed.errors import SettingError
from securefed.protocols.agreement import Agreement, Member
from securefed.protocols.losses import LOSSES, Loss, get_loss
from securefed.protocols.schedules import (
    Automatic,
    Batches,
    Constant,
    FedBCD,
    LearningRate,
    Stopping,
    automatic_rounds,
    held_out,
)
from securefed.protocols.steps import LocalProblem, OwnSteps, stable
from securefed.settings import LinearSettings
from tests.protocols.taylor import taylor_residual, taylor_value

Array = NDArray[np.float64]


def margin_range(loss: Loss, labels: float = 1.0) -> float:
    """The root mean square that H can reach with the full batch and automatic steps from 0: 2 |a| L / b,
    where L is the root mean square of the labels.

    The loss has not risen above that of H = 0: mean(a y H + b H^2 / 2) <= 0, and Cauchy's inequality.
    """
    return 2.0 * abs(loss.label_weight) / loss.margin_weight * labels


def parameter_range(loss: Loss, l2: float, labels: float = 1.0) -> float:
    """The length that all parameters together can reach likewise: |a| L / sqrt(b l2).

    a y H + b H^2 / 2 is at least -(a y)^2 / (2 b), so l2/2 |theta|^2 is at most a^2 L^2 / (2 b).
    """
    return math.inf if l2 <= 0 else abs(loss.label_weight) * labels / math.sqrt(loss.margin_weight * l2)


def value(loss: Loss, blocks: list[Array], y: Array, theta: list[Array], l2: float) -> float:
    """The regularised Taylor loss of the batch."""
    margins = np.sum([x @ part for x, part in zip(blocks, theta, strict=True)], axis=0)
    length = sum(float(part @ part) for part in theta)
    return float(np.mean(taylor_value(loss, margins, y))) + 0.5 * l2 * length


def agreed(
    blocks: list[Array], algorithm: FedBCD, rate: LearningRate, *, rounds: int = 5, batch: int | None = None
) -> Agreement:
    return Agreement(
        "linear",
        "plain",
        tuple(Member(f"p{k}", x.shape[1], True) for k, x in enumerate(blocks)),
        algorithm,
        rate,
        Batches(len(blocks[0]), batch),
        Stopping(rounds),
        key_holder=None if len(blocks) == 2 else "key-holder",
    )


def trajectory(
    loss: Loss, blocks: list[Array], y: Array, agreement: Agreement, l2: float
) -> tuple[list[float], list[Array]]:
    """The loss after each round, and the parameters at the end."""
    steps = [OwnSteps(agreement, loss, x, l2=l2, allow_unstable=True) for x in blocks]
    theta = previous = [np.zeros(x.shape[1]) for x in blocks]
    everybody = list(range(len(blocks)))
    turns = [everybody] if agreement.algorithm.order == "parallel" else [[k] for k in everybody]
    values = [value(loss, blocks, y, theta, l2)]
    for t in range(agreement.stopping.rounds):
        for active in turns:
            margins = np.sum([x @ part for x, part in zip(blocks, theta, strict=True)], axis=0)
            residual = taylor_residual(loss, margins, y)
            moved = list(theta)
            for k in active:
                gradient = blocks[k].T @ residual / len(y) + l2 * theta[k]
                again = steps[k].momentum(t) * (theta[k] - previous[k])
                moved[k] = theta[k] + again - steps[k].matrix(t) @ gradient
            previous, theta = theta, moved
        values.append(value(loss, blocks, y, theta, l2))
    return values, theta


def falls(values: list[float]) -> bool:
    """Up to rounding, measured by what the loss is at 0."""
    least = 1e-9 * (1.0 + abs(values[0]))
    return all(math.isfinite(v) for v in values) and all(b <= a + least for a, b in pairwise(values))


@st.composite
def problems(draw: st.DrawFn) -> tuple[Loss, list[Array], Array]:
    """Random parties: columns of any scale, repeated, constant, more of them than rows."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows, parties = draw(st.integers(2, 40)), draw(st.integers(2, 8))
    loss = draw(st.sampled_from(list(LOSSES.values())))
    common = rng.normal(size=(rows, 2))
    blocks = []
    for _ in range(parties):
        columns = draw(st.integers(1, 12))
        kind = draw(st.sampled_from(["normal", "the same", "constant", "heavy", "zero"]))
        block = {
            "normal": rng.normal(size=(rows, columns)),
            "the same": common @ rng.normal(size=(2, columns)),
            "constant": np.ones((rows, columns)),
            "heavy": rng.standard_cauchy(size=(rows, columns)),
            "zero": np.zeros((rows, columns)),
        }[kind]
        blocks.append(block * 10.0 ** draw(st.integers(-6, 6)))
    labels = rng.choice([-1.0, 1.0], rows) if loss.binary else rng.normal(size=rows)
    return loss, blocks, labels


@settings(deadline=None, max_examples=150, derandomize=True)
@given(
    problems(),
    st.integers(1, 1000),
    st.sampled_from(["parallel", "sequential"]),
    st.sampled_from([0.0, 1e-6, 1e-3, 1.0]),
    st.sampled_from([0.0, 0.1]),
)
def test_the_loss_of_the_batch_falls_in_every_round(
    problem: tuple[Loss, list[Array], Array], steps: int, order: str, l2: float, proximal: float
) -> None:
    loss, blocks, y = problem
    algorithm = FedBCD(steps, order, proximal)  # type: ignore[arg-type]
    values, theta = trajectory(loss, blocks, y, agreed(blocks, algorithm, Automatic()), l2)
    assert falls(values)
    scale = float(np.sqrt(np.mean(y**2)))
    margins = np.sum([x @ part for x, part in zip(blocks, theta, strict=True)], axis=0)
    assert np.sqrt(np.mean(margins**2)) <= margin_range(loss, scale) * (1 + 1e-6)
    assert np.sqrt(sum(part @ part for part in theta)) <= parameter_range(loss, l2, scale) * (1 + 1e-6)


@settings(deadline=None, max_examples=100, derandomize=True)
@given(
    problems(),
    st.integers(1, 1000),
    st.sampled_from([0.0, 1e-6, 1e-3, 1.0]),
    st.sampled_from([0.0, 0.1]),
    st.sampled_from([None, 4]),
)
def test_accelerated_rounds_never_go_above_the_start(
    problem: tuple[Loss, list[Array], Array], steps: int, l2: float, proximal: float, again: int | None
) -> None:
    """Which is what the ranges of masks rest on; a round by itself may rise."""
    loss, blocks, y = problem
    rate = Automatic(1.0, True, again)
    agreement = agreed(blocks, FedBCD(steps, "parallel", proximal), rate, rounds=12)
    values, theta = trajectory(loss, blocks, y, agreement, l2)
    least = 1e-9 * (1.0 + abs(values[0]))
    assert max(values) <= values[0] + least
    if again is not None:
        assert max(values[again:]) <= values[again] + least
    scale = float(np.sqrt(np.mean(y**2)))
    margins = np.sum([x @ part for x, part in zip(blocks, theta, strict=True)], axis=0)
    assert np.sqrt(np.mean(margins**2)) <= margin_range(loss, scale) * (1 + 1e-6)
    assert np.sqrt(sum(part @ part for part in theta)) <= parameter_range(loss, l2, scale) * (1 + 1e-6)


def test_the_recurrence_is_chebyshevs() -> None:
    """What is left of an error along an eigenvalue x of P A after t rounds: T_{2t+1}(sqrt x)/((2t+1) sqrt x),
    up to its sign; at most 1, and at most 1/((2t+1) sqrt x).
    """
    rate, x = Automatic(1.0, True), np.linspace(1e-6, 1.0, 2001)
    previous = left = np.ones_like(x)
    for t in range(60):
        previous, left = left, left + rate.momentum(t) * (left - previous) - rate(t) * x * left
        odd = 2 * t + 3
        expected = (-1) ** (t + 1) * np.cos(odd * np.arccos(np.sqrt(x))) / (odd * np.sqrt(x))
        assert np.allclose(left, expected, rtol=0, atol=1e-9)
        assert np.abs(left).max() <= 1.0 and (np.sqrt(x) * np.abs(left)).max() <= 1.0 / odd + 1e-9


def test_without_the_overlap_the_same_test_fails() -> None:
    """Five parties with one and the same column: the test above can fail, and K is what it takes."""
    rng = np.random.default_rng(0)
    column, y = rng.normal(size=(50, 1)), rng.choice([-1.0, 1.0], 50)
    loss, blocks = get_loss("logistic"), [column] * 5
    naive = Constant(LocalProblem.of(column, loss.margin_weight, l2=0.0).step)
    assert not falls(trajectory(loss, blocks, y, agreed(blocks, FedBCD(2), naive), 0.0)[0])
    assert falls(trajectory(loss, blocks, y, agreed(blocks, FedBCD(2), Automatic()), 0.0)[0])


TABLES = {
    "breast": (load_breast_cancer, "logistic"),
    "digits": (load_digits, "logistic"),
    "wine": (load_wine, "logistic"),
    "iris": (load_iris, "squared_hinge"),
    "diabetes": (load_diabetes, "linear"),
    "linnerud": (load_linnerud, "linear"),
}


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("parties", [2, 3, 5, 10])
@pytest.mark.parametrize("standardised", [True, False])
def test_it_falls_on_the_small_tables_as_they_are(name: str, parties: int, standardised: bool) -> None:
    load, word = TABLES[name]
    table, target = load(return_X_y=True)
    loss = get_loss(word)
    y = np.asarray(target, dtype=np.float64).reshape(len(table), -1)[:, 0]
    y = np.where(y > y.mean(), 1.0, -1.0) if loss.binary else (y - y.mean()) / y.std()
    if standardised:
        table = (table - table.mean(axis=0)) / np.where(table.std(axis=0) > 0, table.std(axis=0), 1.0)
    groups = [c for c in np.array_split(np.arange(table.shape[1]), parties) if len(c)]
    blocks = [np.ascontiguousarray(table[:, group]) for group in groups]
    if len(blocks) < 2:
        pytest.skip("a single column")
    values, _ = trajectory(loss, blocks, y, agreed(blocks, FedBCD(20), Automatic(), rounds=20), 1e-3)
    assert falls(values) and values[-1] < values[0]
    quick = agreed(blocks, FedBCD(20), Automatic(1.0, True), rounds=20)
    quicker = trajectory(loss, blocks, y, quick, 1e-3)[0][-1]
    assert quicker <= values[-1] + 0.005 * (values[0] - values[-1])  # where there is nothing left to gain


class TestUpdateMatrix:
    @pytest.mark.parametrize("shape", [(40, 6), (5, 9), (1, 4), (8, 8)])
    @pytest.mark.parametrize("steps", [1, 2, 7])
    @pytest.mark.parametrize("pull", [(0.0, 0.0), (0.1, 0.05)])
    def test_it_is_the_sum_of_powers(
        self, shape: tuple[int, int], steps: int, pull: tuple[float, float]
    ) -> None:
        rows = np.random.default_rng(1).normal(size=shape)
        l2, proximal = pull
        problem = LocalProblem.of(rows, 0.25, l2=l2, proximal=proximal, overlap=3)
        curvature = 3 * 0.25 / len(rows) * rows.T @ rows + (l2 + proximal) * np.eye(shape[1])
        eta = 0.7 * problem.step
        power, total = np.eye(shape[1]), np.zeros(curvature.shape)
        for _ in range(steps):
            total += eta * power
            power = power @ (np.eye(shape[1]) - eta * curvature)
        assert np.allclose(problem.update_matrix(eta, steps), total, rtol=0, atol=1e-12)
        assert problem.largest == pytest.approx(float(np.linalg.eigvalsh(curvature).max()))

    def test_nothing_to_go_by_is_no_step(self) -> None:
        problem = LocalProblem.of(np.zeros((4, 2)), 0.25, l2=0.0)
        assert problem.step == 0.0 and not problem.update_matrix(problem.step, 5).any()

    def test_tiny_curvature_does_not_cancel(self) -> None:
        problem = LocalProblem.of(np.diag([1.0, 1e-9]), 1.0, l2=0.0)
        entry = problem.update_matrix(problem.step, 1000)[1, 1]
        assert entry == pytest.approx(1000 * problem.step, rel=1e-9)


class TestGivenRates:
    @settings(deadline=None, max_examples=100, derandomize=True)
    @given(
        st.integers(0, 2**32 - 1),
        st.integers(2, 8),
        st.integers(1, 6),
        st.sampled_from([0.0, 1e-3, 0.3]),
        st.sampled_from([0.0, 0.2]),
        st.sampled_from(["parallel", "sequential"]),
    )
    def test_the_named_rate_is_stable_and_worst_case_columns_need_it(
        self, seed: int, parties: int, steps: int, l2: float, proximal: float, order: str
    ) -> None:
        """Where all parties have the same columns the bound is met exactly: below it rounds contract, at it
        they do not.
        """
        rng = np.random.default_rng(seed)
        rows, loss = rng.normal(size=(30, 3)) * 10.0 ** rng.integers(-3, 3), get_loss("logistic")
        problem = LocalProblem.of(rows, loss.margin_weight, l2=l2, proximal=proximal)
        together = parties if order == "parallel" else 1
        most = stable(problem, together, steps)
        hessian = loss.margin_weight / len(rows) * rows.T @ rows

        def radius(eta: float) -> float:
            """Of a round, for parameters that are the same everywhere (the direction that overlaps)."""
            matrix = problem.update_matrix(eta, steps)
            turn = np.eye(3) - matrix @ (together * hessian + l2 * np.eye(3))
            return float(np.abs(np.linalg.eigvals(turn)).max())

        assert radius(0.999 * most) < 1.0
        assert radius(most) == pytest.approx(1.0)

    def test_an_unstable_one_is_refused_with_the_largest_that_is_not(self) -> None:
        rng = np.random.default_rng(0)
        blocks = [rng.normal(size=(50, 3)) for _ in range(4)]
        loss = get_loss("logistic")
        with pytest.raises(SettingError, match=r"learning_rate: 5 given.*'auto'.*allow_unstable") as caught:
            OwnSteps(agreed(blocks, FedBCD(5), Constant(5.0)), loss, blocks[0], l2=1e-3)
        named = float(str(caught.value).split("cannot is ")[1].split(";")[0])
        OwnSteps(agreed(blocks, FedBCD(5), Constant(named)), loss, blocks[0], l2=1e-3)

    def test_even_numbers_of_steps_are_looked_at_from_below_too(self) -> None:
        """Past eta k = 2 an even power is above 1: the round grows, and a bound from above misses it."""
        problem = LocalProblem.of(np.ones((4, 1)), 1.0, l2=0.0)
        assert stable(problem, 1, 2) == pytest.approx(2.0)


class TestRecipe:
    def member(self, is_linear: bool) -> tuple[Member, ...]:
        return (Member("a", 3, is_linear), Member("b", 2, True))

    def test_auto_is_the_default_and_networks_keep_a_number(self) -> None:
        made = LinearAssembly(LinearSettings(protection=Plain(batch_size=25)))
        assert made.agreement(self.member(True), 100).learning_rate == Automatic(0.25)
        whole = LinearAssembly(LinearSettings(protection=Plain(like="blind")))
        assert whole.agreement(self.member(True), 100).learning_rate == Automatic(1.0, True)
        exact = LinearAssembly(LinearSettings(protection=Plain()))
        assert exact.agreement(self.member(True), 100).learning_rate == Automatic(1.0)
        assert made.agreement(self.member(False), 100).learning_rate == Constant(0.5)
        adam = LinearAssembly(LinearSettings(protection=Plain(optimiser="adam")))
        assert adam.agreement(self.member(True), 100).learning_rate == Constant(0.01)

    def test_the_last_third_of_the_rounds_learns_from_the_held_out_rows_too(self) -> None:
        made = LinearAssembly(LinearSettings(rounds=9)).agreement(self.member(True), 5000, holdout=1000)
        assert (made.batches.rows, made.holdout, made.common_rows) == (5000, 1000, 5000)
        assert [len(made.batches.trained(t)) for t in (0, 5, 6, 8)] == [4000, 4000, 5000, 5000]
        assert [t for t in range(9) if made.evaluates_after(t)] == [5]
        assert np.array_equal(made.batches.trained(0), held_out(5000, 0.2, 0)[0])
        assert made.learning_rate == Automatic(1.0, True, 6)

    def test_few_rows_are_held_out_in_turns(self) -> None:
        made = LinearAssembly(LinearSettings(rounds=9, loss="linear")).agreement(
            self.member(True), 103, holdout=20
        )
        batches = made.batches
        assert (batches.rows, made.holdout, made.common_rows, batches.folds) == (103, 103, 103, 5)
        assert batches.fold_sizes == [21, 21, 21, 20, 20] and made.stopping.rounds == 9
        assert [t for t in range(9) if made.evaluates_after(t)] == [5]
        assert not any(batches.begins_anew(t) for t in range(9))
        assert batches.left_out(0) == batches.left_out(5) == (0, 1, 2, 3, 4) and batches.left_out(6) == ()
        assert [each.stop for each in made.scored_after(5).values()] == [21, 42, 63, 83, 103]
        assert made.evaluations_from(0) == 1 and made.learning_rate == Automatic(1.0, True, 6)
        everybody = np.concatenate([batches.held(fold) for fold in range(5)])
        assert np.array_equal(np.sort(everybody), np.arange(103))
        wide = (Member("a", 400, True), Member("b", 101, True))
        assert LinearAssembly(LinearSettings()).agreement(wide, 103, holdout=20).batches.folds == 1
        assert (
            LinearAssembly(LinearSettings()).agreement(self.member(True), 103, 20_000, 20).batches.folds == 1
        )

    def test_few_rows_of_classes_take_turns_twice(self) -> None:
        made = LinearAssembly(LinearSettings(rounds=9)).agreement(self.member(True), 103, holdout=20)
        batches = made.batches
        assert (batches.folds, batches.stages, made.stopping.rounds) == (5, 2, 15)
        assert [t for t in range(15) if made.evaluates_after(t)] == [5, 11]
        assert [t for t in range(15) if batches.begins_anew(t)] == [6]
        assert [t for t in range(15) if batches.aims_anew(t)] == [6]
        assert [batches.stage(t) for t in (0, 5, 6, 11, 12, 14)] == [0, 0, 1, 1, 1, 1]
        assert made.evaluations_from(0) == 1, "two scores of half the bits are one scoring"
        assert made.learning_rate == Automatic(1.0, True, 6, 2)
        assert [made.learning_rate(t) for t in (0, 6, 12)] == [made.learning_rate(0)] * 3

    def test_in_plain_folds_come_one_after_another(self) -> None:
        made = LinearAssembly(LinearSettings(rounds=9, protection=Plain(like="blind")))
        agreement = made.agreement(self.member(True), 103, holdout=20)
        batches = agreement.batches
        assert (batches.folds, batches.stages, agreement.stopping.rounds) == (5, 2, 63)
        assert [t for t in range(63) if agreement.evaluates_after(t)] == list(range(5, 60, 6))
        assert [t for t in range(63) if batches.begins_anew(t)] == list(range(6, 60, 6))
        assert [t for t in range(63) if batches.aims_anew(t)] == [30]
        assert [batches.stage(t) for t in (0, 29, 30, 59, 60, 62)] == [0, 0, 1, 1, 1, 1]
        assert agreement.learning_rate == Automatic(1.0, True, 6, 10)
        for t in (0, 6, 29, 59):
            (fold,) = batches.left_out(t)
            assert fold == t // 6 % 5 and not set(batches.trained(t)) & set(batches.held(fold))
        assert len(batches.trained(60)) == 103

    @pytest.mark.parametrize(
        "settings",
        [
            {"protection": OwnGradient()},
            {"refit": False},
            {"protection": OwnGradient(batch_size=10)},
            {"monitoring": Monitoring(patience=2)},
            {"learning_rate": 0.1},
        ],
    )
    def test_it_does_not_where_that_would_show_more_or_is_not_sure(self, settings: dict[str, Any]) -> None:
        made = LinearAssembly(LinearSettings(rounds=9, **settings)).agreement(
            self.member(True), 100, holdout=20
        )
        assert (made.batches.rows, made.holdout, made.common_rows) == (80, 20, 100)
        assert made.evaluates_after(8) and not made.batches.holdout_rows

    def test_automatic_rounds_follow_the_bound(self) -> None:
        found = [automatic_rounds(parties) for parties in (1, 2, 5, 10)]
        assert found == [17, 24, 39, 55]
        assert all(
            k / (2 * t + 1) ** 2 <= 1 / 1200 < k / (2 * t - 1) ** 2
            for k, t in zip((1, 2, 5, 10), found, strict=True)
        )

    def test_an_automatic_penalty_is_that_of_one_row(self) -> None:
        made = LinearAssembly(LinearSettings(l2="auto", protection=Plain()))
        assert [made.settings.penalty(rows) for rows in (10, 1000, 10**6)] == [0.1, 1e-3, 1e-4]
        assert made.agreement(self.member(True), 50).l2 == 0.02
        with pytest.raises(SettingError, match="l2"):
            LinearAssembly(LinearSettings(l2="none", protection=Plain()))

    def test_an_automatic_penalty_grows_with_the_columns_of_linear_models(self) -> None:
        made = LinearAssembly(LinearSettings(l2="auto", protection=Plain()))
        assert [made.settings.penalty(100, each) for each in (5, 22, 40, 120)] == [0.01, 0.01, 0.1, 0.5]
        wide = Member("a", 40, True, 40), Member("b", 21, True, 20)
        assert made.agreement(wide, 100).l2 == 0.2
        named = LinearAssembly(LinearSettings(l2=0.07, protection=Plain()))
        assert named.agreement(wide, 100).l2 == 0.07
        members = [made.member("a", made.model("a", 40, last=False, index=0), 40)]
        networks = LinearAssembly(LinearSettings(protection=OwnGradient(local_model="network")))
        members.append(networks.member("a", networks.model("a", 40, last=False, index=0), 40))
        assert [member.columns for member in members] == [40, 0]

    def test_batches_damp_the_step_and_the_full_batch_does_not(self) -> None:
        assert [Automatic(1.0)(t) for t in (0, 10)] == [1.0, 1.0]
        assert Automatic(0.1)(0) == 1.0 > Automatic(0.1)(1) > Automatic(0.1)(5) > 0
