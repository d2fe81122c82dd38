"""What the solvability ledger will say, before anything is opened.

Openings follow from the agreement alone: who opens how many sums at which local step, and what stays fixed
in between. So the ledger of a whole run can be counted ahead, which is how a plan warns, how a party refuses
before it starts, and how a resumed run knows what was opened before its interruption.
"""

from __future__ import annotations

import warnings

from securefed.protocols.agreement import Agreement
from securefed.protocols.own_gradient.ledger import Ledger, LedgerEntry, LedgerWarning
from securefed.protocols.own_gradient.openings import book, fix_ledger

__all__ = ["ledger_after", "refusal"]


def ledger_after(agreement: Agreement, rounds: int) -> list[LedgerEntry]:
    """The entries of all parties after so many rounds, the worst first; empty where nothing is opened."""
    if agreement.reveal == "nothing" or agreement.exact or rounds < 1:
        return []
    ledger = Ledger(allow_determined=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LedgerWarning)
        for _ in range(rounds):
            for name in agreement.names:
                fix_ledger(ledger, agreement, name)
                for step in range(agreement.algorithm.local_steps):
                    if agreement.opens_at(name, step):
                        book(ledger, agreement, name)
    return ledger.entries


def refusal(agreement: Agreement) -> LedgerEntry | None:
    """The entry for which the key-holder would refuse to open in the first round, if there is one."""
    if agreement.allow_determined:
        return None
    return next((e for e in ledger_after(agreement, 1) if e.verdict == "determined"), None)
