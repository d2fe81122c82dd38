"""The rows of Table 2 from runs with known work and known message sizes: what arithmetic predicts."""

from __future__ import annotations

from math import comb
from random import Random
from statistics import median

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from bench.replay import Event
from bench.simulate import TIED, area
from bench.table2_rows import Cells, best_steps, median_interval
from securefed.transport.message import NETWORKS, Network
from tests.bench.made_runs import SLOW, Work, cells, climb, events, record

WORK = Work()


@pytest.mark.parametrize(("steps", "rounds"), [(1, 17), (5, 4), (10, 2)])
@pytest.mark.parametrize("network", [SLOW, NETWORKS["paper"]], ids=lambda n: n.name)
def test_a_row_is_what_arithmetic_predicts(steps: int, rounds: int, network: Network) -> None:
    made = cells({steps: {0.7: rounds, 0.8: rounds + 3}})
    first, second = made.rows(network, [0.7, 0.8])
    for row, number in ((first, rounds), (second, rounds + 3)):
        assert number == row.R
        assert row.reached
        assert row.comp_min == pytest.approx(WORK.computation(number, steps) / 60)
        assert row.comm_min == pytest.approx(WORK.communication(number, steps, network) / 60)
        assert row.total_min == row.comp_min + row.comm_min
        assert row.setup_min == pytest.approx((1.0 + network.transfer(500) + network.latency) / 60)
        assert row.bytes_exchange == 2 * number * 2000
        assert row.bytes_open == 2 * number * steps * 30
        assert row.messages == 2 * number * (1 + 2 * steps)
        assert row.ciphertexts == number * (4 + steps)
    assert (first.auc, first.held_out_auc) == (0.7, pytest.approx(0.5))
    costs = made.costs_by_network[network.name][steps]
    assert costs["comp_exchange"] == pytest.approx(3.0)
    assert costs["comp_step"] == pytest.approx(0.5)
    assert costs["comm_exchange"] == pytest.approx(network.transfer(2000) + network.latency)
    assert costs["comm_step"] == pytest.approx(network.transfer(30) + 2 * network.latency)


def test_a_round_with_one_opening_costs_one_whatever_q() -> None:
    made = cells({1: {0.7: 20}, 10: {0.7: 5}}, kind="linear", openings=1)
    one, ten = made.rows(SLOW, [0.7])
    assert ten.total_min == pytest.approx(one.total_min / 4)  # type: ignore[operator]
    costs = made.costs_by_network["slow"]
    assert costs[10] == pytest.approx(costs[1])


@pytest.mark.parametrize("seed", range(3))
def test_computation_and_communication_add_up_to_the_total(seed: int) -> None:
    """Parties that are not alike: any work before any event."""
    random = Random(seed)
    runs = {}
    for q in (1, 4):
        made = record([0.5, 0.6, 0.7, 0.8], q, WORK)
        listed = {
            name: [
                Event(random.random(), e.what, e.name, e.round, e.step, e.peer, random.randrange(5000))
                for e in each
            ]
            for name, each in events(WORK, q, 4).items()
        }
        runs[q, 0] = type(made)(**{**vars(made), "events": listed})
    made_cells = Cells("overlap", "ckks", (1, 4), runs, runs)
    for network in (*NETWORKS.values(), SLOW):
        for row in made_cells.rows(network, [0.6, 0.8]):
            assert row.comp_min is not None
            assert row.comm_min is not None
            assert row.total_min == row.comp_min + row.comm_min
            whole = made_cells.replay(row.Q, 0, network)
            assert row.R is not None
            number = int(row.R)
            path = whole.rounds[number - 1]
            setup = path.computation.get("setup", 0.0) + path.communication.get("setup", 0.0)
            assert 60 * row.total_min == pytest.approx(path.total - setup)


def test_several_seeds_give_medians() -> None:
    rounds = (4, 9, 6)
    measured = {(5, s): record(climb({0.7: n}), 5, Work(step=0.1 * (s + 1))) for s, n in enumerate(rounds)}
    row = Cells("overlap", "ckks", (5,), measured, measured).rows(SLOW, [0.7])[0]
    assert (row.R, row.R_each, row.seeds) == (6, rounds, (0, 1, 2))
    each = [Work(step=0.1 * (s + 1)).computation(n, 5) / 60 for s, n in enumerate(rounds)]
    assert row.comp_min == pytest.approx(median(each))
    assert row.comm_min == pytest.approx(WORK.communication(6, 5, SLOW) / 60)
    assert row.total_min == row.comp_min + row.comm_min  # type: ignore[operator]


def test_a_target_that_most_seeds_miss_is_not_reached() -> None:
    measured = {(1, s): record(climb({0.7: 3 + s}, 5), 1, WORK) for s in range(2)}
    measured[1, 2] = record([0.55, 0.6, 0.58], 1, WORK)
    made = Cells("overlap", "ckks", (1,), measured, measured)
    reached, missed = made.rows(SLOW, [0.7, 0.75])
    assert (reached.R, reached.R_each) == (4, (3, 4, None))
    assert not missed.reached
    empty = (missed.R, missed.comp_min, missed.comm_min, missed.total_min, missed.bytes_open, missed.messages)
    assert empty == (None,) * 6
    assert missed.auc == 0.7  # the best that each got, in the middle
    assert missed.R_plain is None


@pytest.mark.parametrize("count", [6, 25])
def test_the_medians_interval_covers_95_percent(count: int) -> None:
    low, high = median_interval(list(range(1, count + 1)))
    assert low is not None
    assert high is not None
    place = int(low)
    assert high == count + 1 - place

    def outside(k: int) -> float:
        """How often the median lies below the k-th of `count` values."""
        return sum(comb(count, i) for i in range(k)) / 2**count

    assert 2 * outside(place) <= 0.05 < 2 * outside(place + 1)


def test_the_medians_interval_of_few_or_endless_runs() -> None:
    assert median_interval([7]) == (7, 7)
    assert median_interval([5, 3, 9, 4, 8]) == (3, 9)
    assert median_interval([5, None, 9, 4, 8]) == (4, None)


def test_the_best_q_is_that_of_the_shortest_total() -> None:
    """A round is 3 + Q / 2 s of work; on a link without delay Q = 6 at 3 rounds takes the least."""
    rounds = {1: 20, 2: 11, 6: 3, 10: 3}
    plain = {(q, 0): {0.7: n} for q, n in rounds.items()}
    made = cells({1: {0.7: 20}, 10: {0.7: 3}}, plain=plain)
    free = Network("free", 1e15, 0.0)
    made.rows(free, [0.7])
    best = best_steps(made, free, 0.7)
    assert best is not None
    assert (best.Q, best.R) == (6, 3)
    assert best.all_min == pytest.approx({q: n * (3 + q / 2) / 60 for q, n in rounds.items()})
    assert best_steps(made, free, 0.9) is None


def test_the_best_q_is_taken_over_the_seeds_that_have_every_q() -> None:
    plain = {(q, s): {0.7: n} for q, n in ((1, 20), (5, 6)) for s in (0, 1)}
    plain |= {(1, 2): {0.7: 2}, (1, 3): {0.7: 2}, (1, 4): {0.7: 2}}
    made = cells({1: {0.7: 20}, 5: {0.7: 6}}, plain=plain)
    made.rows(SLOW, [0.7])
    assert made.grid_seeds == (0, 1)
    assert made.plain_median(1, 0.7) == 2
    best = best_steps(made, SLOW, 0.7)
    assert best is not None
    assert set(best.all_min) == {1, 5}
    assert best.Q == 5


def test_an_auc_keeps_ties_that_noise_would_break() -> None:
    rng = np.random.default_rng(0)
    signs = np.where(rng.random(100) < 0.5, 1.0, -1.0)
    scores = np.round(rng.normal(size=100) + 0.3 * signs, 1)
    exact = float(roc_auc_score(signs, scores))
    for _ in range(5):
        noisy = scores + rng.uniform(-TIED / 4, TIED / 4, 100)
        assert area(signs, noisy) == exact
        assert float(roc_auc_score(signs, noisy)) != exact
    distinct = rng.normal(size=100)
    assert area(signs, distinct) == float(roc_auc_score(signs, distinct))


def test_the_typical_seed_is_nearest_to_the_medians() -> None:
    rounds = {0: (30, 9), 1: (20, 6), 2: (5, 7), 3: (22, 5)}
    plain = {(q, s): {0.7: n[i]} for s, n in rounds.items() for i, q in enumerate((1, 5))}
    made = cells({1: {0.7: 20}, 5: {0.7: 6}}, plain=plain)
    assert made.typical_seed([0.7]) == 1
    # One that never arrives is not typical of those that do, nor does a target count that most miss.
    plain[5, 1] = {0.6: 3}
    assert cells({1: {0.7: 20}, 5: {0.7: 6}}, plain=plain).typical_seed([0.7]) == 0
    assert made.typical_seed([0.7, 0.9]) == 1
