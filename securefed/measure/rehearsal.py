"""A run before it is run: the real programs, over keys that encrypt nothing (securefed.measure.dry).

Every party goes through its real rounds on random columns of its size; links, transcripts and clocks are
those of a run in one process. So messages, their order and their bytes are what a run sends, and a round
takes what its parties' clocks say: the time of all that is not encrypted passes (on the processor's clock,
which a busy machine does not stop), and operations on encrypted arrays add what they were measured to take.
"""

from __future__ import annotations

import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from securefed.crypto import key_kind
from securefed.crypto.hidden import PlainMatrix, Range
from securefed.measure.dry import DryKeys
from securefed.measure.meter import Costs, Meter, Operation, ciphertexts_in
from securefed.measure.scenario import Scenario
from securefed.objectives import kit_of
from securefed.protocols.blind_algebra import BlindPlan
from securefed.protocols.blur import ScoreGuard
from securefed.protocols.ledger import LedgerWarning
from securefed.protocols.loop import Evaluation, PartyLoop, Round
from securefed.protocols.messages import KINDS
from securefed.protocols.range_check import SUMS
from securefed.protocols.recipe import Surroundings
from securefed.protocols.schedules import Automatic
from securefed.transport import LocalRun, Message, Network, Path, run_local

__all__ = ["Rehearsal", "rehearse"]

STEADY = 3
"""Rounds that are rehearsed, where each is a new batch or the same one: the last is like all that follow."""
LARGEST = 4.0
"""Of the random columns, which are standardised."""


@dataclass(frozen=True)
class Rehearsal:
    """What the programs did."""

    done: LocalRun
    first_round: int
    last_round: int
    _paths: dict[int, Path]
    """The latest of all clocks at the end of each round."""
    _counts: Counter[tuple[str, str, int]]
    checks: float = 0.0
    """Seconds of a round for checks of what key-holders send back, on average."""

    @property
    def round(self) -> Path:
        """What a round takes once all are under way."""
        found = self._paths[self.last_round].since(self._paths.get(self.last_round - 1, Path()))
        return Path(found.computation + self.checks, found.communication)

    @property
    def once(self) -> Path:
        """What the run takes besides its rounds: keys, the first round's preparations, the end."""
        rounds = self.last_round - self.first_round + 1
        all_, each = self.done.critical, self.round
        checks = rounds * self.checks  # which were not rehearsed
        return Path(
            max(0.0, all_.computation + checks - rounds * each.computation),
            max(0.0, all_.communication - rounds * each.communication),
        )

    def traffic(self, phase: str = "training", round_: int | None = None) -> Counter[tuple[str, str, str]]:
        """Bytes by kind, sender and receiver; of the last round, or of another one."""
        due = self.last_round if phase == "training" and round_ is None else round_
        sizes: Counter[tuple[str, str, str]] = Counter()
        for name, link in self.done.links.items():
            for entry in link.transcript.of("sent"):
                if entry.phase == phase and due in (None, entry.round):
                    sizes[entry.kind, name, entry.peer] += entry.bytes
        return sizes

    @property
    def bytes_once(self) -> int:
        """Before the first round and after the last one."""
        return sum((self.traffic("setup") + self.traffic("release")).values())

    @property
    def ciphertexts(self) -> Counter[str]:
        """That are sent in a round, by kind."""
        counts: Counter[str] = Counter()
        for name, link in self.done.links.items():
            for entry in link.transcript.of("sent"):
                if entry.phase == "training" and entry.round == self.last_round:
                    counts[entry.kind] += self._counts[name, entry.peer, entry.detail["sequence"]]
        return +counts


def rehearse(
    scenario: Scenario,
    costs: Costs,
    network: Network,
    *,
    timer: Callable[[], float] = time.thread_time,
) -> Rehearsal:
    """The last rounds of a run."""
    every = scenario.agreement.check_every
    scenario = replace(scenario, recipe=kit_of(scenario.recipe).rehearsed())
    agreement, recipe = scenario.agreement, scenario.recipe
    meter = Meter(costs, timer)
    keys = DryKeys(key_kind(agreement.scheme, agreement.reveal), scenario.key_bits, meter)
    paths: dict[int, Path] = defaultdict(Path)

    def on_round(done: Round) -> None:
        paths[done.number] = paths[done.number].later(done.link.path)

    programs: dict[str, PartyLoop] = {}
    rng = np.random.default_rng(0)
    bound = min(LARGEST, getattr(recipe, "feature_bound", LARGEST))
    for name, columns in scenario.columns.items():
        last = name == agreement.label_party
        features = rng.normal(size=(scenario.rows, columns)).clip(-bound, bound)
        signs = np.where(rng.random((scenario.rows, scenario.outputs)) < 0.5, 1.0, -1.0)
        around = Surroundings(
            keys.holder() if agreement.mutual else None,
            evaluation=Evaluation(features, (lambda scores: 0.0) if last else None),
            on_round=on_round,
            guard=ScoreGuard(party=name, mode="off"),  # random columns need no protection
            read_key=keys.read_key,
        )
        labels = signs if scenario.outputs > 1 else signs[:, 0]
        programs[name] = scenario.program(name, features, labels if last else None, around)
    if not agreement.mutual:
        around = Surroundings(keys.holder(), on_round=on_round)
        programs[scenario.key_holder] = scenario.key_holder_program(around)
    first = max(0, agreement.stopping.rounds - _due(scenario))
    for each in programs.values():
        each.first_round = first
    counts: Counter[tuple[str, str, int]] = Counter()

    def tap(message: Message) -> Message:
        counts[message.sender, message.receiver, message.sequence] = ciphertexts_in(message.payload)
        return message

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LedgerWarning)
        done = run_local(
            {name: each.run for name, each in programs.items()},
            run="rehearsal",
            kinds=KINDS,
            network=network,
            timer=meter.now,
            tap=tap,
        )
    checks = _check_seconds(scenario, keys.holder().public, costs) / every if every else 0.0
    return Rehearsal(done, first, max(paths), dict(paths), counts, checks)


def _check_seconds(scenario: Scenario, key: Any, costs: Costs) -> float:
    """Checks of a round, if all arrays were checked: of the residuals, and of the most parameters."""
    agreement, seconds = scenario.agreement, 0.0
    outputs, rows = agreement.columns, agreement.batches.effective_size
    most = max(member.equations for member in agreement.members)
    residual_blocks = BlindPlan.residual_blocks(key, agreement)
    for size, blocks in (
        (rows, residual_blocks),
        (most, key.blocks_for(most, rows, rough=agreement.takes_on_trust)),
    ):
        numbers, _ = key.places(size, blocks)
        matrix = PlainMatrix(np.ones((SUMS, numbers)), 0, 1)
        pieces, shape = key.array_ciphertexts((size, 1), blocks), (SUMS, outputs)
        sent = SUMS * outputs if key.scheme.name == "PAILLIER" else key.sum_ciphertexts(shape, Range(0, 1), 0)
        product = Operation("multiply", shape, blocks=pieces, inner=numbers, matrix=matrix)
        others = (Operation(name, shape, sent) for name in ("rerandomise", "load sum", "open"))
        seconds += sum(costs.seconds(operation) for operation in (product, *others))
    return seconds * len(agreement.turns)


def _due(scenario: Scenario) -> int:
    """Rounds until nothing is new any more: with automatic steps of hidden parameters the first has no
    momentum, and matrices are kept, of fixed batches until all of them come again.
    """
    agreement, batches = scenario.agreement, scenario.agreement.batches
    if agreement.reveal != "nothing" or not isinstance(agreement.learning_rate, Automatic):
        return STEADY - 1
    return STEADY - 1 + (-(-batches.rows // batches.effective_size) if batches.fixed else 1)
