"""Every kind of run that a protocol has, as small as it goes: training in each form, and prediction alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefed.crypto import KeyHolder, Serial
from securefed.protocols.agreement import Agreement
from securefed.protocols.loop import EvaluationRows
from securefed.protocols.messages import KINDS
from securefed.protocols.own_gradient.prediction import score_program
from securefed.protocols.schedules import FedBCD
from securefed.protocols.scoring.score_ledger import ScoreGuard
from securefed.transport.link import LocalRun, run_local
from securefed.transport.message import get_network
from tests.protocols import federation
from tests.protocols.federation import MUCH, RUN, Federation, Keys, blobs, shared_people, split

Array = NDArray[np.float64]
Metric = Callable[[Array], float]
ROUNDS, STEPS, ROWS = 2, 2, 5
SCORING_BITS = 2048
"""A prediction reads no smaller keys."""


@dataclass
class Scenario:
    """Something to run, with or without somebody who tampers."""

    agreement: Agreement
    holders: Mapping[str, KeyHolder]
    run: Callable[..., LocalRun]


def mean_score(scores: Array) -> float:
    """A metric that costs nothing; what it says does not matter here."""
    return float(np.mean(scores))


def training(made: Federation) -> Scenario:
    return Scenario(made.agreement, made.holders, made.run)


def linear_training(keys: Keys, scheme: str, parties: int, exchange: str, order: Any, local: str) -> Scenario:
    features, labels = blobs(8, 2 * parties, seed=6)
    blocks = split(features, parties)
    last = parties - 1
    return training(
        federation.linear(
            blocks,
            labels,
            keys,
            scheme=scheme,
            algorithm=FedBCD(STEPS, order),
            rounds=ROUNDS,
            batch=6,
            exchange=exchange,
            local=local,
            hidden=(2,),
            target=1e9,
            evaluate_every=1,
            evaluations={
                f"p{k}": EvaluationRows(block[:ROWS], mean_score if k == last else None)
                for k, block in enumerate(blocks)
            },
        )
    )


def transfer_training(keys: Keys, scheme: str, order: Any, metric: Metric = mean_score) -> Scenario:
    people = shared_people(n=6, more_a=1, more_b=1, unlabelled=1, seed=3)
    evaluations = {"B": EvaluationRows(people.b[:ROWS]), "A": EvaluationRows(None, metric)}
    return training(
        federation.transfer(
            people,
            keys,
            scheme=scheme,
            width=2,
            algorithm=FedBCD(STEPS, order),
            rounds=ROUNDS,
            target=1e9,
            evaluate_every=1,
            evaluations=evaluations,
        )
    )


KEY = bytes(range(32))
"""Of every party that is scored, so that tests know the noise."""


def prediction(made: Federation, features: Mapping[str, Array], *, start: int = 0) -> Scenario:
    """Scores with parameters that were never trained: any will do."""
    generator = np.random.default_rng(start)
    for side in made.sides.values():
        side.parameters = generator.normal(size=side.parameters.shape)
    scorers = {name: side.scorer() for name, side in made.sides.items()}

    def run(**options: Any) -> LocalRun:
        guards = {name: ScoreGuard(KEY, column_bits=MUCH) for name in made.agreement.names[:-1]}
        everybody = [*made.agreement.names, *filter(None, [made.agreement.key_holder])]
        rows = max(map(len, features.values()), default=0)
        programs = {
            name: score_program(
                made.agreement,
                scorers.get(name),
                features.get(name),
                rows,
                made.holders.get(name),
                Serial(),
                guards.get(name),
            )
            for name in everybody
        }
        settings = {"run": RUN, "kinds": KINDS, "network": get_network("lan"), **options}
        return run_local(programs, **settings)

    return Scenario(made.agreement, made.holders, run)


def linear_prediction(keys: Keys, scheme: str, parties: int) -> Scenario:
    features, labels = blobs(ROWS, 2 * parties, seed=6)
    blocks = split(features, parties)
    made = federation.linear(blocks, labels, keys, scheme=scheme, bits=SCORING_BITS)
    return prediction(made, {f"p{k}": block for k, block in enumerate(blocks)})


def transfer_prediction(keys: Keys, scheme: str) -> Scenario:
    people = shared_people(n=6, seed=3)
    made = federation.transfer(people, keys, scheme=scheme, width=2, bits=SCORING_BITS)
    return prediction(made, {"B": people.b[:ROWS]})


SCENARIOS: dict[str, Callable[[Keys, str], Scenario]] = {
    "pair": lambda k, s: linear_training(k, s, 2, "star", "parallel", "linear"),
    "pair in turn": lambda k, s: linear_training(k, s, 2, "star", "sequential", "network"),
    "star": lambda k, s: linear_training(k, s, 3, "star", "parallel", "network"),
    "star in turn": lambda k, s: linear_training(k, s, 3, "star", "sequential", "linear"),
    "pairwise": lambda k, s: linear_training(k, s, 3, "pairwise", "parallel", "linear"),
    "pairwise in turn": lambda k, s: linear_training(k, s, 3, "pairwise", "sequential", "linear"),
    "transfer": lambda k, s: transfer_training(k, s, "parallel"),
    "transfer in turn": lambda k, s: transfer_training(k, s, "sequential"),
    "prediction, pair": lambda k, s: linear_prediction(k, s, 2),
    "prediction, star": lambda k, s: linear_prediction(k, s, 3),
    "prediction, transfer": lambda k, s: transfer_prediction(k, s),
}
