"""The claims hold for every protocol, scheme and schedule, and fail loudly for a plain run."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

import pytest

from securefed.audit import CLAIMS, audit
from securefed.crypto.scheme import Serial
from securefed.protocols.blind.scoring import blind_program
from securefed.protocols.messages import KINDS
from securefed.protocols.schedules import FedBCD
from securefed.protocols.scoring.score_ledger import ScoreGuard
from securefed.transport.link import run_local
from securefed.transport.message import get_network
from tests.audit.runs import ALGORITHMS, PROTOCOLS, blind_scheme, record, report
from tests.protocols.federation import MUCH

pytestmark = pytest.mark.filterwarnings("ignore::securefed.protocols.own_gradient.ledger.LedgerWarning")
OPEN = [name for name in PROTOCOLS if not name.startswith("blind")]
BLIND = [name for name in PROTOCOLS if name.startswith("blind")]


def cells(*combined: Iterable[str]) -> list[tuple[str, ...]]:
    """Every combination with one schedule, in turn: all schedules are covered."""
    return [
        (*cell, list(ALGORITHMS)[number % len(ALGORITHMS)]) for number, cell in enumerate(product(*combined))
    ]


@pytest.mark.parametrize(("scheme", "protocol", "algorithm"), cells(["paillier", "ckks"], OPEN))
def test_every_claim_holds(protocol: str, scheme: str, algorithm: str) -> None:
    found = report(protocol, scheme, algorithm)
    assert found.failed == [], found.to_text()
    assert [claim.name for claim in found.claims] == [statement.name for statement in CLAIMS]


COVERED = [
    ("blind, two parties", "FedBCD-s", "ckks"),
    ("blind, three", "FedBCD-p", "ckks"),
    ("blind, released", "FedSGD", "ckks"),
    ("blind, held out", "FedBCD-p", "ckks"),
    ("blind, watched", "FedBCD-s", "ckks"),
    ("blind, transfer", "FedBCD-p", "ckks"),
    ("blind, transfer", "FedBCD-s", "ckks"),
    ("blind, transfer", "FedSGD", "ckks"),
    ("blind, two parties", "FedBCD-p", "paillier"),
    ("blind, three", "FedBCD-s", "paillier"),
]
"""Every protocol and every schedule, under the ring; both shapes under Paillier."""


@pytest.mark.parametrize(("protocol", "algorithm", "scheme"), COVERED)
def test_every_claim_holds_for_blind_training(protocol: str, algorithm: str, scheme: str) -> None:
    found = report(protocol, scheme, algorithm)
    assert found.failed == [], found.to_text()
    assert found.not_checked == []
    # Nothing was opened to anybody in training, so there is nothing to count.
    assert found.ledger == []
    kinds = {message.entry.kind for message in found.recorded.everything}
    assert not kinds & {"public-key", "opening", "opening-request", "score-opening", "score-request"}


def test_a_blind_protocol_is_covered() -> None:
    assert {protocol for protocol, *_ in COVERED} == set(BLIND)


def test_a_prediction_by_a_blind_model_holds_every_claim() -> None:
    made = PROTOCOLS["blind, three"]("ckks", FedBCD(2))
    made.run()
    features = {
        name: side._own._features for name, side in made.sides.items() if name in made.agreement.names
    }
    scheme = blind_scheme("ckks")
    for rows in (3, 20):
        programs = {
            name: blind_program(
                made.agreement,
                side.part,
                features[name][:rows] if name in features else None,
                rows,
                scheme,
                Serial(),
                None if name not in features else ScoreGuard(party=name, column_bits=MUCH),
            )
            for name, side in made.sides.items()
        }
        done = run_local(programs, run="run-1", kinds=KINDS, network=get_network("lan"))
        found = audit({name: link.transcript for name, link in done.links.items()})
        assert found.failed == [], found.to_text()
        assert f"{rows} scores in prediction" in found.claim("outputs").evidence


@pytest.mark.parametrize("protocol", OPEN)
def test_a_plain_run_fails_loudly(protocol: str) -> None:
    found = report(protocol, "plain")
    assert {"clear", "encrypted", "foreign-key", "fresh", "masked"} <= set(found.failed)
    assert found.verdict.startswith("NOT PROTECTED")
    assert "in the clear (no encryption)" in found.claim("clear").evidence
    # And nothing fails that has nothing to do with protection.
    assert not set(found.failed) & {"named", "checked", "agreed", "receipts", "whole", "result", "sums"}


def test_scores_are_checked_at_those_who_were_scored_and_only_there() -> None:
    """Without evaluation there is nothing to blur; one who was not scored cannot say that it was blurred."""
    whole = report(OPEN[0], "paillier")
    assert "noise over 2**-10 in 22 bits" in whole.claim("blurred").evidence
    assert whole.claim("score-ledger").evidence == "p0: 1 scorings, counted"
    label_party = audit([record(OPEN[0], "paillier")["p1"]])
    for name in ("blurred", "score-ledger"):
        assert label_party.claim(name).word == "skip"
    quiet = audit(*PROTOCOLS[OPEN[0]]("paillier", FedBCD(2), evaluate_every=0, patience=None).run())
    for name in ("blurred", "score-ledger"):
        assert (quiet.claim(name).word, quiet.claim(name).evidence) == ("pass", "no scores in this run")


def test_the_claims_say_what_was_looked_at() -> None:
    """No claim passes by looking at nothing."""
    for protocol in ("linear, three, star", "transfer"):
        for claim in report(protocol, "paillier").claims:
            assert claim.evidence
            assert not claim.evidence.startswith("0 "), claim
