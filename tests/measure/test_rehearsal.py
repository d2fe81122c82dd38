"""Blind runs before they are run: messages, bytes and ciphertexts are those of the real ones; and no peer can
be made to take a key that encrypts nothing.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from securefed.crypto import KEY_KINDS, SCHEMES, FixedPoint, generate, load_public_key
from securefed.crypto.errors import BadKey, FormatError
from securefed.crypto.rlwe.ring import HIDDEN
from securefed.crypto.wire import HEADER
from securefed.errors import SettingError
from securefed.measure.dry import DryKeys
from securefed.measure.meter import Meter, Operation
from securefed.measure.rehearsal import Rehearsal, rehearse
from securefed.measure.scenario import Scenario
from securefed.protocols.messages import KINDS
from securefed.protocols.recipe import LinearRecipe, Surroundings
from securefed.protocols.schedules import FedBCD
from securefed.protocols.transfer_recipe import TransferRecipe
from securefed.transport import Link, Message, Network, get_network, run_local
from securefed.transport.contents import parts_of
from tests.measure.runs import holder, run

TWO = {"shop": 14, "bank": 2}
THREE = {"a": 3, "b": 1, "c": 2}
LAN = get_network("lan")


class Costs:
    """So many seconds for each operation of a name."""

    def __init__(self, **seconds: float) -> None:
        self._seconds = seconds
        self.met: list[Operation] = []

    def seconds(self, operation: Operation) -> float:
        self.met.append(operation)
        return self._seconds.get(operation.name, 0.0)


def still() -> float:
    """A clock on which nothing but operations on hidden arrays takes time."""
    return 0.0


def blind(scheme: str, **settings: Any) -> LinearRecipe:
    return LinearRecipe(**{"scheme": scheme, "rounds": 2, "check_every": 0, **settings})


def dry(scenario: Scenario, costs: Costs | None = None, network: Network = LAN) -> Rehearsal:
    return rehearse(scenario, costs or Costs(), network, timer=still)


def lines(link: Link) -> list[tuple[str, str, str, int, int, int]]:
    """All that a party did, in order."""
    return [(e.event, e.kind, e.peer, e.round, e.step, e.bytes) for e in link.transcript]


def compare(scenario: Scenario) -> None:
    """Message by message, from the keys to the end."""
    counted, _ = run(scenario)
    found = dry(scenario)
    for phase in ("setup", "evaluation", "release"):
        assert found.traffic(phase) == counted.bytes(None, phase), phase
    for round_ in range(2):
        assert found.traffic(round_=round_) == counted.bytes(round_)
    for name, link in counted.links.items():
        assert lines(found.done.links[name]) == lines(link)
    if not scenario.agreement.evaluate_every:
        sent = [message for message in counted.messages if message.round == 1]
        counts: Counter[str] = Counter()
        for message in sent:
            counts[message.kind] += ciphertexts(message, scenario.recipe.scheme)
        assert found.ciphertexts == counts


def ciphertexts(message: Message, scheme: str) -> int:
    """From its bytes: a ciphertext is so long, besides single coefficients of results under RLWE."""
    size, primes = max(0, message.size - HEADER.size), len(HIDDEN.data_primes)
    if scheme == "paillier":
        return size // (2 * 2048 // 8)
    if message.kind in ("margin", "masked-margin", "refresh-request", "share-product"):
        rows, columns = parts_of(message.payload)[0].shape
        size -= HIDDEN.byte_count(primes * rows * columns)
    return size // HIDDEN.byte_count(primes * HIDDEN.degree)


@pytest.mark.parametrize(
    ("scheme", "columns", "order", "outputs"),
    [
        ("ckks", TWO, "parallel", 1),
        pytest.param("ckks", THREE, "sequential", 3, marks=pytest.mark.slow),
        pytest.param("paillier", TWO, "sequential", 1, marks=pytest.mark.slow),
        ("paillier", THREE, "parallel", 3),
    ],
)
def test_messages_and_bytes_are_those_of_a_real_run(
    scheme: str, columns: dict[str, int], order: str, outputs: int
) -> None:
    recipe = blind(scheme, algorithm=FedBCD(3, order), l2=0.01, batch_size=7)  # type: ignore[arg-type]
    compare(Scenario(recipe, columns, 19, 2048, outputs=outputs))


@pytest.mark.parametrize("scheme", ["ckks", "paillier"])
@pytest.mark.parametrize("columns", [TWO, THREE])
@pytest.mark.slow
def test_so_are_evaluations_and_the_end(scheme: str, columns: dict[str, int]) -> None:
    recipe = blind(scheme, evaluate_every=1, patience=5, release=True)
    compare(Scenario(recipe, columns, 19, 2048, outputs=3))


@pytest.mark.parametrize(
    ("scheme", "order", "width", "third", "outputs"),
    [
        ("ckks", "parallel", 1, False, 3),
        ("ckks", "sequential", 2, False, 1),
        ("paillier", "parallel", 2, False, 1),
        ("ckks", "parallel", 2, True, 3),
        ("paillier", "sequential", 1, True, 1),
    ],
)
@pytest.mark.slow
def test_and_so_is_blind_transfer_learning(
    scheme: str, order: str, width: int, third: bool, outputs: int
) -> None:
    recipe = TransferRecipe(
        scheme=scheme,
        reveal="nothing",
        hidden=width,
        rounds=2,
        algorithm=FedBCD(3 if scheme == "ckks" else 2, order),  # type: ignore[arg-type]
        evaluate_every=2 - (scheme == "ckks"),
    )
    compare(Scenario(recipe, {"b": 4, "a": 3}, 19, 2048, outputs=outputs, third=third))


@pytest.mark.slow
def test_and_rows_that_take_switching_keys_and_several_ciphertexts() -> None:
    """Merges of more than one unit, and results of more rows than a ring has places."""
    compare(Scenario(blind("ckks"), {"shop": 3, "bank": 2}, HIDDEN.degree + 800))
    found = dry(Scenario(blind("ckks"), {"shop": 3, "bank": 2}, HIDDEN.degree + 800))
    assert found.traffic("setup")["switching-keys", "shop", "bank"] > 10**6


@pytest.mark.slow
def test_and_parameters_in_several_pieces() -> None:
    recipe = blind("ckks", check_every=1 << 62)  # with no check, operands are turned instead
    scenario = Scenario(recipe, {"shop": 40, "bank": 3}, HIDDEN.degree // 2)
    compare(scenario)
    costs = Costs()
    dry(scenario, costs)
    assert {o.blocks for o in costs.met if o.name == "multiply"} >= {1, 2}


@pytest.mark.parametrize("scheme", ["ckks", "paillier"])
@pytest.mark.slow
def test_the_last_rounds_are_like_all_of_them(scheme: str) -> None:
    """Masks are as wide as the whole run takes; only some of its rounds are rehearsed."""
    scenario = Scenario(blind(scheme, rounds=5), TWO, 40, 2048)
    found = dry(scenario)
    assert (found.first_round, found.last_round) == (2, 4)
    counted, _ = run(scenario)
    assert found.traffic() == counted.bytes(4) == counted.bytes(0)
    assert found.bytes_once == sum((counted.bytes(None, "setup") + counted.bytes(None, "release")).values())


def test_local_steps_change_nothing_that_is_sent() -> None:
    scenario = Scenario(blind("ckks"), TWO, 40)
    assert dry(scenario.with_steps(1)).traffic() == dry(scenario.with_steps(40)).traffic()


def test_a_round_takes_what_its_operations_take_on_the_critical_path() -> None:
    """By hand. Two parties multiply four times, side by side. With a key-holder: margins, the residuals'
    refresh, three products (momentum is one), and one refresh after the other.
    """
    quick = Network("quick", 1e15, 0.0)
    pair = dry(Scenario(blind("paillier"), TWO, 19), Costs(multiply=1.0), quick)
    assert pair.round.computation == pytest.approx(4.0)
    star = dry(Scenario(blind("paillier"), THREE, 19), Costs(multiply=1.0, read=10.0), quick)
    assert star.round.computation == pytest.approx(1.0 + 10.0 + 3.0 + 3 * 10.0)
    lazy = dry(Scenario(blind("paillier"), TWO, 19), Costs(), Network("far", 1e15, 2.0))
    # Masked margins, converted ones, a refresh there and back.
    assert (lazy.round.computation, lazy.round.communication) == (0.0, pytest.approx(4 * 2.0))


def test_what_comes_once_is_apart() -> None:
    costs = Costs(key=5.0, zeros=1.0)
    found = dry(Scenario(blind("paillier", rounds=9), TWO, 19), costs, Network("quick", 1e15, 0.0))
    assert found.round.computation == 0.0
    assert found.once.computation == pytest.approx(6.0)


def test_a_matrix_that_comes_again_is_encoded_once() -> None:
    def again(**settings: Any) -> list[bool]:
        costs = Costs()
        dry(Scenario(blind("ckks", rounds=3, **settings), {"shop": 3, "bank": 2}, 20), costs)
        return [operation.again for operation in costs.met if operation.name == "multiply"]

    # Two parties, three products in the first round and four in others; steps differ, margins do not.
    assert len(again()) == 22 and sum(again()) == 4
    assert again(batch_size=10) == [False] * 18
    assert sum(again(batch_size=10, fixed_batches=True)) == 2, "the margins of the third round's batch"


def test_what_is_in_the_clear_takes_its_real_time() -> None:
    """The processor's clock goes on during a rehearsal; what is measured meanwhile does not count."""
    now = [0.0]

    def timer() -> float:
        now[0] += 1e-3
        return now[0]

    class Measuring(Costs):
        def seconds(self, operation: Operation) -> float:
            now[0] += 1000.0
            return 0.0

    found = rehearse(Scenario(blind("paillier"), TWO, 19), Measuring(), LAN, timer=timer)
    assert 0.0 < found.done.critical.computation < 5.0


# Nobody takes such a key


@pytest.mark.parametrize("kind", ["rlwe", "paillier"])
def test_a_dry_key_is_refused_when_it_comes_from_a_peer(kind: str) -> None:
    public = DryKeys(kind, 2048, Meter(Costs(), still)).holder().public
    assert len(public.to_bytes()) == len(holder(kind, 0).public.to_bytes())
    with pytest.raises(FormatError, match="not a securefed frame"):
        load_public_key(public.to_bytes())


def test_a_party_does_not_train_with_a_peer_that_has_one() -> None:
    scenario = Scenario(blind("ckks"), TWO, 19)
    recipe, agreement = scenario.recipe, scenario.agreement
    assert isinstance(recipe, LinearRecipe)
    keys = DryKeys("rlwe", 0, Meter(Costs(), still))
    programs = {}
    for place, (name, columns) in enumerate(scenario.columns.items()):
        features = np.random.default_rng(place).normal(size=(19, columns))
        around = (
            Surroundings(keys.holder(), read_key=keys.read_key)
            if name == "shop"
            else Surroundings(holder("rlwe", 0))
        )
        model = recipe.model(name, columns, last=name == "bank", index=place)
        labels = np.ones(19) if name == "bank" else None
        programs[name] = recipe.party(agreement, name, model, features, labels, around).run
    with pytest.raises(FormatError):
        run_local(programs, run="r", kinds=KINDS, network=LAN)


def test_nor_can_one_be_chosen() -> None:
    assert not any("dry" in word for word in (*SCHEMES, *KEY_KINDS))
    with pytest.raises(BadKey):
        generate("dry")
    with pytest.raises(SettingError):
        LinearRecipe(scheme="dry")
    with pytest.raises(SettingError, match="nobody has said"):
        DryKeys("tables", 2048, Meter(Costs(), still))


def test_dry_keys_encrypt_open_and_keep_nothing() -> None:
    made = DryKeys("rlwe", 0, Meter(Costs(), still)).holder()
    with pytest.raises(BadKey):
        made.encrypt([1.0], FixedPoint(1.0))
    with pytest.raises(BadKey):
        made.public.encrypt([1.0], FixedPoint(1.0))
    with pytest.raises(BadKey):
        made._secret.to_bytes()


def test_of_checks_at_random_the_choices_are_sent_and_the_time_is_added() -> None:
    def rehearsed(every: int) -> Rehearsal:
        return dry(Scenario(blind("ckks", check_every=every), TWO, 19), Costs(open=0.5))

    checked, plain = rehearsed(10), rehearsed(0)
    for name, link in plain.done.links.items():
        found = lines(checked.done.links[name])
        rest = [line[:5] for line in found if line[1] not in ("range-choice", "switching-keys")]
        assert rest == [line[:5] for line in lines(link)]
        assert sum(line[1] == "range-choice" for line in found) == 2 * 2 * 2  # sent, taken; arrays; rounds
    assert checked.round.computation - plain.round.computation == pytest.approx(2 * 0.5 / 10)
    assert checked.once.computation == pytest.approx(plain.once.computation)
