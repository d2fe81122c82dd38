"""Scores: what a party needs to score rows, the blur, and the score ledger."""

from __future__ import annotations

__all__: list[str] = []
