"""The pages of the guide, and the blocks of code in them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [
    *sorted(path.relative_to(ROOT) for path in (ROOT / "docs").glob("*.md")),
    *map(Path, ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
]
FENCE = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^\n]+) -->\n\n?)?^ *```(?P<language>\w+)\n(?P<code>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    language: str
    code: str
    reason: str | None
    """Why it is not run."""


def blocks(page: Path) -> list[Block]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return [
        Block(
            page,
            text.count("\n", 0, found.start("language")) + 1,
            found["language"],
            found["code"],
            found["reason"],
        )
        for found in FENCE.finditer(text)
    ]


def commands(block: Block) -> list[str]:
    """Commands of a `sh` or `console` block, without prompts, comments and outputs; long lines joined."""
    lines = block.code.replace("\\\n", " ").splitlines()
    if block.language == "console":
        lines = [line[2:] for line in lines if line.startswith("$ ")]
    return [line for line in (re.sub(r"(^|\s)#.*", "", line).strip() for line in lines) if line]
