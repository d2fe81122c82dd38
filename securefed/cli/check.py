"""`securefed check party.toml`: what would go wrong, before anybody is met."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from functools import partial
from pathlib import Path

from securefed.cli import terminal as phrases
from securefed.cli.terminal import Terminal
from securefed.process.checking import NOTE, PROBLEM, check_party

DESCRIPTION = """\
Check everything that this party can check alone: settings, data, columns, ids, labels, keys and their
permissions, certificates, the port, addresses, the disk, limits and the clock. Print all problems in one
list. The command calls no peer and leaves no files."""

EPILOGUE = """\
examples:
  securefed check bank/party.toml
  securefed check bank/party.toml --rows new-clients.csv --out scores.csv   before a prediction

Exit code 0: no problem was found; 2: there are problems."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="party.toml", help="this party's settings, or its folder")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="the new rows of a prediction")
    parser.add_argument("--out", type=Path, metavar="CSV", help="where a prediction is to write")
    phrases.add_argument(parser)


def run(args: argparse.Namespace, terminal: Terminal) -> int:
    findings = check_party(
        args.file, partial(phrases.read_passphrase, args.passphrase_file), rows=args.rows, out=args.out
    )
    problems = [check for check in findings if check.verdict == PROBLEM]
    for check in findings:
        word = {PROBLEM: "PROBLEM", NOTE: "note"}.get(check.verdict, "good")
        terminal.result(f"{word:<8} {check.about}: {check.text}")
    count = "1 problem" if len(problems) == 1 else f"{len(problems) or 'no'} problems"
    terminal.result(f"{count} in {len(findings)} check{'s' * (len(findings) != 1)}")
    terminal.facts = {"problems": len(problems), "checks": [asdict(check) for check in findings]}
    return 2 if problems else 0
