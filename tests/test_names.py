"""Names in the package: a class has its name alone, and variables are nouns. And how docstrings begin."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "securefed"
VERBS = {"asked", "found", "given", "held", "made", "said"}
"""Words that say what happened to a value, and not what it is."""


def variables(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield every variable and parameter that a module binds, with its line. Fields of classes are none."""
    owned = {
        id(line.target)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for line in node.body
        if isinstance(line, ast.AnnAssign)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and id(node) not in owned:
            yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg


def verbs(tree: ast.AST) -> list[tuple[int, str]]:
    return [(line, name) for line, name in variables(tree) if name in VERBS]


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield every text that stands by itself: docstrings, and what follows a variable or a field."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.lineno, str(node.value.value)


def riddles(tree: ast.AST) -> list[tuple[int, str]]:
    """Docstrings that begin in the middle of a sentence."""
    return [(line, text) for line, text in docstrings(tree) if re.match(r"(Of|From|But|That|By)\b", text)]


def test_no_two_classes_have_one_name() -> None:
    homes = defaultdict(list)
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(f"{path.relative_to(PACKAGE)}:{node.lineno}")
    assert not {name: places for name, places in homes.items() if len(places) > 1}


def test_variables_are_nouns() -> None:
    places = [
        f"{path.relative_to(PACKAGE)}:{line}: {name}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for line, name in verbs(ast.parse(path.read_text()))
    ]
    assert not places


@pytest.mark.parametrize(
    "code",
    ["found = 1", "def f(given): ...", "for held in x: ...", "y = [made for made in x]", "said: int = 1"],
)
def test_the_check_sees_them(code: str) -> None:
    assert len(verbs(ast.parse(code))) == 1
    assert not verbs(ast.parse("x.found = f(given=held)"))
    assert not verbs(ast.parse("class Share:\n    found: float"))


def test_docstrings_say_what_a_thing_is_or_does() -> None:
    places = [
        f"{path.relative_to(PACKAGE)}:{line}: {text.splitlines()[0]}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for line, text in riddles(ast.parse(path.read_text()))
    ]
    assert not places


@pytest.mark.parametrize("word", ["Of", "From", "But", "That", "By"])
def test_the_check_sees_riddles(word: str) -> None:
    for code in ('x = 1\n"""{} a row."""', 'def f():\n    """{} a row."""', '"""{} a row."""'):
        assert len(riddles(ast.parse(code.format(word)))) == 1
    assert not riddles(ast.parse(f'"""{word}fset of a row."""'))
