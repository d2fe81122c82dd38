"""The planner: bytes, minutes and memory of a run before it starts.

scenario    the run that a plan is made for
rehearsal   the real programs over fake keys, arrays and products that encrypt nothing
calibration what one operation costs on this machine (rlwe_costs: products by RLWE)
planner     minutes and megabytes for each Q and scheme
"""

from __future__ import annotations

__all__: list[str] = []
