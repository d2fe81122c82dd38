"""Links lead somewhere, names of code are there, and the site has every page."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT

NAME = re.compile(r"`((?:securefed|research|bench)(?:\.\w+)+)`")
FILE = re.compile(r"`((?:securefed|research|bench|tests|docs|deploy|examples)/[\w./-]+\.\w+)`")


def anchors(page: Path) -> set[str]:
    """What `#...` can name on a page: headings, lower case, without punctuation."""
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", (ROOT / page).read_text()):
        if link.startswith("http"):
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_code_that_is_named_is_there(page: Path) -> None:
    text = (ROOT / page).read_text()
    for name in NAME.findall(text):
        assert resolves(name), f"{page}: {name}"
    for file in FILE.findall(text):
        assert list(ROOT.glob(file)) or "NAME" in file, f"{page}: {file}"


def resolves(name: str) -> bool:
    """Whether a dotted name is a module, or an attribute of one or of a class in it."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            fields = getattr(found, "__dataclass_fields__", {})
            found = inspect.getattr_static(found, part, fields.get(part))
            if found is None:
                return False
        return True
    return False


def test_names_that_are_not_there_are_found() -> None:
    assert resolves("securefed.protocols.losses.Loss.residual")
    assert not resolves("securefed.protocols.losses.Loss.nonsense")
    assert not resolves("nonsense.module")


def test_every_page_is_in_the_sites_navigation() -> None:
    listed = set(re.findall(r": ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    assert listed == {path.name for path in (ROOT / "docs").glob("*.md")}


def test_the_paper_page_has_every_equation_and_algorithm() -> None:
    text = (ROOT / "docs" / "paper.md").read_text()
    for number in range(1, 16):
        assert f"({number})" in text, f"equation {number}"
    for wanted in ("Algorithm 1", "Algorithm 2", "Algorithm 3", "Theorem 1", "Theorem 2"):
        assert wanted in text


def test_the_site_loads_nothing_from_elsewhere() -> None:
    """No fonts, scripts or styles of others: the built-in fonts are off, and nothing external is named."""
    text = (ROOT / "mkdocs.yml").read_text()
    assert "font: false" in text
    assert "http" not in re.sub(r"^ *#.*$", "", text, flags=re.MULTILINE)
