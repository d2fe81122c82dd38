"""The messages of a blind run, one by one, from its agreement alone.

Lengths, places and numbers of all messages follow from public settings (securefed.protocols.blind). So the
audit writes the whole list down and compares. A message that is not on it was not agreed to.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from securefed.crypto.blind.interface import NONCE_BYTES, Product
from securefed.crypto.blind.shares import LIMBS, size_in_bytes
from securefed.protocols.blind import rebase
from securefed.protocols.blind.cross import AHEAD, WINDOW
from securefed.protocols.blind.linear import PREPARE_STEP, RELEASE_STEP
from securefed.protocols.blind.precision import SHARE_BITS
from securefed.protocols.blind.scoring import CHUNK, KEY_STEP, SCORE_STEP, SEAL_STEP, SEALED_ROWS, ScorePlan
from securefed.protocols.blind.statistics import PART_STEP, PassPlan

__all__ = ["Due", "Schedule", "Sizes", "numbers_in"]

QUESTION_BYTES = 32


@dataclass(frozen=True)
class Due:
    """One message that the agreement asks for; `size` is None where the key's size is not known."""

    sender: str
    receiver: str
    kind: str
    phase: str
    round: int
    step: int
    size: int | None

    @property
    def place(self) -> tuple[str, str, str, str, int, int]:
        return self.sender, self.receiver, self.kind, self.phase, self.round, self.step


@dataclass(frozen=True)
class Sizes:
    """Lengths of the messages of one product: blocks of the operand, and the reply."""

    blocks: Callable[[Product], list[int | None]]
    reply: Callable[[Product], int | None]
    key: int | None

    @classmethod
    def of(cls, scheme: str, key_bits: int | None) -> Sizes:
        """`key_bits`: of Paillier's modulus, if the transcripts show it."""
        if scheme == "paillier":
            return cls._paillier(key_bits)
        from securefed.crypto.blind.layout import layout
        from securefed.crypto.blind.rlwe import PUBLIC_BYTES

        def blocks(product: Product) -> list[int | None]:
            plan = layout(product)
            return [plan.block_bytes(last - first) for first, last in plan.blocks()]

        return cls(blocks, lambda product: layout(product).reply_bytes(), PUBLIC_BYTES)

    @classmethod
    def _paillier(cls, key_bits: int | None) -> Sizes:
        from securefed.crypto.blind.paillier import BLOCK_BYTES, Slots

        if key_bits is None:
            return cls(lambda product: [None], lambda product: None, None)
        width, bits = 2 * -(-key_bits // 8), key_bits

        def blocks(product: Product) -> list[int | None]:
            row = Slots.of(product, bits).groups * width
            rows = max(1, BLOCK_BYTES // row)
            starts = range(0, product.inner, rows)
            return [min(rows, product.inner - start) * row for start in starts]

        return cls(blocks, lambda product: Slots.of(product, bits).replies * width, None)


def numbers_in(size: int) -> int:
    """Numbers of 105 bits in a message of shares of that length."""
    return 3 * (size // 8) // LIMBS


class Schedule:
    """All messages of a blind run of the linear objective."""

    def __init__(self, settings: Mapping[str, Any], sizes: Sizes) -> None:
        names = tuple(str(member[0]) for member in settings["parties"])
        columns = tuple(int(member[1]) for member in settings["parties"])
        helper = settings.get("key_holder")
        self._helper = None if helper is None else str(helper)
        self._outputs, self._sizes = int(settings["width"]), sizes
        batches, stopping = str(settings["batches"]), str(settings["stopping"])
        rows, aside, self._until = (
            _field(batches, name) for name in ("rows", "holdout_rows", "holdout_until")
        )
        self.rounds = _field(stopping, "rounds")
        self.watched = "target=None" not in stopping or "patience=None" not in stopping
        self._every, self._holdout = int(settings["evaluate_every"]), int(settings["holdout"])
        self._release, self._warm = bool(settings["release"]), bool(settings.get("warm_start"))
        folds: tuple[int, ...] = (rows - aside, aside) if aside else (rows,)
        systems: tuple[tuple[int, ...], ...] = ((0,), (0, 1)) if aside else ((0,),)
        self._aside, self._scored_rows = aside, self._holdout or rows
        self._pass = PassPlan(
            names, columns, self._helper, rows, folds, systems, self._outputs, 0.0, 0.0, 0.0
        )
        self._scores = ScorePlan(
            names, columns, self._helper, self._outputs, int(settings["score_precision"])
        )
        sequential = settings["order"] != "parallel"
        self._turns = list(columns) if sequential else [sum(columns)]

    def encryptors(self, phase: str) -> set[str]:
        """Who has a key in that phase: parties that encrypt in the pass, else the label party."""
        if phase == "setup":
            helper = {self._helper} if self._warm and self._helper is not None else set()
            return {left for left, _ in self._pass.pairs()} | helper
        return {self._pass.label_party}

    def training(self, rounds: int, *, broken: bool = False) -> Iterator[Due]:
        """A run that went on for so many rounds.

        `broken`: in several attempts. Each has a scoring key of its own, so one may be new at any scoring.
        """
        yield from self._setup()
        introduced = False
        for t in range(rounds):
            yield from self._round(t)
            if self._evaluates(t):
                yield from self._scoring("evaluation", t, self._scored_rows, introduced, seal=True)
                introduced = not broken
            if self.watched:
                for name in self._scores.multipliers():
                    yield Due(self._pass.label_party, name, "verdict", "training", t, 0, 1)
        yield from self._scoring("release", self.rounds, 0, introduced, seal=True)
        if self._release:
            label_party, second = self._pass.holders
            for name in self._pass.names:
                sender = second if name == label_party else label_party
                size = self._numbers(self._pass.size(name) * self._outputs)
                yield Due(sender, name, "released", "release", self.rounds, RELEASE_STEP, size)

    def prediction(self, rows: int) -> Iterator[Due]:
        """Scores of so many rows by a model at rest."""
        yield from self._scoring("prediction", 0, rows, True, seal=False)

    def _evaluates(self, t: int) -> bool:
        last = self._holdout > 0 and t + 1 == (self._until if self._aside else self.rounds)
        return last or (self._every > 0 and (t + 1) % self._every == 0)

    @staticmethod
    def _numbers(count: int) -> int:
        return size_in_bytes(LIMBS * count, 1)

    def _key(self, owner: str, peer: str, phase: str, round_: int, step: int) -> Iterator[Due]:
        yield Due(peer, owner, "nonce", phase, round_, step, NONCE_BYTES)
        yield Due(owner, peer, "cross-key", phase, round_, step, self._sizes.key)

    def _operand(
        self, owner: str, peer: str, product: Product, phase: str, round_: int, step: int
    ) -> Iterator[Due]:
        blocks = self._sizes.blocks(product)
        for size in blocks:
            yield Due(owner, peer, "operand", phase, round_, step, size)

    def _product(
        self, owner: str, peer: str, product: Product, phase: str, round_: int, step: int
    ) -> Iterator[Due]:
        yield from self._operand(owner, peer, product, phase, round_, step)
        windows = -(-len(self._sizes.blocks(product)) // WINDOW)
        for _ in range(windows if windows > AHEAD else 0):
            yield Due(peer, owner, "received", phase, round_, step, 1)
        yield Due(peer, owner, "reply", phase, round_, step, self._sizes.reply(product))

    def _setup(self) -> Iterator[Due]:
        plan = self._pass
        if self._warm:
            yield from self._turned()
        for owner, peer in plan.pairs():
            yield from self._key(owner, peer, "setup", 0, KEY_STEP)
            for fold in range(len(plan.folds)):
                product = plan.product(owner, peer, fold)
                yield from self._product(owner, peer, product, "setup", 0, PART_STEP + 1 + fold)
        label_party, second = plan.holders
        if plan.helper is not None:
            yield from self._parts()
        yield from self._key(label_party, second, "setup", 0, PREPARE_STEP)
        for rows, counts in self._groups():
            inner, count = plan.columns * len(counts), sum(counts)
            forth = Product(inner, count, rows, right_bits=SHARE_BITS)
            back = Product(inner, rows, count, SHARE_BITS)
            for product in (forth, back):
                yield from self._product(label_party, second, product, "setup", 0, PREPARE_STEP)

    def _groups(self) -> list[tuple[int, list[int]]]:
        """Matrices that are prepared together: their rows, and the random columns of each."""
        systems = [self._system(t) for t in range(self.rounds)]
        found: list[tuple[int, list[int]]] = []
        for system in dict.fromkeys(systems):
            for rows in self._turns:
                count = systems.count(system) * self._outputs
                if found and found[-1][0] == rows:
                    found[-1][1].append(count)
                else:
                    found.append((rows, [count]))
        return found

    def _turned(self) -> Iterator[Due]:
        """A warm start: the model of an earlier run, in the basis of this one."""
        plan, outputs = self._pass, self._outputs
        label_party, second = plan.holders
        others = plan.names[:-1]
        helped = [(rebase.STEP, label_party, others)]
        if plan.helper is not None:
            helped.append((rebase.STEP + 3, plan.helper, others))
        for step, owner, peers in helped:
            more = [second] if owner == label_party and second not in others else []
            for name in (*peers, *more):
                yield from self._key(owner, name, "setup", 0, step)
            for name in peers:
                size = plan.size(name)
                product = Product(size, outputs, size, right_bits=rebase.TURN_BITS)
                yield from self._product(owner, name, product, "setup", 0, step + 1)
                if name not in plan.holders:
                    holder = second if owner == label_party else label_party
                    yield Due(name, holder, "part", "setup", 0, step + 1, self._numbers(size * outputs))
        size = plan.size(label_party)
        product = Product(size, size, outputs, rebase.TURN_BITS)
        yield from self._product(label_party, second, product, "setup", 0, rebase.STEP + 2)

    def _system(self, t: int) -> int:
        return int(self._aside > 0 and t >= self._until)

    def _parts(self) -> Iterator[Due]:
        plan = self._pass
        label_party, helper = plan.holders

        def part(sender: str, receiver: str, count: int) -> Due:
            return Due(sender, receiver, "part", "setup", 0, PART_STEP, self._numbers(count))

        for name in plan.names[:-1]:
            for _ in plan.systems:
                for holder in plan.holders:
                    yield part(name, holder, plan.size(name) ** 2)
            for pair in plan.pairs():
                if name not in pair:
                    continue
                for fold in range(len(plan.folds)):
                    product = plan.product(*pair, fold)
                    for holder in (helper,) if pair[0] == label_party else plan.holders:
                        yield part(name, holder, product.left * product.right)

    def _round(self, t: int) -> Iterator[Due]:
        plan = self._pass
        label_party, second = plan.holders
        size = self._numbers(plan.columns * self._outputs)
        for turn in range(len(self._turns)):
            yield Due(label_party, second, "difference", "training", t, turn, size)
            yield Due(second, label_party, "difference", "training", t, turn, size)
        for name in plan.names:
            if name not in plan.holders:
                yield Due(label_party, name, "progress", "training", t, 0, 1)

    def _scoring(self, phase: str, t: int, rows: int, introduced: bool, *, seal: bool) -> Iterator[Due]:
        plan = self._scores
        label_party, second, helper = plan.label_party, plan.second, plan.helper
        if not introduced:
            for name in plan.multipliers():
                yield from self._key(label_party, name, phase, t, KEY_STEP)
        for name in plan.names[:-1] if seal else ():
            yield from self._operand(label_party, name, plan.sealed_product(name), phase, t, SEAL_STEP)
            if helper is not None:
                size = self._numbers(plan.size(name) * plan.outputs)
                yield Due(helper, name, "model-share", phase, t, SEAL_STEP, size)
        for chunk, start in enumerate(range(0, rows, CHUNK)):
            step, count = SCORE_STEP + chunk, min(CHUNK, rows - start)
            product, told = plan.rows_product(count), self._numbers(count * plan.outputs)
            yield from self._operand(label_party, second, product, phase, t, step)
            yield Due(second, label_party, "reply", phase, t, step, self._sizes.reply(product))
            yield Due(second, label_party, "score", phase, t, step, told)
            for name in plan.names[:-1]:
                if helper is not None:
                    yield Due(helper, name, "question", phase, t, step, QUESTION_BYTES)
                    yield Due(name, helper, "score-share", phase, t, step, told)
                sealed = self._sizes.reply(plan.sealed_product(name))
                for _ in range(0, count, SEALED_ROWS):
                    yield Due(name, label_party, "reply", phase, t, step, sealed)


def _field(text: str, name: str) -> int:
    """A number from the words of a setting."""
    found = re.search(rf"\b{name}=(\d+)", text)
    return int(found.group(1)) if found else 0
