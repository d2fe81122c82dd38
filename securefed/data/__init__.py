"""Data: tables that are checked as they are read, columns that become numbers, private alignment.

    rows = await intersect(link, ["bank", "shop"], ids)   whom all parties have, and nothing of the rest

A loader of published data looks in the folder that SECUREFED_DATA names and in ~/.cache/securefed, and says
in one line what is missing or wrong.
"""

from __future__ import annotations

from securefed.data.ids import normalise_id, normalise_ids
from securefed.data.psi import PSI_KINDS, BadAlignment, intersect
from securefed.data.sources import data_folders

__all__ = ["PSI_KINDS", "BadAlignment", "data_folders", "intersect", "normalise_id", "normalise_ids"]
