"""An auditor's day: a run, its transcripts, every claim, and what a tampered transcript looks like.

    python examples/audit_walkthrough.py

Two parties train blind and hand their transcripts to an auditor, who has neither data nor keys. Then one of
them alters a line of its transcript, and then leaves its own out.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np

from securefed import GeneralisedLinear, Party
from securefed.audit import AuditReport, audit, read_run, write_transcripts


def run(folder: Path) -> None:
    """A small blind run, and what it leaves."""
    rng = np.random.default_rng(4)
    shop, bank = rng.normal(size=(150, 3)), rng.normal(size=(150, 3))
    model = GeneralisedLinear(rounds=3)
    model.fit([Party("shop", shop), Party("bank", bank, labels=shop[:, 0] + bank[:, 0] > 0)])
    write_transcripts(folder, model.result_)


def tampered(path: Path) -> None:
    """The transcript with one message that was never that large."""
    lines = path.read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if '"event":"sent"' in line and i > 5)
    lines[at] = json.dumps({**json.loads(lines[at]), "bytes": 1}, separators=(",", ":"), sort_keys=True)
    path.write_text("\n".join(lines) + "\n")


def main() -> dict[str, AuditReport]:
    folder = Path(tempfile.mkdtemp())
    run(folder)
    found = {"both": audit(*read_run(folder))}
    print(found["both"].to_text())
    honest = (folder / "transcript-shop.jsonl").read_text()
    tampered(folder / "transcript-shop.jsonl")
    found["tampered"] = audit(*read_run(folder))
    (folder / "transcript-shop.jsonl").unlink()
    found["one side"] = audit(*read_run(folder))
    (folder / "transcript-shop.jsonl").write_text(honest)
    for name in ("tampered", "one side"):
        print(f"\n{name}: {found[name].verdict}")
        for failed in found[name].failed:
            print(f"  {failed}: {found[name].claim(failed).evidence}")
    return found


if __name__ == "__main__":
    main()
