"""The verdict counts checks, names what was skipped and why, and warns of what opened gradients tell."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securefed import GeneralisedLinear, Party
from securefed.audit import CLAIMS, audit, write_transcripts
from securefed.audit.report import AuditReport, whole_page
from securefed.cli.entry import main
from securefed.protocols.own_gradient.ledger import LedgerEntry
from securefed.transport.transcript import Transcript
from tests.audit.runs import record, report

pytestmark = pytest.mark.filterwarnings("ignore::securefed.protocols.own_gradient.ledger.LedgerWarning")
BUT = "WARNING: the opened gradients may determine secrets"
ENDS = ["agreed", "receipts", "result"]
SCORED = ["blurred", "score-ledger"]


class Run:
    """What write_transcripts takes."""

    def __init__(self, transcripts: dict[str, Transcript], result: Mapping[str, Any] | None) -> None:
        self.transcripts, self._result = transcripts, dict(result or {})

    def to_dict(self) -> dict[str, Any]:
        return self._result


def unqualified(found: AuditReport) -> bool:
    """Whether every check passed, with all transcripts, and the ledger stayed below its line."""
    return found.passed and not (found.recorded.missing or found.not_checked or found.reservation)


def test_one_side_says_that_it_is_one_side() -> None:
    recorded = report("linear, two parties", "paillier").recorded
    transcripts, result = recorded.transcripts, recorded.result
    whole = audit(transcripts, result)
    assert (
        unqualified(whole)
        and whole.verdict == f"{len(CLAIMS)} checks passed, 0 failed, 0 skipped."
        and whole.not_checked == []
    )
    alone = audit({"p0": transcripts["p0"]}, None)
    assert alone.passed and not unqualified(alone)
    assert alone.not_checked == ENDS
    assert alone.verdict == (
        f"{len(CLAIMS) - 3} checks passed, 0 failed, 3 skipped "
        "(agreed, receipts: no transcript of p1 was given; result.json was not given)."
    )
    assert "skip  Both ends of every link recorded the same messages." in alone.to_text()
    assert alone.claim("receipts").word == "skip"
    assert 'class="part">skip' in alone.to_html()
    both = audit(transcripts, None)
    count = f"{len(CLAIMS) - 1} checks passed, 0 failed, 1 skipped"
    assert both.verdict == f"{count} (result.json was not given)."


@pytest.mark.parametrize(
    ("protocol", "side", "left"),
    [
        # A key-holder masks nothing, and got no ciphertext that it could not read.
        ("linear, three, star", "C", ["foreign-key", "fresh", "masked", "mask-once", *SCORED, *ENDS]),
        ("blind, three", "helper", ["fresh", "masked", *SCORED, *ENDS]),
        # A party without labels sees neither the scores, nor what was opened to the others.
        ("linear, three, star", "p0", ["scores", *ENDS]),
        ("blind, three", "p0", ["masked", "sums", "ledger", "scores", "outputs", *ENDS]),
        ("blind, released", "p0", ["masked", "sums", "ledger", *ENDS]),
        ("blind, three", "p2", ["masked", "sums", "ledger", *SCORED, *ENDS]),
        # With two parties, each sees every message.
        ("blind, two parties", "p0", ["fresh", "masked", *ENDS]),
    ],
)
def test_what_nothing_was_looked_at_for_is_not_checked(protocol: str, side: str, left: list[str]) -> None:
    """A claim whose messages all passed between others cannot pass at this side."""
    scheme = "ckks" if protocol.startswith("blind") else "paillier"
    found = audit({side: record(protocol, scheme)[side]})
    assert found.not_checked == left
    count = f"{len(CLAIMS) - len(left)} checks passed, 0 failed, {len(left)} skipped"
    assert found.verdict.startswith(f"{count} ({', '.join(left[:-1])}: no transcript of ")
    listed = {claim["name"] for claim in found.to_dict()["claims"] if not claim["checked"]}
    assert listed == set(left) == set(found.to_dict()["not_checked"])
    for name in left:
        assert f"skip  {found.claim(name).text}" in found.to_text()


def says_so(found: AuditReport, folder: Path, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """In every form, also in the one of few words, in which the verdict takes more than a line."""
    assert found.passed and not unqualified(found) and BUT in found.verdict
    assert BUT in found.to_dict()["verdict"]
    assert BUT in " ".join(found.to_text().split())
    page = " ".join(whole_page(found).split())
    assert BUT in page and "badge good" not in page
    write_transcripts(folder, run)
    for words in ((), ("--quiet",)):
        assert main(["audit", str(folder), "--json", str(folder / "audit.json"), *words]) == 0
        assert BUT in " ".join(capsys.readouterr().out.split())
        assert BUT in json.loads((folder / "audit.json").read_text())["verdict"]


@pytest.mark.parametrize("sides", [("A", "B"), ("A",), ("B",)])
def test_a_ledger_past_its_line_is_part_of_every_verdict(
    sides: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every claim holds, and B has more sums than there are labels."""
    whole = report("transfer", "paillier")
    run = Run({name: whole.recorded.transcripts[name] for name in sides}, whole.recorded.result)
    found = audit(run.transcripts, run.to_dict())
    assert any(entry.verdict == "possibly determined" for entry in found.ledger)
    assert "labels over all rounds" in found.verdict
    assert ("no transcript of" in found.verdict) == (len(sides) == 1)
    says_so(found, tmp_path, run, capsys)


def test_also_where_the_openings_were_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In a star the label party's transcript shows no opening but its own; its result counts them all."""
    whole = report("linear, three, star", "paillier")
    own = [asdict(entry) for entry in whole.ledger if entry.party == "p2"]
    others = asdict(LedgerEntry("p0", "labels over all rounds", 26, 24, True))
    result = {**(whole.recorded.result or {}), "ledger": own, "ledger_of_all": [*own, others]}
    run = Run({"p2": whole.recorded.transcripts["p2"]}, result)
    found = audit(run.transcripts, result)
    assert found.ledger and all(entry.party == "p2" and entry.ratio < 1.0 for entry in found.ledger)
    assert "p0 holds 26 equations for 24 unknowns" in found.verdict
    says_so(found, tmp_path, run, capsys)


def test_the_result_of_one_party_agrees_with_the_transcripts_of_all() -> None:
    """In a star it lists what its own transcript shows, and beside it the openings of all."""
    recorded = report("linear, three, star", "paillier").recorded
    every = [asdict(entry) for entry in recorded.ledger()]
    own = [entry for entry in every if entry["party"] == "p2"]
    assert 0 < len(own) < len(every)
    result = {**(recorded.result or {}), "ledger": own, "ledger_of_all": every}
    assert audit(recorded.transcripts, result).claim("result").word == "pass"
    for altered in ({"ledger": [{**own[0], "equations": 1}]}, {"ledger_of_all": own}):
        assert audit(recorded.transcripts, {**result, **altered}).failed == ["result"]


@pytest.mark.filterwarnings("ignore::securefed.protocols.scoring.score_ledger.ScoreWarning")
def test_large_shares_of_models_and_scores_pass() -> None:
    """Of 64 numbers and more, every place is tested by itself. After one round a model was truncated once."""
    table = np.random.default_rng(0).normal(size=(400, 240))
    labels = table[:, ::80].sum(axis=1) > 0
    columns = {name: table[:, 80 * place : 80 * place + 80] for place, name in enumerate(("a", "b", "c"))}
    parties = [Party(name, own, labels=labels if name == "c" else None) for name, own in columns.items()]
    found = GeneralisedLinear(rounds=1).fit(parties).result_
    checked = audit(list(found.transcripts.values()), found.to_dict())
    assert checked.verdict == f"{len(CLAIMS)} checks passed, 0 failed, 0 skipped."
    entries = [entry for each in found.transcripts.values() for entry in each]
    for kind in ("model-share", "score-share"):
        shares = [part for entry in entries if entry.kind == kind for part in entry.parts]
        assert shares and all(part.random for part in shares)
