"""Small runs of every protocol, recorded: what the claims and their mutation tests look at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np

from securefed.audit import AuditReport, audit
from securefed.crypto import key_kind
from securefed.protocols.agreement import Agreement, Member
from securefed.protocols.blind import BlindKeyHolder, BlindParty
from securefed.protocols.blind_algebra import BlindPlan
from securefed.protocols.blur import ScoreGuard
from securefed.protocols.losses import get_loss
from securefed.protocols.messages import KINDS
from securefed.protocols.recipe import Surroundings
from securefed.protocols.schedules import Algorithm, Batches, Constant, FedBCD, FedSGD, Stopping
from securefed.protocols.training import Evaluation
from securefed.protocols.transfer_recipe import TransferRecipe
from securefed.result import RunResult
from securefed.transport import Program, Transcript, get_network, run_local
from tests.protocols.federation import (
    KEYS,
    MUCH,
    Federation,
    Keys,
    blobs,
    linear,
    shared_people,
    split,
    transfer,
)

__all__ = ["ALGORITHMS", "PROTOCOLS", "Made", "blind", "keys", "record", "report"]

ALGORITHMS: dict[str, Algorithm] = {
    "FedSGD": FedSGD(),
    "FedBCD-p": FedBCD(2),
    "FedBCD-s": FedBCD(2, "sequential"),
}
ROWS, BATCH, ROUNDS = 24, 12, 2


def keys() -> Keys:
    return KEYS


class Made:
    """A run before it starts: its agreement and a program for each party."""

    def __init__(self, agreement: Agreement, programs: dict[str, Program], sides: dict[str, Any]) -> None:
        self.agreement, self.programs, self.sides = agreement, programs, sides

    def run(self, **options: Any) -> tuple[dict[str, Transcript], dict[str, Any]]:
        """The transcripts, and the result as result.json has it."""
        settings = {"run": "run-1", "kinds": KINDS, "network": get_network("lan"), **options}
        done = run_local(self.programs, **settings)
        result = RunResult.of(self.agreement, done)
        return result.transcripts, result.to_dict()


def mean(scores: Any) -> float:
    return float(np.mean(scores))


def _made(federation: Federation) -> Made:
    programs = {name: party.run for name, party in federation.parties().items()}
    return Made(federation.agreement, programs, federation.sides)


def generalised(parties: int, exchange: str, local: str) -> Callable[[str, Algorithm], Made]:
    def make(scheme: str, algorithm: Algorithm, **changes: Any) -> Made:
        features, labels = blobs(ROWS, 2 * parties, changes.pop("data", 0))
        blocks = split(features, parties)
        names = [f"p{k}" for k in range(parties)]
        evaluations = {
            name: Evaluation(block[:6], mean if name == names[-1] else None)
            for name, block in zip(names, blocks, strict=True)
        }
        settings = {
            "rounds": ROUNDS,
            "batch": BATCH,
            "evaluate_every": 2,
            "patience": 5,
            "evaluations": evaluations,
            "allow_determined": False,
            "hidden": (1,),
            **changes,
        }
        return _made(
            linear(
                blocks,
                labels,
                keys(),
                scheme=scheme,
                algorithm=algorithm,
                exchange=exchange,
                local=local,
                **settings,
            )
        )

    return make


def transferred(scheme: str, algorithm: Algorithm, **changes: Any) -> Made:
    people = shared_people(n=10, seed=changes.pop("data", 0))
    rows = people.b[people.rows_b][:5]
    evaluations = {"A": Evaluation(None, mean), "B": Evaluation(rows)}
    settings = {"rounds": ROUNDS, "width": 2, "evaluate_every": 2, "allow_determined": False, **changes}
    return _made(
        transfer(people, keys(), scheme=scheme, algorithm=algorithm, evaluations=evaluations, **settings)
    )


def blind(parties: int, release: bool = False) -> Callable[[str, Algorithm], Made]:
    def make(scheme: str, algorithm: Algorithm, **changes: Any) -> Made:
        features, labels = blobs(ROWS, 2 * parties, changes.pop("data", 0))
        blocks = split(features, parties)
        names = [f"p{k}" for k in range(parties)]
        loss = get_loss("logistic")
        members = tuple(Member(name, block.shape[1], True) for name, block in zip(names, blocks, strict=True))
        mutual = parties == 2
        agreement = replace(
            Agreement(
                "linear",
                scheme,
                members,
                algorithm,
                Constant(0.25),
                Batches(ROWS, BATCH, 1),
                Stopping(ROUNDS),
                key_holder=None if mutual else "C",
                evaluate_every=2,
                reveal="nothing",
                release=release,
            ),
            **changes,
        )
        plan = BlindPlan(loss, parties, features.shape[1], 0.01, 8.0, 8.0, 16.0)
        owners = names if mutual else ["C"]
        kind = key_kind(scheme, "nothing")
        holders = {name: keys().holder(kind, index) for index, name in enumerate(owners)}
        programs: dict[str, Program] = {}
        for k, name in enumerate(names):
            last = k == parties - 1
            programs[name] = BlindParty(
                agreement,
                plan,
                blocks[k],
                labels if last else None,
                Surroundings(
                    holders.get(name),
                    evaluation=Evaluation(blocks[k][:6], mean if last else None),
                    guard=ScoreGuard(party=name, column_bits=MUCH),
                ),
            ).run
        if not mutual:
            programs["C"] = BlindKeyHolder(agreement, plan, Surroundings(holders["C"])).run
        return Made(agreement, programs, {})

    return make


def blind_transferred(scheme: str, algorithm: Algorithm, *, third: str | None = None, **changes: Any) -> Made:
    people = shared_people(n=10, seed=changes.pop("data", 0))
    settings = {"rounds": ROUNDS, "evaluate_every": 2, **changes}
    recipe = TransferRecipe(scheme=scheme, reveal="nothing", algorithm=algorithm, **settings)
    given = {"B": (people.b, people.rows_b, None), "A": (people.a, people.rows_a, people.labels)}
    members = tuple(recipe.blind_member(name, rows.shape[1]) for name, (rows, _, _) in given.items())
    agreement = replace(recipe.agreement(members, len(people.rows_a)), key_holder=third)
    programs: dict[str, Program] = {}
    if third is not None:
        around = Surroundings(keys().holder(key_kind(scheme, "nothing"), 0))
        programs[third] = recipe.key_holder(agreement, around).run
    for index, (name, (rows, shared, labels)) in enumerate(given.items()):
        holder = keys().holder(key_kind(scheme, "nothing"), index) if third is None else None
        seen = Evaluation(rows[shared][:5], None if labels is None else mean)
        around = Surroundings(holder, None, seen, None, ScoreGuard(party=name, column_bits=MUCH))
        labelled = ~np.isnan(people.labels[people.rows_a])
        programs[name] = recipe.blind_party(agreement, rows, shared, labelled, labels, around).run
    return Made(agreement, programs, {})


PROTOCOLS: dict[str, Callable[..., Made]] = {
    "linear, two parties": generalised(2, "star", "linear"),
    "linear, three, star": generalised(3, "star", "linear"),
    "linear, three, pairwise": generalised(3, "pairwise", "linear"),
    "network, two parties": generalised(2, "star", "network"),
    "transfer": transferred,
    "blind, two parties": blind(2),
    "blind, three": blind(3),
    "blind, released": blind(3, release=True),
    "blind, transfer": blind_transferred,
    "blind, transfer, key-holder": partial(blind_transferred, third="C"),
}


@lru_cache(maxsize=64)
def _recorded(protocol: str, scheme: str, algorithm: str) -> tuple[dict[str, Transcript], dict[str, Any]]:
    return PROTOCOLS[protocol](scheme, ALGORITHMS[algorithm]).run()


def record(protocol: str, scheme: str, algorithm: str = "FedBCD-p") -> dict[str, Transcript]:
    """The transcripts of an honest run; made once. Tests that alter them take copies."""
    return _recorded(protocol, scheme, algorithm)[0]


def report(protocol: str, scheme: str, algorithm: str = "FedBCD-p") -> AuditReport:
    return audit(*_recorded(protocol, scheme, algorithm))
