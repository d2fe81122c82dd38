"""Runs that open own gradients, before they are run: messages, bytes and ciphertexts are those of the real
ones, message by message.
"""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import pytest

from securefed.plan import planner as plan
from securefed.plan.fake_keys import Operation
from securefed.plan.planner import RoundsModel, estimate
from securefed.plan.rehearsal import Rehearsal, Scenario, rehearse
from securefed.protocols.own_gradient.ledger import LedgerWarning
from securefed.protocols.schedules import FedBCD, FedSGD
from securefed.settings import LinearSettings, TransferSettings
from securefed.transport import Network, get_network
from tests.flat import linear_settings, transfer_settings
from tests.plan.test_rehearsal import Costs, lines, still
from tests.report.runs import run

TWO = {"shop": 3, "bank": 2}
FOUR = {"a": 3, "b": 1, "c": 2, "d": 2}
LINEAR: dict[str, Any] = {
    "allow_determined": True,
    "algorithm": FedBCD(),
    "l2": 0.0,
    "learning_rate": 0.05,
    "rounds": 2,
}


def linear(**settings: Any) -> LinearSettings:
    return linear_settings(
        **{"scheme": "plain", "reveal": "own-gradient", "loss_form": "taylor", **LINEAR} | settings
    )


def transfer(**settings: Any) -> TransferSettings:
    return transfer_settings(reveal="own-gradient", **{**LINEAR, **settings})


SCENARIOS = {
    "plain pair": Scenario(linear(), TWO, 9),
    "plain exact": Scenario(linear(loss_form="auto"), TWO, 9),
    "plain star": Scenario(linear(algorithm=FedBCD(3)), FOUR, 9),
    "plain star in turns": Scenario(linear(algorithm=FedBCD(2, "sequential")), FOUR, 9),
    "plain pairwise": Scenario(linear(exchange="pairwise"), FOUR, 9),
    "plain pairwise in turns": Scenario(
        linear(exchange="pairwise", algorithm=FedBCD(2, "sequential")), FOUR, 9
    ),
    "plain networks": Scenario(linear(local_model="network", hidden=(2,), algorithm=FedBCD(3)), TWO, 9),
    "plain mixed": Scenario(linear(local_model={"b": "network"}, hidden=(2,), algorithm=FedBCD(2)), FOUR, 9),
    "plain watched": Scenario(linear(patience=5, evaluate_every=7, rounds=6), FOUR, 9),
    "plain transfer": Scenario(transfer(scheme="plain", hidden=3), TWO, 9),
    "paillier pair": Scenario(linear(scheme="paillier", batch_size=5), TWO, 9, 2048),
    "paillier star": Scenario(linear(scheme="paillier", batch_size=4), {"a": 60, "b": 1, "c": 2}, 9, 2048),
    "paillier star in turns": Scenario(
        linear(scheme="paillier", batch_size=4, algorithm=FedBCD(2, "sequential")),
        {"a": 60, "b": 1, "c": 2},
        9,
        2048,
    ),
    "paillier transfer": Scenario(
        transfer(
            scheme="paillier",
            hidden=3,
            algorithm=FedBCD(2),
            batch_size=4,
            evaluate_every=2,
        ),
        {"b": 9, "a": 8},
        9,
        2048,
    ),
    "ckks pair": Scenario(linear(scheme="ckks", evaluate_every=1), TWO, 9),
    "ckks star": Scenario(linear(scheme="ckks"), FOUR, 9),
    "ckks pairwise in turns": Scenario(
        linear(scheme="ckks", exchange="pairwise", algorithm=FedBCD(2, "sequential")), FOUR, 9
    ),
    "paillier pairwise": Scenario(
        linear(scheme="paillier", exchange="pairwise", batch_size=4, evaluate_every=2),
        {"a": 3, "b": 1, "c": 2},
        9,
        2048,
    ),
    "paillier with noise": Scenario(linear(scheme="paillier", dp_noise=0.1, batch_size=5), TWO, 9, 2048),
    "ckks transfer": Scenario(
        transfer(
            scheme="ckks",
            hidden=4,
            algorithm=FedBCD(2),
            evaluate_every=1,
        ),
        {"b": 5, "a": 3},
        9,
    ),
}


def dry(scenario: Scenario, costs: Costs | None = None, network: Network | None = None) -> Rehearsal:
    return rehearse(scenario, costs or Costs(), network or get_network("lan"), timer=still)


NIGHTLY = {"paillier star in turns", "paillier pairwise", "ckks pairwise in turns", "ckks star"}
"""What differs from the others in a shape that "plain" has too: a matter of the whole table."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.nightly] * (name in NIGHTLY)) for name in SCENARIOS]
)
def test_messages_and_bytes_are_those_of_a_real_run(name: str) -> None:
    scenario = SCENARIOS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LedgerWarning)
        counted, _ = run(scenario)
    found = dry(scenario)
    for phase in ("setup", "evaluation"):
        assert found.traffic(phase) == counted.bytes(None, phase), phase
    if scenario.settings.rounds == 2:  # else only the last rounds are rehearsed
        for party, link in counted.links.items():
            assert lines(found.done.links[party]) == lines(link)
    assert found.traffic() == counted.bytes(found.last_round) == counted.bytes(0)
    if scenario.settings.scheme != "plain":  # which has no ciphertexts
        assert found.ciphertexts == counted.ciphertexts(0)


@pytest.mark.parametrize("name", ["plain star", "paillier pair"])
def test_linear_models_send_the_same_whatever_q_is(name: str) -> None:
    scenario = SCENARIOS[name]
    assert dry(scenario.with_steps(1)).traffic() == dry(scenario.with_steps(40)).traffic()


def test_networks_open_as_often_as_there_are_local_steps() -> None:
    scenario = SCENARIOS["plain networks"]
    sizes = [dry(scenario.with_steps(q)).traffic() for q in (1, 4)]
    place = ("opening-request", "shop", "bank")
    assert sizes[1][place] == 4 * sizes[0][place]
    assert sizes[1]["contribution", "shop", "bank"] == sizes[0]["contribution", "shop", "bank"]


@pytest.mark.parametrize("name", ["plain mixed", "paillier transfer", "ckks transfer"])
def test_of_many_local_steps_some_are_rehearsed_and_the_others_count_as_much(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "rehearse", partial(rehearse, timer=still))
    scenario = SCENARIOS[name].with_steps(9)
    found = dry(scenario)
    planned = estimate(scenario, Costs(), get_network("lan"), RoundsModel.through(2, 9))
    assert planned.local_steps == 9 and planned.rounds == 2
    assert planned.bytes == sum(found.traffic().values())
    assert planned.ciphertexts == sum(found.ciphertexts.values())
    assert planned.communication == pytest.approx(found.round.communication)


def test_one_local_step_is_fedsgd() -> None:
    assert isinstance(SCENARIOS["plain star"].with_steps(1).settings.algorithm, FedSGD)
    assert SCENARIOS["plain star in turns"].with_steps(1).settings.algorithm == FedBCD(1, "sequential")


def test_a_round_takes_what_its_operations_take_on_the_critical_path() -> None:
    """By hand. Two parties encrypt, load, contract, mask, open for each other and unmask, side by side; of
    four with a key-holder, which opens for one after the other, the label party adds three to two sums.
    """
    quick = Network("quick", 1e15, 0.0)
    weights = {"encrypt": 1.0, "load": 10.0, "contract": 100.0, "mask": 1e3, "open": 1e4, "unmask": 1e5}
    assert dry(SCENARIOS["ckks pair"], Costs(**weights), quick).round.computation == pytest.approx(111_111.0)
    star = dry(SCENARIOS["ckks star"], Costs(**{"add": 1.0, "load": 10.0, "open": 1e3}), quick)
    assert star.round.computation == pytest.approx(3 * 1.0 + (3 + 1) * 10.0 + 4 * 1e3)


def test_what_is_multiplied_is_counted() -> None:
    costs = Costs()
    dry(SCENARIOS["paillier transfer"], costs)
    met: list[Operation] = [
        operation for operation in costs.met if operation.name == "contract" and operation.inner > 3
    ]
    assert {(o.shape, o.inner) for o in met} == {((10, 3), 7), ((9, 3), 7)}  # (columns + 1, h), batch + h
    assert all(0 < o.terms <= 7 * o.shape[0] * 3 for o in met)


def test_the_projects_promise_at_full_size() -> None:
    """n = 1000, h = 32: n h + h^2 ciphertexts each way under Paillier, at most 3 MiB under CKKS."""
    for scheme in ("paillier", "ckks"):
        recipe = transfer(scheme=scheme, hidden=32, rounds=1, algorithm=FedSGD())
        found = dry(Scenario(recipe, {"b": 15, "a": 18}, 1000))
        if scheme == "paillier":
            assert found.ciphertexts["contribution"] == 2 * 33_024
        else:
            assert found.traffic()["contribution", "a", "b"] <= 3 * 2**20
