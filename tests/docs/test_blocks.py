"""What the guide shows is run: Python page by page, commands by the parser that they are for."""

from __future__ import annotations

import re
import shlex
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

import bench.__main__ as bench
from securefed.api.federated import Federated
from securefed.cli.entry import COMMANDS, build_parser
from tests.docs.pages import PAGES, ROOT, blocks, commands

SLOW = {"README.md", "docs/audit.md", "docs/data.md", "docs/index.md"}
"""Pages whose Python takes more than two seconds."""
TAKEN = re.compile(r"from (tests/\S+\.py), which the tests run")
"""Why a block is not run: it is a part of this file."""
NOT_MEASURED = {"docs/transfer.md": 1}
"""Models of a page that have no held-out rows."""
OTHERS = {
    *("cd", "cp", "curl", "export", "git", "head", "kill", "ls", "mkdir", "openssl", "pip", "pre-commit"),
    *("sleep", "wc", ".ci/run"),
}
"""Commands that are not ours, on a line with nothing of ours to check."""
LANGUAGES = {"python", "sh", "console", "toml"}
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
WITH_PYTHON = [page for page in PAGES if any(block.language == "python" for block in blocks(page))]


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=str(page), marks=[pytest.mark.slow] * (str(page) in SLOW))
        for page in WITH_PYTHON
    ],
)
def test_the_python_of_a_page_runs_from_top_to_bottom(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every model that a page trains is better than chance on rows that it did not see."""
    monkeypatch.chdir(tmp_path)
    models: list[Federated] = []
    fit = Federated.fit

    def noted(self: Federated, *arguments: Any, **named: Any) -> Federated:
        models.append(fit(self, *arguments, **named))
        return models[-1]

    monkeypatch.setattr(Federated, "fit", noted)
    known: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(page):
        if block.language == "python" and block.reason is None:
            exec(compile(block.code, f"{page}:{block.line}", "exec"), known)  # noqa: S102  # our own pages
    qualities = [model.result_.holdout for model in models]
    assert [quality for quality in qualities if quality is not None and quality.low <= quality.chance] == []
    assert qualities.count(None) == NOT_MEASURED.get(str(page), 0)


def parsed(command: str) -> None:
    """Refuse a command that its program would refuse."""
    if command.startswith(("for ", "do ", "done", "[ ")):
        return  # the shell's own
    words = [word for word in shlex.split(command) if word != "..."]
    words = list(takewhile(lambda word: word not in ("|", "||"), words))
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        del words[0]
    if words[:1] == ["securefed"]:
        named = [word for word in words if word in COMMANDS][:1]
        build_parser(named).parse_args(words[1:])
    elif words[:3] == ["python", "-m", "bench"]:
        bench.build_parser().parse_args(words[3:])
    elif words[:1] == ["make"]:
        assert {word for word in words[1:] if "=" not in word} <= TARGETS, command
    elif words[:1] == ["python"]:
        assert words[1].startswith("make_") or (ROOT / words[1]).exists(), command
    else:
        assert words[0] in OTHERS, command


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_commands_are_such_that_their_programs_take_them(
    page: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = [
        (block.line, command)
        for block in blocks(page)
        if block.language in ("sh", "console") and block.reason is None
        for command in commands(block)
    ]
    text = re.sub(r"^ *```.*?^ *```$", "", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL)
    # In sentences a command may be named without its arguments; `securefed party: ...` is what one said.
    spans = re.findall(r"`((?:securefed|python -m bench) [^`:]+)`", text)
    shown += [(0, span) for span in spans if span.split()[-1] not in COMMANDS]
    for line, command in shown:
        for each in re.split(r"&&|;", command.replace("\n", " ")):
            try:
                parsed(each.strip())
            except SystemExit as left:
                assert left.code == 0, f"{page}:{line}: {each}\n{capsys.readouterr().err}"


def test_a_block_that_is_not_run_is_a_part_of_a_file_that_is() -> None:
    shown = [block for page in PAGES for block in blocks(page)]
    assert {block.language for block in shown} <= LANGUAGES
    others = [block for block in shown if block.reason is not None]
    assert len(others) == 7
    for block in others:
        source = TAKEN.fullmatch(str(block.reason))
        assert source is not None, f"{block.page}:{block.line}: {block.reason}"
        assert block.code in (ROOT / source[1]).read_text(), (
            f"{block.page}:{block.line} is not in {source[1]}"
        )


def test_the_parser_finds_what_is_wrong() -> None:
    for wrong in ("securefed audit", "securefed party x.toml --nonsense", "python -m bench nonsense"):
        with pytest.raises(SystemExit) as left:
            parsed(wrong)
        assert left.value.code == 2
    for wrong in ("make nonsense", "telnet somewhere", "python missing.py"):
        with pytest.raises(AssertionError):
            parsed(wrong)
