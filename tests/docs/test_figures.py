"""The README's pictures are of one run: the numbers in them are those that the run wrote."""

from __future__ import annotations

import json
import re
from pathlib import Path

from securefed.labels.metrics import shown

FIGURES = Path(__file__).parents[2] / "docs" / "figures"


def test_the_picture_of_the_demo_has_the_numbers_of_its_run() -> None:
    facts = json.loads((FIGURES / "demo.json").read_text())
    lines = re.findall(r">([^<>]*)</text>", (FIGURES / "demo.svg").read_text())
    between = facts["auc_interval"]
    assert any(line.endswith(shown(facts["auc"], between)) for line in lines)
    for name in ("auc_central", "auc_alone"):
        assert any(line.endswith(shown(facts[name], between, between=False)) for line in lines)
    assert any(f"on {facts['new_people']} new people" in line for line in lines)


def test_the_readme_says_no_number_of_the_demo_by_itself() -> None:
    text = (FIGURES.parents[1] / "README.md").read_text()
    assert not re.search(r"0\.9[0-9]|[0-9.]+ s\b", text), "numbers of a run belong into its pictures"
