"""What evaluation in every round gives the label party: the other's H of the same rows, over and over.

Scores over the rounds and the own columns together span the other party's columns, blind or not; as with a
plain run's messages, a few people whose features are known fix the rest (docs/threat-model.md, "What scores
reveal").
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from research.attacks.linear import features_from_span
from research.attacks.scores import r_squared
from securefed import Blind, Monitoring, OwnGradient
from securefed.assembly import LinearAssembly
from securefed.assembly.base import TrainingRows
from securefed.models import LinearModel
from securefed.protocols.agreement import Member
from securefed.protocols.loop import EvaluationRows, PartyContext
from securefed.protocols.messages import KINDS
from securefed.protocols.schedules import FedBCD
from securefed.protocols.scoring.score_ledger import ScoreGuard, ScoreRefusal
from securefed.settings import LinearSettings
from securefed.transport.link import Program, run_local
from securefed.transport.message import get_network
from tests.audit.runs import keys
from tests.protocols.federation import blobs

pytestmark = pytest.mark.filterwarnings("ignore::securefed.protocols.own_gradient.ledger.LedgerWarning")
Array = NDArray[np.float64]
ROWS, THEIRS, OWN, KNOWN = 20, 3, 2, 8


def seen_scores(scheme: str, blind: bool, rounds: int, ledger: str = "off") -> tuple[Array, Array]:
    """All parties' columns, and what the label party p1 saw: a column of scores for each round."""
    features, labels = blobs(ROWS, THEIRS + OWN)
    blocks = {"p0": features[:, :THEIRS], "p1": features[:, THEIRS:]}
    seen: list[Array] = []

    def watch(scores: Array) -> float:
        seen.append(scores.copy())
        return 0.0

    # Rounds on all rows move along smoothly, so that it takes finer scores to tell them apart.
    fine = Blind(scheme=scheme, score_precision=24)
    settings = LinearSettings(
        algorithm=FedBCD(2),
        learning_rate=0.5,
        rounds=rounds,
        monitoring=Monitoring(evaluate_every=1),
        protection=fine if blind else OwnGradient(scheme=scheme, batch_size=10),
    )
    assembly = LinearAssembly(settings)
    members = tuple(Member(name, block.shape[1], True) for name, block in blocks.items())
    agreement = assembly.agreement(members, ROWS)
    programs: dict[str, Program] = {}
    for index, (name, block) in enumerate(blocks.items()):
        last = name == "p1"
        holder = None if blind else keys().holder(scheme, index)
        context = PartyContext(
            holder,
            evaluation=EvaluationRows(block, watch if last else None),
            guard=ScoreGuard(party=name, mode=ledger),
        )
        truth = (labels[:, None] if blind else labels) if last else None
        model = LinearModel(block.shape[1])
        bare = LinearAssembly(replace(settings, fit_intercept=False))
        data = TrainingRows.whole(block, truth)
        programs[name] = bare.program(agreement, name, model, data, context).run
    run_local(programs, run="r", kinds=KINDS, network=get_network("lan"))
    return features, np.column_stack(seen)


@pytest.mark.parametrize(("scheme", "blind"), [("ckks", False), ("ckks", True)])
def test_scores_of_many_rounds_and_a_few_known_people_give_all_features(scheme: str, blind: bool) -> None:
    features, scores = seen_scores(scheme, blind, rounds=THEIRS + OWN)
    theirs, own, known = features[:, :THEIRS], features[:, THEIRS:], np.arange(KNOWN)

    def guessed(rounds: int) -> float:
        view = np.column_stack([scores[:, :rounds], own])
        built = features_from_span(view, theirs[known], known, THEIRS + OWN)
        return r_squared(built[KNOWN:], theirs[KNOWN:]).score

    assert guessed(THEIRS + OWN) > 0.99
    # One evaluation is one number a person, and that is all.
    assert guessed(1) < 0.9


@pytest.mark.parametrize(("scheme", "blind"), [("ckks", False), ("ckks", True)])
def test_the_score_ledger_refuses_that_before_the_training_begins(scheme: str, blind: bool) -> None:
    with pytest.raises(ScoreRefusal, match=f"{THEIRS + OWN} evaluations are planned"):
        seen_scores(scheme, blind, rounds=THEIRS + OWN, ledger="refuse")
