"""What every party does in one round, as a list of steps: work, send, receive. From settings and sizes alone.

A script follows the protocol (docs/protocols.md) message by message: who computes what before it sends which
message, and what it waits for. Counting its messages gives the ciphertexts and bytes of a round, exactly;
giving each piece of work its time and each message its way gives the time of a round
(securefed.measure.plan).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from securefed.crypto import FixedPoint
from securefed.errors import SettingError
from securefed.measure.sizes import Block, Held, PaillierSizes, Sizes, get_sizes
from securefed.protocols.agreement import Agreement, Member
from securefed.protocols.recipe import LinearRecipe
from securefed.protocols.schedules import FedBCD, FedSGD
from securefed.protocols.sides import LinearSide
from securefed.protocols.transfer import TransferSide
from securefed.protocols.transfer_recipe import TransferRecipe

__all__ = ["Receive", "Scenario", "Send", "Step", "Work", "ciphertexts", "scripts", "traffic"]


@dataclass(frozen=True)
class Work:
    """A piece of computation. `operation` names what it costs (securefed.measure.calibration):

    encrypt        `count` values under the own key; the shape of their array
    encrypt-others `count` values under somebody else's key; the shape of their array
    draw           `count` times r**n, to re-randomise
    load           `count` values that arrived; the shape of their array
    add            `count` sums of two ciphertexts
    products       sums of products: (columns, outputs, rows), and the multipliers' bits
    pack           the `count` results of (columns, outputs, rows) products into slots of `bits`
    open, unmask   `count` ciphertexts of masked results; the shape of the products
    contribution, multipliers, gradient, matrix    the party's own model, in the clear
    """

    operation: str
    count: int = 0
    shape: tuple[int, ...] = ()
    bits: int = 0


@dataclass(frozen=True)
class Send:
    receiver: str
    kind: str
    block: Block


@dataclass(frozen=True)
class Receive:
    sender: str
    kind: str


Step = Work | Send | Receive
Script = list[Step]


@dataclass(frozen=True, eq=False)
class Scenario:
    """A run that may come to be: settings, and the columns of each party (label party last)."""

    recipe: LinearRecipe | TransferRecipe
    columns: Mapping[str, int]
    rows: int
    """In common, for training."""
    key_bits: int = 3072
    key_holder: str = "key-holder"
    outputs: int = 1
    """Columns of the labels, in blind runs."""

    @cached_property
    def agreement(self) -> Agreement:
        names = list(self.columns)
        members = []
        for place, (name, columns) in enumerate(self.columns.items()):
            if isinstance(self.recipe, TransferRecipe):
                members.append(Member(name, (columns + 1) * self.recipe.width, False))
            else:
                model = self.recipe.model(name, columns, last=name == names[-1], index=place)
                members.append(Member(name, model.size, model.is_linear))
        if isinstance(self.recipe, LinearRecipe):
            agreement = self.recipe.agreement(tuple(members), self.rows, self.outputs)
        else:
            agreement = self.recipe.agreement(tuple(members), self.rows)
        return replace(agreement, key_holder=None if len(names) == 2 else self.key_holder)

    @property
    def batch(self) -> int:
        return self.agreement.batches.effective_size

    def size(self, name: str) -> int:
        """Numbers of a party's model."""
        return next(m.equations for m in self.agreement.members if m.name == name)

    @property
    def blind(self) -> bool:
        return isinstance(self.recipe, LinearRecipe) and self.recipe.blind

    def fixed(self, name: str) -> FixedPoint:
        """The public range of a party's contributions."""
        rows, labels = np.zeros((self.batch, 1)), name == self.agreement.label_party
        if isinstance(self.recipe, TransferRecipe):
            everybody = np.arange(self.batch)
            layer = self.recipe.layer(1, 0)
            targets = np.ones(self.batch) if labels else None
            side = self.recipe.side(layer, rows, everybody, everybody >= 0, targets)
            return TransferSide.fixed(side)
        model = self.recipe.model(name, 1, last=False, index=0)
        return LinearSide(
            model,
            rows,
            None,
            self.recipe.loss_function,
            l2=self.agreement.l2,
            exact=self.recipe.exact,
            margin_bound=self.recipe.margin_bound,
        ).fixed()

    def with_steps(self, local_steps: int) -> Scenario:
        """The same with another Q."""
        order, proximal = self.recipe.algorithm.order, self.recipe.algorithm.proximal
        chosen: FedBCD | FedSGD = FedBCD(local_steps, order, proximal)
        if local_steps == 1 and order == "parallel":
            chosen = FedSGD(proximal)
        return replace(self, recipe=replace(self.recipe, algorithm=chosen))


def scripts(scenario: Scenario) -> dict[str, Script]:
    """The steps of one round, evaluation aside, for every party."""
    if scenario.blind:
        raise SettingError("workload: a blind run is rehearsed (securefed.measure.rehearsal)")
    own = _OwnGradient(scenario)
    found = {name: list(own.data_party(name)) for name in scenario.agreement.names}
    if not scenario.agreement.mutual:
        found[scenario.key_holder] = list(own.key_holder())
    if scenario.agreement.watched:
        last = scenario.agreement.label_party
        for name in [name for name in found if name != last]:
            found[last].append(Send(name, "verdict", Block(0, 1)))
            found[name].append(Receive(last, "verdict"))
    return found


def traffic(found: Mapping[str, Script]) -> Counter[tuple[str, str, str]]:
    """Bytes by kind, sender and receiver."""
    sizes: Counter[tuple[str, str, str]] = Counter()
    for sender, script in found.items():
        for step in script:
            if isinstance(step, Send):
                sizes[step.kind, sender, step.receiver] += step.block.bytes
    return sizes


def ciphertexts(found: Mapping[str, Script]) -> Counter[str]:
    """Ciphertexts that are sent, by kind; openings are plaintexts and do not count."""
    counts: Counter[str] = Counter()
    for script in found.values():
        for step in script:
            if isinstance(step, Send) and step.kind != "opening":
                counts[step.kind] += step.block.ciphertexts
    return counts


class _OwnGradient:
    """Exchanges and openings (securefed.protocols.training, exchange, openings)."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario, self.agreement = scenario, scenario.agreement
        self.names, self.label = self.agreement.names, self.agreement.label_party
        self.sizes: Sizes = get_sizes(self.agreement.scheme, scenario.key_bits)
        self.holder = None if self.agreement.mutual else scenario.key_holder

    def part(self, name: str) -> Held:
        """A party's own contribution."""
        s = self.scenario
        rows, columns = s.batch, 2 if self.agreement.exact else 1
        if isinstance(s.recipe, TransferRecipe):
            rows, columns = rows + s.recipe.width, s.recipe.width
        return Held(rows, columns, s.fixed(name), arrived=1)

    def held(self, name: str, *, turn: bool) -> Held:
        """What a party computes on: after an exchange of all, or at its turn."""
        others = [other for other in self.names if other != name]
        part = self.part(others[0])
        star = self.agreement.exchange == "star" and not self.agreement.mutual
        if not star or name == self.label:
            return replace(part, arrived=len(others))
        return replace(part, arrived=len(others) - (1 if turn else 0), fresh=1, forwarded=True)

    def opener(self, name: str) -> str:
        return self.holder or next(other for other in self.names if other != name)

    def outputs(self, name: str) -> int:
        """Sums a column that a party opens at a local step."""
        return self.scenario.size(name) // (1 if self.agreement.exact else self.part(name).columns)

    def send_part(self, name: str, receivers: list[str]) -> Iterator[Step]:
        part = self.part(name)
        yield Work("contribution")
        yield Work("encrypt" if self.agreement.mutual else "encrypt-others", part.entries, part.shape)
        block = self.sizes.contribution(part, owner=self.agreement.mutual)
        for receiver in receivers:
            yield Send(receiver, "contribution", block)

    def take_part(self, sender: str, kind: str = "contribution") -> Iterator[Step]:
        yield Receive(sender, kind)
        part = self.part(sender)
        yield Work("load", part.entries, part.shape)

    def data_party(self, me: str) -> Iterator[Step]:
        if self.agreement.algorithm.order == "parallel":
            yield from self.exchange(me)
            yield from self.local_steps(me, self.names, turn=False)
            return
        yield from self.before_turns(me)
        for turn in self.names:
            yield from self.for_turn(me, turn)
            yield from self.local_steps(me, (turn,), turn=True)
            yield from self.after_turn(me, turn)

    def exchange(self, me: str) -> Iterator[Step]:
        others = [name for name in self.names if name != me]
        if self.agreement.mutual or self.agreement.exchange == "pairwise":
            yield from self.send_part(me, others)
            for other in others:
                yield from self.take_part(other)
            yield self.adding(len(others) - 1)
        elif me != self.label:
            yield from self.send_part(me, [self.label])
            yield from self.take_part(self.label, "residual")
        else:
            for other in others:
                yield from self.take_part(other)
            yield from self.send_part(me, [])
            yield self.adding(len(others))
            block = self.sizes.residual(self.part(me))
            for other in others:
                yield Send(other, "residual", block)

    def adding(self, times: int) -> Work:
        part = self.part(self.label)
        return Work("add", max(0, times) * part.entries, part.shape)

    def before_turns(self, me: str) -> Iterator[Step]:
        if self.agreement.mutual:
            return
        waiting = self.names[1:-1]
        for name in waiting:
            yield from self._newest(me, name)
        if self.agreement.exchange == "pairwise":
            yield from self._newest(me, self.label)

    def _newest(self, me: str, name: str) -> Iterator[Step]:
        """A party's contribution to whoever needs it."""
        pairwise = self.agreement.exchange == "pairwise"
        receivers = [other for other in self.names if other != name] if pairwise else [self.label]
        if me == name:
            yield from self.send_part(me, receivers)
        elif me in receivers:
            yield from self.take_part(name)

    def for_turn(self, me: str, turn: str) -> Iterator[Step]:
        if self.agreement.mutual:
            (peer,) = (name for name in self.names if name != turn)
            if me == peer:
                yield from self.send_part(me, [turn])
            else:
                yield from self.take_part(peer)
        elif self.agreement.exchange == "pairwise" or turn == self.label:
            if me == turn:
                yield self.adding(len(self.names) - 2)
        elif me == self.label:
            yield from self.send_part(me, [])
            yield self.adding(len(self.names) - 2)
            yield Send(turn, "residual", self.sizes.residual(self.part(me)))
        elif me == turn:
            yield from self.take_part(self.label, "residual")

    def after_turn(self, me: str, turn: str) -> Iterator[Step]:
        if not self.agreement.mutual and turn != self.label:
            yield from self._newest(me, turn)

    def local_steps(self, me: str, active: tuple[str, ...], *, turn: bool) -> Iterator[Step]:
        agreement = self.agreement
        for step in range(agreement.algorithm.local_steps):
            asks = me in active and agreement.opens_at(me, step)
            if asks:
                yield from self.ask(me, turn=turn)
            if agreement.mutual:
                for peer in active:
                    if peer != me and agreement.opens_at(peer, step):
                        yield from self.serve(peer, turn=turn)
            if asks:
                yield Receive(self.opener(me), "opening")
                held, outputs = self.held(me, turn=turn), self.outputs(me)
                count = self.sizes.opening(held, outputs).ciphertexts
                yield Work("unmask", count, (held.columns, outputs, held.rows))
            if me in active:
                yield Work("gradient")

    def ask(self, me: str, *, turn: bool) -> Iterator[Step]:
        held, outputs = self.held(me, turn=turn), self.outputs(me)
        block, shape = self.sizes.request(held, outputs), (held.columns, outputs, held.rows)
        yield Work("multipliers")
        yield Work("products", shape=shape, bits=24)
        yield Work("pack", outputs * held.columns, shape, self._width(held, outputs))
        yield Work("draw", block.ciphertexts)
        yield Send(self.opener(me), "opening-request", block)

    def _width(self, held: Held, outputs: int) -> int:
        if isinstance(self.sizes, PaillierSizes):
            return self.sizes.layout(held, outputs).width
        return 0

    def serve(self, requester: str, *, turn: bool) -> Iterator[Step]:
        held, outputs = self.held(requester, turn=turn), self.outputs(requester)
        yield Receive(requester, "opening-request")
        count = self.sizes.request(held, outputs).ciphertexts
        yield Work("open", count, (held.columns, outputs, held.rows))
        yield Send(requester, "opening", self.sizes.opening(held, outputs))

    def key_holder(self) -> Iterator[Step]:
        parallel = self.agreement.algorithm.order == "parallel"
        for active in [self.names] if parallel else [(name,) for name in self.names]:
            for step in range(self.agreement.algorithm.local_steps):
                for name in active:
                    if self.agreement.opens_at(name, step):
                        yield from self.serve(name, turn=not parallel)
