"""The account of a run.

summary     rounds, result.json and timing.json of one party
page        all of it as one HTML page with plots (svg)
"""

from __future__ import annotations

__all__: list[str] = []
