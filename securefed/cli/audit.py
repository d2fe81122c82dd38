"""`securefed audit RUN`: the claims about what every party saw, checked against transcripts."""

from __future__ import annotations

import argparse
from pathlib import Path

from securefed.audit.recorded import read_run, transcript_paths
from securefed.audit.report import audit, whole_page
from securefed.cli.terminal import Terminal
from securefed.errors import DataError, plain_text
from securefed.files import check_writable, write_atomically

DESCRIPTION = """\
Check a finished run against its transcripts. Print what each party saw, every check with its evidence
(nothing in the clear, every mask used once, scores blurred, no transcript altered, ...), and whether the
transcripts of each two parties agree. Exit code 0 if no check fails, 1 if one fails."""

EPILOGUE = """\
examples:
  securefed audit bank/runs/first-run                 one party's own view
  securefed audit together/ --html audit.html         a folder with the transcripts of several parties

Each party has its own transcript, transcript-<party>.jsonl. It holds no data, no keys and no masks. Put the
transcripts of several parties into one folder to compare both ends of each message."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="RUN", help="a run directory")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write it as a page")


def run(args: argparse.Namespace, terminal: Terminal) -> int:
    if args.html is not None:
        check_writable("html", args.html)
    paths = transcript_paths(args.folder)
    try:
        report = audit(*read_run(args.folder))
        lines, page = report.to_text().rstrip("\n").split("\n"), whole_page(report)
        terminal.facts = report.to_dict()
    except Exception as error:  # noqa: BLE001  # the files come from others, and any of them gives a verdict
        why = error if isinstance(error, DataError) else f"what it says is out of form ({error})"
        verdict = f"NO AUDIT POSSIBLE: {plain_text(why)}"
        terminal.result(verdict, colour="red")
        terminal.facts = {"passed": False, "verdict": verdict, "files": [path.name for path in paths]}
        return 1
    # Quiet: down to the first blank line, the whole of the verdict, which says what it leaves out.
    for line in lines[: lines.index("") if args.quiet else None]:
        terminal.result(line, colour=_colour(line))
    if args.html is not None:
        write_atomically(args.html, page.encode(), mode=0o644)
    return 0 if report.passed else 1


def _colour(line: str) -> str | None:
    """Return the colour of a line: green for a good verdict, red for a failure, yellow for a skip."""
    if "FAIL" in line or "NOT PROTECTED" in line:
        return "red"
    if line.startswith("  skip  ") or "WARNING" in line:
        return "yellow"
    return "green" if " checks passed, 0 failed" in line else None
