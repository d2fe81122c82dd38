"""Data: loaders that check what they read, generated stand-ins, splits by row and column, private alignment.

    train, test = load_credit().split(0.25, seed=0)           # VerticalData: each party's columns, the same
    people task = credit_overlap(seed=0)                             # TransferData: two parties who share
    some people rows = await intersect(link, ["bank", "shop"], my_ids)    # whom all parties have, and
    nothing of the rest

A loader looks in the folder that SECUREFED_DATA names and in ~/.cache/securefed, and says in one line what is
missing or wrong. Generated data has "(generated)" in its name.
"""

from __future__ import annotations

from securefed.data.credit import credit_held_out, credit_overlap, load_credit
from securefed.data.generated import generated_mimic, generated_nus_wide, generated_vertical
from securefed.data.ids import normalise_id, normalise_ids
from securefed.data.mimic import extract_mimic, load_mimic
from securefed.data.mnist import load_mnist
from securefed.data.nus_wide import load_nus_wide
from securefed.data.paired import load_breast, load_breast_hetero, load_vehicle
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
    "extract_mimic",
    "generated_mimic",
    "generated_nus_wide",
    "generated_vertical",
    "intersect",
    "load_breast",
    "load_breast_hetero",
    "load_credit",
    "load_mimic",
    "load_mnist",
    "load_nus_wide",
    "load_vehicle",
    "normalise_id",
    "normalise_ids",
    "standardise",
    "stratified_rows",
    "transfer",
]
