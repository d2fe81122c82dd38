"""Programs, shards and scores from settings, one file an objective.

linear      all parties have the same people; H is the sum of their parts
transfer    two parties share some people, of whom some have labels
base        what an objective has to say; docs/extending.md adds one
build       a party's program from its data, the same in simulations and in party processes
"""

from __future__ import annotations

from securefed.assembly.base import Assembly, assembly_of, register
from securefed.assembly.linear import LinearAssembly
from securefed.assembly.transfer import TransferAssembly

__all__ = [
    "Assembly",
    "LinearAssembly",
    "TransferAssembly",
    "assembly_of",
    "register",
]

register(LinearAssembly)
register(TransferAssembly)
