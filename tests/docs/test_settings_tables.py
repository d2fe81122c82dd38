"""The tables of settings in docs/reference.md follow from the declarations."""

from __future__ import annotations

from tests.docs.settings_tables import END, PAGE, START, settings_tables


def test_the_tables_in_the_docs_are_those_of_the_declarations() -> None:
    text = PAGE.read_text(encoding="utf-8").split(START)[1].split(END)[0]
    assert text.strip() == settings_tables().strip(), "run: python -m tests.docs.settings_tables"
