"""Scores for the label party, and nothing else to anybody.

Generalised linear: H = sum of the parties' parts.

    1. k -> label party         score-part: its part, encrypted (own key with two parties, else the
       key-holder's)
    2. label party -> opener    score-request: the sum with its own part, masked
    3. opener -> label party    score-opening: the sum, still masked

With two parties the score less the label party's own part is the other's part: that is what a score of a
linear model is.

Transfer: the score of B's row is Phi . u^B.

    1. A -> B                   score-model: Phi under A's key
    2. B -> A                   scores: Phi . u_i for each row, masked, and the mask

B learns nothing of Phi or the scores; A learns the scores and, since the result is re-randomised (and
flooded), nothing else of u.
"""

from __future__ import annotations

import struct

import numpy as np

from securefed.crypto import KeyHolder
from securefed.crypto.errors import FormatError, ShapeError
from securefed.crypto.scheme import Floats
from securefed.protocols.agreement import Agreement
from securefed.protocols.keyring import Keyring
from securefed.protocols.sides import LinearSide
from securefed.protocols.transfer import TransferSide
from securefed.transport import Link

__all__ = ["linear_scores", "serve_scores", "transfer_scores"]

LENGTH = struct.Struct("<Q")


async def linear_scores(
    link: Link, agreement: Agreement, keys: Keyring, side: LinearSide, features: Floats, round_: int
) -> Floats | None:
    """One data party's part; the label party gets the scores, the others None."""
    own, fixed = side.scores(features), side.score_fixed()
    if link.name != agreement.label_party:
        part = keys.encrypt(own, fixed).to_bytes()
        link.send(agreement.label_party, "score-part", part, round=round_)
        if agreement.mutual and keys.own is not None:
            await serve_scores(link, keys.own, agreement.label_party, len(own), round_)
        return None
    total = None
    for name in agreement.names[:-1]:
        part_ = keys.public.load(await link.receive("score-part", name, round=round_), own.shape)
        total = part_ if total is None else total + part_
    if total is None:
        raise ShapeError("scores: no other party to add up with")
    masked, mask = (total + own).mask()
    link.send(keys.opener, "score-request", masked.to_bytes(), round=round_)
    opened = keys.public.load_opened(await link.receive("score-opening", keys.opener, round=round_))
    return mask.remove(opened)


async def serve_scores(
    link: Link, holder: KeyHolder, label_party: str, rows: int | None, round_: int
) -> None:
    """The key-holder's part: opens the masked scores for the label party. `rows` is checked where it is
    known.
    """
    masked = holder.public.load_masked(await link.receive("score-request", label_party, round=round_))
    if rows is not None and masked.shape != (rows,):
        raise ShapeError(f"{label_party} asks for scores of shape {masked.shape}, ({rows},) expected")
    link.send(label_party, "score-opening", holder.open(masked).to_bytes(), round=round_)


async def transfer_scores(
    link: Link, agreement: Agreement, keys: Keyring, side: TransferSide, features: Floats | None, round_: int
) -> Floats | None:
    """A (the label party) gets the scores of B's rows; `features` are B's."""
    a, b = agreement.label_party, agreement.names[0]
    width = side.model.width
    if keys.own is None:
        raise ShapeError("scores: the transfer objective has two parties that hold keys for each other")
    if link.name == a:
        # Where a ciphertext has many slots, copies of Phi side by side score many rows at once.
        copies = max(1, keys.own.public.slots // (1 << (width - 1).bit_length()))
        phi = np.repeat(side.phi()[:, None], copies, axis=1)
        link.send(b, "score-model", keys.own.encrypt(phi, side.phi_fixed()).to_bytes(), round=round_)
        blob = await link.receive("scores", b, round=round_)
        if len(blob) < LENGTH.size + 8:
            raise FormatError(f"scores: cut short, {len(blob)} bytes")
        rows, length = struct.unpack_from("<QQ", blob)
        start = 2 * LENGTH.size
        masked = keys.own.public.load_masked(blob[start : start + length])
        values = keys.own.receive(masked, blob[start + length :]).ravel()
        if not 0 < rows <= values.size < rows + copies:
            raise ShapeError(f"scores: {values.size} values given for {rows} rows")
        return values[:rows]
    if features is None:
        raise ShapeError("scores: no rows to score")
    model = keys.public.load(await link.receive("score-model", a, round=round_))
    if model.rows != width or len(model.shape) != 2:
        raise ShapeError(f"score-model: shape {model.shape} given, ({width}, any) expected")
    copies = model.columns
    hidden = side.hidden(features)
    outputs = -(-len(hidden) // copies)
    padded = np.zeros((outputs * copies, width))
    padded[: len(hidden)] = hidden
    # row a * copies + j of the scores is output a of column j
    multipliers = padded.reshape(outputs, copies, width).transpose(1, 0, 2)
    masked, mask = model.contract(multipliers).mask()
    request = masked.to_bytes()
    payload = struct.pack("<QQ", len(hidden), len(request)) + request + mask.disclose()
    link.send(a, "scores", payload, round=round_)
    return None
