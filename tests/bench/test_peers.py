"""`python -m bench peers --real` without its peers: what their drivers read, the arithmetic of rows and of
networks, and what a system has after so many steps.
"""

from __future__ import annotations

import json
import subprocess
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from bench import hess_step, peers_real, spu_step
from bench.peers_losses import Quadratic, Way, agreed, bars_to_loss, hess_weights, log_loss, shared_factors
from bench.peers_rows import SLOW, Cost, RealRow
from bench.whole_fit import parties_of as generated

LINK = "[info] Link details: total send bytes {}, recv bytes {}, send actions {}, recv actions {}"


def test_drivers_add_what_the_runtimes_log_to_what_a_process_measured() -> None:
    line = json.dumps({"cpu": 2.0, "wall": 1.0, "bytes": 1000, "messages": 4, "weights": [0.5]})
    # SPU's simulation logs its first party, both ways; the numbers before a run of the program do not count.
    log = "\n".join([LINK.format(1, 1, 1, 1), LINK.format(70, 30, 3, 2), "cut off" + line, line])
    assert spu_step.read(log) == {"cpu": 2.0, "wall": 1.0, "bytes": 100, "messages": 5, "weights": [0.5]}
    # HESS-SGD's parties each log what they sent, in every step, beside what their services received.
    log = "\n".join([LINK.format(70, 70, 3, 3), LINK.format(30, 30, 2, 2), line])
    alice = hess_step.read(log)
    assert (alice["bytes"], alice["messages"]) == (1100, 9)
    both = hess_step.together([alice, {**alice, "wall": 3.0}])
    assert both == {"cpu": 4.0, "bytes": 2200, "messages": 18, "wall": 3.0, "weights": [0.5]}
    assert len(set(hess_step.free_ports(4))) == 4


def test_a_local_step_is_its_share_of_a_round_on_every_network() -> None:
    once, whole = Cost(3.0, 2.0, 10e6, 40), Cost(13.0, 7.0, 60e6, 140)
    row = RealRow.of("ours", 512, once, whole, 6, 10)
    assert row.round == Cost(2.0, 1.0, 10e6, 20) and row.steps == 60
    # Half of two processor seconds, 5 MB at 10 Mbit/s, ten latencies.
    assert row.round.seconds(SLOW) == pytest.approx(1.0 + 4.0 + 0.5)
    assert row.step.seconds(SLOW) == pytest.approx(row.round.seconds(SLOW) / 10)
    assert row.round.seconds(SLOW, floor=True) == pytest.approx(5.0)
    assert row.total(6) == whole and row.total(1) == once


def test_whole_runs_are_compared_at_one_rate_and_at_the_peers_best() -> None:
    once = Cost(1.0, 1.0, 1e6, 8)
    cheetah = RealRow.of("SPU Cheetah", 512, once, Cost(121.0, 9.0, 61e6, 400), 3)
    dealer = RealRow.of("SPU Semi2k", 512, once, Cost(3.0, 9.0, 2e6, 400), 3)
    mine = RealRow.of("securefed, blind RLWE, Q = 20", 512, once, Cost(1.2, 2.0, 2e6, 24), 3, 20)
    ways = [
        Way("shared", mine, "0.3", 2, measured=Cost(2.0, 0.0, 2e6, 50)),
        Way("shared", mine, "auto", 4, measured=Cost(1.0, 0.0, 1e6, 50)),
        Way("shared", cheetah, "0.3", 3),
        Way("shared", cheetah, "best 1", 1),
        Way("shared", dealer, "0.3", 3),
    ]
    found = bars_to_loss(ways)
    assert [bar.value for bar in found] == [60.5, 30.5, 1.5, 1.0, 1.0]
    assert [bar.met for bar in found] == [True, True, True, False, False]
    # A peer that was not run, a loss that was not reached, another size: no bar is met by them.
    assert not any(bar.met for bar in bars_to_loss(ways[:2]))
    assert not bars_to_loss([Way("shared", mine, "0.3", None), *ways[2:]])[0].met
    assert not bars_to_loss([Way("shared", RealRow.of("ours", 4096, once, once, 2), "0.3", 3), *ways[2:]])


def test_the_arithmetic_is_gradient_descent_on_the_second_order_loss() -> None:
    parties = shared_factors(64, 3, 4, 0)
    problem = Quadratic(parties)
    signs = np.where(problem.labels, 1.0, -1.0)
    features = problem.features
    weights, joint = np.zeros(7), next(islice(problem.after(1, 0.2), 2, None))
    for _ in range(3):
        margins = features @ weights
        weights -= 0.2 * features.T @ (margins / 4 - signs / 2) / len(features)
    np.testing.assert_allclose(joint, weights)
    margins = features @ weights
    assert problem.loss(weights) == pytest.approx(np.mean(np.log(2) - signs * margins / 2 + margins**2 / 8))
    # One round of two local steps: each party's second step has not seen the other's first.
    local, steps = next(problem.after(2, 0.2)), list(islice(problem.after(1, 0.2), 2))
    assert not np.allclose(local, steps[1])
    alone = Quadratic([parties[0], type(parties[1])("bank", np.zeros((64, 1)), labels=parties[1].labels)])
    np.testing.assert_allclose(local[:3], list(islice(alone.after(1, 0.2), 2))[1][:3])


def test_rounds_to_a_loss_and_rates_that_never_get_there() -> None:
    problem = Quadratic(generated(128, 5, 5, 0))
    target = problem.loss(next(islice(problem.after(1, 0.3), 29, None)))
    assert problem.rounds(1, 0.3, target) in range(25, 31)
    few = problem.rounds(10, 0.3, target)
    assert few is not None and few <= 5
    assert problem.rounds(1, 20.0, target) is None
    count, _ = problem.best(1, target)
    assert count < 10


def test_a_run_that_the_arithmetic_does_not_explain_has_no_numbers() -> None:
    parties = generated(64, 3, 3, 0)
    problem = Quadratic(parties)
    weights = next(islice(problem.after(2, 0.3), 1, None))
    row = RealRow.of("ours", 64, Cost(1.0), Cost(2.0), 2, 2)
    honest = RealRow(**{**vars(row), "loss": log_loss(problem.features @ weights, problem.labels)})
    assert agreed(honest, parties, 0.3) is honest
    wrong = agreed(RealRow(**{**vars(honest), "loss": honest.loss + 0.01}), parties, 0.3)
    assert wrong.note.startswith("its loss is") and wrong.round == Cost()


def test_hess_has_two_intercepts_of_one() -> None:
    parties = generated(64, 3, 4, 0)
    first, second = (np.asarray(party.features) for party in parties)
    ones = np.ones((64, 1))
    columns, labels = np.hstack([first, ones, second, ones]), np.asarray(parties[1].labels) > 0
    weights = np.zeros(9)
    for _ in range(5):
        weights -= 0.3 * columns.T @ (np.clip(0.5 + columns @ weights / 8, 0, 1) - labels) / 64
    expected = [*weights[:3], *weights[4:8], weights[3] + weights[8]]
    np.testing.assert_allclose(hess_weights(parties, 0.3, 5), expected)


def test_a_peer_that_cannot_be_installed_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refused(command: list[str], **options: object) -> None:
        raise subprocess.CalledProcessError(1, command, stderr="looking\nERROR: No matching distribution\n")

    monkeypatch.setattr(peers_real.subprocess, "run", refused)
    parties = generated(64, 3, 3, 0)
    for row in (peers_real.spu(parties, tmp_path, "cheetah", 3), peers_real.hess(parties, tmp_path, 3, 3)):
        assert row.note == "not run: ERROR: No matching distribution"
    # At sizes that were measured before, those figures stand in, with their date.
    earlier = peers_real.spu(generated(512, 3, 3, 0), tmp_path, "semi2k", 3)
    assert earlier.recorded.startswith("2026-11-17") and earlier.total(58).cpu == pytest.approx(0.841)


def test_an_environment_is_made_once_and_again_when_its_packages_change(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(peers_real.subprocess, "run", lambda command, **options: commands.append(command))
    pins = tmp_path / "pins.txt"
    pins.write_text("spu==1\n")
    for _ in range(2):
        peers_real.environment(tmp_path, "-r", str(pins))
    assert len(commands) == 2  # venv, pip
    pins.write_text("spu==2\n")
    peers_real.environment(tmp_path, "-r", str(pins))
    assert len(commands) == 4
