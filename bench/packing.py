"""The packing that the measurements use: the example of a gradient's headroom.

Values of 24 bits with room for sums of 1024 of them, each times a multiplier of 24 bits: slots of 61 bits, 33
in a plaintext of a 2048-bit key. A plan without that room would pack more, and measure what no protocol uses.
"""

from __future__ import annotations

from typing import TypedDict

from securefed.crypto import FixedPoint

__all__ = ["FIXED", "HEADROOM", "Headroom"]


class Headroom(TypedDict):
    terms: int
    multiplier: int


FIXED = FixedPoint(bound=1.0, fraction_bits=24)
HEADROOM: Headroom = {"terms": 1024, "multiplier": 1 << 24}
