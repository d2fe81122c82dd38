"""Protocols for training and scoring over encrypted exchanges and masked openings.

Schedules decide who updates when. Sides define what is optimised.
"""

from __future__ import annotations

from securefed.protocols.optimisers import SGD, Adam
from securefed.protocols.schedules import Constant, FedBCD, FedSGD, InverseSqrt, InverseSqrtParties

__all__ = ["SGD", "Adam", "Constant", "FedBCD", "FedSGD", "InverseSqrt", "InverseSqrtParties"]
