"""Data: tables that are checked as they are read, columns that become numbers, private alignment.

rows = await intersect(link, ["bank", "shop"], ids)   whom all parties have, and nothing of the rest
"""

from __future__ import annotations

from securefed.data.ids import normalise_id, normalise_ids
from securefed.data.psi import PSI_KINDS, BadAlignment, intersect

__all__ = ["PSI_KINDS", "BadAlignment", "intersect", "normalise_id", "normalise_ids"]
