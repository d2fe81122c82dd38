"""Data: tables that are checked as they are read, splits by row and column, private alignment.

    train, test = load_credit().split(0.25, seed=0)       VerticalData: each party's columns, the same people
    task = credit_overlap(seed=0)                         TransferData: two parties who share some people
    rows = await intersect(link, ["bank", "shop"], ids)   whom all parties have, and nothing of the rest

A loader looks in the folder that SECUREFED_DATA names and in ~/.cache/securefed, and says in one line what is
missing or wrong.
"""

from __future__ import annotations

from securefed.data.credit import credit_held_out, credit_overlap, load_credit
from securefed.data.ids import normalise_id, normalise_ids
from securefed.data.psi import PSI_KINDS, BadAlignment, intersect
from securefed.data.sources import data_folders
from securefed.data.splits import balanced_rows, column_groups, stratified_rows
from securefed.data.vertical import PartyRows, TransferData, VerticalData, standardise, transfer

__all__ = [
    "PSI_KINDS",
    "BadAlignment",
    "PartyRows",
    "TransferData",
    "VerticalData",
    "balanced_rows",
    "column_groups",
    "credit_held_out",
    "credit_overlap",
    "data_folders",
    "intersect",
    "load_credit",
    "normalise_id",
    "normalise_ids",
    "standardise",
    "stratified_rows",
    "transfer",
]
