"""The tables in the documentation that come from the code: kinds of messages, and claims.

`python -m tests.audit.doc_tables docs/protocols.md docs/audit.md` writes them between their marks; a test
checks that they are up to date.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from securefed.audit.report import CLAIMS
from securefed.errors import DataError
from securefed.process.own_data import ALIGNMENT_KINDS
from securefed.protocols.messages import KINDS


def kinds_table() -> str:
    """Every kind of message: what it carries, who sends it to whom, what protects it, what it reveals."""
    lines = [
        "| message | carries | from | to | when | protection | what its receiver learns |",
        "|---|---|---|---|---|---|---|",
    ]
    for kind in KINDS.values():
        phases = ", ".join(kind.phases) or "any time"
        cells = (
            f"`{kind.name}`",
            kind.carries,
            kind.sender,
            kind.receiver,
            phases,
            kind.protection,
            kind.reveals,
        )
        lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
    return "\n".join(lines)


def alignment_table() -> str:
    """The messages that align rows before a run, and what each reveals."""
    lines = ["| message | what its receiver learns |", "|---|---|"]
    return "\n".join([*lines, *(f"| `{name}` | {reveals} |" for name, reveals in ALIGNMENT_KINDS.items())])


def claims_table() -> str:
    """Every claim, by name."""
    lines = ["| claim | what it says |", "|---|---|"]
    return "\n".join([*lines, *(f"| `{claim.name}` | {claim.text} |" for claim in CLAIMS)])


TABLES = {"kinds": kinds_table, "alignment": alignment_table, "claims": claims_table}


def updated(text: str) -> str:
    """The text with every marked table as it is now."""
    for name, table in TABLES.items():
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        if begin in text:
            pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
            if not pattern.search(text):
                raise DataError(f"{begin} without {end}")
            fresh = f"{begin}\n{table()}\n{end}"
            text = pattern.sub(lambda _, fresh=fresh: fresh, text)  # type: ignore[misc]
    return text


def main(paths: Sequence[str]) -> int:
    for path in map(Path, paths):
        path.write_text(updated(path.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
