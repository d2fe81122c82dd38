"""docs/architecture.md walks through a batch file by file; one is run here, and what it enters compared."""

from __future__ import annotations

import re
import sys
from types import FrameType
from typing import Any

import numpy as np
import pytest

from securefed import GeneralisedLinear, Party
from securefed.protocols.blind import BlindParty
from tests.docs.pages import ROOT

PACKAGE = str(ROOT / "securefed") + "/"
ASIDE = {"checks.py", "transport/local.py", "engine/local.py"}
"""Checks of settings, and what stands in for processes and a network here."""


def walked() -> set[str]:
    """Files of the walk up to the end of the round, without those of the network."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = text[text.index("## The walk of a batch") : text.index("| 18 |")]
    found = set(re.findall(r"`([a-z]+/[a-z_/]+\.py)`", rows))
    return {name for name in found if not name.startswith(("transport/grpc", "tests/"))}


def test_the_walk_of_a_batch_names_the_files_that_a_batch_enters(monkeypatch: pytest.MonkeyPatch) -> None:
    entered: set[str] = set()
    within, genuine = 0, BlindParty._round  # how many parties are in a round: else one may be setting up

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and within == 2 and frame.f_code.co_filename.startswith(PACKAGE):
            entered.add(frame.f_code.co_filename.removeprefix(PACKAGE))

    async def watched(self: BlindParty, *arguments: Any) -> None:
        nonlocal within
        within += 1
        await genuine(self, *arguments)
        within -= 1

    monkeypatch.setattr(BlindParty, "_round", watched)
    rng = np.random.default_rng(0)
    columns = rng.normal(size=(60, 4))
    labels = np.where(columns.sum(axis=1) > 0, 1, -1)
    parties = [Party("shop", columns[:, :2]), Party("bank", columns[:, 2:], labels=labels)]
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        GeneralisedLinear(rounds=2, holdout=0.0, engine="serial", check_every=0).fit(parties)
    finally:
        sys.setprofile(before)
    assert entered - ASIDE - {"protocols/loop.py"} == walked() - {"protocols/loop.py"}
