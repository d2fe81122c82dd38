"""A rehearsal of a run: the real programs with real keys on random columns.

Links, transcripts and clocks are those of a run in one process. So messages, their order and their bytes
equal those of a run, and the parties' clocks give the time of a round.
"""

from __future__ import annotations

import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import count
from typing import Any

import numpy as np

from securefed.assembly import Assembly, assembly_of
from securefed.assembly.base import Model, TrainingRows
from securefed.crypto import KeyHolder, Mapper, PublicKey, cross_scheme, find_kind, generate, key_kind
from securefed.crypto.blind.interface import CrossScheme
from securefed.crypto.scheme import R, Serial, T
from securefed.crypto.wire import HEADER, Frame, Kind
from securefed.engine.processes import cores
from securefed.protocols.agreement import Agreement
from securefed.protocols.loop import EvaluationRows, PartyContext, PartyLoop, Round
from securefed.protocols.messages import KINDS
from securefed.protocols.own_gradient.ledger import LedgerWarning
from securefed.protocols.schedules import algorithm
from securefed.protocols.scoring.score_ledger import ScoreGuard
from securefed.settings.objectives import ObjectiveSettings
from securefed.transport.link import LocalRun, run_local
from securefed.transport.message import Message, Network, Path

STEADY = 2
"""Rehearsed rounds of own gradients: the last is like all that follow the first."""
LARGEST = 4.0
"""Largest value of the random, standardised columns."""
EFFICIENCY = 0.85
"""Efficiency of a worker process, relative to work in this one."""
LOWEST = -1e6
"""The metric of the first evaluation. Every later one is better, so that no rehearsal stops early."""


@dataclass(frozen=True, eq=False)
class Scenario:
    """A planned run: settings, and the columns of each party (label party last)."""

    settings: ObjectiveSettings
    columns: Mapping[str, int]
    rows: int
    """Common rows, held-out ones included."""
    key_bits: int = 3072
    key_holder: str = "key-holder"
    outputs: int = 1
    """Columns of the labels, in blind runs."""
    holdout_rows: int = 0
    scheme: CrossScheme | None = None
    """The encrypted product of a blind run, instead of the settings' one."""

    @property
    def assembly(self) -> Assembly[Any]:
        return assembly_of(self.settings, self.scheme)

    @cached_property
    def agreement(self) -> Agreement:
        members = tuple(
            self.assembly.member(name, self._model(name), count) for name, count in self.columns.items()
        )
        agreement = self.assembly.agreement(members, self.rows, self.outputs, self.holdout_rows)
        return replace(agreement, key_holder=self.key_holder if len(members) > 2 else None)

    def _model(self, name: str) -> Model:
        place = list(self.columns).index(name)
        last = place == len(self.columns) - 1
        return self.assembly.model(name, self.columns[name], last=last, index=place)

    @property
    def batch(self) -> int:
        """Rows of a round; of a blind run all rows, which only its preparation reads."""
        return self.rows if self.settings.blind else self.agreement.batches.effective_size

    def with_batch(self, size: int) -> Scenario:
        """Return a smaller scenario, with so many rows in a round or, of a blind run, in all."""
        if self.settings.option("batch_size") is None:
            return replace(self, rows=size, holdout_rows=self.holdout_rows * size // self.rows)
        protection = replace(self.settings.protection, batch_size=size)  # type: ignore[call-arg]
        rows = max(size, self.rows * size // self.batch)
        return replace(self, rows=rows, settings=replace(self.settings, protection=protection))

    def with_steps(self, local_steps: int) -> Scenario:
        now = self.settings.algorithm
        chosen = algorithm(local_steps, now.order, now.proximal)
        return replace(self, settings=replace(self.settings, algorithm=chosen))


@dataclass(frozen=True)
class Rehearsal:
    done: LocalRun
    blind: bool
    ciphertexts: Counter[str]
    """Ciphertexts sent in the last round, by kind."""
    _paths: dict[int, Path]
    """The latest of all clocks at the end of each round."""

    @property
    def last_round(self) -> int:
        return max(self._paths)

    @property
    def round(self) -> Path:
        """The cost of a round once all parties are running; the average for a blind run."""
        before = 0 if self.blind and self.last_round > 0 else self.last_round - 1
        spent = self._paths[self.last_round].since(self._paths.get(before, Path()))
        rounds = self.last_round - before
        return Path(max(0.0, spent.computation) / rounds, max(0.0, spent.communication) / rounds)

    @property
    def once(self) -> Path:
        """The cost of the run besides its rounds: keys, preparation, the end."""
        rounds, whole, each = self.last_round + 1, self.done.critical, self.round
        return Path(
            max(0.0, whole.computation - rounds * each.computation),
            max(0.0, whole.communication - rounds * each.communication),
        )

    def traffic(self, phase: str = "training") -> Counter[tuple[str, str, str]]:
        """Return bytes by kind, sender and receiver; in training those of the last round."""
        due = self.last_round if phase == "training" else None
        sizes: Counter[tuple[str, str, str]] = Counter()
        for name, link in self.done.links.items():
            for entry in link.transcript.of("sent"):
                if entry.phase == phase and due in (None, entry.round):
                    sizes[entry.kind, name, entry.peer] += entry.bytes
        return sizes


class CountedWorkers(Serial):
    """A mapper that works in this process, and a clock on which its workers share the pieces."""

    def __init__(self, workers: int, timer: Callable[[], float]) -> None:
        self.workers, self.timer, self._saved = workers, timer, 0.0

    def now(self) -> float:
        return self.timer() - self._saved

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> list[R]:
        pieces, begin = list(items), self.timer()
        done = [function(piece) for piece in pieces]
        processes = min(self.workers, len(pieces), cores())
        if processes > 1:
            self._saved += (self.timer() - begin) * (1.0 - 1.0 / (EFFICIENCY * processes))
        return done


def rehearse(
    scenario: Scenario,
    network: Network,
    *,
    workers: int = 1,
    timer: Callable[[], float] = time.thread_time,
) -> Rehearsal:
    """Run a scenario's programs; of own gradients two rounds.

    `workers`: processes that share the encrypted work. `timer`: the processor's clock ignores other load.
    """
    settings, keys = scenario.assembly.rehearsed(), dict[str, KeyHolder]()
    if scenario.settings.blind:
        scheme = scenario.scheme or cross_scheme(settings.scheme, key_bits=scenario.key_bits)
        scenario = replace(scenario, settings=settings, scheme=scheme)
    else:
        scenario = replace(scenario, settings=replace(settings, rounds=STEADY))
        agreement = scenario.agreement
        kind = key_kind(agreement.scheme, agreement.reveal) or agreement.scheme
        names = agreement.names if agreement.mutual else (scenario.key_holder,)
        keys = {name: _key(kind, scenario.key_bits, place) for place, name in enumerate(names)}
    paths: dict[int, Path] = defaultdict(Path)

    def on_round(done: Round) -> None:
        paths[done.number] = paths[done.number].later(done.link.path)

    mapper, last = CountedWorkers(workers, timer), list[Message]()
    programs = _programs(scenario, keys, mapper, on_round)

    def tap(message: Message) -> Message:
        if message.round == STEADY - 1 and "training" in KINDS[message.kind].phases:
            last.append(message)
        return message

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LedgerWarning)
        done = run_local(
            {name: each.run for name, each in programs.items()},
            run="rehearsal",
            kinds=KINDS,
            network=network,
            timer=mapper.now,
            tap=None if scenario.settings.blind else tap,
        )
    counts = Counter[str]()
    for message in last:
        counts[message.kind] += _ciphertexts(message, [key.public for key in keys.values()])
    return Rehearsal(done, scenario.settings.blind, +counts, dict(paths))


@cache
def _secret(kind: str, key_bits: int, place: int) -> bytes:
    """Make a party's key. Only random columns are encrypted under it."""
    return generate(kind, key_bits=key_bits)._secret.to_bytes()


def _key(kind: str, key_bits: int, place: int) -> KeyHolder:
    """Return a party's key as at the start of a run, without tables of powers."""
    frame, entry = Frame.from_bytes(_secret(kind, key_bits, place), Kind.SECRET_KEY), find_kind(kind)
    return KeyHolder(entry.load(entry.secret).from_frame(frame))


def _ciphertexts(message: Message, keys: Sequence[PublicKey]) -> int:
    protection = KINDS[message.kind].protection
    for key in keys:
        if protection in ("ciphertext", "masked") and key.key_id in message.payload[: HEADER.size]:
            load = key.load_masked if protection == "masked" else key.load
            return load(message.payload).ciphertexts
    return 0


def _programs(
    scenario: Scenario,
    keys: Mapping[str, KeyHolder],
    mapper: Mapper,
    on_round: Callable[[Round], None],
) -> dict[str, PartyLoop]:
    agreement, programs = scenario.agreement, dict[str, PartyLoop]()
    rng, metrics = np.random.default_rng(0), count(LOWEST)
    rows = agreement.batches.rows
    scored_rows = (agreement.holdout or rows) if agreement.scores_rows else 0
    for name, columns in scenario.columns.items():
        last = name == agreement.label_party
        features = rng.normal(size=(rows, columns)).clip(-LARGEST, LARGEST)
        signs = np.where(rng.random((rows, scenario.outputs)) < 0.5, 1.0, -1.0)
        scored = features[np.arange(scored_rows) % rows] if scenario.settings.blind else features
        context = PartyContext(
            keys.get(name),
            mapper,
            evaluation=EvaluationRows(scored, (lambda scores: next(metrics)) if last else None),
            on_round=on_round,
            # Random columns need no protection.
            guard=ScoreGuard(party=name, mode="off", column_bits=0.0 if scenario.settings.blind else None),
        )
        labels = signs if scenario.outputs > 1 else signs[:, 0]
        data = TrainingRows.whole(features, labels if last else None)
        programs[name] = scenario.assembly.program(agreement, name, scenario._model(name), data, context)
    if not agreement.mutual:
        context = PartyContext(keys.get(scenario.key_holder), mapper, on_round=on_round)
        programs[scenario.key_holder] = scenario.assembly.key_holder(agreement, context)
    return programs
