"""What a command printed, as a picture of a terminal: `securefed demo 2>&1 | python docs/.site/terminal.py
"securefed demo" docs/figures/demo.svg`.
"""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path

WIDTH, LINE, CHARACTER, MARGIN = 100, 19, 7.83, 18
FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"


def picture(command: str, printed: str) -> str:
    """SVG of a terminal, dark in either theme; lines beyond its width are cut, and end in an ellipsis."""
    lines = [f"$ {command}", *printed.rstrip().splitlines()]
    cut = [line if len(line) <= WIDTH else line[: WIDTH - 1] + "…" for line in lines]
    width, height = WIDTH * CHARACTER + 2 * MARGIN, len(cut) * LINE + 2 * MARGIN
    text = "".join(
        f'<text class="{"said" if i else "given"}" x="{MARGIN}" y="{MARGIN + LINE * (i + 0.75):.0f}">'
        f"{escape(line)}</text>\n"
        for i, line in enumerate(cut)
        if line
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img"'
        f' font-size="13" font-family="{FONT}"><title>{escape(command)}</title>\n'
        "<style>text{white-space:pre}.said{fill:#d5dde5}.given{fill:#57b5a3}</style>\n"
        f'<rect width="100%" height="100%" rx="10" fill="#161b22"/>\n{text}</svg>\n'
    )


if __name__ == "__main__":
    command, path = sys.argv[1:]
    Path(path).write_text(picture(command, sys.stdin.read()), encoding="utf-8")
