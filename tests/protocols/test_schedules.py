"""Algorithms, learning rates, batches, stopping and the proximal pull."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest

from securefed.errors import DataError, SettingError
from securefed.protocols.schedules import (
    Batches,
    Constant,
    FedBCD,
    FedSGD,
    InverseSqrt,
    InverseSqrtParties,
    Stopping,
    StoppingTracker,
    as_learning_rate,
)


@pytest.mark.parametrize(
    ("algorithm", "name", "steps", "order", "proximal"),
    [
        (FedSGD(), "FedSGD", 1, "parallel", 0.0),
        (FedSGD(proximal=0.5), "FedSGD", 1, "parallel", 0.5),
        (FedBCD(), "FedBCD-p", 5, "parallel", 0.0),
        (FedBCD(local_steps=1), "FedBCD-p", 1, "parallel", 0.0),
        (FedBCD(10, "sequential"), "FedBCD-s", 10, "sequential", 0.0),
        (FedBCD(50, proximal=0.1), "FedPBCD-p", 50, "parallel", 0.1),
        (FedBCD(50, "sequential", 0.1), "FedPBCD-s", 50, "sequential", 0.1),
    ],
)
def test_algorithms(algorithm: FedSGD | FedBCD, name: str, steps: int, order: str, proximal: float) -> None:
    assert (algorithm.name, algorithm.local_steps) == (name, steps)
    assert (algorithm.order, algorithm.proximal) == (order, proximal)
    with pytest.raises(dataclasses.FrozenInstanceError):
        algorithm.local_steps = 3  # type: ignore[misc]
    assert eval(repr(algorithm)) == algorithm  # noqa: S307


def test_learning_rates() -> None:
    assert [Constant(0.3)(t) for t in (0, 7)] == [0.3, 0.3]
    assert [InverseSqrt(0.6)(t) for t in (0, 3, 8)] == pytest.approx([0.6, 0.3, 0.2])
    assert [InverseSqrtParties(0.6, parties=4)(t) for t in (0, 3, 8)] == pytest.approx([0.3, 0.15, 0.1])
    # One party: the same as without the parties in it.
    assert InverseSqrtParties(0.6, 1)(5) == pytest.approx(InverseSqrt(0.6)(5))
    assert as_learning_rate(0.1) == Constant(0.1)
    assert as_learning_rate(InverseSqrt(0.1)) == InverseSqrt(0.1)
    assert as_learning_rate(lambda t: 1.0 / (t + 2))(0) == 0.5


def test_full_batches_are_all_rows_in_order() -> None:
    for batches in (Batches(5), Batches(5, size=5, seed=9)):
        assert batches.effective_size == 5
        assert batches.batch(0).tolist() == batches.batch(7).tolist() == [0, 1, 2, 3, 4]


def test_batches_depend_on_seed_and_round_alone() -> None:
    batches, twin = Batches(100, size=10, seed=3), Batches(100, size=10, seed=3)
    later = batches.batch(5)
    for t in range(5):
        twin.batch(t)
    assert np.array_equal(later, twin.batch(5)) and np.array_equal(later, batches.batch(5))
    assert not np.array_equal(later, batches.batch(6))
    assert not np.array_equal(later, Batches(100, size=10, seed=4).batch(5))
    # (seed, t) is a pair, not a sum.
    assert not np.array_equal(Batches(100, 10, seed=5).batch(3), later)
    for t in range(20):
        batch = batches.batch(t)
        assert batch.dtype == np.intp and len(set(batch.tolist())) == 10
        assert (np.diff(batch) > 0).all() and batch.min() >= 0 and batch.max() < 100


def philox(key: tuple[int, int], count: int) -> list[int]:
    """Philox4x64-10 of Salmon et al. (2011) from its definition; the counter begins at 1, as in numpy."""
    words: list[int] = []
    block = 0
    while len(words) < count:
        block += 1
        c, (k0, k1) = [block, 0, 0, 0], key
        for _ in range(10):
            left, right = 0xD2E7470EE14C6C93 * c[0], 0xCA5A826395121157 * c[2]
            c = [(right >> 64) ^ c[1] ^ k0, right % 2**64, (left >> 64) ^ c[3] ^ k1, left % 2**64]
            k0, k1 = (k0 + 0x9E3779B97F4A7C15) % 2**64, (k1 + 0xBB67AE8584CAA73B) % 2**64
        words += c
    return words[:count]


@pytest.mark.parametrize(("seed", "t"), [(0, 0), (2024, 1), (2**64 - 1, 2**40)])
def test_batches_by_definition(seed: int, t: int) -> None:
    # Whatever numpy is installed, parties must agree; so the derivation is checked against its definition.
    words = philox((seed, t), 50)
    smallest = sorted(range(50), key=words.__getitem__)[:12]
    assert Batches(50, size=12, seed=seed).batch(t).tolist() == sorted(smallest)


def test_batches_have_a_known_answer() -> None:
    assert Batches(20, size=6, seed=2024).batch(0).tolist() == [7, 8, 10, 14, 15, 16]
    assert Batches(20, size=6, seed=2024).batch(1).tolist() == [0, 5, 12, 17, 18, 19]


@pytest.mark.parametrize(("rows", "size", "parts"), [(20, 5, 4), (20, 6, 4), (7, 6, 2), (6, 6, 1)])
def test_fixed_batches_repeat_and_leave_nobody_out(rows: int, size: int, parts: int) -> None:
    batches = Batches(rows, size, seed=5, fixed=True)
    cut = [batches.batch(t).tolist() for t in range(parts)]
    assert [batches.batch(t + 3 * parts).tolist() for t in range(parts)] == cut
    assert all(len(set(batch)) == size and batch == sorted(batch) for batch in cut)
    assert set().union(*cut) == set(range(rows))
    if rows == parts * size:
        assert sum(map(len, cut)) == rows
    if parts > 1:
        assert cut != [Batches(rows, size, seed=6, fixed=True).batch(t).tolist() for t in range(parts)]
    with pytest.raises(SettingError, match="fixed"):
        Batches(rows, size, fixed=1)  # type: ignore[arg-type]


@pytest.mark.slow
def test_every_set_of_rows_is_equally_likely() -> None:
    rounds = 20_000
    batches = Batches(6, size=3, seed=11)
    counts = Counter(tuple(batches.batch(t).tolist()) for t in range(rounds))
    sets = list(combinations(range(6), 3))
    expected = rounds / len(sets)
    chi2 = sum((counts[chosen] - expected) ** 2 / expected for chosen in sets)
    # 19 degrees of freedom: mean 19, variance 38. Both too uneven and too even would be wrong.
    assert 19 - 3 * math.sqrt(38) < chi2 < 19 + 5 * math.sqrt(38)
    # Neighbouring rounds are independent: an overlap of 3 rows has the chance 1/20.
    same = sum(np.array_equal(batches.batch(t), batches.batch(t + 1)) for t in range(0, rounds, 2))
    assert abs(same - rounds / 40) < 5 * math.sqrt(rounds / 40)


def test_stopping_reasons() -> None:
    rule = Stopping(rounds=5, target=0.9, patience=2, min_improvement=0.01)
    tracker = StoppingTracker(rule)
    assert [tracker.update(t, metric) for t, metric in enumerate([0.5, 0.6, 0.7, 0.95])] == [None] * 3 + [
        "target"
    ]
    tracker = StoppingTracker(rule)
    assert [tracker.update(t, metric) for t, metric in enumerate([0.5, 0.505, 0.51])] == [
        None,
        None,
        "no progress",
    ]
    tracker = StoppingTracker(rule)
    assert [tracker.update(t, 0.5 + 0.02 * t) for t in range(5)] == [None] * 4 + ["rounds"]
    # The target counts even in the last round and without progress.
    assert StoppingTracker(Stopping(rounds=1, target=0.9)).update(0, 0.9) == "target"


def test_slow_progress_adds_up() -> None:
    # Each rise is below min_improvement, but the best so far stays where it was: two of them are progress.
    tracker = StoppingTracker(Stopping(rounds=100, patience=3, min_improvement=0.01))
    assert [tracker.update(t, 0.5 + 0.006 * t) for t in range(20)] == [None] * 20


def test_rounds_without_evaluation() -> None:
    tracker = StoppingTracker(Stopping(rounds=6, target=0.9, patience=2))
    assert [tracker.update(t, None) for t in range(6)] == [None] * 5 + ["rounds"]


def test_no_patience_never_stops_early() -> None:
    tracker = StoppingTracker(Stopping(rounds=30))
    assert [tracker.update(t, 0.5) for t in range(30)] == [None] * 29 + ["rounds"]


def test_resumed_tracker_stops_where_it_would_have() -> None:
    rule = Stopping(rounds=50, patience=3)
    tracker, resumed = StoppingTracker(rule), StoppingTracker(rule)
    resumed.restore(tracker.state())
    assert resumed.update(0, 0.1) is None
    for t in range(3):
        assert tracker.update(t, 0.5) is None
    resumed.restore(tracker.state())
    assert tracker.update(3, 0.5) == resumed.update(3, 0.5) == "no progress"


@pytest.mark.parametrize("metric", [math.nan, math.inf])
def test_a_metric_that_is_no_number_is_an_error(metric: float) -> None:
    with pytest.raises(DataError, match=r"metric must be a finite number, not (nan|inf) after round 3"):
        StoppingTracker(Stopping(rounds=9)).update(3, metric)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: FedSGD(proximal=-1), "proximal must be a finite number of at least 0, not -1"),
        (lambda: FedBCD(local_steps=0), "local_steps must be an integer of at least 1, not 0"),
        (lambda: FedBCD(local_steps=2.5), "local_steps must be an integer of at least 1, not 2.5"),  # type: ignore[arg-type]
        (lambda: FedBCD(order="random"), "order must be one of 'parallel', 'sequential', not 'random'"),  # type: ignore[arg-type]
        (lambda: FedBCD(proximal=math.nan), "proximal must be a finite number of at least 0, not nan"),
        (lambda: Constant(0), "eta0 must be a finite number greater than 0, not 0"),
        (lambda: InverseSqrt(-0.1), "eta0 must be a finite number greater than 0, not -0.1"),
        (lambda: InverseSqrtParties(0.1, 0), "parties must be an integer of at least 1, not 0"),
        (lambda: as_learning_rate(0.0), "learning_rate must be a finite number greater than 0, not 0.0"),
        (
            lambda: as_learning_rate("fast"),  # type: ignore[arg-type]
            "learning_rate must be 'auto', a number greater than 0 or a rate such as InverseSqrt(0.1),"
            " not 'fast'",
        ),
        (
            lambda: as_learning_rate(InverseSqrt),  # type: ignore[arg-type]
            "learning_rate must be 'auto', a number greater than 0 or a rate such as InverseSqrt(0.1),"
            " not <class 'securefed.protocols.schedules.InverseSqrt'>",
        ),
        (lambda: Batches(0), "rows must be an integer of at least 1, not 0"),
        (lambda: Batches(10, size=11), "size must be an integer from 1 to 10, not 11"),
        (lambda: Batches(10, size=0), "size must be an integer from 1 to 10, not 0"),
        (lambda: Batches(10, seed=-1), f"seed must be an integer from 0 to {2**64 - 1}, not -1"),
        (lambda: Stopping(rounds=0), "rounds must be an integer of at least 1, not 0"),
        (lambda: Stopping(9, target=math.inf), "target must be a finite number, not inf"),
        (lambda: Stopping(9, patience=0), "patience must be an integer of at least 1, not 0"),
        (
            lambda: Stopping(9, min_improvement=-1),
            "min_improvement must be a finite number of at least 0, not -1",
        ),
    ],
)
def test_bad_settings_are_one_line_by_name(call: Callable[[], object], message: str) -> None:
    with pytest.raises(SettingError) as caught:
        call()
    assert str(caught.value) == message
