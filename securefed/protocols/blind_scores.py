"""Scores from a blind model: the label party learns the scores, and nobody anything else.

With a key-holder party C:

    1. k -> label party       margin: [[X_k theta_k]] of the rows to score, blurred, packed
    2. label party -> C       score-request: the sum of all, under a uniform mask
    3. C -> label party       score-opening

With two parties, A (labels) and B:

    1. B -> A                 masked-margin: [[X_B theta_B]] under A's key, blurred, slots masked; A reads v =
       H^B + r_B
    2. A -> B                 score-request: [[X_A theta_A + v]] under B's key, under a uniform mask
    3. B -> A                 score-opening: that in the clear less r_B, still under A's mask

Every party but the label party blurs its own part (securefed.protocols.blur).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefed.crypto import KeyHolder
from securefed.crypto.errors import ShapeError
from securefed.crypto.paillier import PaillierEncrypted, PaillierPublicKey
from securefed.crypto.paillier.masking import PaillierMasked, PaillierOpened
from securefed.crypto.paillier.slots import HiddenSlots, PaillierSlots, pack_plain
from securefed.errors import SettingError
from securefed.protocols import evidence
from securefed.protocols.agreement import Agreement
from securefed.protocols.blind_algebra import BlindPlan
from securefed.protocols.blur import ScoreGuard
from securefed.protocols.evidence import checked, leaving, spent_slots
from securefed.protocols.keyring import Keyring
from securefed.protocols.prediction import note_scores_opened, open_scores
from securefed.transport import Link

__all__ = ["BlindScorer", "blind_scores", "serve_blind_scores"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class BlindScorer:
    """A party's encrypted part of the model."""

    plan: BlindPlan
    theta: PaillierEncrypted


async def blind_scores(
    link: Link,
    agreement: Agreement,
    keys: Keyring,
    scorer: BlindScorer,
    features: Array,
    round_: int,
    guard: ScoreGuard,
) -> Array | None:
    """One data party's part; the label party gets the scores, the others None."""
    label_party = agreement.label_party
    slots = scorer.plan.margins(scorer.theta, features)
    blurred: dict[str, Any] = {}
    if link.name != label_party:
        noise, blurred = guard.noise(
            features,
            scorer.theta.to_bytes(),
            precision_bits=agreement.score_precision,
            fraction_bits=slots.fraction_bits,
        )
        slots = slots.add_plain(noise)
    if agreement.mutual:
        if keys.own is None:
            raise SettingError("scores: two parties hold keys for each other")
        if link.name == label_party:
            return await _ask_peer(link, keys.own, keys, slots, round_)
        await _answer_peer(link, keys.own, label_party, slots, round_, blurred)
        return None
    if link.name != label_party:
        part = slots.rerandomise()
        link.send(label_party, "margin", part.to_bytes(), round=round_, facts=leaving(part) | blurred)
        return None
    for name in agreement.names[:-1]:
        blob = await link.receive("margin", name, round=round_)
        slots = slots + PaillierSlots.from_bytes(slots.public, blob, slots)
        checked(link, "margin", name, round_, 0, "layout", "ciphertexts")
    return await open_scores(link, keys, *slots.mask(), round_)


async def _ask_peer(link: Link, own: KeyHolder, keys: Keyring, slots: PaillierSlots, round_: int) -> Array:
    blob = await link.receive("masked-margin", keys.opener, round=round_)
    if not isinstance(own.public, PaillierPublicKey):
        raise SettingError("scores: a blind model takes Paillier keys")
    hidden = HiddenSlots.from_bytes(own.public, blob)
    if hidden.shape != (slots.count,):
        raise ShapeError(f"{keys.opener} scores {hidden.shape[0]} rows, {slots.count} are due")
    read = own.open_slots(hidden)
    checked(link, "masked-margin", keys.opener, round_, 0, "shape", "ciphertexts", "not seen")
    return await open_scores(link, keys, *slots.add_plain(read).mask(), round_)


async def _answer_peer(
    link: Link, own: KeyHolder, label_party: str, slots: PaillierSlots, round_: int, blurred: dict[str, Any]
) -> None:
    hidden, masks = slots.hide()
    facts = evidence.hidden(link, hidden, masks, **blurred)
    link.send(label_party, "masked-margin", hidden.to_bytes(), round=round_, facts=facts)
    masked = own.public.load_masked(await link.receive("score-request", label_party, round=round_))
    opened = own.open(masked)
    if not isinstance(opened, PaillierOpened) or not isinstance(own.public, PaillierPublicKey):
        raise SettingError("scores: a blind model takes Paillier keys")
    if masked.shape != (slots.count,):
        raise ShapeError(f"{label_party} asks for {masked.shape[0]} scores, {slots.count} are due")
    packed = pack_plain(own.public, masks, slots.width)
    spent_slots(link, "masked-margin", label_party, round_, 0, masks)
    if len(packed) != len(opened.integers()):
        raise ShapeError(f"{label_party} sent {len(opened.integers())} packed scores, {len(packed)} are due")
    # Still under the label party's uniform mask; only this party's own mask goes.
    less = [(m - p) % own.public.n for m, p in zip(opened.integers(), packed, strict=True)]
    reply = PaillierOpened(own.public, opened.shape, less)
    note_scores_opened(link, label_party, masked, round_)
    link.send(label_party, "score-opening", reply.to_bytes(), round=round_)


async def serve_blind_scores(link: Link, holder: KeyHolder, label_party: str, round_: int) -> None:
    """The key-holder party's part."""
    masked = holder.public.load_masked(await link.receive("score-request", label_party, round=round_))
    if not isinstance(masked, PaillierMasked):
        raise SettingError("scores: a blind model takes Paillier keys")
    opened = holder.open(masked).to_bytes()
    note_scores_opened(link, label_party, masked, round_)
    link.send(label_party, "score-opening", opened, round=round_)
