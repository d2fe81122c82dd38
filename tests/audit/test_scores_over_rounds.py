"""What evaluation in every round gives the label party: the other's H of the same rows, over and over.

Scores over the rounds and the own columns together span the other party's columns, blind or not; as with a
plain run's messages, a few people whose features are known fix the rest (docs/threat-model.md, "What scores
reveal").
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from research.attacks.linear import features_from_span
from research.attacks.scores import r_squared
from securefed.crypto import key_kind
from securefed.models import Linear
from securefed.protocols.agreement import Agreement, Member
from securefed.protocols.blind import BlindParty
from securefed.protocols.blind_algebra import BlindPlan
from securefed.protocols.blur import ScoreGuard
from securefed.protocols.loop import Surroundings
from securefed.protocols.losses import get_loss
from securefed.protocols.messages import KINDS
from securefed.protocols.optimisers import SGD
from securefed.protocols.schedules import Batches, Constant, FedBCD, Stopping
from securefed.protocols.score_ledger import ScoreRefusal
from securefed.protocols.sides import LinearSide
from securefed.protocols.training import DataParty, Evaluation
from securefed.transport import Program, get_network, run_local
from tests.audit.runs import keys
from tests.protocols.federation import blobs

pytestmark = pytest.mark.filterwarnings("ignore::securefed.protocols.ledger.LedgerWarning")
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

    agreement = Agreement(
        "linear",
        scheme,
        tuple(Member(name, block.shape[1], True) for name, block in blocks.items()),
        FedBCD(2),
        Constant(0.5),
        Batches(ROWS, 10, 1),
        Stopping(rounds),
        evaluate_every=1,
        reveal="nothing" if blind else "own-gradient",
    )
    loss = get_loss("logistic")
    plan = BlindPlan(loss, 2, THEIRS + OWN, 0.01, 16.0, 16.0, 32.0)
    programs: dict[str, Program] = {}
    for index, (name, block) in enumerate(blocks.items()):
        truth = labels if name == "p1" else None
        holder = keys().holder(key_kind(scheme, agreement.reveal), index)
        evaluation = Evaluation(block, watch if name == "p1" else None)
        around = Surroundings(holder, evaluation=evaluation, guard=ScoreGuard(party=name, mode=ledger))
        if blind:
            programs[name] = BlindParty(agreement, plan, block, truth, around).run
        else:
            side = LinearSide(
                Linear(block.shape[1]), block, truth, loss, l2=0.01, exact=False, margin_bound=32.0
            )
            programs[name] = DataParty(agreement, side, SGD(), around).run
    run_local(programs, run="r", kinds=KINDS, network=get_network("lan"))
    return features, np.column_stack(seen)


@pytest.mark.parametrize(("scheme", "blind"), [("ckks", False), ("ckks", True), ("paillier", True)])
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


@pytest.mark.parametrize(("scheme", "blind"), [("ckks", False), ("paillier", True)])
def test_the_score_ledger_refuses_that_before_the_training_begins(scheme: str, blind: bool) -> None:
    with pytest.raises(ScoreRefusal, match=f"{THEIRS + OWN} evaluations are planned"):
        seen_scores(scheme, blind, rounds=THEIRS + OWN, ledger="refuse")
