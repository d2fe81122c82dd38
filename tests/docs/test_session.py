"""The sessions of docs/deploy.md and docs/operations.md: every command ends well, and leaves what is said."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from bench.ports import free_ports
from tests.docs.session import edited, kept, play, recorded, text_of_pages


def with_free_ports(text: str) -> str:
    """The page with ports that nobody uses here in place of its own."""
    ports = sorted(set(re.findall(r"127\.0\.0\.1:(\d+)", text)))
    free = dict(zip(ports, free_ports(len(ports)), strict=True))
    return re.sub(r"(?<=127\.0\.0\.1:)\d+", lambda place: str(free[place.group()]), text)


@pytest.mark.slow
def test_every_command_of_the_pages_ends_well(tmp_path: Path) -> None:
    played = play(with_free_ports(text_of_pages()), tmp_path)
    for each in (one for block in played for one in block):
        assert each.code == 0, f"{each.at}$ {each.command}\n{each.printed}"
    together = next(one for block in played for one in block if "audit together" in one.command)
    assert "18 checks passed, 0 failed, 1 skipped (result.json was not given)." in together.printed
    (ready,) = (one for block in played for one in block if one.command.endswith("/ready"))
    assert '"state": "waiting"' in ready.printed and '"waiting_for": ["shop"]' in ready.printed
    rows = list(csv.DictReader((tmp_path / "bank-machine/scores.csv").read_text().splitlines()))
    assert len(rows) == 80
    assert {row["predicted"] for row in rows} == {"yes", "no"}


def test_blocks_are_edited_shortened_and_written_back(tmp_path: Path) -> None:
    before = "\n# a = 1\n[x]\nb = 2\n[y]\nb = 3\n"
    assert edited(before, "a = 4\n[y]\nb = 5\n") == "\na = 4\n[x]\nb = 2\n[y]\nb = 5\n"
    with pytest.raises(LookupError, match="no c to replace"):
        edited(before, "c = 1\n")
    assert kept("1\n2\n3\n4\n", "1+1") == "1\n...\n4\n"
    page = "text\n\n<!-- run: at=. -->\n\n```console\n$ echo new\nold\n$ exit 3\n```\n"
    played = play(page, tmp_path)
    assert [each.code for block in played for each in block] == [0, 3]
    assert recorded(page, played) == page.replace("old", "new")
