"""The tables of settings in docs/reference.md follow from the declarations."""

from __future__ import annotations

from pathlib import Path

from securefed.settings.describe import settings_tables

PAGE = Path(__file__).parents[2] / "docs" / "reference.md"


def test_the_tables_in_the_docs_are_those_of_the_declarations() -> None:
    start, end = "<!-- settings: generated -->\n", "<!-- end of settings -->"
    text = PAGE.read_text(encoding="utf-8").split(start)[1].split(end)[0]
    assert text.strip() == settings_tables().strip(), "make docs/reference.md anew"
