"""A transcript over interruptions: both ends cut at the same place, and the chain stays whole."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from securefed.errors import DataError
from securefed.files import RunDirectory, StorageError
from securefed.process.checkpoints import Checkpoint, CheckpointStore, ResumePlan
from securefed.process.party_run import Session
from securefed.process.recording import Events, RunRecorder, RunTotals, resume_transcript, start_transcript
from securefed.transport.message import Message
from securefed.transport.message import Path as ClockPath
from securefed.transport.transcript import Transcript


def message(kind: str, round_: int, sequence: int) -> Message:
    return Message(kind, "r", round_, 0, "bank", "shop", sequence, b"x" * 8, ClockPath())


def killed(transcript: Transcript) -> None:
    """Leave the file as a kill leaves it: without its closing line."""
    transcript.abandon()


def recorded(path: Path, rounds: int) -> None:
    """A transcript of so many rounds, killed."""
    transcript = start_transcript(path, "bank", "r")
    transcript.message("sent", message("public-key", 0, 0), "setup")
    for number in range(rounds):
        transcript.message("sent", message("contribution", number, number + 1), "training")
        transcript.note("requested", "opening", "shop", number, 0, "training")
    killed(transcript)


def test_it_goes_on_after_the_last_round_that_counts(tmp_path: Path) -> None:
    path = tmp_path / "transcript-bank.jsonl"
    recorded(path, 5)
    again = resume_transcript(path, "bank", "r", 3)
    assert [e.round for e in again.entries if e.event == "sent"] == [0, 0, 1, 2]
    assert again.entries[-1].event == "resumed" and again.entries[-1].round == 3
    again.message("sent", message("contribution", 3, 0), "training")
    again.close()
    read = Transcript.read(path)
    assert read.fault() == "" and len(read) == len(again)
    assert list(tmp_path.iterdir()) == [path]


def test_a_power_cut_leaves_no_checkpoint_without_the_lines_of_its_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CheckpointStore(tmp_path / "checkpoints-bank.sfc", bytes(32), party="bank", run="r")
    store.write_alignment(Checkpoint({}, {}))
    transcript = start_transcript(tmp_path / "transcript-bank.jsonl", "bank", "r")
    agreement: Any = SimpleNamespace(evaluates_after=lambda _: False)
    link: Any = SimpleNamespace(transcript=transcript, path=ClockPath(), activities={})
    recorder = RunRecorder(store, agreement, RunTotals(), link, Events(None))
    synced, plain = [], os.fdatasync

    def fdatasync(descriptor: int) -> None:
        synced.append((Path(os.readlink(f"/proc/self/fd/{descriptor}")).name, os.fstat(descriptor).st_size))
        plain(descriptor)

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    transcript.message("sent", message("contribution", 0, 1), "training")
    recorder.write(1, None)
    transcript.close()
    names = [name for name, _ in synced]
    assert names == ["transcript-bank.jsonl", "checkpoints-bank.sfc", "transcript-bank.jsonl"]
    assert synced[-1][1] == (tmp_path / "transcript-bank.jsonl").stat().st_size > synced[0][1] > 0, (
        "all lines, the last one too"
    )


def test_what_a_kill_left_half_written_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "transcript-bank.jsonl"
    recorded(path, 4)
    whole = path.read_bytes()
    path.write_bytes(whole[:-25])
    again = resume_transcript(path, "bank", "r", 3)
    assert max(e.round for e in again.entries if e.event == "sent") == 2
    again.close()


def test_attempts_that_came_to_nothing_leave_nothing(tmp_path: Path) -> None:
    """Their keys may have been sent and never have arrived: the two ends would not agree."""
    path = tmp_path / "transcript-bank.jsonl"
    recorded(path, 2)
    aborted = resume_transcript(path, "bank", "r", 2)
    aborted.message("sent", message("public-key", 0, 0), "setup")
    killed(aborted)
    again = resume_transcript(path, "bank", "r", 2)
    assert [e.event for e in again.entries].count("resumed") == 1
    assert [e.kind for e in again.entries].count("public-key") == 1
    again.close()


def test_before_the_first_round_it_starts_anew(tmp_path: Path) -> None:
    path = tmp_path / "transcript-bank.jsonl"
    again = resume_transcript(path, "bank", "r", 0)  # there was none yet
    assert [e.event for e in again.entries] == ["resumed"]
    again.close()
    recorded(path, 1)
    again = resume_transcript(path, "bank", "r", 0)
    assert len(again) == 1
    again.close()


def test_an_altered_or_foreign_transcript_is_not_continued(tmp_path: Path) -> None:
    path = tmp_path / "transcript-bank.jsonl"
    recorded(path, 3)
    lines = path.read_text().split("\n")
    path.write_text("\n".join([lines[0], lines[2], lines[1], *lines[3:]]))
    with pytest.raises(DataError, match="not a whole transcript"):
        resume_transcript(path, "bank", "r", 2)
    other = tmp_path / "transcript-shop.jsonl"
    theirs = start_transcript(other, "shop", "r")
    theirs.note("agreed", "agreement", "", 0, 0, "setup")
    theirs.close()
    with pytest.raises(DataError, match="of bank"):
        resume_transcript(other, "bank", "r", 1)


def test_a_disk_that_is_full_is_one_named_error(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    path = tmp_path / "transcript-bank.jsonl"
    transcript = start_transcript(path, "bank", "r")
    transcript.abandon()
    transcript._stream = Path("/dev/full").open("ab")  # noqa: SIM115
    transcript.message("sent", message("contribution", 0, 0), "training")
    with pytest.raises(StorageError, match="No space left on device"):
        transcript.flush()
    transcript.abandon()  # and says nothing more


@pytest.mark.parametrize("kind", ["opening", "score-opening"])
def test_a_key_holders_answer_is_in_the_file_before_it_leaves(tmp_path: Path, kind: str) -> None:
    """The others end a round with it. A key-holder that is killed then would else lack what it sent."""
    path = tmp_path / "transcript-bank.jsonl"
    transcript = start_transcript(path, "bank", "r")
    transcript.note("opened", kind, "shop", 0, 0, "training")
    transcript.message("sent", message(kind, 0, 0), "training")
    assert [entry.event for entry in Transcript.read(path)] == ["opened", "sent"]
    transcript.abandon()


def test_it_is_replaced_as_a_whole_when_it_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill while it is written again loses nothing."""
    path = tmp_path / "transcript-bank.jsonl"
    recorded(path, 4)
    whole = path.read_bytes()

    def killed(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.fsync", killed)
    with pytest.raises(KeyboardInterrupt):
        resume_transcript(path, "bank", "r", 2)
    assert path.read_bytes() == whole


@pytest.mark.parametrize("change", [{"more": 1}, {"party": ["bank"]}, {"transcript": 3}, {"release": None}])
def test_a_header_with_other_fields_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    path = tmp_path / "transcript-bank.jsonl"
    recorded(path, 1)
    head, *rest = path.read_text().splitlines()
    path.write_text("\n".join([json.dumps({**json.loads(head), **change}), *rest, ""]))
    with pytest.raises(DataError, match="its first line is another"):
        Transcript.read(path)


def test_events_are_lines_of_json_that_are_added(tmp_path: Path) -> None:
    heard: list[str] = []
    for name in ("round", "message", "finished"):
        with Events(tmp_path / "events", [lambda event, facts: heard.append(event)]) as events:
            events.tell(name, round=3)
    lines = [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]
    assert [line["event"] for line in lines] == ["round", "finished"] and lines[0]["round"] == 3
    assert heard == ["round", "message", "finished"], "listeners hear what is not for the file, too"
    with Events(None) as nowhere:
        nowhere.tell("unheard")


def test_a_full_disk_under_the_events_is_one_named_error() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    with Events(Path("/dev/full")) as events, pytest.raises(StorageError, match="/dev/full: No space left"):
        events.tell("listening")


def test_an_attempt_that_ends_lets_go_of_its_file_and_can_be_gone_on_from(tmp_path: Path) -> None:
    path = tmp_path / "transcript-bank.jsonl"
    made = start_transcript(path, "bank", "r")
    made.message("sent", message("contribution", 0, 0), "training")
    stream = made._stream
    assert stream is not None
    made.abandon()
    assert stream.closed
    assert "end" not in json.loads(path.read_text().splitlines()[-1])
    made.abandon()  # there is nothing left to do
    again = resume_transcript(path, "bank", "r", 1)
    again.close()
    assert [entry.event for entry in Transcript.read(path)] == ["sent", "resumed"]


def test_a_run_that_was_done_and_goes_on_is_not_done(tmp_path: Path) -> None:
    """A peer lost its last round. If this party is killed meanwhile, its transcript has no end to report."""
    directory = RunDirectory(tmp_path, "bank")
    transcript = start_transcript(directory.transcript, "bank", "r")
    transcript.close()
    store = CheckpointStore(tmp_path / "c.sfc", bytes(32), party="bank", run="r")
    store.write_alignment(Checkpoint({}, {}))
    facts = {"entries": 0, "ended": "rounds", "done": True, **RunTotals().to_meta()}
    store.write(2, Checkpoint({"parameters": np.ones(3)}, facts))
    session: Any = SimpleNamespace(
        directory=directory, store=store, name="bank", shared=SimpleNamespace(name="r"), events=Events(None)
    )
    link: Any = SimpleNamespace(transcript=None)
    agreement: Any = SimpleNamespace(evaluates_after=lambda number: False)
    Session._open_transcript(session, link, ResumePlan("i", 2, 5, None), agreement)
    link.transcript.abandon()
    assert Transcript.read(directory.transcript).fault() == "cut short: its last line is missing"
    again = store.read(2)
    assert again.meta["done"] is False and again.meta["ended"] == "rounds"
    assert np.array_equal(again.arrays["parameters"], np.ones(3))
