"""The documentation says what the code does: tables that are generated, and tests that are named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench.attack_variants import VARIANTS
from bench.attacks import draw, line, table
from research.attacks.scores import Score
from securefed.errors import DataError
from securefed.protocols.messages import KINDS
from tests.audit.doc_tables import TABLES, main, updated

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
MINE = [DOCS / name for name in ("threat-model.md", "protocols.md", "audit.md", "security.md")]


@pytest.mark.parametrize(
    ("page", "name"), [("protocols.md", "kinds"), ("protocols.md", "alignment"), ("audit.md", "claims")]
)
def test_generated_tables_are_up_to_date(page: str, name: str) -> None:
    text = (DOCS / page).read_text()
    assert f"<!-- {name}: begin -->" in text
    assert updated(text) == text, f"run python -m tests.audit.doc_tables docs/{page}"


def test_tables_are_written_between_their_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- kinds: begin -->\nstale rows\n<!-- kinds: end -->\nafter\n")
    assert main([str(page)]) == 0
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "stale rows" not in text
    assert all(f"| `{kind}` |" in text for kind in KINDS)
    assert TABLES["kinds"]() in text
    with pytest.raises(DataError, match="without"):
        updated("<!-- kinds: begin -->")


@pytest.mark.parametrize("page", MINE, ids=lambda page: page.name)
def test_files_that_are_named_are_there(page: Path) -> None:
    for name in re.findall(r"`((?:tests|securefed|bench|docs)/[\w/.*]+)`", page.read_text()):
        assert list(ROOT.glob(name.rstrip("/"))), f"{page.name} names {name}"
    for target, anchor in re.findall(r"\]\(([\w-]+\.md)?#([\w-]+)\)", page.read_text()):
        text = (page.parent / target if target else page).read_text()
        anchors = {
            re.sub(r"[^\w\s-]", "", head.lower()).strip().replace(" ", "-")
            for head in re.findall(r"^#+ (.+)$", text, re.MULTILINE)
        }
        assert anchor in anchors, f"{page.name} links to {target}#{anchor}"


def test_the_attack_table_is_of_the_command() -> None:
    text = (DOCS / "audit.md").read_text()
    head = "| attack | observer | metric | chance | by design | " + " | ".join(VARIANTS) + " |"
    assert head in text
    assert "python -m bench attacks" in text
    assert re.search(r"20\d\d-\d\d-\d\d", text)


# The command's output


def score(variant: str, low: float, design: float | None = None) -> Score:
    return Score("labels", "B", variant, "AUC", low + 0.05, low, low + 0.1, 0.5, design, "a note")


def test_a_row_for_each_attack_and_a_mark_where_it_succeeds() -> None:
    scores = [score(VARIANTS[0], 0.8, 0.6), score(VARIANTS[2], 0.45, 0.7)]
    lines = table(scores).splitlines()
    assert len(lines) == 3
    assert "| 0.60 to 0.70 | **0.85 [0.80, 0.90]** | - | 0.50 [0.45, 0.55] | - | - |" in lines[2]
    assert "SUCCEEDS" in line(scores[0])
    assert "fails" in line(scores[1])
    assert "chance 0.50, by design 0.70; a note" in line(scores[1])


def test_it_draws(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "attacks.png"
    draw([score(VARIANTS[0], 0.8, 0.6), score(VARIANTS[3], 0.45)], path)
    assert path.read_bytes()[:4] == b"\x89PNG"


def test_every_attack_of_the_threat_model_names_a_test_that_is_there() -> None:
    text = (ROOT / "docs" / "threat-model.md").read_text()
    section = text.split("\n## Attacks\n")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ") and "| who |" not in line]
    assert len(rows) > 20
    for row in rows:
        _, _, kind, result, *_, test = (cell.strip() for cell in row.strip("|").split("|"))
        assert kind in ("passive", "active"), row
        assert result.startswith(("prevented", "limited", "open")), row
        paths = re.findall(r"`(tests/[^`]+)`", test)
        assert paths and all((ROOT / path).is_file() for path in paths), row
