"""What a run leaves for its user."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest

from securefed import Blind, GeneralisedLinear, Party, Simulation
from securefed.api.result import RunResult
from securefed.protocols.loop import EvaluationRows
from securefed.protocols.own_gradient.ledger import LedgerWarning
from securefed.protocols.schedules import FedBCD
from tests.protocols import federation
from tests.protocols.federation import FULL_KEYS, KEY_HOLDER, Recorder, blobs, shared_people, split

pytestmark = pytest.mark.filterwarnings(f"ignore::{LedgerWarning.__module__}.LedgerWarning")


def run(scheme: str = "plain", parties: int = 3, rounds: int = 2) -> tuple[RunResult, Recorder]:
    features, labels = blobs(10, 2 * parties)
    blocks = split(features, parties)
    recorder = Recorder()
    made = federation.linear(
        blocks,
        labels,
        FULL_KEYS,
        scheme=scheme,
        algorithm=FedBCD(2),
        rounds=rounds,
        evaluate_every=1,
        evaluations={
            f"p{k}": EvaluationRows(block, (lambda s: float(np.mean(s))) if k == parties - 1 else None)
            for k, block in enumerate(blocks)
        },
    )
    return RunResult.of(made.agreement, made.run(tap=recorder)), recorder


@pytest.mark.parametrize("scheme", ["plain", "ckks"])
def test_messages_and_bytes_are_those_that_were_sent(scheme: str) -> None:
    result, recorder = run(scheme)
    assert result.messages(None) == Counter(m.kind for m in recorder.messages)
    sizes: Counter[str] = Counter()
    for message in recorder.messages:
        sizes[message.kind] += message.size
    assert result.bytes(None) == sizes
    assert result.bytes_exchange == sizes["contribution"] + sizes["residual"]
    assert result.bytes_open == sizes["opening-request"] + sizes["opening"]
    phases = ("setup", "training", "evaluation")
    assert sum((result.messages(phase) for phase in phases), Counter()) == result.messages(None)
    assert set(result.messages("setup")) == {"public-key"}
    kinds = {"received"} if scheme != "plain" else set()
    assert set(result.messages("evaluation")) == {"score-part", "score-request", "score-opening", *kinds}


@pytest.mark.parametrize("parties", [2, 3])
def test_a_blind_run_has_exchanges_and_opens_nothing(parties: int) -> None:
    features, labels = blobs(8, 2 * parties)
    blocks = split(features, parties)
    made = [
        Party(f"p{k}", block, labels=labels if k == parties - 1 else None) for k, block in enumerate(blocks)
    ]
    result = (
        GeneralisedLinear(rounds=1, protection=Blind(key_bits=2048), simulation=Simulation(engine="serial"))
        .fit(made)
        .result_
    )
    sent = result.bytes("setup") + result.bytes("training")
    exchanged = ("operand", "reply", "part", "difference")
    assert result.bytes_exchange == sum(sent[kind] for kind in exchanged) > 0
    assert result.bytes_open == 0


def test_what_a_party_saw_is_told_by_kind() -> None:
    result, _ = run("ckks")
    seen = result.seen(KEY_HOLDER)
    assert any(line.startswith("6 x opening-request") and "nothing: uniform" in line for line in seen)
    assert all("in the clear" not in line for name in result.transcripts for line in result.seen(name))
    plain, _ = run("plain")
    assert any("contribution" in line and line.endswith("in the clear") for line in plain.seen("p2"))


def test_a_result_can_be_written_as_json() -> None:
    result, _ = run()
    told = json.loads(json.dumps(result.to_dict()))
    assert told["rounds"] == 2 and told["reason"] == "rounds"
    assert [point[0] for point in told["history"]] == [0, 1]
    assert told["metric"] == result.metric == result.history[-1][1]
    assert told["protected"] is False
    assert told["total_seconds"] == told["computation_seconds"] + told["communication_seconds"]
    assert told["settings"]["algorithm"] == "FedBCD-p"
    assert {entry["verdict"] for entry in told["ledger"]} <= {
        "below the line",
        "near",
        "possibly determined",
        "determined",
    }
    assert told["determined"] is result.determined


def test_one_line_says_the_main_things() -> None:
    plain, _ = run()
    line = str(plain)
    assert line.startswith("FedBCD-p plain (NOT PROTECTED): 2 rounds, metric ")
    assert "\n" not in line
    encrypted, _ = run("ckks")
    assert str(encrypted).startswith("FedBCD-p ckks: 2 rounds")


def test_every_party_has_a_path_and_the_longest_is_the_runs() -> None:
    result, _ = run()
    assert set(result.paths) == {"p0", "p1", "p2", KEY_HOLDER}
    assert result.total == max(path.total for path in result.paths.values())
    assert result.computation + result.communication == result.total
    assert {"products", "mask", "unmask", "encrypt"} <= set(result.activities["p0"])
    assert set(result.activities[KEY_HOLDER]) == {"open"}


def test_two_parties_ledgers_are_put_together() -> None:
    made = federation.transfer(shared_people(), FULL_KEYS, rounds=1)
    result = RunResult.of(made.agreement, made.run())
    assert {entry.party for entry in result.ledger} == {"A", "B"}
    ratios = [entry.ratio for entry in result.ledger if not entry.advisory]
    assert ratios == sorted(ratios, reverse=True)
