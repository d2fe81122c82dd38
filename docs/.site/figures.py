"""Make the README's pictures and numbers from one run of the demonstration: `make figures`.

| file in docs/figures | what |
|---|---|
| demo.svg | what `securefed demo` printed |
| report.png | the head of the report that the run left (needs chromium on PATH) |
| demo.json | the run's numbers; a test compares them with demo.svg |
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from html import escape
from pathlib import Path

FIGURES = Path(__file__).parents[1] / "figures"
WIDTH, LINE, CHARACTER, MARGIN = 100, 19, 7.83, 18
FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
KEPT = ("data", "auc", "auc_interval", "auc_central", "auc_alone", "new_people", "rows", "rounds", "bytes")


def picture(command: str, printed: str) -> str:
    """A terminal as SVG, dark in either theme. A line that is too long ends in an ellipsis."""
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


def screenshot(page: Path, target: Path) -> None:
    """The head of a page, as wide as a desktop's window."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        sys.exit(f"no chromium on PATH: install it to make {target}")
    words = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=980,900"]
    command = [chromium, *words, f"--screenshot={target}", page.as_uri()]
    subprocess.run(command, check=True, capture_output=True)


def main() -> None:
    """Run the demonstration once and write all three files."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "demo"
        facts = Path(scratch) / "facts.json"
        words = ["demo", "--folder", str(folder), "--json", str(facts)]
        command = [sys.executable, "-m", "securefed", *words]
        both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        done = subprocess.run(command, check=True, text=True, **both)
        printed = done.stdout.replace(str(folder), "demo")
        told = json.loads(facts.read_text(encoding="utf-8"))
        screenshot(Path(told["reports"][told["label_party"]]), FIGURES / "report.png")
    (FIGURES / "demo.svg").write_text(picture("securefed demo", printed), encoding="utf-8")
    numbers = {name: told[name] for name in KEPT}
    (FIGURES / "demo.json").write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
