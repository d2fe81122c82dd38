"""What the parties agree on beforehand: refused by name where it makes no sense, one digest for all."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from securefed.errors import SettingError
from securefed.protocols.agreement import Agreement, Member
from securefed.protocols.schedules import Batches, Constant, FedBCD, FedSGD, InverseSqrt, Stopping

THREE = (Member("a", 3, True), Member("b", 20, False), Member("c", 4, True))


def agreement(**changes: Any) -> Agreement:
    settings: dict[str, Any] = {
        "objective": "linear",
        "scheme": "paillier",
        "members": THREE,
        "algorithm": FedBCD(4),
        "learning_rate": Constant(0.1),
        "batches": Batches(100, 32, 7),
        "stopping": Stopping(10),
        "key_holder": "k",
        "details": (("loss", "logistic"), ("l2", 0.1)),
    }
    return Agreement(**{**settings, **changes})


def test_roles() -> None:
    made = agreement()
    assert made.names == ("a", "b", "c")
    assert made.label_party == "c"
    assert not made.mutual
    assert agreement(members=THREE[:2], key_holder=None).mutual


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"members": THREE[:1]}, "parties: 1 given"),
        ({"members": ()}, "parties: 0 given"),
        ({"members": (THREE[0], THREE[0])}, "names have to differ"),
        ({"key_holder": "b"}, "names have to differ"),
        ({"members": THREE[:2]}, "key_holder: 'k' given for 2 parties; two need none"),
        ({"key_holder": None}, "key_holder: None given for 3 parties"),
        ({"objective": "transfer"}, "parties: 3 given, the transfer objective takes exactly 2"),
        ({"reveal": "nothing"}, "reveal: 'nothing' takes linear local models"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(SettingError) as caught:
        agreement(**changes)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_linear_members_open_once_and_others_at_each_step() -> None:
    made = agreement()
    assert [made.opens_at("a", q) for q in range(4)] == [True, False, False, False]
    assert [made.opens_at("b", q) for q in range(4)] == [True] * 4
    exact = agreement(exact=True, scheme="plain")
    assert not any(exact.opens_at(name, q) for name in exact.names for q in range(4))


def test_evaluations() -> None:
    assert [agreement(evaluate_every=3).evaluates_after(t) for t in range(6)] == [False, False, True] * 2
    assert not any(agreement().evaluates_after(t) for t in range(6))
    assert not agreement(evaluate_every=1).watched
    assert agreement(evaluate_every=1, stopping=Stopping(5, target=0.9)).watched
    assert agreement(evaluate_every=1, stopping=Stopping(5, patience=2)).watched


def test_unknowns() -> None:
    assert agreement().unknowns() == 32
    assert agreement(batches=Batches(100)).unknowns() == 100
    pair = {"members": THREE[1:], "key_holder": None, "objective": "transfer"}
    # n h numbers of the block, and a symmetric h x h matrix.
    assert agreement(**pair, width=5).unknowns() == 32 * 5 + 15


CHANGES: dict[str, Any] = {
    "scheme": "ckks",
    "members": (Member("a", 3, True), Member("b", 21, False), Member("c", 4, True)),
    "algorithm": FedBCD(5),
    "learning_rate": InverseSqrt(0.1),
    "batches": Batches(100, 32, 8),
    "stopping": Stopping(11),
    "exchange": "pairwise",
    "key_holder": "kk",
    "evaluate_every": 1,
    "allow_determined": True,
    "details": (("loss", "logistic"), ("l2", 0.2)),
    "width": 2,
}


@pytest.mark.parametrize("name", CHANGES)
def test_every_setting_is_part_of_the_digest(name: str) -> None:
    assert agreement().digest() == agreement().digest()
    assert agreement(**{name: CHANGES[name]}).digest() != agreement().digest()


@pytest.mark.parametrize("algorithm", [FedSGD(), FedBCD(4, "sequential"), FedBCD(4, proximal=0.1), FedBCD(3)])
def test_every_property_of_an_algorithm_is_part_of_the_digest(algorithm: Any) -> None:
    assert agreement(algorithm=algorithm).digest() != agreement().digest()


def test_it_can_be_told_as_json_and_not_changed() -> None:
    made = agreement()
    told = json.loads(json.dumps(made.to_dict()))
    assert told["parties"] == [["a", 3, True], ["b", 20, False], ["c", 4, True]]
    assert (told["loss"], told["l2"], told["local_steps"]) == ("logistic", 0.1, 4)
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.scheme = "plain"  # type: ignore[misc]
