"""The claims hold for every protocol, scheme and schedule, and fail loudly for a plain run."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any

import pytest

from securefed.audit import CLAIMS, audit
from securefed.protocols.schedules import FedBCD
from tests.audit.runs import ALGORITHMS, PROTOCOLS, record, report

pytestmark = pytest.mark.filterwarnings("ignore::securefed.protocols.ledger.LedgerWarning")
OPEN = [name for name in PROTOCOLS if not name.startswith("blind")]
THIRD = "blind, transfer, key-holder"
BLIND = [name for name in PROTOCOLS if name.startswith("blind") and name != THIRD]


def cells(*combined: Iterable[str]) -> list[Any]:
    """Every combination with every schedule; the schedules in turn are quick, the rest is slow."""
    return [
        pytest.param(*cell, algorithm, marks=() if place == number % len(ALGORITHMS) else pytest.mark.slow)
        for number, cell in enumerate(product(*combined))
        for place, algorithm in enumerate(ALGORITHMS)
    ]


@pytest.mark.parametrize(("scheme", "protocol", "algorithm"), cells(["paillier", "ckks"], OPEN))
def test_every_claim_holds(protocol: str, scheme: str, algorithm: str) -> None:
    found = report(protocol, scheme, algorithm)
    assert found.failed == [], found.to_text()
    assert [claim.name for claim in found.claims] == [statement.name for statement in CLAIMS]


SLOW = [("paillier", "FedSGD"), ("ckks", "FedBCD-s")]


@pytest.mark.parametrize(
    ("scheme", "algorithm"),
    [("ckks", "FedBCD-p"), *(pytest.param(*cell, marks=pytest.mark.slow) for cell in SLOW)],
)
def test_and_for_blind_transfer_learning_with_a_key_holder_party(scheme: str, algorithm: str) -> None:
    test_every_claim_holds_for_blind_training(THIRD, algorithm, scheme)
    given = report(THIRD, scheme, algorithm).claim("nothing").evidence
    assert "products of shares, each for the one whose share it is" in given


@pytest.mark.parametrize("scheme", ["paillier", "ckks"])
@pytest.mark.parametrize(("protocol", "algorithm"), cells(BLIND))
def test_every_claim_holds_for_blind_training(protocol: str, algorithm: str, scheme: str) -> None:
    found = report(protocol, scheme, algorithm)
    assert found.failed == [], found.to_text()
    # Nothing was opened to anybody in training, so there is nothing to count.
    assert found.ledger == []


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
    assert "12 bits of 1000000 in 1 scorings" in whole.claim("score-ledger").evidence
    label_party = audit([record(OPEN[0], "paillier")["p1"]])
    for name in ("blurred", "score-ledger"):
        assert label_party.claim(name).word == "not checked"
    quiet = audit(*PROTOCOLS[OPEN[0]]("paillier", FedBCD(2), evaluate_every=0, patience=None).run())
    for name in ("blurred", "score-ledger"):
        assert (quiet.claim(name).word, quiet.claim(name).evidence) == ("pass", "no scores in this run")


def test_the_claims_say_what_was_looked_at() -> None:
    """No claim passes by looking at nothing."""
    for protocol in ("linear, three, star", "transfer"):
        for claim in report(protocol, "paillier").claims:
            assert claim.evidence
            assert not claim.evidence.startswith("0 "), claim
