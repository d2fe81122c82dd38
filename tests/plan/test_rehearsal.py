"""Blind runs before they are run: messages and bytes are those of the real ones."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from securefed import Blind, Monitoring
from securefed.crypto.blind import layout
from securefed.crypto.blind.interface import CrossKey, CrossScheme
from securefed.crypto.blind.paillier import paillier_scheme
from securefed.plan import planner
from securefed.plan.planner import _blind_bytes, estimates
from securefed.plan.rehearsal import EFFICIENCY, CountedWorkers, Rehearsal, Scenario, rehearse
from securefed.protocols.schedules import FedBCD
from securefed.settings import LinearSettings, TransferSettings
from securefed.transport.link import Link
from securefed.transport.message import Network, get_network
from tests.report.runs import run

TWO = {"shop": 14, "bank": 2}
THREE = {"a": 3, "b": 1, "c": 2}
LAN = get_network("lan")
SMALL_BITS = 512


def still() -> float:
    """A clock on which nothing takes time."""
    return 0.0


def blind(scheme: str, release: bool = False, **settings: Any) -> LinearSettings:
    return LinearSettings(rounds=3, protection=Blind(scheme=scheme, release=release), **settings)


def dry(scenario: Scenario, network: Network = LAN) -> Rehearsal:
    return rehearse(scenario, network, timer=still)


def lines(link: Link) -> list[tuple[str, str, str, int, int, int]]:
    """All that a party did, in order."""
    return [(e.event, e.kind, e.peer, e.round, e.step, e.bytes) for e in link.transcript]


@cache
def small_key() -> CrossKey:
    return paillier_scheme(SMALL_BITS, allow_small=True).generate()


def small_paillier() -> CrossScheme:
    """Real, with one small key for all."""
    return replace(paillier_scheme(SMALL_BITS, allow_small=True), generate=_small_copy)


def _small_copy() -> CrossKey:
    return paillier_scheme(SMALL_BITS, allow_small=True).load_key(small_key().to_bytes())


def compare(scenario: Scenario) -> Rehearsal:
    """Message by message, from the keys to the end."""
    if scenario.settings.scheme == "paillier":
        scenario = replace(scenario, key_bits=SMALL_BITS, scheme=small_paillier())
    counted, _ = run(scenario)
    found = dry(scenario)
    assert set(found.done.links) == set(counted.links)
    for name, link in counted.links.items():
        assert lines(found.done.links[name]) == lines(link)
    rounds = scenario.agreement.stopping.rounds
    once, last = _blind_bytes(scenario)
    total = sum(entry.bytes for link in counted.links.values() for entry in link.transcript.of("sent"))
    assert last == sum(found.traffic().values()) and once + rounds * last == total
    return found


@pytest.mark.parametrize("scheme", ["ckks", pytest.param("paillier", marks=pytest.mark.slow)])
@pytest.mark.parametrize("columns", [TWO, THREE])
def test_messages_and_bytes_are_those_of_a_real_run(scheme: str, columns: dict[str, int]) -> None:
    compare(Scenario(blind(scheme), columns, 40, holdout_rows=10))


@pytest.mark.parametrize(
    ("scheme", "columns", "settings", "outputs"),
    [
        ("ckks", TWO, {"algorithm": FedBCD(3, "sequential")}, 1),
        pytest.param("paillier", THREE, {"algorithm": FedBCD(3, "sequential")}, 3, marks=pytest.mark.slow),
        ("ckks", THREE, {"monitoring": Monitoring(evaluate_every=1, patience=5)}, 3),
        ("paillier", TWO, {"monitoring": Monitoring(evaluate_every=2)}, 1),
        ("ckks", TWO, {"release": True}, 1),
        ("ckks", THREE, {"release": True}, 1),
        ("ckks", TWO, {"refit": False}, 2),
    ],
)
def test_so_are_other_settings(
    scheme: str, columns: dict[str, int], settings: dict[str, Any], outputs: int
) -> None:
    compare(Scenario(blind(scheme, **settings), columns, 40, outputs=outputs, holdout_rows=10))


@pytest.mark.parametrize(
    ("scheme", "order", "outputs"),
    [
        ("ckks", "parallel", 3),
        ("ckks", "sequential", 1),
        ("paillier", "parallel", 1),
    ],
)
def test_and_so_is_blind_transfer_learning(scheme: str, order: str, outputs: int) -> None:
    recipe = TransferSettings(
        rounds=2,
        algorithm=FedBCD(2, order),
        protection=Blind(scheme=scheme),
        monitoring=Monitoring(evaluate_every=2 - (scheme == "ckks")),
    )
    compare(Scenario(recipe, {"b": 4, "a": 3}, 40, outputs=outputs))


def test_and_tables_of_many_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """More blocks than are under way at once."""
    monkeypatch.setattr(layout, "BLOCK_BYTES", 1 << 18)
    found = compare(Scenario(blind("ckks"), {"shop": 2, "bank": 40}, 4097, holdout_rows=1029))
    assert any(line[1] == "received" for line in lines(found.done.links["bank"]))


def test_local_steps_change_nothing_that_is_sent() -> None:
    scenario = Scenario(blind("ckks"), TWO, 40)
    assert _blind_bytes(scenario.with_steps(1)) == _blind_bytes(scenario.with_steps(40))


def test_rounds_need_no_ciphertext() -> None:
    found = dry(Scenario(blind("ckks"), THREE, 40))
    assert {kind for kind, _, _ in found.traffic()} == {"difference", "progress"}
    assert not found.ciphertexts


def test_a_round_is_one_message_there_and_one_back_at_the_same_time() -> None:
    lazy = dry(Scenario(blind("ckks"), TWO, 19), Network("far", 1e15, 2.0))
    assert (lazy.round.computation, lazy.round.communication) == (0.0, pytest.approx(2.0))


def test_a_rehearsal_does_not_stop_early() -> None:
    watched = blind("ckks", monitoring=Monitoring(evaluate_every=1, patience=1, target=0.0))
    assert dry(Scenario(watched, TWO, 40)).last_round == 2


@pytest.mark.slow
@pytest.mark.parametrize("held_out", [0, 8000])
def test_few_rows_stand_for_many(held_out: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine where an eighth of the rows takes long enough."""
    met: list[int] = []

    def noted(smaller: Scenario, *args: Any, **more: Any) -> Rehearsal:
        met.append(smaller.rows)
        monkeypatch.setattr(planner, "LONG_ENOUGH", -1e9 if smaller.rows >= 5000 else 1e9)
        return rehearse(smaller, *args, timer=still, **more)

    monkeypatch.setattr(planner, "rehearse", noted)
    monkeypatch.setattr(planner, "LARGE_ENOUGH", -1e9)
    scenario = Scenario(blind("ckks"), TWO, 40_003, holdout_rows=held_out)
    planned, found = estimates(scenario)[0], dry(scenario)
    sizes = (4096,) if held_out else (256, 1024, 4096)
    assert met[: len(sizes)] == [size + 40_003 % size for size in sizes]
    assert scenario.with_batch(met[0]).agreement.batches.folds == scenario.agreement.batches.folds
    sent = sum(entry.bytes for link in found.done.links.values() for entry in link.transcript.of("sent"))
    assert planned.total_bytes == sent and planned.rounds == found.last_round + 1
    assert planned.total_communication == pytest.approx(found.done.critical.communication, rel=0.2)


def test_workers_share_pieces() -> None:
    now = [0.0]

    def work(_: int) -> str:
        now[0] += 2.0
        return "done"

    workers = CountedWorkers(2, lambda: now[0])
    assert workers.map(work, range(4)) == ["done"] * 4
    assert workers.now() == pytest.approx(8.0 / (2 * EFFICIENCY))
    assert workers.map(work, range(1)) == ["done"], "one piece is not shared"
    assert workers.now() == pytest.approx(2.0 + 8.0 / (2 * EFFICIENCY))
