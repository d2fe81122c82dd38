"""Scores for the label party. No party learns anything else.

Generalised linear: H = sum of the parties' parts.

    1. k -> label party         score-part: its part, encrypted (own key with two parties, else the
       key-holder's)
    2. label party -> opener    score-request: the sum with its own part, masked
    3. opener -> label party    score-opening: the sum, still masked

With two parties the label party can subtract its own part from the score and gets the other's part. That is
what a score of a linear model is. Party k blurs part k at the agreed precision (protocols.scoring.blur). So
the label party sees leading digits, not the exact numbers.

Transfer: the score of B's row is Phi . u^B.

    1. A -> B                   score-model: Phi under A's key
    2. B -> A                   scores: Phi . u_i for each row, blurred and masked, and the mask

B learns nothing about Phi or the scores. A learns the scores at the agreed precision and nothing else about
u: the result is re-randomised, at a public scale and blurred by B. B cannot see into Phi. New ciphertexts are
a new question with new noise, so A sends the same ones when it asks again.
"""

from __future__ import annotations

import struct
from functools import partial
from typing import Any

from securefed.crypto import FixedPoint, KeyHolder, Mapper
from securefed.crypto.errors import FormatError, ShapeError
from securefed.crypto.scheme import Floats
from securefed.errors import DataError, SettingError
from securefed.protocols.agreement import Agreement
from securefed.protocols.channel import Channel, Keyring, distribute_keys, note_agreement
from securefed.protocols.own_gradient.openings import check_room
from securefed.protocols.own_gradient.sides import LinearScorer, Scorer, TransferScorer
from securefed.protocols.scoring.blur import ScoreGuard, on_grid
from securefed.transport import Link, Program

__all__ = ["score_program", "scores", "serve_scores"]

SIZES = struct.Struct("<Q")


def score_program(
    agreement: Agreement,
    scorer: Scorer | None,
    features: Floats | None,
    rows: int,
    holder: KeyHolder | None,
    mapper: Mapper,
    guard: ScoreGuard | None = None,
) -> Program:
    """Return one party's program that scores `rows` rows by a model whose owners know their parameters.

    The label party's program returns the scores, the others' None. A key-holder party has no `scorer`.
    """

    async def program(link: Link) -> Floats | None:
        note_agreement(link, agreement)
        keys = await distribute_keys(link, agreement, holder, mapper)
        link.phase = "prediction"
        if scorer is not None:
            return await scores(link, agreement, keys, scorer, features, 0, guard or ScoreGuard())
        if keys.own is not None:
            await serve_scores(link, agreement, keys.own, rows, 0)
        return None

    return program


async def scores(
    link: Link,
    agreement: Agreement,
    keys: Keyring,
    scorer: Scorer,
    features: Floats | None,
    round_: int,
    guard: ScoreGuard,
) -> Floats | None:
    """Run one data party's part of scoring. Return the scores at the label party, else None."""
    asks = link.name == agreement.label_party
    if isinstance(scorer, TransferScorer) and keys.own is None:
        raise SettingError("scores: in transfer learning both parties hold keys")
    if isinstance(scorer, TransferScorer) and keys.own is not None and asks:
        return await _transfer_ask(link, agreement.names[0], keys.own, scorer, round_)
    if features is None:
        raise DataError("scores: no rows to score")
    if isinstance(scorer, TransferScorer):
        await _transfer_answer(link, agreement, keys, scorer, features, round_, guard)
        return None
    if not asks:
        await _linear_answer(link, agreement, keys, scorer, features, round_, guard)
        return None
    own, others = scorer.part(features), []
    for name in agreement.names[:-1]:
        load = partial(keys.public.load, shape=own.shape)
        part = await Channel(link, name, round_).take("score-part", load, "shape", "ciphertexts")
        others.append(part)
    total = others[0] + own
    for part in others[1:]:
        total = total + part
    masked, mask = total.mask()
    channel = Channel(link, keys.opener, round_)
    channel.ask("score-request", masked, mask)
    return channel.remove("score-opening", mask, keys.public.load_opened(await channel.hear("score-opening")))


async def _linear_answer(
    link: Link,
    agreement: Agreement,
    keys: Keyring,
    scorer: LinearScorer,
    features: Floats,
    round_: int,
    guard: ScoreGuard,
) -> None:
    """Run the part of a party without labels."""
    own, bits, facts = scorer.part(features), scorer.fraction_bits, dict[str, Any]()
    if agreement.blurs:
        noise, facts = guard.noise(
            features, scorer.content(), precision_bits=agreement.score_precision, fraction_bits=bits
        )
        own = on_grid(own, noise, bits)
    part = keys.encrypt(own, FixedPoint(scorer.margin_bound + 2.0**-agreement.score_precision, bits))
    Channel(link, agreement.label_party, round_).send("score-part", part, more=facts)
    if agreement.mutual and keys.own is not None:
        await serve_scores(link, agreement, keys.own, len(own), round_)


async def serve_scores(
    link: Link, agreement: Agreement, holder: KeyHolder, rows: int | None, round_: int
) -> None:
    """Open the masked scores for the label party, as the key-holder.

    Raises ShapeError for more than one score a row or more room than scores take. `rows` is None if unknown.
    """
    label_party = agreement.label_party
    masked = holder.public.load_masked(await link.receive("score-request", label_party, round=round_))
    if len(masked.shape) != 1 or (rows is not None and masked.shape != (rows,)):
        raise ShapeError(f"{label_party} asks for scores of shape {masked.shape}, ({rows},) expected")
    check_room(masked, agreement, 0)
    opened = holder.open(masked).to_bytes()
    channel = Channel(link, label_party, round_)
    channel.checked("score-request", "shape", "ciphertexts", "not seen")
    channel.opened("score-opening", masked)
    link.send(label_party, "score-opening", opened, round=round_)


async def _transfer_ask(link: Link, b: str, own: KeyHolder, scorer: TransferScorer, round_: int) -> Floats:
    """Run A's part of scoring."""
    if scorer.phi is None:
        raise DataError("scores: the label party's shard has no Phi")
    key, channel = own.public.key_id, Channel(link, b, round_)
    if key not in scorer.sealed:
        model = own.encrypt(scorer.phi, scorer.fixed)
        scorer.sealed[key] = model.to_bytes()
        channel.send("score-model", model)
    else:
        channel.tell("score-model", scorer.sealed[key], {"origin": "fresh"})
    blob = await channel.hear("scores")
    if len(blob) < SIZES.size:
        raise FormatError(f"scores: cut short, {len(blob)} bytes")
    (length,) = SIZES.unpack_from(blob)
    end = SIZES.size + length
    values = own.receive(own.public.load_masked(blob[SIZES.size : end]), blob[end:])
    channel.checked("scores", "ciphertexts", "fits its mask", "not seen")
    return values


async def _transfer_answer(
    link: Link,
    agreement: Agreement,
    keys: Keyring,
    scorer: TransferScorer,
    features: Floats,
    round_: int,
    guard: ScoreGuard,
) -> None:
    """Run B's part of scoring."""
    channel = Channel(link, agreement.label_party, round_)
    question = await channel.hear("score-model")
    model = keys.public.load(question, (scorer.layer.width,))
    channel.checked("score-model", "shape", "ciphertexts")
    # A public scale: a disclosure names it, and a private one would show the size of the largest u.
    result = model.contract(scorer.hidden(features)[None], scorer.fixed)
    more: dict[str, Any] = {}
    if agreement.blurs:
        noise, more = guard.noise(
            features,
            scorer.content() + question,
            precision_bits=agreement.score_precision,
            fraction_bits=result.unit_bits,
        )
        result = result.add_units(noise)
    masked, mask = result.mask()
    channel.disclose("scores", masked, mask, _joined, **more)


def _joined(block: bytes, disclosure: bytes) -> bytes:
    return SIZES.pack(len(block)) + block + disclosure
