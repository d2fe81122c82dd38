"""`securefed verify FOLDER`: were transcripts signed by their parties, and do they tell the same story?"""

from __future__ import annotations

import argparse
from pathlib import Path

from securefed.audit.verify import verify
from securefed.cli.terminal import Terminal
from securefed.errors import DataError

DESCRIPTION = """\
Verify the transcripts of a run: hash chains, signatures, countersignatures of the other parties, and that
each message arrived as it was sent. A third party can do the same without securefed: the file
securefed/audit/verify.py needs only the package `cryptography` (python verify.py FOLDER)."""

EPILOGUE = """\
examples:
  securefed verify together/        transcript-<party>.jsonl and signatures-<party>.json of several parties

Exit code 0: no check failed; 1: one failed; 2: there is nothing to verify."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="with transcripts and signatures")


def run(args: argparse.Namespace, terminal: Terminal) -> int:
    results = verify(args.folder) if args.folder.is_dir() else []
    if not results:
        raise DataError(f"{args.folder}: no transcript-<party>.jsonl there")
    counts = {word: sum(verdict == word for verdict, _, _ in results) for word in ("pass", "FAIL", "skip")}
    for verdict, what, more in results:
        if verdict == "FAIL" or not args.quiet:
            colour = {"pass": "green", "FAIL": "red", "skip": "yellow"}[verdict]
            terminal.result(f"{verdict}  {what}" + (f": {more}" if more else ""), colour=colour)
    summary = f"{counts['pass']} checks passed, {counts['FAIL']} failed, {counts['skip']} skipped"
    terminal.result(summary)
    checks = [{"verdict": verdict, "check": what, "text": more} for verdict, what, more in results]
    terminal.facts = {"passed": counts["FAIL"] == 0, "verdict": summary, "checks": checks}
    return 1 if counts["FAIL"] else 0
