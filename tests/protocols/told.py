"""What a score ledger has counted of everybody."""

from __future__ import annotations

from securefed.protocols.scoring.score_ledger import TOLD, ScoreGuard


def told(ledger: ScoreGuard) -> dict[bytes, tuple[int, int]]:
    """Scorings and bits by person."""
    with ledger._opened() as database:
        database.execute("INSERT OR IGNORE INTO asked SELECT DISTINCT person FROM told")
        return {person: (scorings, bits) for person, scorings, bits in database.execute(TOLD)}
