"""The attack on masks that are shorter than what they hide: read the bits below the mask's last one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.audit.ring import Residues, centred


def closest_by_low_bits(seen: Residues, candidates: Sequence[Residues], bits: int) -> int:
    """The key-holder has masked integers and, for each guess at B's input, the unmasked ones.

    It compares the lowest `bits` bits, which a float mask leaves bare, and gets which guess is true: the
    index of the candidate that is nearest there. Noise smaller than that does not matter.
    """
    distances = [
        float(np.abs(centred(seen - guess, 1 << bits)).astype(np.float64).mean()) for guess in candidates
    ]
    return int(np.argmin(distances))
