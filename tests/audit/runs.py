"""Small runs of every protocol, recorded: what the claims and their mutation tests look at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from itertools import count
from typing import Any

import numpy as np

from securefed import Blind, Monitoring
from securefed.api.result import RunResult
from securefed.assembly import LinearAssembly, TransferAssembly
from securefed.assembly.base import HELPER, TrainingRows
from securefed.audit import AuditReport, audit
from securefed.crypto import cross_scheme
from securefed.crypto.blind.interface import CrossScheme
from securefed.crypto.blind.paillier import paillier_scheme
from securefed.models import LinearModel
from securefed.protocols.agreement import Agreement, Member
from securefed.protocols.blind.linear import BlindParty
from securefed.protocols.loop import EvaluationRows, PartyContext
from securefed.protocols.messages import KINDS
from securefed.protocols.schedules import Algorithm, FedBCD, FedSGD
from securefed.protocols.scoring.score_ledger import ScoreGuard
from securefed.settings import LinearSettings, TransferSettings
from securefed.transport.link import LocalRun, Program, run_local
from securefed.transport.message import get_network
from securefed.transport.transcript import Transcript
from tests.protocols.federation import (
    FULL_KEYS,
    MUCH,
    Federation,
    Keys,
    blobs,
    linear,
    shared_people,
    split,
    transfer,
)

ALGORITHMS: dict[str, Algorithm] = {
    "FedSGD": FedSGD(),
    "FedBCD-p": FedBCD(2),
    "FedBCD-s": FedBCD(2, "sequential"),
}
ROWS, BATCH, ROUNDS = 24, 12, 2


def keys() -> Keys:
    return FULL_KEYS


class Made:
    """A run before it starts: its agreement and a program for each party."""

    def __init__(self, agreement: Agreement, programs: dict[str, Program], sides: dict[str, Any]) -> None:
        self.agreement, self.programs, self.sides = agreement, programs, sides

    def run(self, **options: Any) -> tuple[dict[str, Transcript], dict[str, Any]]:
        """The transcripts, and the result as result.json has it."""
        result = RunResult.of(self.agreement, self.done(**options))
        return result.transcripts, result.to_dict()

    def done(self, **options: Any) -> LocalRun:
        settings = {"run": "run-1", "kinds": KINDS, "network": get_network("lan"), **options}
        return run_local(self.programs, **settings)


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
            name: EvaluationRows(block[:6], mean if name == names[-1] else None)
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
    evaluations = {"A": EvaluationRows(None, mean), "B": EvaluationRows(rows)}
    settings = {"rounds": ROUNDS, "width": 2, "evaluate_every": 2, "allow_determined": False, **changes}
    return _made(
        transfer(people, keys(), scheme=scheme, algorithm=algorithm, evaluations=evaluations, **settings)
    )


def blind(parties: int, **more: Any) -> Callable[[str, Algorithm], Made]:
    """Blind training, with a helper for more than two parties."""

    def make(scheme: str, algorithm: Algorithm, **changes: Any) -> Made:
        settings = {**more, **changes}
        features, labels = blobs(ROWS, 2 * parties, settings.pop("data", 0))
        held, cross = settings.pop("held", 0), settings.pop("cross", None) or blind_scheme(scheme)
        blocks, names = split(features, parties), [f"p{k}" for k in range(parties)]
        protection = Blind(scheme=scheme, release=settings.pop("release", False))
        watched = {"monitoring": Monitoring(evaluate_every=2), "rounds": ROUNDS, **settings}
        assembly = LinearAssembly(LinearSettings(algorithm=algorithm, protection=protection, **watched))
        members = tuple(Member(name, block.shape[1], True) for name, block in zip(names, blocks, strict=True))
        agreement = assembly.agreement(members, ROWS, 1, holdout=held)
        programs: dict[str, Program] = {}
        sides: dict[str, Any] = {}
        for k, (name, block) in enumerate(zip(names, blocks, strict=True)):
            last = k == parties - 1
            seen = block[agreement.batches.division[1]] if agreement.batches.holdout_rows else block
            context = PartyContext(
                evaluation=EvaluationRows(seen, mean if last else None),
                guard=ScoreGuard(party=name, column_bits=MUCH),
            )
            sides[name] = BlindParty(
                agreement,
                assembly.settings.loss_function,
                block,
                labels[:, None] if last else None,
                context,
                cross,
                steps=assembly.steps(agreement, block),
            )
        if parties > 2:
            sides[HELPER] = BlindParty(
                agreement, assembly.settings.loss_function, None, None, PartyContext(), cross
            )
        programs = {name: side.run for name, side in sides.items()}
        return Made(agreement, programs, sides)

    return make


def blind_transfer(**more: Any) -> Callable[[str, Algorithm], Made]:
    """Blind transfer learning."""

    def make(scheme: str, algorithm: Algorithm, **changes: Any) -> Made:
        settings = {
            "rounds": ROUNDS,
            "monitoring": Monitoring(evaluate_every=2),
            **more,
            **changes,
        }
        people = shared_people(n=20, seed=settings.pop("data", 0))
        cross = settings.pop("cross", None) or blind_scheme(scheme)
        described = TransferSettings(algorithm=algorithm, protection=Blind(scheme=scheme), **settings)
        assembly = TransferAssembly(described, cross)
        members = Member("B", people.b.shape[1], True), Member("A", 1, True)
        agreement = assembly.agreement(members, len(people.rows_a), 1)
        labelled = ~np.isnan(people.labels[people.rows_a])
        sides: dict[str, Any] = {}
        tables = (("B", people.b, people.rows_b, None), ("A", people.a, people.rows_a, people.labels))
        for name, columns, rows, labels in tables:
            metric = None if labels is None else mean
            context = PartyContext(
                evaluation=EvaluationRows(columns[rows][:5], metric),
                guard=ScoreGuard(party=name, column_bits=MUCH),
            )
            data = TrainingRows(columns, labels, rows, labelled)
            sides[name] = assembly.program(agreement, name, LinearModel(1), data, context)
        return Made(agreement, {name: side.run for name, side in sides.items()}, sides)

    return make


@lru_cache(maxsize=4)
def blind_scheme(scheme: str) -> CrossScheme:
    """The encrypted product; Paillier keys are made once, since tests need no fresh ones."""
    found = paillier_scheme(2048) if scheme == "paillier" else cross_scheme(scheme)
    if scheme != "paillier":
        return found
    made = [found.generate().to_bytes() for _ in range(2)]
    turns = count()
    return replace(found, generate=lambda: found.load_key(made[next(turns) % len(made)]))


PROTOCOLS: dict[str, Callable[..., Made]] = {
    "linear, two parties": generalised(2, "star", "linear"),
    "linear, three, star": generalised(3, "star", "linear"),
    "linear, three, pairwise": generalised(3, "pairwise", "linear"),
    "network, two parties": generalised(2, "star", "network"),
    "transfer": transferred,
    "blind, two parties": blind(2),
    "blind, three": blind(3),
    "blind, released": blind(3, release=True, monitoring=Monitoring()),
    "blind, held out": blind(2, rounds=3, monitoring=Monitoring(), held=6),
    "blind, watched": blind(2, rounds=4, monitoring=Monitoring(evaluate_every=1, patience=1), release=True),
    "blind, transfer": blind_transfer(),
}


@lru_cache(maxsize=64)
def _recorded(protocol: str, scheme: str, algorithm: str) -> tuple[dict[str, Transcript], dict[str, Any]]:
    return PROTOCOLS[protocol](scheme, ALGORITHMS[algorithm]).run()


def record(protocol: str, scheme: str, algorithm: str = "FedBCD-p") -> dict[str, Transcript]:
    """The transcripts of an honest run; made once. Tests that alter them take copies."""
    return _recorded(protocol, scheme, algorithm)[0]


def report(protocol: str, scheme: str, algorithm: str = "FedBCD-p") -> AuditReport:
    return audit(*_recorded(protocol, scheme, algorithm))
