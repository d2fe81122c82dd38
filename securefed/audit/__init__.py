"""What each party saw in a run, and checks of claims about it (docs/audit.md).

Attacks on what a party saw are in the checkout: research/attacks, tests/audit.
"""

from __future__ import annotations

from securefed.audit.claims import Claim
from securefed.audit.recorded import Receipt, Recorded, read_run, receipts, write_transcripts
from securefed.audit.report import CLAIMS, AuditReport, Seen, audit

__all__ = [
    "CLAIMS",
    "AuditReport",
    "Claim",
    "Receipt",
    "Recorded",
    "Seen",
    "audit",
    "read_run",
    "receipts",
    "write_transcripts",
]
