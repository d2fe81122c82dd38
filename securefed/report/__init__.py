"""The account of a run: its directory, its time and bytes by round, and the HTML page.

rundir      the files of a run: result.json, timing.json, report.html, transcript, shard
timeline    computation, communication, bytes and metric, round by round
summary     result.json and timing.json of one party
page        all of it as one HTML page with plots (svg)
"""

from __future__ import annotations

from securefed.report.rundir import RunDirectory
from securefed.report.timeline import RoundPoint, Timeline

__all__ = ["RoundPoint", "RunDirectory", "Timeline"]
