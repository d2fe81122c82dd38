"""The paper's data sets: loaders that check what they read, and generated stand-ins of the same shape.

A loader looks in the folder that SECUREFED_DATA names and in ~/.cache/securefed, and says in one line what is
missing or wrong. Generated data has "(generated)" in its name.

    train, test = load_credit().split(0.25, seed=0)       VerticalData: each party's columns, the same people
    task = credit_overlap(seed=0)                         TransferData: two parties who share some people
"""

from __future__ import annotations

from research.data.credit import credit_held_out, credit_overlap, load_credit
from research.data.generated import generated_mimic, generated_nus_wide, generated_vertical
from research.data.mimic import extract_mimic, load_mimic
from research.data.mnist import load_mnist
from research.data.nus_wide import load_nus_wide
from research.data.paired import load_breast, load_breast_hetero, load_vehicle

__all__ = [
    "credit_held_out",
    "credit_overlap",
    "extract_mimic",
    "generated_mimic",
    "generated_nus_wide",
    "generated_vertical",
    "load_breast",
    "load_breast_hetero",
    "load_credit",
    "load_mimic",
    "load_mnist",
    "load_nus_wide",
    "load_vehicle",
]
