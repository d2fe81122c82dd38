"""The most bytes of a message of each kind: no honest message has more, and no larger one is read."""

from __future__ import annotations

import resource
import time
import warnings
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from securefed import Blind, FedBCD, GeneralisedLinear, Monitoring, OwnGradient, Party, Plain, TransferLearner
from securefed.assembly import LinearAssembly
from securefed.crypto import cross_lengths
from securefed.process.attempts import ALL_KINDS
from securefed.process.message_sizes import SIZES, prediction_sizes, training_sizes
from securefed.protocols.agreement import Agreement, Member
from securefed.protocols.blind.correlations import prepared_products
from securefed.protocols.blind.linear import pass_plan, round_products
from securefed.protocols.blind.scoring import CHUNK, ModelPart, ScorePlan
from securefed.protocols.messages import KINDS, fixed_sizes
from securefed.settings import LinearSettings
from securefed.transport.link import Link
from securefed.transport.message import LimitExceeded, OutOfOrder
from securefed.transport.network.run import NetworkLink
from tests.transport.network import FAILED, IDENTITIES, Puppet, Town, refusal

PIECE = 1 << 16


def people(parties: int, classes: int = 2, rows: int = 120) -> list[Party]:
    random = np.random.default_rng(0)
    columns = [random.normal(size=(rows, 3)) for _ in range(parties)]
    labels = (sum(each[:, 0] for each in columns) * 2).astype(int) % classes
    names = [f"p{number}" for number in range(parties)]
    return [
        Party(name, own, labels=labels if name == names[-1] else None)
        for name, own in zip(names, columns, strict=True)
    ]


def shared_people(rows: int = 40) -> list[Party]:
    random = np.random.default_rng(0)
    ids = np.arange(rows)
    features = random.normal(size=(rows, 6))
    labels = (features[:, 0] > 0).astype(int)
    return [Party("b", features[:, 3:], ids=ids), Party("a", features[:, :3], labels=labels, ids=ids)]


SMALL = {"rounds": 3, "monitoring": Monitoring(evaluate_every=2)}
RUNS: dict[str, Any] = {
    "blind, two": lambda: GeneralisedLinear(**SMALL).fit(people(2)),
    "blind, three": lambda: GeneralisedLinear(**SMALL).fit(people(3)),
    "blind, in turns": lambda: GeneralisedLinear(
        algorithm=FedBCD(2, order="sequential"), refit=False, **SMALL
    ).fit(people(3)),
    "blind, classes": lambda: GeneralisedLinear(**SMALL).fit(people(2, classes=4)),
    "blind, release": lambda: GeneralisedLinear(protection=Blind(release="trusted"), **SMALL).fit(people(3)),
    "blind, Paillier": lambda: GeneralisedLinear(
        protection=Blind(scheme="paillier", key_bits=2048), rounds=2, holdout=0.1
    ).fit(people(2, rows=30)),
    "own gradients, two": lambda: GeneralisedLinear(
        protection=OwnGradient(allow_determined=True), **SMALL
    ).fit(people(2)),
    "own gradients, three": lambda: GeneralisedLinear(
        protection=OwnGradient(allow_determined=True, batch_size=32), **SMALL
    ).fit(people(3)),
    "own gradients, a network": lambda: GeneralisedLinear(
        protection=OwnGradient(local_model="network", hidden=(4,), allow_determined=True),
        algorithm=FedBCD(1),
        learning_rate=0.1,
        **SMALL,
    ).fit(people(2)),
    "own gradients, Paillier": lambda: GeneralisedLinear(
        protection=OwnGradient(scheme="paillier", key_bits=2048, allow_determined=True), rounds=1, holdout=0.1
    ).fit(people(2, rows=30)),
    "plain": lambda: GeneralisedLinear(protection=Plain(allow_determined=True), **SMALL).fit(people(3)),
    "transfer, blind": lambda: TransferLearner(rounds=2, holdout=0.2).fit(shared_people()),
    "transfer, own gradients": lambda: TransferLearner(
        4, rounds=2, holdout=0.2, protection=OwnGradient(allow_determined=True)
    ).fit(shared_people()),
}
SLOW = ("Paillier", "network")


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=[pytest.mark.slow] * any(word in case for word in SLOW)) for case in RUNS],
)
def test_no_honest_message_is_larger(case: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = RUNS[case]()
    result = model.result_
    sizes = training_sizes(result.agreement, 2048)
    largest: dict[str, int] = {}
    for transcript in result.transcripts.values():
        for entry in transcript.of("sent"):
            largest[entry.kind] = max(largest.get(entry.kind, 0), entry.bytes)
    assert largest
    assert {kind: size for kind, size in largest.items() if size > sizes[kind]} == {}
    if result.agreement.reveal == "nothing":  # blind: exactly
        assert {kind: sizes[kind] for kind in largest} == largest
    assert all(sizes[kind] == 0 for kind in sizes.keys() - largest.keys() - fixed_sizes().keys() - LATER)


def test_a_run_that_goes_on_may_have_larger_replies_than_a_whole_one() -> None:
    """Products for the last two rounds of these columns are laid out in another way."""
    rounds, lengths = 12, cross_lengths("ckks", 0)
    assembly = LinearAssembly(LinearSettings(rounds=rounds, refit=False))
    agreement = assembly.agreement((Member("shop", 2, True), Member("bank", 3, True)), 48, holdout=10)
    plan, whole, larger = pass_plan(agreement), training_sizes(agreement, 0)["reply"], 0
    for first in range(rounds):
        most = training_sizes(agreement, 0, first)["reply"]
        for product in prepared_products(round_products(agreement, plan, range(first, rounds))):
            assert lengths.reply(product) <= most
            larger += lengths.reply(product) > whole
    assert larger > 0  # else this test would not see it


def test_fewer_rows_may_be_scored_by_larger_messages() -> None:
    """Ten outputs of few columns: 685 to 796 rows at once take more ciphertexts than 1,024."""
    lengths, assembly = cross_lengths("ckks", 0), LinearAssembly(LinearSettings(rounds=6, refit=False))
    agreement = assembly.agreement((Member("shop", 1, True), Member("bank", 2, True)), 2000, 10, holdout=400)
    plan, larger = ScorePlan.of(agreement, (1, 2)), 0
    sizes = prediction_sizes(agreement, 0, ModelPart(plan, {}), 700)
    for rows in range(1, CHUNK + 1):
        product, whole = plan.rows_product(rows), plan.rows_product(CHUNK)
        assert lengths.reply(product) <= sizes["reply"]
        most = [max(lengths.block(p, b - a) for a, b in lengths.blocks(p)) for p in (product, whole)]
        assert most[0] <= sizes["operand"]
        larger += most[0] > most[1]
    assert larger > 0  # else this test would not see it


LATER = {kind for kind in KINDS if kind.startswith(("score", "opening"))} | {
    "residual",
    "public-key",
    "contribution",
}
"""Kinds of own gradients that a run of a certain form does not send."""


def agreed() -> Agreement:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        agreement: Agreement = RUNS["blind, three"]().result_.agreement
    return agreement


@pytest.fixture(scope="module")
def sizes() -> dict[str, int]:
    return {**{kind: size for kind, size in SIZES.items() if size is not None}, **training_sizes(agreed(), 0)}


def memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def attack(
    kind: str, size: int, sizes: dict[str, int], pulled: list[int]
) -> tuple[str, BaseException | None]:
    """A peer with a good certificate sends a message of that size; what it hears, and how the run ended."""

    async def waits(link: Link) -> None:
        assert isinstance(link, NetworkLink)
        time.sleep(0.05)  # the message is there before the agreement is
        link.bound(sizes)
        await link.receive(kind, "shop")

    town = Town("bank", "shop")
    bank = town.start("bank", waits, kinds=ALL_KINDS, sizes=SIZES)
    with Puppet("bank", town.addresses["bank"], IDENTITIES["shop"]) as shop:
        shop.join()
        with pytest.raises(FAILED) as refused:
            for offset in range(0, size, PIECE):
                taken = False
                while not taken:  # without room, it waits for the agreement
                    pulled.append(PIECE)
                    taken = shop.send(0, bytes(PIECE), size=size, offset=offset, kind=kind, round=0).room
        assert refusal(refused.value) == "LimitExceeded"
        return str(refused.value).removeprefix("bank refused: "), bank.exception(20)


@pytest.mark.parametrize("kind", sorted(ALL_KINDS))
def test_one_byte_more_is_refused_before_it_is_read(kind: str, sizes: dict[str, int]) -> None:
    most = sizes[kind]
    pulled: list[int] = []
    before = memory()
    said, ended = attack(kind, most + 1, sizes, pulled)
    line = f"shop sent {kind!r} of {most + 1} bytes, at most {most} are allowed"
    assert said == line
    assert isinstance(ended, LimitExceeded) and str(ended) == line
    assert memory() - before < 32 << 20


def test_a_huge_message_waits_outside_and_is_refused(sizes: dict[str, int]) -> None:
    """900 MB where the agreement asks for 16."""
    pulled: list[int] = []
    before = memory()
    said, _ = attack("operand", 900_000_000, sizes, pulled)
    assert said.startswith("shop sent 'operand' of 900000000 bytes, at most ")
    assert sum(pulled) < 32 << 20
    assert memory() - before < 64 << 20


def test_every_kind_has_a_bound(sizes: dict[str, int]) -> None:
    assert set(sizes) == set(ALL_KINDS) and set(KINDS) < set(sizes)
    assert max(sizes.values()) < 32 << 20


def test_a_message_before_its_size_is_agreed_ends_the_run() -> None:
    """The program waits for another message of this peer, so nothing would ever bound this one."""

    async def waits(link: Link) -> None:
        await link.receive("aligned", "shop")

    town = Town("bank", "shop")
    bank = town.start("bank", waits, kinds=ALL_KINDS, sizes=SIZES)
    with Puppet("bank", town.addresses["bank"], IDENTITIES["shop"]) as shop:
        shop.join()
        with suppress(*FAILED):  # it may hear of the end of the run first
            shop.send(0, b"x", kind="operand", round=0)
        ended = bank.exception(20)
    assert isinstance(ended, OutOfOrder)
    assert str(ended) == "shop sent 'operand' too early, before its size is agreed"
