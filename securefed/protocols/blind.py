"""Blind training: nobody sees a gradient, an H, a residual or even its own parameters (linear local models).

Each party k holds [[theta_k]] under a key that it lacks, from the first round to the last.

With a key-holder party C (any K), a round:

    1. k -> label party    margin: [[X_k theta_k]], packed, re-randomised
    2. label party -> C    refresh-request: [[sum of margins + labels]], every slot under a mask of 40 bits
       more than its range
    3. C -> label party    refreshed: value + mask, low bits cut off, encrypted again one by one
    4. label party -> k    residual: [[g]] (the mask, shifted, subtracted)
    5. k                   [[theta_k]] <- (I - l2 P) [[theta_k]] - P X_k'/S [[g]]          (all Q local
       steps at once)
    6. k -> C -> k         refresh-request, refreshed: [[theta_k]] back to its scale

With two parties and no third, A holds [[theta_A]]_B and B holds [[theta_B]]_A. Both at once:

    1. k -> peer           masked-margin: [[X_k theta_k]] under the peer's key, every slot masked; the peer
       reads v = H^k + r_k
    2. peer -> k           converted: [[v - r_peer (+ labels)]] under the peer's own key; k adds its
       reading of the peer's slots less r_k
                           and has [[g]] under the peer's key
    3. k                   as 5. above
    4. k -> peer -> k      refresh-request, refreshed

Key-holders see slots under statistical masks (within 2**-40 of something independent of the values),
everybody else ciphertexts of others' keys. Nothing is opened, so the ledger stays empty. FedBCD-s runs the
exchange once for each turn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefed.crypto import KeyHolder, Mapper, Serial
from securefed.crypto.errors import ShapeError
from securefed.crypto.paillier import PaillierEncrypted, PaillierPublicKey
from securefed.crypto.paillier.extent import Extent
from securefed.crypto.paillier.slots import HiddenSlots, PaillierSlots, add_integers
from securefed.errors import SettingError
from securefed.protocols import evidence
from securefed.protocols.agreement import Agreement
from securefed.protocols.blind_algebra import RESIDUAL_BITS, BlindPlan
from securefed.protocols.blind_scores import BlindScorer, blind_scores, serve_blind_scores
from securefed.protocols.blur import ScoreGuard
from securefed.protocols.evidence import checked, leaving, spent_slots
from securefed.protocols.keyring import Keyring, distribute_keys
from securefed.protocols.ledger import Ledger
from securefed.protocols.openings import ask, serve, take
from securefed.protocols.schedules import Reason
from securefed.protocols.steps import OwnSteps
from securefed.protocols.training import (
    Evaluation,
    Outcome,
    Round,
    checkpoint_round,
    expect_evaluations,
    receive_verdict,
    send_verdict,
)
from securefed.transport import Link

__all__ = ["BlindKeyHolder", "BlindParty"]

Array = NDArray[np.float64]


class BlindParty:
    """A party with columns whose parameters stay encrypted."""

    def __init__(
        self,
        agreement: Agreement,
        plan: BlindPlan,
        features: Array,
        labels: Array | None,
        *,
        steps: OwnSteps | None = None,
        holder: KeyHolder | None,
        evaluation: Evaluation | None = None,
        mapper: Mapper | None = None,
        on_round: Callable[[Round], None] | None = None,
        guard: ScoreGuard | None = None,
        allow_small: bool = False,
    ) -> None:
        self._agreement, self._plan = agreement, plan
        self._features, self._labels = features, labels
        self._steps = steps or OwnSteps(agreement, plan.loss, features, l2=plan.l2, allow_unstable=True)
        self._holder, self._evaluation, self.guard = holder, evaluation, guard or ScoreGuard()
        self._mapper, self._on_round, self._allow_small = mapper or Serial(), on_round, allow_small
        self._tracker = agreement.stopping.tracker()
        self._first_round = 0
        self._saved: bytes | None = None
        self._received: dict[str, PaillierSlots] = {}
        self.theta: PaillierEncrypted
        self.parameters: Array | None = None
        """In the clear only if all agreed to release them."""

    def state(self) -> dict[str, NDArray[np.generic]]:
        """For a checkpoint: encrypted parameters and counters."""
        tracker = {f"stopping.{name}": array for name, array in self._tracker.state().items()}
        theta = np.frombuffer(self.theta.to_bytes(), dtype=np.uint8)
        return {"round": np.array(self._first_round), "theta": theta, **tracker}

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        first_round, prefix = checkpoint_round(state, "theta"), "stopping."
        self._tracker.restore({n[len(prefix) :]: a for n, a in state.items() if n.startswith(prefix)})
        self._saved = np.asarray(state["theta"], dtype=np.uint8).tobytes()
        self._first_round = first_round

    async def run(self, link: Link) -> Outcome:
        agreement = self._agreement
        keys = await distribute_keys(
            link, agreement, self._holder, self._mapper, allow_small=self._allow_small
        )
        public = paillier(keys)
        size = self._features.shape[1]
        self.theta = self._plan.start(public, size)
        if self._saved is not None:
            self.theta = loaded(public, self._saved, (size,), self._plan.parameter_extent())
        link.phase = "training"
        expect_evaluations(agreement, link.name, self._evaluation, self.guard, self._first_round)
        outcome = Outcome(ledger=Ledger(allow_determined=agreement.allow_determined))
        for t in range(self._first_round, agreement.stopping.rounds):
            await self._round(link, keys, t)
            metric = await self._evaluate(link, keys, t)
            if metric is not None:
                outcome.history.append((t, metric))
            outcome.rounds = self._first_round = t + 1
            reason = await self._verdict(link, t, metric)
            if self._on_round is not None:
                self._on_round(Round(t, metric, link))
            if reason is not None:
                outcome.reason = reason
                break
        if agreement.release:
            await self._release(link, keys)
        return outcome

    async def _round(self, link: Link, keys: Keyring, t: int) -> None:
        agreement = self._agreement
        batch = agreement.batches.batch(t)
        rows = self._features[batch]
        labels = None if self._labels is None else self._labels[batch]
        turns = (
            [agreement.names] if agreement.algorithm.order == "parallel" else [(n,) for n in agreement.names]
        )
        for position, active in enumerate(turns):
            residuals: PaillierEncrypted | None
            if agreement.mutual:
                residuals = await self._pair_residuals(link, keys, rows, labels, t, position)
            else:
                senders = agreement.names[:-1] if position == 0 else turns[position - 1]
                residuals = await self._star_residuals(link, keys, rows, labels, t, position, senders, active)
            if link.name in active and residuals is not None:
                await self._update(link, keys, residuals, rows, t, position)
            if agreement.mutual and keys.own is not None:
                for peer in (name for name in active if name != link.name):
                    await self._serve_refresh(link, keys.own, peer, t, position)
                if link.name in active:
                    await self._finish_update(link, keys, t, position)

    # The exchange: from encrypted parameters to encrypted residuals

    async def _star_residuals(
        self,
        link: Link,
        keys: Keyring,
        rows: Array,
        labels: Array | None,
        t: int,
        position: int,
        senders: tuple[str, ...],
        active: tuple[str, ...],
    ) -> PaillierEncrypted | None:
        plan, label_party, public = self._plan, self._agreement.label_party, paillier(keys)
        extent = plan.residual_extent()
        if link.name != label_party:
            if link.name in senders:
                with link.activity("products"):
                    margin = plan.margins(self.theta, rows).rerandomise()
                facts = leaving(margin)
                link.send(label_party, "margin", margin.to_bytes(), round=t, step=position, facts=facts)
            if link.name not in active:
                return None
            blob = await link.receive("residual", label_party, round=t, step=position)
            residuals = loaded(public, blob, (len(rows),), extent)
            checked(link, "residual", label_party, t, position, "shape", "scale", "ciphertexts")
            return residuals
        with link.activity("products"):
            total = plan.margins(self.theta, rows)
        for name in senders:
            if name != label_party:
                blob = await link.receive("margin", name, round=t, step=position)
                self._received[name] = PaillierSlots.from_bytes(public, blob, total)
                checked(link, "margin", name, t, position, "layout", "ciphertexts")
        for part in self._received.values():
            total = total + part
        if labels is None:
            raise SettingError(f"{label_party} has no labels")
        total = total.add_plain(plan.label_integers(labels, total.fraction_bits, margin_units=True))
        residuals = await self._refresh(link, keys, total, plan.margin_shift, extent, t, 2 * position)
        for name in active:
            if name != label_party:
                facts = leaving(residuals, source=keys.opener)
                link.send(name, "residual", residuals.to_bytes(), round=t, step=position, facts=facts)
        return residuals

    async def _pair_residuals(
        self, link: Link, keys: Keyring, rows: Array, labels: Array | None, t: int, position: int
    ) -> PaillierEncrypted:
        """[[g]] under the peer's key; the exchange is symmetric but for the labels."""
        plan, own, peer = self._plan, keys.own, keys.opener
        if own is None:
            raise SettingError("two parties hold keys for each other")
        with link.activity("products"):
            hidden, masks = plan.margins(self.theta, rows).hide()
        facts = evidence.hidden(link, hidden, masks)
        link.send(peer, "masked-margin", hidden.to_bytes(), round=t, step=position, facts=facts)
        shift = plan.margin_shift
        arrived = HiddenSlots.from_bytes(
            own_key(own), await link.receive("masked-margin", peer, round=t, step=position)
        )
        expect_slots(arrived, hidden, peer)
        with link.activity("open"):
            read = [slot >> shift for slot in own.open_slots(arrived)]
        checked(link, "masked-margin", peer, t, position, "layout", "ciphertexts", "not seen")
        cut = [mask >> shift for mask in masks]
        spent_slots(link, "masked-margin", peer, t, position, masks)
        targets = [0] * len(read)
        if labels is not None:
            targets = plan.label_integers(labels, RESIDUAL_BITS, margin_units=False)
        extent = plan.residual_extent()
        wide = plan.hidden_extent(extent, shift)
        with link.activity("encrypt"):
            message = own.encrypt_integers(
                [v - r + y for v, r, y in zip(read, cut, targets, strict=True)], wide
            )
        link.send(peer, "converted", message.to_bytes(), round=t, step=position, facts=leaving(message))
        blob = await link.receive("converted", peer, round=t, step=position)
        converted = loaded(paillier(keys), blob, (len(rows),), wide)
        checked(link, "converted", peer, t, position, "shape", "scale", "ciphertexts")
        mine = [v - r + y for v, r, y in zip(read, cut, targets, strict=True)]
        return add_integers(converted, mine, extent)

    # The update, and the refresh of what has grown

    async def _update(
        self, link: Link, keys: Keyring, residuals: PaillierEncrypted, rows: Array, t: int, position: int
    ) -> None:
        agreement, plan = self._agreement, self._plan
        with link.activity("products"):
            moved = plan.updated(self.theta, residuals, rows, self._steps.matrix(t))
        self._pending = self._send_refresh(link, keys, moved, t, 2 * position + 1)
        if not agreement.mutual:
            await self._finish_update(link, keys, t, position)

    async def _finish_update(self, link: Link, keys: Keyring, t: int, position: int) -> None:
        shift, extent = self._plan.decay_shift, self._plan.parameter_extent()
        masks, self._pending = self._pending, []
        self.theta = await self._take_refreshed(link, keys, masks, shift, extent, t, 2 * position + 1)

    async def _refresh(
        self, link: Link, keys: Keyring, slots: PaillierSlots, shift: int, extent: Extent, t: int, step: int
    ) -> PaillierEncrypted:
        masks = self._send_refresh(link, keys, slots, t, step)
        return await self._take_refreshed(link, keys, masks, shift, extent, t, step)

    def _send_refresh(self, link: Link, keys: Keyring, slots: PaillierSlots, t: int, step: int) -> list[int]:
        with link.activity("mask"):
            hidden, masks = slots.hide()
        facts = evidence.hidden(link, hidden, masks)
        link.send(keys.opener, "refresh-request", hidden.to_bytes(), round=t, step=step, facts=facts)
        return masks

    async def _take_refreshed(
        self, link: Link, keys: Keyring, masks: list[int], shift: int, extent: Extent, t: int, step: int
    ) -> PaillierEncrypted:
        blob = await link.receive("refreshed", keys.opener, round=t, step=step)
        wide = self._plan.hidden_extent(extent, shift)
        fresh = loaded(paillier(keys), blob, (len(masks),), wide)
        checked(link, "refreshed", keys.opener, t, step, "shape", "scale", "ciphertexts")
        cut = [-(mask >> shift) for mask in masks]
        spent_slots(link, "refreshed", keys.opener, t, step, masks)
        return add_integers(fresh, cut, extent)

    async def _serve_refresh(self, link: Link, holder: KeyHolder, peer: str, t: int, position: int) -> None:
        plan, member = self._plan, next(m for m in self._agreement.members if m.name == peer)
        await serve_refresh(
            link,
            holder,
            plan,
            peer,
            member.equations,
            plan.decay_shift,
            plan.parameter_extent(),
            t,
            2 * position + 1,
        )

    # Evaluation, the end of the run, release

    def scorer(self) -> BlindScorer:
        return BlindScorer(self._plan, self.theta)

    async def _evaluate(self, link: Link, keys: Keyring, t: int) -> float | None:
        if not self._agreement.evaluates_after(t) or self._evaluation is None:
            return None
        features = self._evaluation.features
        if features is None:
            raise SettingError("evaluation: no rows to evaluate on")
        with link.off_the_clock("evaluation"):
            found = await blind_scores(link, self._agreement, keys, self.scorer(), features, t, self.guard)
            if found is None or self._evaluation.metric is None:
                return None
            return float(self._evaluation.metric(found))

    async def _verdict(self, link: Link, t: int, metric: float | None) -> Reason | None:
        if not self._agreement.watched:
            return self._tracker.update(t, metric)
        if link.name != self._agreement.label_party:
            return await receive_verdict(link, self._agreement, t)
        return send_verdict(link, self._agreement, t, self._tracker.update(t, metric))

    async def _release(self, link: Link, keys: Keyring) -> None:
        """All agreed: each party gets its own parameters opened, once, at the end."""
        link.phase = "release"
        t = self._agreement.stopping.rounds
        mask = ask(link, keys, self.theta, t, 0)
        if self._agreement.mutual and keys.own is not None:
            await serve(link, self._agreement, keys.own, None, keys.opener, t, 0)
        self.parameters = await take(link, keys, mask, t, 0)


class BlindKeyHolder:
    """The key-holder party of a blind run: reads slots under masks, and encrypts them again."""

    def __init__(
        self, agreement: Agreement, plan: BlindPlan, holder: KeyHolder, *, mapper: Mapper | None = None
    ) -> None:
        self._agreement, self._plan, self._holder = agreement, plan, holder
        self._mapper = mapper or Serial()
        self.first_round = 0

    async def run(self, link: Link) -> Outcome:
        agreement, plan = self._agreement, self._plan
        await distribute_keys(link, agreement, self._holder, self._mapper)
        link.phase = "training"
        outcome = Outcome(ledger=Ledger(allow_determined=agreement.allow_determined))
        turns = (
            [agreement.names] if agreement.algorithm.order == "parallel" else [(n,) for n in agreement.names]
        )
        sizes = {m.name: m.equations for m in agreement.members}
        rows = agreement.batches.effective_size
        for t in range(self.first_round, agreement.stopping.rounds):
            for position, active in enumerate(turns):
                await serve_refresh(
                    link,
                    self._holder,
                    plan,
                    agreement.label_party,
                    rows,
                    plan.margin_shift,
                    plan.residual_extent(),
                    t,
                    2 * position,
                )
                for name in active:
                    await serve_refresh(
                        link,
                        self._holder,
                        plan,
                        name,
                        sizes[name],
                        plan.decay_shift,
                        plan.parameter_extent(),
                        t,
                        2 * position + 1,
                    )
            if agreement.evaluates_after(t):
                with link.off_the_clock("evaluation"):
                    await serve_blind_scores(link, self._holder, agreement.label_party, t)
            outcome.rounds = t + 1
            if agreement.watched and (reason := await receive_verdict(link, agreement, t)) is not None:
                outcome.reason = reason
                break
        if agreement.release:
            link.phase = "release"
            for name in agreement.names:
                await serve(link, agreement, self._holder, None, name, agreement.stopping.rounds, 0)
        return outcome


async def serve_refresh(
    link: Link,
    holder: KeyHolder,
    plan: BlindPlan,
    requester: str,
    count: int,
    shift: int,
    extent: Extent,
    t: int,
    step: int,
) -> None:
    """The key-holder's part of a refresh: read value + mask, cut `shift` low bits off, encrypt again."""
    blob = await link.receive("refresh-request", requester, round=t, step=step)
    hidden = HiddenSlots.from_bytes(own_key(holder), blob)
    if hidden.shape != (count,):
        raise ShapeError(f"{requester} asks to refresh {hidden.shape[0]} values, {count} were agreed")
    with link.activity("refresh"):
        shifted = [slot >> shift for slot in holder.open_slots(hidden)]
        fresh: Any = holder.encrypt_integers(shifted, plan.hidden_extent(extent, shift))
    checked(link, "refresh-request", requester, t, step, "as many as agreed", "ciphertexts", "not seen")
    link.send(requester, "refreshed", fresh.to_bytes(), round=t, step=step, facts=leaving(fresh))


def paillier(keys: Keyring) -> PaillierPublicKey:
    if not isinstance(keys.public, PaillierPublicKey):
        raise SettingError("reveal: 'nothing' takes scheme 'paillier'")
    return keys.public


def own_key(holder: KeyHolder) -> PaillierPublicKey:
    if not isinstance(holder.public, PaillierPublicKey):
        raise SettingError("reveal: 'nothing' takes scheme 'paillier'")
    return holder.public


def loaded(
    public: PaillierPublicKey, blob: bytes, shape: tuple[int, ...], extent: Extent
) -> PaillierEncrypted:
    """Ciphertexts that arrived, at the scale and in the range that the plan says, whatever their frame
    says.
    """
    encrypted = public.load(blob, shape)
    if not isinstance(encrypted, PaillierEncrypted) or encrypted.fraction_bits != extent.fraction_bits:
        raise ShapeError(f"ciphertexts at another scale than the agreed 2**-{extent.fraction_bits}")
    return add_integers(encrypted, [0] * encrypted.rows, extent)


def expect_slots(arrived: HiddenSlots, mine: HiddenSlots, peer: str) -> None:
    if (arrived.shape, arrived.slots.bits, arrived.slots.fraction_bits) != (
        mine.shape,
        mine.slots.bits,
        mine.slots.fraction_bits,
    ):
        raise ShapeError(
            f"{peer} sent slots {arrived.shape} of {arrived.slots.bits} bits, {mine.shape} are due"
        )
