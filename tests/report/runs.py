"""Small real runs in one process, from a scenario: what a rehearsal is compared with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from time import perf_counter

import numpy as np

from securefed.assembly.base import TrainingRows
from securefed.crypto import KeyHolder, key_kind, load_public_key
from securefed.plan.rehearsal import Scenario
from securefed.protocols.loop import EvaluationRows, PartyContext
from securefed.protocols.messages import KINDS
from securefed.protocols.scoring.score_ledger import ScoreGuard
from securefed.transport.link import Link, LocalRun, Program, run_local
from securefed.transport.message import Message, get_network
from tests.protocols.federation import FULL_KEYS

UNENCRYPTED = ("public-key", "opening", "verdict", "received")


def holder(kind: str, index: int) -> KeyHolder:
    return FULL_KEYS.holder(kind, index)


class Counted:
    """Every message of a run, and the ciphertexts in it."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.links: dict[str, Link] = {}

    def __call__(self, message: Message) -> Message:
        self.messages.append(message)
        return message

    def bytes(self, round_: int | None, phase: str = "training") -> Counter[tuple[str, str, str]]:
        """By kind, sender and receiver."""
        sizes: Counter[tuple[str, str, str]] = Counter()
        for name, link in self.links.items():
            for entry in link.transcript.of("sent"):
                if entry.phase == phase and round_ in (None, entry.round):
                    sizes[entry.kind, name, entry.peer] += entry.bytes
        return sizes

    def ciphertexts(self, round_: int) -> Counter[str]:
        """As the receivers read them, whatever the bytes; of rounds that open own gradients."""
        publics = {m.sender: load_public_key(m.payload) for m in self.messages if m.kind == "public-key"}
        counts: Counter[str] = Counter()
        for message in self.messages:
            scored = message.kind.startswith("score")
            if message.round != round_ or scored or message.kind in UNENCRYPTED:
                continue
            for public in publics.values():
                if public.key_id == message.payload[56:72] or public.key_id in message.payload[:120]:
                    load = public.load_masked if KINDS[message.kind].protection == "masked" else public.load
                    counts[message.kind] += load(message.payload).ciphertexts
                    break
            else:
                raise AssertionError(f"{message!r} is under no key of this run")
        return counts


def run(
    scenario: Scenario, seed: int = 0, timer: Callable[[], float] = perf_counter
) -> tuple[Counted, LocalRun]:
    """The scenario for real, on random data."""
    rng = np.random.default_rng(seed)
    agreement = scenario.agreement
    kind = key_kind(scenario.settings.scheme, agreement.reveal)
    names, last, rows = agreement.names, agreement.label_party, agreement.batches.rows
    signs = np.where(np.arange(rows) % 2, 1.0, -1.0)
    if scenario.outputs > 1:
        signs = np.outer(signs, np.ones(scenario.outputs))
    holders: Mapping[str, KeyHolder] = {
        name: holder(kind, place)
        for place, name in enumerate(names if agreement.mutual else [scenario.key_holder])
        if kind is not None  # blind runs make keys of their own
    }
    programs: dict[str, Program] = {}
    for name, columns in scenario.columns.items():
        features = rng.normal(size=(rows, columns)).clip(-3, 3)
        targets = signs if name == last else None
        guard = ScoreGuard(party=name, mode="off")
        scored = features[: agreement.holdout or rows]
        seen = EvaluationRows(scored, (lambda scores: 0.5) if name == last else None)
        context = PartyContext(holders.get(name), evaluation=seen, guard=guard)
        data = TrainingRows.whole(features, targets)
        programs[name] = scenario.assembly.program(agreement, name, scenario._model(name), data, context).run
    if not agreement.mutual:
        context = PartyContext(holders.get(scenario.key_holder))
        programs[scenario.key_holder] = scenario.assembly.key_holder(agreement, context).run
    counted = Counted()
    done = run_local(programs, run="r", kinds=KINDS, network=get_network("lan"), timer=timer, tap=counted)
    counted.links = done.links
    return counted, done
