"""Report and audit in a real browser: readable in both themes, whole on a telephone, a silent console."""

from __future__ import annotations

from pathlib import Path

import pytest

from securefed.audit import audit
from securefed.audit.report import whole_page
from securefed.pages import GLOSSARY, page, table, term
from securefed.report.page import render
from tests.report.browser import look, needs_browser
from tests.report.test_run_files import account

POOR = page("poor", '<p style="color:#bbb">pale</p><div style="width:700px">wide</div>')


def pages() -> dict[str, str]:
    """Long names, every section, the worst verdicts: what would not fit if anything did not."""
    made = account()
    result, timing = made.result(), {**made.timing(), "wall_seconds": 12.0}
    result |= {
        "run": "a-run-with-a-name-as-long-as-they-get-" + "x" * 26,
        "holdout": {
            "metric": "AUC",
            "value": 0.61,
            "alone": 0.7,
            "chance": 0.5,
            "rows": 99,
            "warning": "WORSE",
            "confusion": {"classes": ["word" * 12, *range(19)], "counts": [[12345] * 20] * 20},
        },
        "beside": [["all data in one place", 0.8]],
        "peers": {"shop": {"transcripts": "agree"}},
        "finished": "2026-11-17 00:00 UTC",
    }
    report = audit({made.party: made.transcript})
    return {
        "report": render(result, timing, report.to_html()),
        "plain": render({**result, "protected": False, "holdout": None}, timing),
        "audit": whole_page(report),
    }


@needs_browser
@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_pages_are_readable_and_fit_on_a_telephone(dark: bool, tmp_path: Path) -> None:
    for name, text in pages().items():
        found = look(text, tmp_path, width=390, dark=dark)
        assert found.dark == dark and found.texts > 40, name
        assert not found.console and not found.poor, (name, found.console, found.poor[:5])
        assert found.width <= 390 and not found.wide, (name, found.width, found.wide[:3])


@needs_browser
@pytest.mark.slow
def test_a_poor_page_is_found_out(tmp_path: Path) -> None:
    text = POOR.replace("</body>", "<script>console.error('oh')</script></body>")
    found = look(text, tmp_path, width=390)
    assert found.poor and found.wide and found.console and found.width > 390


def test_words_are_explained_where_they_stand_and_at_the_end() -> None:
    text = pages()["report"]
    for word in ("round", "key-holder", "ledger", "receipt", "claim"):
        assert f'id="term-{word}"' in text
    assert 'href="#term-local-steps"' in text and GLOSSARY["local steps"] in text
    assert "rounds (rounds)" not in text and "as many as agreed" in text
    assert 'name="viewport"' in pages()["audit"]


def test_cells_and_terms_are_text() -> None:
    assert "<b>" not in table(("<b>",), [("<b>",)], numbers=(0,))
    assert "<" not in term("AUC", "<b>").replace("<a", "").replace("</a>", "")
