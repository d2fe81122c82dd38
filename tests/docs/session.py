"""The sessions of docs/deploy.md and, in the same folders, docs/operations.md, run as they stand there.

`python -m tests.docs.session` writes what they print back into the pages.

A comment before a block says how it is run:

    <!-- run: save=make_data.py -->              the block becomes that file
    <!-- run: edit=bank/party.toml -->           its lines replace those of the same key (and table) there
    <!-- run: at=bank-machine -->                its commands run in that folder, one after the other
    <!-- run: at=bank-machine with keep=8+6 -->  together with the next block; only so many lines are shown
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.docs.pages import ROOT

PAGES = [ROOT / "docs" / "deploy.md", ROOT / "docs" / "operations.md"]
BLOCK = re.compile(
    r"^<!-- run: (?P<how>[^\n]+) -->\n\n```(?P<language>\w+)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True)
class Played:
    """A command, where, its exit code and what it printed."""

    command: str
    at: str
    code: int
    printed: str


def play(text: str, folder: Path) -> list[list[Played]]:
    """Run the blocks of a page; for each block of commands what they printed."""
    played: list[list[Played]] = []
    waiting: list[tuple[int, str, str, subprocess.Popen[str]]] = []
    for found in BLOCK.finditer(text):
        how = dict(word.partition("=")[::2] for word in found["how"].split())
        if "save" in how:
            (folder / how["save"]).write_text(found["code"])
            continue
        if "edit" in how:
            path = folder / how["edit"]
            path.write_text(edited(path.read_text(), found["code"]))
            continue
        played.append([])
        for command in re.findall(r"^\$ (.+)$", found["code"], re.MULTILINE):
            process = start(command, folder / how["at"])
            if "with" in how:
                waiting.append((len(played) - 1, command, how["at"], process))
            else:
                played[-1].append(ended(command, how["at"], process))
        if "with" not in how:
            for index, command, at, process in waiting:
                if any(each.code for each in played[-1]):
                    process.terminate()  # its peer has left
                played[index].append(ended(command, at, process))
            waiting = []
    return played


def start(command: str, at: Path) -> subprocess.Popen[str]:
    at.mkdir(parents=True, exist_ok=True)
    context = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "SECUREFED_PASSPHRASE": "one passphrase for the whole example",
        "COLUMNS": "110",
    }
    output = tempfile.TemporaryFile("w+")  # noqa: SIM115  # read after the process has ended
    process = subprocess.Popen(
        ["/bin/bash", "-c", command], cwd=at, env=context, stdout=output, stderr=subprocess.STDOUT, text=True
    )
    process.stdout = output  # type: ignore[assignment]
    return process


def ended(command: str, at: str, process: subprocess.Popen[str]) -> Played:
    code = process.wait(timeout=540)
    if process.stdout is None:
        raise RuntimeError("no output was kept")
    with process.stdout as output:
        output.seek(0)
        return Played(command, at, code, output.read())


def edited(text: str, lines: str) -> str:
    """`text` with these lines in place of those of the same key, after the table where one is named."""
    start = 0
    for line in lines.splitlines():
        if line.startswith("["):
            start = text.index(f"\n{line}\n") + 1
            continue
        key = line.partition(" = ")[0]
        before, after = text[:start], text[start:]
        pattern = re.compile(rf"^(# ?)?{key} = .*$", re.MULTILINE)
        changed, count = pattern.subn(lambda _, to=line: to, after, count=1)
        if not count:
            raise LookupError(f"no {key} to replace")
        text = before + changed
    return text


def recorded(text: str, played: list[list[Played]]) -> str:
    """The page with what was printed in place of what it showed."""
    rest = iter(played)

    def block(found: re.Match[str]) -> str:
        how = dict(word.partition("=")[::2] for word in found["how"].split())
        if "at" not in how:
            return found[0]
        shown = "".join(f"$ {each.command}\n{kept(each.printed, how.get('keep'))}" for each in next(rest))
        return f"<!-- run: {found['how']} -->\n\n```console\n{shown}```"

    return BLOCK.sub(block, text)


def kept(printed: str, keep: str | None) -> str:
    lines = printed.rstrip("\n").split("\n") if printed else []
    if keep:
        first, last = map(int, keep.split("+"))
        if len(lines) > first + last:
            lines = [*lines[:first], "...", *lines[len(lines) - last :]]
    return "".join(f"{line}\n" for line in lines)


def text_of_pages() -> str:
    return "".join(page.read_text(encoding="utf-8") for page in PAGES)


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        played = play(text_of_pages(), Path(folder))
    for each in (one for block in played for one in block if one.code):
        print(f"exit code {each.code}: {each.command}\n{each.printed}", file=sys.stderr)  # noqa: T201
    rest = played
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        count = sum("at=" in found["how"] for found in BLOCK.finditer(text))
        page.write_text(recorded(text, rest[:count]), encoding="utf-8")
        rest = rest[count:]
    return max(one.code for block in played for one in block)


if __name__ == "__main__":
    sys.exit(main())
