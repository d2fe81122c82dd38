"""The planner: bytes, minutes and memory of a run before it starts.

rehearsal   the run that a plan is made for: its real programs on random columns
planner     minutes and megabytes for each Q and scheme
"""

from __future__ import annotations

__all__: list[str] = []
