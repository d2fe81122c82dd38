"""The account of a run.

rundir      the files of a run: result.json, timing.json, report.html, transcript, shard
summary     rounds, result.json and timing.json of one party
page        all of it as one HTML page with plots (svg)
"""

from __future__ import annotations

__all__: list[str] = []
