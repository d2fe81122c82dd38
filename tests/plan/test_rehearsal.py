"""Blind runs before they are run: messages and bytes are those of the real ones; and no peer can be made to
take a key that encrypts nothing.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from research.attacks.clear import CLEAR
from securefed import Blind, Monitoring
from securefed.crypto import SCHEMES, cross_lengths, cross_scheme
from securefed.crypto.blind import layout
from securefed.crypto.blind.interface import NONCE_BYTES, CrossKey, CrossScheme, Product
from securefed.crypto.blind.paillier import paillier_scheme
from securefed.crypto.blind.rlwe import RLWE
from securefed.errors import BadKey, FormatError
from securefed.plan.products import SAMPLE_ROWS, CountedWorkers, Meter, counting_scheme, shared
from securefed.plan.rehearsal import Rehearsal, Scenario, rehearse
from securefed.protocols.schedules import FedBCD
from securefed.settings import LinearSettings, TransferSettings
from securefed.transport import Link, Network, get_network
from tests.report.runs import run

TWO = {"shop": 14, "bank": 2}
THREE = {"a": 3, "b": 1, "c": 2}
LAN = get_network("lan")
SMALL_BITS = 512
NONCE = bytes(NONCE_BYTES)


class Costs:
    """So many seconds for each operation of a name."""

    def __init__(self, **seconds: float) -> None:
        self._seconds = seconds
        self.met: list[tuple[str, Product | None, int]] = []

    def seconds(self, name: str, product: Product | None = None, rows: int = 0) -> float:
        self.met.append((name, product, rows))
        return self._seconds.get(name, 0.0)


def still() -> float:
    """A clock on which nothing but encrypted work takes time."""
    return 0.0


def blind(scheme: str, release: bool = False, **settings: Any) -> LinearSettings:
    return LinearSettings(rounds=3, protection=Blind(scheme=scheme, release=release), **settings)


def dry(scenario: Scenario, costs: Costs | None = None, network: Network = LAN) -> Rehearsal:
    return rehearse(scenario, network, costs or Costs(), timer=still)


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
    real = scenario
    if scenario.settings.scheme == "paillier":
        scenario = replace(scenario, key_bits=SMALL_BITS)
        real = replace(scenario, scheme=small_paillier())
    counted, _ = run(real)
    found = dry(scenario)
    assert set(found.done.links) == set(counted.links)
    for name, link in counted.links.items():
        assert lines(found.done.links[name]) == lines(link)
    for phase in ("setup", "evaluation", "release"):
        assert found.traffic(phase) == counted.bytes(None, phase), phase
    rounds = scenario.agreement.stopping.rounds
    total = sum(entry.bytes for link in counted.links.values() for entry in link.transcript.of("sent"))
    assert found.bytes_once + rounds * sum(found.traffic().values()) == total
    return found


@pytest.mark.parametrize("scheme", ["ckks", "paillier"])
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
    ("scheme", "order", "width", "third", "outputs"),
    [
        ("ckks", "parallel", 1, False, 3),
        ("ckks", "sequential", 2, False, 1),
        ("ckks", "parallel", 2, True, 3),
        ("paillier", "parallel", 1, False, 1),
        ("paillier", "sequential", 1, True, 1),
    ],
)
def test_and_so_is_blind_transfer_learning(
    scheme: str, order: str, width: int, third: bool, outputs: int
) -> None:
    recipe = TransferSettings(
        hidden=width,
        rounds=2,
        algorithm=FedBCD(2, order),
        protection=Blind(scheme=scheme),
        monitoring=Monitoring(evaluate_every=2 - (scheme == "ckks")),
    )
    compare(Scenario(recipe, {"b": 4, "a": 3}, 40, outputs=outputs, third=third))


def test_and_tables_of_many_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """More rows than are sampled, and more blocks than are under way at once."""
    monkeypatch.setattr(layout, "BLOCK_BYTES", 1 << 18)
    found = compare(
        Scenario(blind("ckks"), {"shop": 2, "bank": 40}, 4 * SAMPLE_ROWS + 1, holdout_rows=SAMPLE_ROWS + 5)
    )
    assert any(line[1] == "received" for line in lines(found.done.links["bank"]))


def test_local_steps_change_nothing_that_is_sent() -> None:
    scenario = Scenario(blind("ckks"), TWO, 40)
    one, many = dry(scenario.with_steps(1)), dry(scenario.with_steps(40))
    assert (one.bytes_once, one.traffic()) == (many.bytes_once, many.traffic())


def test_rounds_need_no_ciphertext() -> None:
    found = dry(Scenario(blind("ckks"), THREE, 40))
    assert {kind for kind, _, _ in found.traffic()} == {"difference", "progress"}
    assert not found.ciphertexts


def test_a_run_takes_what_its_operations_take_on_the_critical_path() -> None:
    """By hand: keys of the pass, of the prepared products and of scores, one after the other."""
    quick = Network("quick", 1e15, 0.0)
    found = dry(Scenario(blind("ckks"), TWO, 19), Costs(generate=1.0), quick)
    assert found.done.critical.computation == pytest.approx(3.0)
    assert found.once.computation == pytest.approx(3.0) and found.round.computation == 0.0
    # A round is one message there and one back, at the same time.
    lazy = dry(Scenario(blind("ckks"), TWO, 19), Costs(), Network("far", 1e15, 2.0))
    assert (lazy.round.computation, lazy.round.communication) == (0.0, pytest.approx(2.0))


def test_every_row_of_a_factor_counts_and_few_are_computed() -> None:
    costs, rows = Costs(), 50 * SAMPLE_ROWS
    dry(Scenario(blind("ckks"), {"shop": 3, "bank": 2}, rows), costs)
    for name in ("encrypt", "multiply"):
        met = [
            done for word, product, done in costs.met if word == name and product and product.inner == rows
        ]
        assert sum(met) == rows


def test_what_is_in_the_clear_takes_its_real_time() -> None:
    """The processor's clock goes on during a rehearsal; what is measured meanwhile does not count."""
    now = [0.0]

    def timer() -> float:
        now[0] += 1e-3
        return now[0]

    class Measuring(Costs):
        def seconds(self, name: str, product: Product | None = None, rows: int = 0) -> float:
            now[0] += 1000.0
            return 0.0

    found = rehearse(Scenario(blind("paillier"), TWO, 19), LAN, Measuring(), timer=timer)
    assert 0.0 < found.done.critical.computation < 5.0


def test_a_part_of_some_work_counts_for_the_whole() -> None:
    now = [0.0]

    def work() -> str:
        now[0] += 2.0
        return "done"

    meter = Meter(lambda: now[0])
    assert meter.scaled(work, 5.0) == "done" and meter.now() == 10.0
    with meter.stopped():
        work()
    assert meter.now() == 10.0
    workers = CountedWorkers(2, meter)
    assert workers.map(lambda _: work(), range(4)) == ["done"] * 4
    assert meter.now() == pytest.approx(10.0 + shared(8.0, 2))
    assert workers.map(lambda _: work(), range(1)) == ["done"], "one piece is not shared"
    assert meter.now() == pytest.approx(12.0 + shared(8.0, 2))


# Nobody takes such a key


@pytest.mark.parametrize(("name", "real"), [("ckks", RLWE), ("paillier", small_paillier())])
def test_a_counting_key_is_refused_when_it_comes_from_a_peer(name: str, real: CrossScheme) -> None:
    key = counting_scheme(cross_lengths(name, SMALL_BITS), Meter(still, Costs())).generate()
    assert len(key.public(NONCE)) == len(real.generate().public(NONCE))
    with pytest.raises(BadKey):
        real.load_public(key.public(NONCE), NONCE)


def test_a_counting_key_checks_what_it_gets() -> None:
    made = counting_scheme(cross_lengths("ckks", 0), Meter(still, Costs()))
    key, product = made.generate(), Product(4, 2, 3)
    public = made.load_public(key.public(NONCE), NONCE)
    with pytest.raises(BadKey):
        made.load_public(b"", NONCE)
    with pytest.raises(FormatError, match="reply"):
        key.read(product, b"")
    evaluation = public.evaluate(product)
    with pytest.raises(FormatError, match="have not come"):
        evaluation.finish()
    with pytest.raises(FormatError, match="block"):
        evaluation.add({0: b""}, lambda first, last: np.zeros((last - first, 3)))
    with pytest.raises(BadKey, match="no encrypted product"):
        cross_lengths(CLEAR.name, 0)


def test_nor_can_one_be_chosen() -> None:
    assert "counting" not in SCHEMES
    with pytest.raises(BadKey):
        cross_scheme("counting")
