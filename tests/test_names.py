"""Names in the package: a class has its name alone, and variables are nouns. And how docstrings begin."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "securefed"
VERBS = {"asked", "found", "given", "held", "made", "said", "seen", "told"}
"""Words that say what happened to a value, and not what it is."""


def variables(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield every variable, parameter and attribute that a module binds, with its line, less a leading "_".

    Fields of classes are left out: files and results have their names.
    """
    owned = {
        id(line.target)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for line in node.body
        if isinstance(line, ast.AnnAssign)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and id(node) not in owned:
            yield node.lineno, node.id.lstrip("_")
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr.lstrip("_")
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg.lstrip("_")


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


def meanings(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield each class with its line, and each alias of a module (`Array = ...`) with its meaning."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield node.name, f"class in line {node.lineno}"
    for line in tree.body:
        if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
            name = line.targets[0].id
            if re.fullmatch(r"[A-Z]\w*[a-z]\w*", name):
                yield name, ast.unparse(line.value)


def doubles(modules: Mapping[str, ast.Module]) -> dict[str, set[str]]:
    """Names of classes and aliases with more than one meaning. An alias may be written down twice."""
    homes: dict[str, set[str]] = defaultdict(set)
    for home, tree in modules.items():
        for name, meaning in meanings(tree):
            homes[name].add(f"{home}: {meaning}" if meaning.startswith("class ") else meaning)
    return {name: each for name, each in homes.items() if len(each) > 1}


def test_no_name_has_two_meanings() -> None:
    assert not doubles({str(path): ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py")})


@pytest.mark.parametrize("code", ["class Rows: ...", "Rows = list[float]"])
def test_the_check_sees_doubles(code: str) -> None:
    assert list(doubles({"a": ast.parse("Rows = list[int]"), "b": ast.parse(code)})) == ["Rows"]
    assert list(doubles({"a": ast.parse("class Rows: ..."), "b": ast.parse(code)})) == ["Rows"]
    assert not doubles({"a": ast.parse(code), "b": ast.parse("def f():\n    Rows = 1")})


def test_variables_are_nouns() -> None:
    places = [
        f"{path.relative_to(PACKAGE)}:{line}: {name}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for line, name in verbs(ast.parse(path.read_text()))
    ]
    assert not places


@pytest.mark.parametrize(
    "code",
    [
        "found = 1",
        "def f(given): ...",
        "for held in x: ...",
        "y = [made for made in x]",
        "said: int = 1",
        "x.told = 1",
        "self._seen: int = 1",
    ],
)
def test_the_check_sees_them(code: str) -> None:
    assert len(verbs(ast.parse(code))) == 1
    assert not verbs(ast.parse("x = f(given=held).found"))
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
