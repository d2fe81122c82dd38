"""Every objective, one file each: its settings and defaults, model, program, shard and scored columns.

linear      all parties have the same people; H is the sum of their parts
transfer    two parties share some people, of whom some have labels
kit         what an objective has to say; docs/extending.md adds one
"""

from __future__ import annotations

from securefed.assembly.kit import KITS, ObjectiveKit, Trained, kit_of, register
from securefed.assembly.linear import LinearKit
from securefed.assembly.transfer import TransferKit

__all__ = ["KITS", "ObjectiveKit", "Trained", "kit_of", "register"]

register("linear", LinearKit)
register("transfer", TransferKit)
