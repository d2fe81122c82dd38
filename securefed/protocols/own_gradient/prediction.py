"""Scores for the label party, blurred (protocols.scoring.blur). No party learns anything else.

docs/protocols.md has the messages (own gradients). In transfer the result is re-randomised and at a public
scale. B cannot see into Phi. New ciphertexts are a new question with new noise, so A sends the same ones when
it asks again.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from securefed.crypto import FixedPoint, KeyHolder, Mapper
from securefed.crypto.fixed import Floats
from securefed.crypto.scheme import Masked
from securefed.errors import DataError, FormatError, SettingError, ShapeError
from securefed.protocols.agreement import FRACTION_BITS, Agreement
from securefed.protocols.channel import LENGTH, Channel, Keyring, distribute_keys, note_agreement
from securefed.protocols.own_gradient.openings import check_room
from securefed.protocols.own_gradient.sides import LinearScorer, Scorer, TransferScorer
from securefed.protocols.scoring.blur import on_grid
from securefed.protocols.scoring.score_ledger import ScoreGuard
from securefed.transport.link import Link, Program


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

    A key-holder party has no `scorer`.
    """

    async def program(link: Link) -> Floats | None:
        note_agreement(link, agreement)
        keys = await distribute_keys(link, agreement, holder, mapper)
        link.phase = "prediction"
        if scorer is not None:
            return await Scores(link, agreement, keys, guard or ScoreGuard()).run(scorer, features)
        if keys.own is not None:
            await serve_scores(link, agreement, keys.own, rows, 0)
        return None

    return program


@dataclass(frozen=True)
class Scores:
    link: Link
    agreement: Agreement
    keys: Keyring
    guard: ScoreGuard
    round_: int = 0

    async def run(self, scorer: Scorer, features: Floats | None) -> Floats | None:
        """Return the scores at the label party, else None."""
        asks = self.link.name == self.agreement.label_party
        if isinstance(scorer, TransferScorer) and asks:
            return await self._transfer_ask(scorer)
        if features is None:
            raise DataError("scores: no rows to score")
        if isinstance(scorer, TransferScorer):
            await self._transfer_answer(scorer, features)
        elif asks:
            return await self._linear_ask(scorer.part(features))
        else:
            await self._linear_answer(scorer, features)
        return None

    def _channel(self, peer: str) -> Channel:
        return Channel(self.link, peer, self.round_)

    async def _linear_ask(self, own: Floats) -> Floats:
        keys, load = self.keys, partial(self.keys.public.load, shape=own.shape)
        total: Any = own
        for name in self.agreement.names[:-1]:
            part = await self._channel(name).take("score-part", load, "shape", "ciphertexts")
            total = part + total
        masked, mask = total.mask()
        channel = self._channel(keys.opener)
        channel.ask("score-request", masked, mask)
        return await channel.unmask("score-opening", mask, keys.public)

    async def _linear_answer(self, scorer: LinearScorer, features: Floats) -> None:
        agreement, keys = self.agreement, self.keys
        own, bits, facts = scorer.part(features), FRACTION_BITS, dict[str, Any]()
        if agreement.blurs:
            (noise,), facts = self.guard.noises(
                features, scorer.content(), precision_bits=agreement.score_precision, fraction_bits=bits
            )
            own = on_grid(own, noise, bits)
        part = keys.encrypt(own, FixedPoint(scorer.margin_bound + 2.0**-agreement.score_precision, bits))
        self._channel(agreement.label_party).send("score-part", part, facts)
        if agreement.mutual and keys.own is not None:
            await serve_scores(self.link, agreement, keys.own, len(own), self.round_)

    async def _transfer_ask(self, scorer: TransferScorer) -> Floats:
        own, channel = self.keys.own, self._channel(self.agreement.names[0])
        if own is None:
            raise SettingError("scores: in transfer learning both parties hold keys")
        if scorer.phi is None:
            raise DataError("scores: the label party's shard has no Phi")
        key = own.public.key_id
        if key not in scorer.sealed:
            model = own.encrypt(scorer.phi, scorer.fixed)
            scorer.sealed[key] = model.to_bytes()
            channel.send("score-model", model)
        else:
            channel.tell("score-model", scorer.sealed[key], {"origin": "fresh"})
        blob = await channel.hear("scores")
        if len(blob) < LENGTH.size:
            raise FormatError(f"scores: cut short, {len(blob)} bytes")
        (length,) = LENGTH.unpack_from(blob)
        end = LENGTH.size + length
        values = own.receive(own.public.load_masked(blob[LENGTH.size : end]), blob[end:])
        channel.checked("scores", "ciphertexts", "fits its mask", "not seen")
        return values

    async def _transfer_answer(self, scorer: TransferScorer, features: Floats) -> None:
        agreement, channel = self.agreement, self._channel(self.agreement.label_party)
        question = await channel.hear("score-model")
        model = self.keys.public.load(question, (scorer.model.width,))
        channel.checked("score-model", "shape", "ciphertexts")
        # A public scale: a disclosure names it, and a private one would show the size of the largest u.
        result = model.contract(scorer.hidden(features)[None], scorer.fixed)
        more: dict[str, Any] = {}
        if agreement.blurs:
            precision, bits = agreement.score_precision, result.unit_bits
            context = scorer.content() + question
            (noise,), more = self.guard.noises(
                features, context, precision_bits=precision, fraction_bits=bits
            )
            result = result.add_units(noise)
        masked, mask = result.mask()
        channel.disclose("scores", masked, mask, **more)


async def serve_scores(
    link: Link, agreement: Agreement, holder: KeyHolder, rows: int | None, round_: int
) -> None:
    """Open the masked scores for the label party, as the key-holder.

    Raises ShapeError for more than one score a row or more room than scores take. `rows` is None if unknown.
    """
    label_party = agreement.label_party

    def check(masked: Masked) -> None:
        if len(masked.shape) != 1 or (rows is not None and masked.shape != (rows,)):
            raise ShapeError(f"{label_party} asks for scores of shape {masked.shape}, ({rows},) expected")
        check_room(masked, agreement, 0)

    channel = Channel(link, label_party, round_)
    await channel.open_for("score-request", "score-opening", holder, check, "shape", "ciphertexts")
