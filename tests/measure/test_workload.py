"""The workload's ciphertexts and bytes are those of real runs, exactly, message by message."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from securefed.measure.sizes import Block
from securefed.measure.workload import Receive, Scenario, Send, ciphertexts, scripts, traffic
from securefed.protocols.ledger import LedgerWarning
from securefed.protocols.recipe import LinearRecipe
from securefed.protocols.schedules import FedBCD, FedSGD
from securefed.protocols.transfer_recipe import TransferRecipe
from tests.measure.runs import run

TWO = {"shop": 3, "bank": 2}
FOUR = {"a": 3, "b": 1, "c": 2, "d": 2}
LINEAR: dict[str, Any] = {"allow_determined": True, "learning_rate": 0.05, "rounds": 2}


def linear(**settings: Any) -> LinearRecipe:
    return LinearRecipe(
        **{"scheme": "plain", "reveal": "own-gradient", "loss_form": "taylor", **LINEAR} | settings
    )


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
    "plain transfer": Scenario(TransferRecipe(scheme="plain", hidden=3, **LINEAR), TWO, 9),
    "paillier pair": Scenario(linear(scheme="paillier", batch_size=5), TWO, 9, 2048),
    "paillier star": Scenario(linear(scheme="paillier", batch_size=4), {"a": 60, "b": 1, "c": 2}, 9, 2048),
    "paillier star in turns": Scenario(
        linear(scheme="paillier", batch_size=4, algorithm=FedBCD(2, "sequential")),
        {"a": 60, "b": 1, "c": 2},
        9,
        2048,
    ),
    "paillier transfer": Scenario(
        TransferRecipe(scheme="paillier", hidden=3, algorithm=FedBCD(2), batch_size=4, **LINEAR),
        {"b": 9, "a": 8},
        9,
        2048,
    ),
    "ckks pair": Scenario(linear(scheme="ckks"), TWO, 9),
    "ckks star": Scenario(linear(scheme="ckks"), FOUR, 9),
    "ckks transfer": Scenario(
        TransferRecipe(scheme="ckks", hidden=4, algorithm=FedBCD(2), **LINEAR), {"b": 5, "a": 3}, 9
    ),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_messages_and_bytes_are_those_of_a_real_run(name: str) -> None:
    scenario = SCENARIOS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LedgerWarning)
        counted, _ = run(scenario)
    found = scripts(scenario)
    for round_ in range(2):
        assert traffic(found) == counted.bytes(round_)
        assert ciphertexts(found) == counted.ciphertexts(round_)


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_message_that_is_sent_is_waited_for_in_its_order(name: str) -> None:
    found = scripts(SCENARIOS[name])
    for sender in found:
        for receiver in found:
            sent = [s.kind for s in found[sender] if isinstance(s, Send) and s.receiver == receiver]
            due = [s.kind for s in found[receiver] if isinstance(s, Receive) and s.sender == sender]
            assert sent == due


@pytest.mark.parametrize("name", ["plain star", "paillier pair"])
def test_linear_models_send_the_same_whatever_q_is(name: str) -> None:
    scenario = SCENARIOS[name]
    assert traffic(scripts(scenario.with_steps(1))) == traffic(scripts(scenario.with_steps(40)))


def test_networks_open_as_often_as_there_are_local_steps() -> None:
    scenario = SCENARIOS["plain networks"]
    sizes = [traffic(scripts(scenario.with_steps(q))) for q in (1, 4)]
    place = ("opening-request", "shop", "bank")
    assert sizes[1][place] == 4 * sizes[0][place]
    assert sizes[1]["contribution", "shop", "bank"] == sizes[0]["contribution", "shop", "bank"]


def test_one_local_step_is_fedsgd() -> None:
    assert isinstance(SCENARIOS["plain star"].with_steps(1).recipe.algorithm, FedSGD)
    assert SCENARIOS["plain star in turns"].with_steps(1).recipe.algorithm == FedBCD(1, "sequential")


def test_the_projects_promise_at_full_size() -> None:
    """n = 1000, h = 32: n h + h^2 ciphertexts each way under Paillier, at most 3 MiB under CKKS."""
    for scheme in ("paillier", "ckks"):
        recipe = TransferRecipe(scheme=scheme, hidden=32, allow_determined=True)
        sent = [
            step.block
            for step in scripts(Scenario(recipe, {"b": 15, "a": 18}, 1000))["a"]
            if isinstance(step, Send) and step.kind == "contribution"
        ]
        assert len(sent) == 1
        if scheme == "paillier":
            assert sent[0] == Block(33_024, sent[0].bytes)
        else:
            assert sent[0].bytes <= 3 * 2**20
