"""What a party writes down about its own protection: the facts in its transcript beside each message.

    origin   where the randomness of what it sends comes from: "fresh" or "re-randomised", or "forwarded" for
             the key-holder's own fresh ciphertexts, passed on to somebody who has not seen them; looked at in
             the ciphertexts themselves as far as that shows: no two may have the same
    mask     fingerprints of the mask that a block is under (securefed.transport.transcript), never the mask
    narrow   how many masks are too small to hide anything; written down only if there are any
    checked  which checks an arrival passed before it was used

Nothing here is secret, and nothing here depends on a value.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from securefed.crypto.multipliers import Multipliers
from securefed.crypto.scheme import Mask, Masked, Origin
from securefed.transport import Link

__all__ = ["checked", "hidden", "leaving", "row_by_row", "spent"]

REPEATED = "used for several of them"
"""The origin of ciphertexts that share their randomness, which none may."""


class Leaving(Protocol):
    """Ciphertexts on their way out."""

    origin: Origin
    shown: bool

    def repeated(self) -> int: ...


def leaving(encrypted: Leaving, *, source: str | None = None) -> dict[str, Any]:
    """For ciphertexts that are about to be sent. `source`: who encrypted what is passed on."""
    encrypted.shown = True
    if encrypted.repeated():
        return {"origin": REPEATED}
    if encrypted.origin == "arrived" and source is not None:
        return {"origin": "forwarded", "source": source}
    return {"origin": encrypted.origin}


def hidden(link: Link, masked: Masked, mask: Mask, **more: Any) -> dict[str, Any]:
    """For a masked block that is about to be sent to its key-holder."""
    pieces, narrow = mask.material(), mask.narrow()
    facts = {
        "origin": REPEATED if masked.repeated() else masked.origin,
        "mask": link.transcript.mask_print(pieces).to_dict(),
        "ciphertexts": masked.ciphertexts,
        **more,
    }
    return {**facts, "narrow": narrow} if narrow else facts


def spent(link: Link, kind: str, peer: str, round_: int, step: int, mask: Mask, pieces: list[bytes]) -> None:
    """Note a mask's end; `pieces` is its material from before, to name it."""
    _note_spent(link, kind, peer, round_, step, pieces, mask.destroyed)


def _note_spent(
    link: Link, kind: str, peer: str, round_: int, step: int, pieces: list[bytes], destroyed: bool
) -> None:
    mask = link.transcript.mask_print(pieces).to_dict()
    link.transcript.note("spent", kind, peer, round_, step, link.phase, mask=mask, destroyed=destroyed)


def checked(link: Link, kind: str, peer: str, round_: int, step: int, *checks: str) -> None:
    """Note that an arrival was validated. The frame's checksum, scheme, parameter set and key always are."""
    passed = ["frame", "scheme", "parameters", "key", *checks]
    link.transcript.note("checked", kind, peer, round_, step, link.phase, checks=passed)


def row_by_row(multipliers: Multipliers, rows: int) -> bool:
    """Whether sums of products are none: no output takes more than one of the first `rows` rows."""
    return rows > 1 and all(
        int(np.count_nonzero(block[:, :, :rows], axis=2).max(initial=0)) <= 1
        for _, _, block in multipliers.blocks()
    )
