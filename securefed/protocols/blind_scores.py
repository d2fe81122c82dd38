"""Scores from a blind model: the label party learns the scores, and nobody anything else.

With a key-holder party C:

    1. k -> label party       margin: [[X_k theta_k]] of the rows to score, blurred, packed
    2. label party -> C       score-request: the sum of all, under a uniform mask
    3. C -> label party       score-opening

With two parties, A (labels) and B:

    1. B -> A                 masked-margin: [[X_B theta_B]] under A's key, blurred and masked; A reads
                              v = H^B + r_B
    2. A -> B                 score-request: [[X_A theta_A + v]] under B's key, under a uniform mask
    3. B -> A                 score-opening: that in the clear less r_B, still under A's mask

Every party but the label party blurs its own part (securefed.protocols.blur). Where ciphertexts carry
noise, the parameters are lifted so far above it, and the opening is flooded, that nothing of the noise
shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefed.crypto import KeyHolder
from securefed.crypto.errors import Diverged, ShapeError
from securefed.crypto.hidden import HiddenArray, HiddenSum, HidingKey, Range
from securefed.crypto.scheme import Masked
from securefed.errors import SettingError
from securefed.protocols.agreement import Agreement
from securefed.protocols.blind_algebra import BlindPlan
from securefed.protocols.blur import ScoreGuard
from securefed.protocols.channel import Channel
from securefed.protocols.keyring import Keyring
from securefed.protocols.objectives import get_objective
from securefed.protocols.prediction import note_scores_opened, open_scores
from securefed.protocols.refresh import DIVERGED, hiding
from securefed.transport import Link

__all__ = ["BlindScorer", "blind_scores", "release", "serve_blind_scores", "serve_release"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class BlindScorer:
    """A party's hidden part of the model, as it is scored."""

    plan: BlindPlan
    theta: HiddenArray
    model: bytes = b""
    """What a score ledger knows the model by: the last evaluation and the finished model are one, though the
    parameters are lifted for each of them, which makes two noises and costs the blur half a bit.
    """

    def part(self, features: Array, key: HidingKey) -> HiddenSum:
        """[[X theta]]."""
        found = self.plan.feature_matrix(features) @ self.theta
        return found.within(self.plan.scores(key), key.lending_slack)


async def blind_scores(
    link: Link,
    agreement: Agreement,
    keys: Keyring,
    scorer: BlindScorer,
    features: Array,
    round_: int,
    guard: ScoreGuard,
) -> Array | None:
    """One data party's part; the label party gets the scores, (rows,) or (rows, outputs), the others None."""
    label_party, key = agreement.label_party, hiding(keys)
    with link.activity("products"):
        part = scorer.part(features, key)
    blurred: dict[str, Any] = {}
    if link.name != label_party:
        part, blurred = _blurred(part, features, scorer, agreement, guard)
    if agreement.mutual:
        if keys.own is None:
            raise SettingError("scores: two parties hold keys for each other")
        if link.name == label_party:
            return _flat(await _ask_peer(link, keys.own, keys, part, scorer.plan, round_), agreement)
        await _answer_peer(link, keys.own, label_party, part, round_, blurred)
        return None
    if link.name != label_party:
        part = part.rerandomise()
        Channel(link, label_party, round_).send("margin", part, more=blurred)
        return None
    for name in agreement.names[:-1]:
        load = partial(key.load_sum, shape=part.shape, range_=part.range, slack=part.slack)
        part = part + await Channel(link, name, round_).take("margin", load, "layout", "ciphertexts")
    return _flat(await open_scores(link, keys, *part.mask(), round_), agreement)


def _flat(scores: Array, agreement: Agreement) -> Array:
    if float(np.abs(scores).max(initial=0.0)) > get_objective(agreement.objective).largest_score:
        raise Diverged(DIVERGED)
    return scores[:, 0] if scores.shape[1] == 1 else scores


def _blurred(
    part: HiddenSum, features: Array, scorer: BlindScorer, agreement: Agreement, guard: ScoreGuard
) -> tuple[HiddenSum, dict[str, Any]]:
    """Noise of this party for every row and output."""
    noises, facts = guard.noises(
        features,
        scorer.theta.to_bytes(),
        part.shape[1],
        precision_bits=agreement.score_precision,
        fraction_bits=part.range.fraction_bits,
        model=scorer.model,
    )
    return part.add_plain(np.array(noises, dtype=object).T), facts


async def _ask_peer(
    link: Link, own: KeyHolder, keys: Keyring, part: HiddenSum, plan: BlindPlan, round_: int
) -> Array:
    channel = Channel(link, keys.opener, round_)
    blob = await channel.hear("masked-margin")
    if not isinstance(own.public, HidingKey):
        raise SettingError("scores: a blind model takes keys that hide arrays")
    block = own.public.load_block(blob, part.shape, plan.scores(own.public), own.public.lending_slack)
    with link.activity("open"):
        seen = own.read(block)
    channel.checked("masked-margin", "shape", "ciphertexts", "not seen")
    return await open_scores(link, keys, *part.add_plain(seen).mask(), round_)


async def _answer_peer(
    link: Link, own: KeyHolder, label_party: str, part: HiddenSum, round_: int, blurred: dict[str, Any]
) -> None:
    block, lent = part.lend()
    channel = Channel(link, label_party, round_)
    channel.ask("masked-margin", block, lent, **blurred)
    masked = own.public.load_masked(await channel.hear("score-request"))
    if not isinstance(own.public, HidingKey):
        raise SettingError("scores: a blind model takes keys that hide arrays")
    if masked.shape != part.shape:
        raise ShapeError(f"{label_party} asks for {masked.shape} scores, {part.shape} are due")
    with link.activity("open"):
        # Still under the label party's uniform mask; only this party's own masks go.
        reply = own.public.without(own.open(masked), lent, part.range, part.slack)
    channel.spend("masked-margin", lent)
    note_scores_opened(link, label_party, masked, round_)
    channel.tell("score-opening", reply.to_bytes())


async def serve_blind_scores(
    link: Link, agreement: Agreement, holder: KeyHolder, round_: int, plan: BlindPlan | None = None
) -> None:
    """The key-holder party's part. `plan`: how large a score is, where that is known: in a run, not in a
    prediction.
    """
    label_party = agreement.label_party
    masked = holder.public.load_masked(await link.receive("score-request", label_party, round=round_))
    if len(masked.shape) != 2 or masked.shape[1] != agreement.outputs:
        due = f"{agreement.outputs} outputs were agreed"
        raise ShapeError(f"{label_party} asks for scores {masked.shape}, {due}")
    if plan is not None:
        key = _hiding(holder)
        _check_room(masked, key, plan.scores(key), key.lending_slack, label_party)
    with link.activity("open"):
        opened = holder.open(masked).to_bytes()
    note_scores_opened(link, label_party, masked, round_)
    link.send(label_party, "score-opening", opened, round=round_)


def _hiding(holder: KeyHolder) -> HidingKey:
    if not isinstance(holder.public, HidingKey):
        raise SettingError("scores: a blind model takes keys that hide arrays")
    return holder.public


def _check_room(masked: Masked, key: HidingKey, range_: Range, slack: int, requester: str) -> None:
    """ShapeError for other ciphertexts than so many numbers of the agreed range are packed into: in one that
    holds a single number there is room for many others.
    """
    rows, columns = masked.shape
    due = key.sum_ciphertexts((rows, columns), range_, slack)
    if masked.ciphertexts != due:
        given = f"{masked.ciphertexts} ciphertexts for {rows} x {columns} numbers"
        raise ShapeError(f"{requester} asks to open {given}, as agreed they take {due}")


# Parameters in the clear, to their own party, if all agreed


async def release(link: Link, agreement: Agreement, keys: Keyring, scorer: BlindScorer, t: int) -> Array:
    """A party gets its own parameters opened, once, at the end."""
    key, size = hiding(keys), scorer.theta.shape[0]
    own = (scorer.plan.release_matrix(size) @ scorer.theta).within(scorer.plan.released(key), 0)
    masked, mask = own.mask()
    channel = Channel(link, keys.opener, t)
    channel.requested("opening", masked)
    channel.ask("opening-request", masked, mask)
    if agreement.mutual and keys.own is not None:
        await serve_release(link, agreement, scorer.plan, keys.own, keys.opener, t)
    return channel.remove("opening", mask, keys.public.load_opened(await channel.hear("opening")))


async def serve_release(
    link: Link, agreement: Agreement, plan: BlindPlan, holder: KeyHolder, requester: str, t: int
) -> None:
    """The key-holder's part: as many numbers as the party has parameters, in as much room as they take."""
    member = next(m for m in agreement.members if m.name == requester)
    channel = Channel(link, requester, t)
    masked = holder.public.load_masked(await channel.hear("opening-request"))
    if masked.shape != (member.equations, agreement.columns):
        raise ShapeError(
            f"{requester} asks to open {masked.shape}, its {member.equations} x {agreement.columns}"
            " parameters were agreed"
        )
    key = _hiding(holder)
    _check_room(masked, key, plan.released(key), 0, requester)
    with link.activity("open"):
        opened = holder.open(masked).to_bytes()
    channel.checked("opening-request", "ciphertexts", "as many as agreed", "not seen")
    channel.opened("opening", masked)
    channel.tell("opening", opened)
