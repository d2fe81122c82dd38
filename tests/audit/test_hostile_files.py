"""`securefed audit` reads files that somebody else wrote: any of them gives a verdict and an exit code."""

from __future__ import annotations

import json
import os
import random
import re
import resource
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.altered import write_altered
from securefed.cli import main
from securefed.protocols.own_gradient.ledger import LedgerWarning
from securefed.transport.transcript import Transcript
from tests.audit.runs import record

RUNS = [("linear, two parties", "ckks"), ("blind, three", "ckks"), ("blind, released", "ckks")]
COUNT = 60
SECONDS = 20.0
"""Far more than a verdict takes: a loop over a number from the file would take years."""


def alter_and_audit(
    protocol: str, scheme: str, count: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    warnings.simplefilter("ignore", LedgerWarning)
    for party, transcript in record(protocol, scheme).items():
        transcript.save(tmp_path / f"transcript-{party}.jsonl")
    honest = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    chance = random.Random(f"{protocol}{os.environ.get('SECUREFED_FUZZ_SEED', '')}")
    page = tmp_path / "audit.html"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(count):
        write_altered(tmp_path, honest, chance)
        began = time.monotonic()
        code = main(["audit", str(tmp_path), "--html", str(page), "--json", str(tmp_path / "audit.json")])
        out, err = capsys.readouterr()
        assert code in (0, 1), (number, err)
        assert "Traceback" not in out + err and "\x1b" not in out + err
        assert time.monotonic() - began < SECONDS, number
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10


@pytest.mark.parametrize(("protocol", "scheme"), RUNS)
def test_any_altered_transcript_gives_a_verdict(
    protocol: str, scheme: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alter_and_audit(protocol, scheme, COUNT, tmp_path, capsys)


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize(("protocol", "scheme"), RUNS)
def test_five_thousand_altered_transcripts_give_a_verdict(
    protocol: str, scheme: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alter_and_audit(protocol, scheme, 5000 // len(RUNS) + 1, tmp_path, capsys)


@pytest.mark.parametrize(
    "text",
    ["", "\n", "[" * 100_000, "null", "{}", '{"transcript":1,"party":"a","run":"r"}', "\xff\xfe", "9" * 5000],
    ids=lambda text: text[:12],
)
def test_a_file_that_is_no_transcript_is_a_failed_audit(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "transcript-a.jsonl").write_bytes(text.encode("latin-1"))
    assert main(["audit", str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert out.startswith("NO AUDIT POSSIBLE: ") and err == ""


def altered(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Write the transcripts of a run whose parties agreed on other settings."""
    for party, transcript in record("blind, three", "ckks").items():
        other = Transcript(party, transcript.run)
        for entry in transcript.entries:
            detail = json.loads(json.dumps(entry.detail))
            if entry.event == "agreed":
                change(detail["settings"])
            other._append(replace(entry, detail=detail))
        other.save(folder / f"transcript-{party}.jsonl")


@pytest.mark.parametrize("number", [2**63, 10**30, 10**400])
def test_numbers_that_no_run_has_are_refused_before_anything_is_laid_out(
    number: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As columns of a party they made the audit count blocks until memory ended."""

    def change(settings: dict[str, Any]) -> None:
        settings["parties"][0][1] = number

    altered(tmp_path, change)
    assert main(["audit", str(tmp_path)]) == 1
    assert "agree on a number that no run has" in capsys.readouterr().out


def test_more_parties_than_any_run_has_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The list of messages that are due grows with their cube: 3,000 parties gave no verdict."""

    def change(settings: dict[str, Any]) -> None:
        settings["parties"] = [[f"p{place}", 3, True] for place in range(3000)]

    altered(tmp_path, change)
    assert main(["audit", str(tmp_path)]) == 1
    assert "at most 256 are allowed" in capsys.readouterr().out


@pytest.mark.parametrize(("setting", "word"), [("batches", "rows"), ("stopping", "rounds")])
def test_a_list_of_messages_without_end_is_not_written(
    setting: str, word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """These numbers are in words. They made the audit list messages until memory ended."""

    def change(settings: dict[str, Any]) -> None:
        settings[setting] = re.sub(rf"\b{word}=\d+", f"{word}={10**12}", settings[setting])

    altered(tmp_path, change)
    assert main(["audit", str(tmp_path)]) == 1
    assert "no blind run has so many" in " ".join(capsys.readouterr().out.split())
