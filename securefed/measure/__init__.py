"""Where a run's time and bytes went, what it leaves on disk, and what the next one will take.

rundir      the files of a run: result.json, timing.json, report.html, transcript, shard
timeline    computation, communication, bytes and metric, round by round
report      all of it as one HTML page with plots
rehearsal   a run's real programs over keys that encrypt nothing (dry, dry_encrypted), on a meter
calibration what an operation takes on this machine (lattice: on hidden arrays under RLWE)
plan        minutes and megabytes for each Q and scheme, before anybody is asked
"""

from __future__ import annotations

from securefed.measure.files import StorageError, write_atomically
from securefed.measure.rundir import RunDirectory
from securefed.measure.timeline import RoundPoint, Timeline

__all__ = ["RoundPoint", "RunDirectory", "StorageError", "Timeline", "write_atomically"]
