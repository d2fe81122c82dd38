"""Protocols for training and scoring: schedules say who updates when, sides what is optimised."""

from __future__ import annotations

from securefed.protocols.schedules import Constant, FedBCD, FedSGD, InverseSqrt, InverseSqrtParties
from securefed.protocols.steps import SGD, Adam

__all__ = ["SGD", "Adam", "Constant", "FedBCD", "FedSGD", "InverseSqrt", "InverseSqrtParties"]
