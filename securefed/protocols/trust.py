"""What a mode asks of the peers beyond following the protocol's form, said where the mode is chosen.

Under CKKS with `reveal="own-gradient"` each party opens what its peers ask for. It cannot see that a request
is a sum of products and nothing else: one that is crafted shows the requester the secret key, twenty
coefficients in each number that it opens (it sends a c1 of its own choosing, and the phase is linear in the
key). Requests are counted, held to their layout and never answered twice, and that does not stop this. In
blind training a crafted request for scores does the same, and the range check shows a party without labels
the labels. Paillier's requests show values, never the key.
"""

from __future__ import annotations

import warnings

from securefed.crypto import SCHEMES, protects
from securefed.protocols.objectives import get_objective

__all__ = ["TrustWarning", "given_away", "needed_trust", "warn_of_trust"]


class TrustWarning(UserWarning):
    """The peers have to be trusted not to cheat."""


def needed_trust(scheme: str, reveal: str) -> str | None:
    """The line that an operator has to see where own gradients are revealed, or None."""
    entry = SCHEMES.get(scheme)
    return entry.trust or None if entry is not None and reveal == "own-gradient" else None


def given_away(scheme: str, reveal: str, objective: str) -> str | None:
    """What a mode shows by design that a user may not expect, or None."""
    if reveal != "own-gradient" or not protects(scheme):
        return None
    return get_objective(objective).given_away or None


def warn_of_trust(scheme: str, reveal: str, objective: str = "linear") -> None:
    for line in (needed_trust(scheme, reveal), given_away(scheme, reveal, objective)):
        if line is not None:
            warnings.warn(line, TrustWarning, stacklevel=3)
