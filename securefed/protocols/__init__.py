"""Who updates when (schedules) times what is optimised (sides), over encrypted exchanges and masked
openings.
"""

from __future__ import annotations

from securefed.protocols.optimisers import SGD, Adam
from securefed.protocols.schedules import Constant, FedBCD, FedSGD, InverseSqrt, InverseSqrtParties

__all__ = ["SGD", "Adam", "Constant", "FedBCD", "FedSGD", "InverseSqrt", "InverseSqrtParties"]
