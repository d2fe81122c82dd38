"""The run directory, the timeline and the account: from a real run in one process."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from securefed.audit.report import audit
from securefed.errors import DataError
from securefed.files import RunDirectory
from securefed.plan.rehearsal import Scenario
from securefed.protocols.loop import Round
from securefed.protocols.schedules import FedBCD
from securefed.report.page import render, seconds, size
from securefed.report.summary import PartyAccount, Timeline, saw
from securefed.settings import LinearSettings, OwnGradient, Plain, Protection
from securefed.transport.message import Path as ClockPath
from tests.report.drawings import parsed
from tests.report.runs import run

SHOWN, CLEAR = OwnGradient(), Plain(like="own-gradient")


def account(protection: Protection = SHOWN, party: str = "bank") -> PartyAccount:
    settings = LinearSettings(
        algorithm=FedBCD(2), protection=protection, rounds=3, learning_rate=0.1, l2=0.0, refit=False
    )
    scenario = Scenario(settings, {"shop": 3, "bank": 2}, 20)
    _, done = run(scenario)
    link, timeline = done.links[party], Timeline()
    # The rounds are over: the same points as on_round would give, from the transcript and the clock.
    for number in range(3):
        timeline.add(Round(number, 0.5 + number / 10, link))
    return PartyAccount(
        party=party,
        run="trial",
        instance="0" * 16,
        agreement=scenario.agreement,
        rounds=3,
        reason="rounds",
        rows=20,
        history=timeline.history,
        timeline=timeline,
        transcript=link.transcript,
        path=link.path,
        evaluation=ClockPath(),
        alignment=ClockPath(1.0, 0.5),
        activities=link.activities,
    )


def test_an_account_says_what_was_sent_and_seen() -> None:
    made = account()
    result, timing = made.result(), made.timing()
    assert result["protected"] and result["rounds"] == 3
    assert result["bytes_sent"] == sum(made.transcript.bytes("sent").values())
    assert {row["kind"] for row in result["seen"]} == {
        "public-key",
        "contribution",
        "opening-request",
        "opening",
    }
    assert result["saw"].startswith("its own gradients (3 openings of 3 numbers)")
    assert timing["total_seconds"] == timing["computation_seconds"] + timing["communication_seconds"]
    assert [row["number"] for row in timing["rounds"]] == [0, 1, 2]
    assert result["history"] == [[0, 0.5], [1, 0.6], [2, 0.7]] and result["metric"] == 0.7
    json.dumps([result, timing], allow_nan=False)


def test_a_plain_run_is_said_to_be_one() -> None:
    made = account(CLEAR)
    assert "in the clear" in made.result()["saw"]
    assert all(row["protection"] in ("none", "public") for row in made.result()["seen"])
    assert "NOT PROTECTED" in render(made.result(), made.timing())


def test_nothing_seen_is_said_so() -> None:
    from securefed.transport.transcript import Transcript

    assert saw(Transcript("shop"), protected=True) == "only ciphertexts and masked numbers"


def test_the_report_is_one_page_that_needs_nothing(tmp_path: Path) -> None:
    made = account()
    page = render({**made.result(), "holdout": HELD}, made.timing(), "<h2>More</h2>")
    drawings = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(drawings) == 2
    for drawing in drawings:
        parsed(drawing)
    assert not re.search(r"src=|href=\"(?!#|data:)|<script|@import|url\(", page)
    assert "<h2>More</h2>" in page and "contribution" in page


def test_what_took_longest_comes_first() -> None:
    made = account()
    timing = {**made.timing(), "activities": {"encrypt": 1.0, "decrypt": 4.0}}
    page = render(made.result(), timing)
    assert page.index("<span>decrypt</span>") < page.index("<span>encrypt</span>") and "<span>4.0 s" in page
    assert "<span>contribution</span>" in page


def test_names_in_a_report_are_text_and_not_markup() -> None:
    made = account()
    result = {**made.result(), "run": "<script>alert(1)</script>", "party": '"><i>'}
    page = render(result, made.timing())
    assert "<script>" not in page and '"><i>' not in page


def test_a_directory_is_written_whole_and_read_again(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "runs" / "trial", "bank")
    assert not directory.finished
    with pytest.raises(DataError, match="no run's result there"):
        directory.read()
    made = account()
    directory.write(made.result(), made.timing(), render(made.result(), made.timing()))
    assert directory.finished
    result, timing = directory.read()
    assert result == json.loads(json.dumps(made.result())) and timing["party"] == "bank"
    assert directory.folder.stat().st_mode & 0o777 == 0o700
    directory.result.write_text("{half")
    with pytest.raises(DataError, match="cannot be read"):
        directory.read()


def test_a_timeline_goes_on_where_it_stood() -> None:
    made = account()
    kept = Timeline(made.timeline.points[:2])
    last = kept.points[-1]
    assert kept.path(ClockPath(1.0, 2.0)) == ClockPath(last.computation + 1.0, last.communication + 2.0)
    assert kept.history == [(0, 0.5), (1, 0.6)]


def test_numbers_as_people_read_them() -> None:
    assert [seconds(s) for s in (0.04, 119.0, 600.0, 36000.0)] == ["40 ms", "119.0 s", "10.0 min", "10.0 h"]
    assert [size(b) for b in (12, 1500, 2.5e6, 3e9, 4e12)] == [
        "12 B",
        "1.5 kB",
        "2.5 MB",
        "3.0 GB",
        "4000.0 GB",
    ]


def test_a_bad_model_is_said_loudly_on_the_page() -> None:
    from securefed.labels.quality import Holdout

    made = account(CLEAR)
    bad = {**made.result(), "holdout": Holdout("AUC", 0.61, 0.93, 0.5, 400).to_dict()}
    page = render(bad, made.timing())
    assert "THE JOINT MODEL IS WORSE THAN THE LABEL PARTY" in page and "0.6100" in page and "0.9300" in page
    good = {**made.result(), "holdout": Holdout("AUC", 0.95, 0.93, 0.5, 400, gain_error=0.01).to_dict()}
    assert "JOINT MODEL" not in render(good, made.timing())
    assert "confusion" not in render(good, made.timing())


def test_which_class_was_taken_for_which_is_on_the_page() -> None:
    from securefed.labels.quality import Holdout

    names, counts = ["<low>", "mid\x1b[2J", "a long word"], [[30, 10, 0], [1, 7, 2], [0, 0, 0]]
    held = Holdout("accuracy", 0.74, 0.6, 0.5, 50, classes=names, confusion=counts).to_dict()
    made = account(CLEAR)
    page = render({**made.result(), "holdout": held}, made.timing())
    cells = ("<span>10</span>", "<span>75%</span>", "<span>70%</span>")
    for cell in ("predicted &lt;low&gt;", *cells, "none there"):
        assert cell in page
    many = Holdout("accuracy", 0.7, 0.6, 0.5, 21, classes=range(21), confusion=[[1] * 21] * 21)
    assert "Which of 21 classes" in render({**made.result(), "holdout": many.to_dict()}, made.timing())


HELD = {
    "metric": "AUC",
    "value": 0.91234,
    "alone": 0.81234,
    "chance": 0.5,
    "rows": 400,
    "interval": [0.88, 0.94],
    "curves": {"roc": [[0, 0], [0.1, 0.9], [1, 1]], "calibration": [[0.2, 0.1, 200], [0.8, 0.9, 200]]},
    "confusion": {"classes": [0.0, 1.0], "counts": [[90, 10], [20, 80]]},
    "warning": None,
}


def test_quality_stands_first_with_its_interval_curves_and_confusion() -> None:
    made = account(CLEAR)
    page = render({**made.result(), "holdout": HELD}, made.timing())
    assert page.index(">held-out rows</a></h2>") < page.index("<details>")
    assert "0.91 (95%: 0.88 to 0.94)" in page and "0.9123" not in page and "bank alone" in page
    assert page.count(">ROC curve</a></h3>") == 1 and ">calibration</a></h3>" in page
    assert "predicted 1</th>" in page and "<span>80%</span>" in page


def test_gain_and_lift_are_on_the_page() -> None:
    made = account(CLEAR)
    group = {"people": 40, "found": 0.37, "rate": 0.9, "lift": 3.7}
    page = render({**made.result(), "holdout": {**HELD, "curves": {"gain": [group]}}}, made.timing())
    assert all(f"<span>{text}</span>" in page for text in ("40", "37%", "90%", "3.70"))


def test_settings_are_words() -> None:
    page = render({**account(CLEAR).result(), "holdout": HELD}, account(CLEAR).timing())
    settings = page[page.index('id="settings"') : page.index('id="glossary"')]
    for repr_ in ("<span>None", "<span>True", "<span>False", "["):
        assert repr_ not in settings
    assert "not set" in settings


def test_one_side_says_once_whether_the_transcripts_agree() -> None:
    """The audit of one party has the fingerprints that the parties compared at the end."""
    made = account()
    result = {**made.result(), "peers": {"shop": {"transcripts": "agree", "timing": None}}}
    section = audit([made.transcript], result).to_html()
    page = render(result, made.timing(), section)
    assert "they agree" in page and "not compared" not in page
