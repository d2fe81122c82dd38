"""The solvability ledger: opened equations against unknowns.

Each entry of an opened gradient is one linear equation in other parties' secrets. A party with as many
equations as unknowns can solve for the secrets, encryption or not. So the ledger counts every opening, per
party that learns and per block of secrets that stay fixed between two exchanges (agreement.Objective).

A second count, of all openings against the labels, is advisory: the equations are not linear in the labels
alone. The ledger counts numbers, not bits: the residuals of the first exchange are labels, one bit each, and
take fewer equations (research.attacks.first_exchange).
"""

from __future__ import annotations

import warnings
from dataclasses import asdict, dataclass
from typing import Any

from securefed.errors import SecurefedError

NEAR = 0.5
"""A ratio of so many equations to unknowns warns. At 1 the key-holder refuses to open."""


class LedgerRefusal(SecurefedError):
    """A refused opening: it would determine secrets of another party."""


class LedgerWarning(UserWarning):
    """A warning that openings come close to determining another party's secrets."""


@dataclass(frozen=True)
class LedgerEntry:
    """Equations of `party` about the fixed secrets `block`, at the worst of all exchanges."""

    party: str
    block: str
    equations: int
    unknowns: int
    advisory: bool

    @property
    def ratio(self) -> float:
        return self.equations / self.unknowns

    @property
    def verdict(self) -> str:
        if self.ratio >= 1.0:
            return "possibly determined" if self.advisory else "determined"
        return "near" if self.ratio >= NEAR else "below the line"

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "ratio": self.ratio, "verdict": self.verdict}


class Ledger:
    """A count of a run's openings. The opener keeps it, and it is the same at every party."""

    def __init__(self, *, allow_determined: bool = False) -> None:
        self.allow_determined = allow_determined
        self._current: dict[tuple[str, str], tuple[int, int]] = {}
        """The round and its equations."""
        self._worst: dict[tuple[str, str], LedgerEntry] = {}
        self._warned: set[tuple[str, str]] = set()

    def count(
        self,
        party: str,
        block: str,
        equations: int,
        unknowns: int,
        *,
        round_: int = 0,
        advisory: bool = False,
        over_attempts: int = 0,
    ) -> None:
        """Count an opening before it is answered. Raises LedgerRefusal if it would determine the block.

        Every round has new secrets, and a count of its own. `over_attempts`: the block's equations in all
        attempts at the run, this opening included, since a repeated round may open other sums of the same
        secrets. Refusals and warnings consider them. The entries show this attempt only, as its transcript
        does.
        """
        key = (party, block)
        current, before = self._current.get(key, (round_, 0))
        total = equations + (before if current == round_ else 0)
        entry = LedgerEntry(party, block, total, unknowns, advisory)
        overall = LedgerEntry(party, block, max(total, over_attempts), unknowns, advisory)
        again = " over several attempts at this round" if overall.equations > total else ""
        if overall.ratio >= 1.0 and not advisory and not self.allow_determined:
            remedy = (
                "a new run, which all operators agree on, counts anew"
                if entry.ratio < 1.0
                else "larger batches, fewer local steps or a linear model stay below this line"
            )
            raise LedgerRefusal(
                f"{party} would hold {overall.equations} equations{again} for {unknowns} unknowns ({block}),"
                f" which determines them; {remedy}, and allow_determined=True crosses it"
            )
        self._current[key] = round_, total
        worst = self._worst.get(key)
        if worst is None or entry.ratio > worst.ratio:
            self._worst[key] = entry
        if overall.ratio >= NEAR and key not in self._warned:
            self._warned.add(key)
            kind = "an estimate, not linear" if advisory else "linear"
            message = f"{party} holds {overall.equations} equations{again} ({kind}) for {unknowns} unknowns"
            warnings.warn(f"{message} ({block})", LedgerWarning, stacklevel=3)

    @property
    def entries(self) -> list[LedgerEntry]:
        return sorted(self._worst.values(), key=lambda e: (e.advisory, -e.ratio))
