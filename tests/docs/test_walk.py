"""docs/architecture.md walks through a blind run file by file: one is run, and what it enters compared."""

from __future__ import annotations

import re
import sys
from types import FrameType
from typing import Any

import numpy as np
import pytest

from securefed import Blind, GeneralisedLinear, Party, Simulation
from securefed.protocols.blind.linear import BlindParty
from tests.docs.pages import ROOT

PACKAGE = str(ROOT / "securefed") + "/"
ASIDE = {"declare.py", "engine/processes.py"}
"""Checks of settings, and what stands in for processes and a network here."""
ALWAYS = {"protocols/loop.py"}
"""The loop may or may not be entered again while both parties are in a part."""
PARTS = {"_begin": "### The pass", "_round": "### A round", "_scores": "### Scores"}
"""Parts of the run by the method that makes them, with their heading."""
SENDING = {f"transport/{name}.py" for name in ("link", "message", "transcript")}


def page() -> str:
    return (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def named(text: str) -> set[str]:
    """Files in backquotes, with their folder."""
    return set(re.findall(r"`([a-z]+/[a-z_/]+\.py)`", text))


def walked(heading: str) -> set[str]:
    """Files that the table below a heading names, with those of every message."""
    lines = page().split(f"\n{heading}\n")[1].splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("|"))
    rows = []
    for line in lines[first:]:
        if not line.startswith("|"):
            break
        rows.append(line)
    return {name for name in named("\n".join(rows)) if not name.startswith("process/")} | SENDING


@pytest.fixture(scope="module")
def entered() -> dict[str, set[str]]:
    """The files that each part of a run enters while both parties are in it."""
    found: dict[str, set[str]] = {name: set() for name in PARTS}
    within = dict.fromkeys(PARTS, 0)

    def note(frame: FrameType, event: str, argument: Any) -> None:
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(PACKAGE):
            for name, parties in within.items():
                if parties == 2:
                    found[name].add(path.removeprefix(PACKAGE))

    def watched(name: str) -> Any:
        genuine = getattr(BlindParty, name)

        async def method(self: BlindParty, *arguments: Any) -> Any:
            within[name] += 1
            try:
                return await genuine(self, *arguments)
            finally:
                within[name] -= 1

        return method

    rng = np.random.default_rng(0)
    columns = rng.normal(size=(60, 4))
    labels = np.where(columns.sum(axis=1) > 0, 1, -1)
    parties = [Party("shop", columns[:, :2]), Party("bank", columns[:, 2:], labels=labels)]
    before = sys.getprofile()
    with pytest.MonkeyPatch.context() as patch:
        for name in PARTS:
            patch.setattr(BlindParty, name, watched(name))
        sys.setprofile(note)
        try:
            GeneralisedLinear(
                rounds=3, protection=Blind(score_ledger="off"), simulation=Simulation(engine="serial")
            ).fit(parties)
        finally:
            sys.setprofile(before)
    return found


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_walk_names_the_files_that_a_part_of_a_run_enters(
    name: str, entered: dict[str, set[str]]
) -> None:
    assert entered[name] - ASIDE - ALWAYS == walked(PARTS[name]) - ALWAYS


def test_every_part_sends_by_the_path_that_the_page_names() -> None:
    text = page()
    assert named(text[text.index("Every part sends") : text.index("### The pass")]) >= SENDING


def test_the_walk_of_a_batch_names_at_most_25_files() -> None:
    files = walked("### The pass") | walked("### A round")
    assert f"It names {len(files)} files." in page()
    assert len(files) <= 25
