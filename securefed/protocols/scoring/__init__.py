"""Scoring: each party's scorer, the blur and the score ledger."""

from __future__ import annotations

__all__: list[str] = []
