"""Runs that open own gradients, before they are run: two rounds stand for all of them, few rows for many, and
some local steps for others.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import pytest

from securefed import Monitoring, OwnGradient, Plain
from securefed.plan import planner as plan
from securefed.plan.planner import RoundsModel, estimates
from securefed.plan.rehearsal import Rehearsal, Scenario, rehearse
from securefed.protocols.own_gradient.ledger import LedgerWarning
from securefed.protocols.schedules import FedBCD, FedSGD
from securefed.settings import LinearSettings, TransferSettings
from securefed.transport.message import get_network
from tests.plan.test_rehearsal import lines, still
from tests.report.runs import run

TWO = {"shop": 3, "bank": 2}
FOUR = {"a": 3, "b": 1, "c": 2, "d": 2}
LINEAR: dict[str, Any] = {
    "algorithm": FedBCD(),
    "l2": 0.0,
    "learning_rate": 0.05,
    "rounds": 2,
}


def clear(**options: Any) -> Plain:
    return Plain(**{"like": "own-gradient", "allow_determined": True, **options})


def shown(scheme: str, **options: Any) -> OwnGradient:
    return OwnGradient(scheme=scheme, allow_determined=True, **options)


def linear(**settings: Any) -> LinearSettings:
    return LinearSettings(**{"protection": clear(), "refit": False, **LINEAR, **settings})


def transfer(**settings: Any) -> TransferSettings:
    return TransferSettings(**{"protection": shown("ckks"), **LINEAR, **settings})


SCENARIOS = {
    "plain pair": Scenario(linear(), TWO, 9),
    "plain exact": Scenario(linear(protection=clear(like=None)), TWO, 9),
    "plain star": Scenario(linear(algorithm=FedBCD(3)), FOUR, 9),
    "plain star in turns": Scenario(linear(algorithm=FedBCD(2, "sequential")), FOUR, 9),
    "plain pairwise": Scenario(linear(protection=clear(exchange="pairwise")), FOUR, 9),
    "plain pairwise in turns": Scenario(
        linear(algorithm=FedBCD(2, "sequential"), protection=clear(exchange="pairwise")), FOUR, 9
    ),
    "plain networks": Scenario(
        linear(algorithm=FedBCD(3), protection=clear(local_model="network", hidden=(2,))), TWO, 9
    ),
    "plain mixed": Scenario(
        linear(algorithm=FedBCD(2), protection=clear(local_model={"b": "network"}, hidden=(2,))), FOUR, 9
    ),
    "plain watched": Scenario(linear(rounds=6, monitoring=Monitoring(patience=5, evaluate_every=7)), FOUR, 9),
    "plain transfer": Scenario(transfer(hidden=3, protection=clear(like=None)), TWO, 9),
    "paillier pair": Scenario(linear(protection=shown("paillier", batch_size=5)), TWO, 9, 2048),
    "paillier star": Scenario(
        linear(protection=shown("paillier", batch_size=4)), {"a": 60, "b": 1, "c": 2}, 9, 2048
    ),
    "paillier star in turns": Scenario(
        linear(algorithm=FedBCD(2, "sequential"), protection=shown("paillier", batch_size=4)),
        {"a": 60, "b": 1, "c": 2},
        9,
        2048,
    ),
    "paillier transfer": Scenario(
        transfer(
            hidden=3,
            algorithm=FedBCD(2),
            protection=shown("paillier", batch_size=4),
            monitoring=Monitoring(evaluate_every=2),
        ),
        {"b": 9, "a": 8},
        9,
        2048,
    ),
    "ckks pair": Scenario(linear(protection=shown("ckks"), monitoring=Monitoring(evaluate_every=1)), TWO, 9),
    "ckks star": Scenario(linear(protection=shown("ckks")), FOUR, 9),
    "ckks pairwise in turns": Scenario(
        linear(algorithm=FedBCD(2, "sequential"), protection=shown("ckks", exchange="pairwise")), FOUR, 9
    ),
    "paillier pairwise": Scenario(
        linear(
            protection=shown("paillier", exchange="pairwise", batch_size=4),
            monitoring=Monitoring(evaluate_every=2),
        ),
        {"a": 3, "b": 1, "c": 2},
        9,
        2048,
    ),
    "ckks transfer": Scenario(
        transfer(
            hidden=4, algorithm=FedBCD(2), protection=shown("ckks"), monitoring=Monitoring(evaluate_every=1)
        ),
        {"b": 5, "a": 3},
        9,
    ),
}


def dry(scenario: Scenario) -> Rehearsal:
    return rehearse(scenario, get_network("lan"), timer=still)


NIGHTLY = {
    "paillier star",
    "paillier star in turns",
    "paillier pairwise",
    "paillier with noise",
    "ckks pairwise in turns",
    "ckks star",
}
"""What differs from the others in a shape that "plain" has too: a matter of the whole table."""


def marks(name: str) -> list[pytest.MarkDecorator]:
    if name in NIGHTLY:
        return [pytest.mark.nightly]
    return [pytest.mark.slow] * name.startswith("paillier")


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks(name)) for name in SCENARIOS])
def test_messages_and_bytes_are_those_of_a_real_run(name: str) -> None:
    scenario = SCENARIOS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LedgerWarning)
        counted, _ = run(scenario)
    found = dry(scenario)
    for phase in ("setup", "evaluation"):
        assert found.traffic(phase) == counted.bytes(None, phase), phase
    if scenario.settings.rounds == 2:  # else fewer rounds are rehearsed
        for party, link in counted.links.items():
            assert lines(found.done.links[party]) == lines(link)
    assert found.traffic() == counted.bytes(found.last_round) == counted.bytes(0)
    if scenario.settings.scheme != "plain":  # which has no ciphertexts
        assert found.ciphertexts == counted.ciphertexts(0)


@pytest.mark.parametrize("name", ["plain star", "ckks pair"])
def test_linear_models_send_the_same_whatever_q_is(name: str) -> None:
    scenario = SCENARIOS[name]
    assert dry(scenario.with_steps(1)).traffic() == dry(scenario.with_steps(40)).traffic()


def test_networks_open_as_often_as_there_are_local_steps() -> None:
    scenario = SCENARIOS["plain networks"]
    sizes = [dry(scenario.with_steps(q)).traffic() for q in (1, 4)]
    place = ("opening-request", "shop", "bank")
    assert sizes[1][place] == 4 * sizes[0][place]
    assert sizes[1]["contribution", "shop", "bank"] == sizes[0]["contribution", "shop", "bank"]


@pytest.mark.parametrize(
    "name", ["plain mixed", pytest.param("paillier transfer", marks=pytest.mark.slow), "ckks transfer"]
)
def test_of_many_local_steps_some_are_rehearsed_and_the_others_count_as_much(name: str) -> None:
    scenario = SCENARIOS[name].with_steps(9)
    found = dry(scenario)
    planned = estimates(scenario, rounds=RoundsModel.through(2, 9))[0]
    assert planned.local_steps == 9 and planned.rounds == 2
    assert planned.bytes == sum(found.traffic().values())
    assert planned.ciphertexts == sum(found.ciphertexts.values())


@pytest.mark.parametrize(
    "scenario",
    [
        replace(SCENARIOS["plain star"], rows=1009),
        pytest.param(
            replace(SCENARIOS["paillier pair"], rows=300, settings=linear(protection=shown("paillier"))),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            replace(
                SCENARIOS["paillier pair"],
                rows=900,
                settings=linear(protection=shown("paillier", batch_size=170)),
            ),
            marks=pytest.mark.slow,
        ),
        pytest.param(replace(SCENARIOS["ckks pair"], rows=70_001), marks=pytest.mark.slow),
        pytest.param(Scenario(transfer(hidden=16), TWO, 5003), marks=pytest.mark.slow),
    ],
    ids=["plain", "paillier", "paillier batches", "ckks", "ckks transfer"],
)
def test_few_rows_stand_for_many(scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine where an eighth of the rows takes long enough."""
    met: list[int] = []

    def noted(smaller: Scenario, *args: Any, **more: Any) -> Rehearsal:
        met.append(smaller.batch)
        slow = smaller.batch >= scenario.batch // 8
        monkeypatch.setattr(plan, "LONG_ENOUGH", 0.0 if slow else 1e9)
        return rehearse(smaller, *args, **more)

    monkeypatch.setattr(plan, "rehearse", noted)
    planned, found = estimates(scenario.with_steps(1))[0], dry(scenario.with_steps(1))
    assert max(met) < scenario.batch and len(met) > 1
    # Numbers of CKKS fill whole bytes of a message, not of each row.
    assert planned.bytes == pytest.approx(sum(found.traffic().values()), rel=1e-5)
    once = found.traffic("setup").total() + found.traffic("release").total()
    assert planned.ciphertexts == sum(found.ciphertexts.values()) and planned.setup_bytes == once
    assert planned.computation > 0.0


def test_linear_models_are_rehearsed_once_for_all_local_steps() -> None:
    rows = estimates(SCENARIOS["plain pair"], [1, 5, 20], rounds=RoundsModel(10))
    assert len({(row.bytes, row.computation) for row in rows}) == 1
    assert [row.local_steps for row in rows] == [1, 5, 20] and rows[0].rounds > rows[2].rounds


def test_one_local_step_is_fedsgd() -> None:
    assert isinstance(SCENARIOS["plain star"].with_steps(1).settings.algorithm, FedSGD)
    assert SCENARIOS["plain star in turns"].with_steps(1).settings.algorithm == FedBCD(1, "sequential")


def test_the_projects_promise_at_full_size() -> None:
    """n = 1000, h = 32: at most 3 MiB each way under CKKS."""
    recipe = transfer(hidden=32, rounds=1, algorithm=FedSGD())
    found = dry(Scenario(recipe, {"b": 15, "a": 18}, 1000))
    assert found.traffic()["contribution", "a", "b"] <= 3 * 2**20
