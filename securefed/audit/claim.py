"""A claim: one plain sentence about a run, and a check of its transcripts that looks for violations.

The table of message kinds (securefed.protocols.messages) says what each kind may contain, and who may send it
to which party and when. It covers a new kind at once. A kind that is not in the table fails the claim
`named`.

The parties write the transcripts themselves. Transcripts show mistakes of software and of configuration, and
receipts show whether both ends of a link tell the same story. They cannot show a malicious party that lies
about itself consistently.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from securefed.audit.recorded import Recorded
from securefed.errors import plain_text
from securefed.transport import Entry

__all__ = ["Check", "Claim", "Findings", "Statement", "places"]

SHOWN = 3


@dataclass(frozen=True)
class Claim:
    """A statement about one run, and whether its transcripts support it."""

    name: str
    text: str
    passed: bool
    """No violation was found."""
    evidence: str
    """What was examined, or the first violations."""
    checked: bool = True
    """There was something to check. One end of a link alone shows nothing about the other."""

    @property
    def word(self) -> str:
        if not self.passed:
            return "FAIL"
        return "pass" if self.checked else "skip"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Findings:
    """The result of a check."""

    violations: list[str] = field(default_factory=list)
    looked_at: str = ""
    checked: bool = True

    def against(self, violation: str) -> None:
        self.violations.append(violation)

    def nothing(self, why: str) -> None:
        """Record that there is nothing to check the claim by."""
        self.checked, self.looked_at = False, why

    def counted(self, count: int, what: str, absent: Sequence[str]) -> None:
        """Record how much was examined: nothing, if all of it is in `absent` transcripts."""
        rest = f"; what {', '.join(absent)} had of it is not here" if absent else ""
        self.checked, self.looked_at = bool(count) or not absent, f"{count} {what}{rest}"

    @property
    def evidence(self) -> str:
        if not self.violations:
            return self.looked_at
        more = len(self.violations) - SHOWN
        return "; ".join(self.violations[:SHOWN]) + (f"; and {more} more" if more > 0 else "")


Check = Callable[[Recorded, Findings], None]


@dataclass(frozen=True)
class Statement:
    """A claim before its check."""

    name: str
    text: str
    check: Check

    def about(self, recorded: Recorded) -> Claim:
        findings = Findings()
        try:
            self.check(recorded, findings)
        except Exception as error:  # noqa: BLE001  # what a check cannot read speaks against the claim
            findings.against(f"the transcripts cannot be read for this claim ({plain_text(error, 80)})")
        checked = findings.checked or bool(findings.violations)
        return Claim(self.name, self.text, not findings.violations, findings.evidence, checked)


Place = tuple[str, str, int, int, str]


def places(entries: Iterable[Entry], kind: str | None = None) -> Counter[Place]:
    """Count entries by kind, peer, round, step and phase. `kind` replaces their own."""
    return Counter((kind or e.kind, e.peer, e.round, e.step, e.phase) for e in entries)
