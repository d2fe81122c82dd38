"""Runs of the protocols in one process: who takes part, with which keys, over which data.

Nothing here computes what a test checks; the oracles are in reference.py and error_bounds.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from securefed.crypto import KeyHolder, Mapper, generate, load_public_key
from securefed.models import HiddenLayer, LinearModel, LocalModel, NetworkModel
from securefed.protocols import channel
from securefed.protocols.agreement import Agreement, Member
from securefed.protocols.loop import EvaluationRows, PartyContext
from securefed.protocols.losses import get_loss
from securefed.protocols.messages import KINDS
from securefed.protocols.own_gradient.sides import LinearSide, Side, TransferSide
from securefed.protocols.own_gradient.training import DataParty, KeyHolderParty
from securefed.protocols.schedules import Algorithm, Batches, Constant, FedSGD, LearningRate, Stopping
from securefed.protocols.scoring.score_ledger import ScoreGuard
from securefed.protocols.steps import SGD, Optimiser
from securefed.transport.link import LocalRun, run_local
from securefed.transport.message import Message, get_network

Array = NDArray[np.float64]
KEY_HOLDER = "C"
MUCH = 1e6
"""Bits that columns hold, so that a score ledger of few small columns does not refuse."""
RUN = "run-1"


class Keys:
    """Key pairs that are made when first asked for and kept: a 2048-bit Paillier key takes about a second.

    `bits` is the size of Paillier's. Operations with 1024 bits take a sixth of the time, by the same code.
    """

    def __init__(self, bits: int = 1024) -> None:
        self.bits = bits
        self._made: dict[tuple[str, int, int], KeyHolder] = {}

    def holder(self, scheme: str, index: int = 0, *, bits: int | None = None) -> KeyHolder:
        """A key-holder without a past, with the key of that number."""
        bits = bits or self.bits
        place = (scheme, index, bits if scheme == "paillier" else 0)
        if place not in self._made:
            self._made[place] = generate(scheme, key_bits=bits, allow_small=True)
        return KeyHolder(self._made[place]._secret)


KEYS = Keys()
"""For the whole session; a fixture gives them too, which Hypothesis and tables cannot take."""

FULL_KEYS = Keys(2048)
"""Where the size is a part of the matter: audits, attacks, estimators."""

READ_ANY = partial(load_public_key, allow_small=True)


@dataclass
class Federation:
    """The parties of one run, before it."""

    agreement: Agreement
    sides: dict[str, Any]
    holders: dict[str, KeyHolder]
    optimisers: dict[str, Optimiser]
    evaluations: dict[str, EvaluationRows] = field(default_factory=dict)
    mapper: Mapper | None = None
    on_round: dict[str, Any] = field(default_factory=dict)
    read_key: Any = READ_ANY

    def parties(self) -> dict[str, DataParty | KeyHolderParty]:
        made: dict[str, DataParty | KeyHolderParty] = {
            name: DataParty(
                self.agreement,
                side,
                self.optimisers[name],
                PartyContext(
                    self.holders.get(name),
                    self.mapper,
                    self.evaluations.get(name),
                    self.on_round.get(name),
                    ScoreGuard(party=name, column_bits=MUCH),
                ),
            )
            for name, side in self.sides.items()
        }
        if self.agreement.key_holder is not None:
            holder = self.holders[self.agreement.key_holder]
            made[self.agreement.key_holder] = KeyHolderParty(
                self.agreement, PartyContext(holder, self.mapper)
            )
        return made

    def run(self, **options: Any) -> LocalRun:
        return run_parties(self.parties(), self.read_key, **options)

    @property
    def parameters(self) -> dict[str, Array]:
        return {name: side.parameters for name, side in self.sides.items()}

    @property
    def flat(self) -> Array:
        return np.concatenate([side.parameters for side in self.sides.values()])


def run_parties(
    parties: Mapping[str, DataParty | KeyHolderParty], read_key: Any = READ_ANY, **options: Any
) -> LocalRun:
    settings = {"run": RUN, "kinds": KINDS, "network": get_network("lan"), **options}
    with patch.object(channel, "load_public_key", read_key):
        return run_local({name: party.run for name, party in parties.items()}, **settings)


def blobs(rows: int, columns: int, seed: int = 0) -> tuple[Array, Array]:
    """Columns and labels in -1, +1 that a linear model can half explain."""
    generator = np.random.default_rng(seed)
    features = generator.normal(size=(rows, columns))
    margins = features @ generator.normal(size=columns) + 0.5 * generator.normal(size=rows)
    labels = np.where(margins > np.median(margins), 1.0, -1.0)
    return features, labels


def split(features: Array, parties: int) -> list[Array]:
    """The columns in as many blocks, as even as it goes."""
    return [np.ascontiguousarray(block) for block in np.array_split(features, parties, axis=1)]


def linear(
    blocks: Sequence[Array],
    labels: Array,
    keys: Keys,
    *,
    scheme: str = "plain",
    bits: int | None = None,
    algorithm: Algorithm | None = None,
    rate: LearningRate | None = None,
    rounds: int = 3,
    batch: int | None = None,
    seed: int = 1,
    loss: str = "logistic",
    l2: float = 0.0,
    exact: bool = False,
    exchange: Any = "star",
    local: str = "linear",
    hidden: tuple[int, ...] = (3,),
    bias: bool = False,
    optimiser: Optimiser | None = None,
    target: float | None = None,
    patience: int | None = None,
    evaluate_every: int = 0,
    evaluations: Mapping[str, EvaluationRows] | None = None,
    allow_determined: bool = True,
    margin_bound: float = 16.0,
    score_precision: int = 10,
) -> Federation:
    """The generalised linear objective: parties p0, p1, ...; the last has the labels."""
    names = [f"p{k}" for k in range(len(blocks))]
    last = names[-1]

    def model(k: int) -> LocalModel:
        columns = blocks[k].shape[1]
        if local == "network":
            return NetworkModel(columns, hidden, "tanh", seed=10 + k)
        return LinearModel(columns, bias=bias and k == len(blocks) - 1)

    sides = {
        name: LinearSide(
            model(k),
            blocks[k],
            labels if name == last else None,
            get_loss(loss),
            l2=l2,
            exact=exact,
            margin_bound=margin_bound,
        )
        for k, name in enumerate(names)
    }
    mutual = len(blocks) == 2
    agreement = Agreement(
        "linear",
        scheme,
        _members(sides),
        algorithm or FedSGD(),
        rate or Constant(0.5),
        Batches(len(labels), batch, seed),
        Stopping(rounds, target, patience),
        exchange=exchange,
        key_holder=None if mutual else KEY_HOLDER,
        evaluate_every=evaluate_every,
        exact=exact,
        allow_determined=allow_determined,
        score_precision=score_precision,
    )
    owners = names if mutual else [KEY_HOLDER]
    holders = {name: keys.holder(scheme, index, bits=bits) for index, name in enumerate(owners)}
    fresh = optimiser or SGD()
    optimisers = {name: fresh.clone() for name in names}
    return Federation(agreement, dict(sides), holders, optimisers, dict(evaluations or {}))


@dataclass(frozen=True)
class Shared:
    """Data of the transfer objective: A's and B's columns, who is shared, and who of A's rows has a label."""

    a: Array
    b: Array
    rows_a: NDArray[np.intp]
    rows_b: NDArray[np.intp]
    labels: Array
    """A's, NaN where unknown."""

    @property
    def labelled(self) -> NDArray[np.bool_]:
        return ~np.isnan(self.labels[self.rows_a])


def shared_people(
    n: int = 9,
    more_a: int = 4,
    more_b: int = 2,
    d_a: int = 3,
    d_b: int = 2,
    unlabelled: int = 2,
    seed: int = 0,
) -> Shared:
    """n people in common, in different order at the two parties; `unlabelled` of them have no label at A."""
    generator = np.random.default_rng(seed)
    rows_a = generator.permutation(n + more_a)[:n]
    rows_b = generator.permutation(n + more_b)[:n]
    a, b = generator.normal(size=(n + more_a, d_a)), generator.normal(size=(n + more_b, d_b))
    labels = np.where(generator.normal(size=n + more_a) + a[:, 0] > 0, 1.0, -1.0)
    labels[rows_a[0]], labels[rows_a[1]] = 1.0, -1.0
    labels[rows_a[2 : 2 + unlabelled]] = np.nan
    return Shared(a, b, rows_a.astype(np.intp), rows_b.astype(np.intp), labels)


def transfer(
    people: Shared,
    keys: Keys,
    *,
    scheme: str = "plain",
    bits: int | None = None,
    width: int = 3,
    activation: str = "tanh",
    gamma: float = 0.05,
    l2: float = 0.01,
    activation_bound: float = 16.0,
    algorithm: Algorithm | None = None,
    rate: LearningRate | None = None,
    rounds: int = 3,
    batch: int | None = None,
    seed: int = 1,
    optimiser: Optimiser | None = None,
    target: float | None = None,
    patience: int | None = None,
    evaluate_every: int = 0,
    evaluations: Mapping[str, EvaluationRows] | None = None,
    allow_determined: bool = True,
) -> Federation:
    """The transfer objective: B without labels, then A with them."""

    def side(features: Array, rows: NDArray[np.intp], labels: Array | None, start: int) -> TransferSide:
        layer = HiddenLayer(features.shape[1], width, activation, seed=start)
        return TransferSide(
            layer,
            features,
            rows,
            people.labelled,
            labels,
            gamma=gamma,
            l2=l2,
            activation_bound=activation_bound,
        )

    sides = {
        "B": side(people.b, people.rows_b, None, 21),
        "A": side(people.a, people.rows_a, people.labels, 22),
    }
    agreement = Agreement(
        "transfer",
        scheme,
        _members(sides),
        algorithm or FedSGD(),
        rate or Constant(0.5),
        Batches(len(people.rows_a), batch, seed),
        Stopping(rounds, target, patience),
        width=width,
        evaluate_every=evaluate_every,
        allow_determined=allow_determined,
    )
    holders = {name: keys.holder(scheme, index, bits=bits) for index, name in enumerate(sides)}
    fresh = optimiser or SGD()
    return Federation(
        agreement, dict(sides), holders, {name: fresh.clone() for name in sides}, dict(evaluations or {})
    )


def _members(sides: Mapping[str, Side]) -> tuple[Member, ...]:
    return tuple(Member(name, side.equations, side.is_linear) for name, side in sides.items())


class Recorder:
    """A tap that keeps every message and changes none."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def __call__(self, message: Message) -> Message:
        self.messages.append(message)
        return message

    def of(self, kind: str) -> list[Message]:
        return [message for message in self.messages if message.kind == kind]


def replaced(agreement: Agreement, **changes: Any) -> Agreement:
    """The same agreement but for these."""
    return dataclasses.replace(agreement, **changes)
