"""Blind training: nobody sees a gradient, an H, a residual or even its own parameters (linear local models).

Each party k holds [[theta_k]] under a key that it lacks, from the first round to the last.

With a key-holder party C (any K), a round:

    1. k -> label party    margin: [[b X_k theta_k]], packed, re-randomised
    2. label party -> C    refresh-request: [[sum of margins + a y]], every entry under a mask
    3. C -> label party    refreshed
    4. label party -> k    residual: [[g]]
    5. k                   [[theta_k]] <- (I - l2 P_Q) [[theta_k]] - P_Q X_k'/S [[g]]  (Q local steps at once;
                           with momentum + m ([[theta_k]] - [[theta_k of the round before]]))
    6. k -> C -> k         refresh-request, refreshed: [[theta_k]] back to its scale

With two parties and no third, A holds [[theta_A]]_B and B holds [[theta_B]]_A. Both at once:

    1. k -> peer           masked-margin: [[b X_k theta_k]] under the peer's key, masked; the peer reads
                           v_k = b H^k + r_k
    2. peer -> k           converted: [[v_k - r_peer (+ a y)]] under the peer's own key; k adds
                           v_peer - r_k (+ a y) and has [[g]] under the peer's key
    3. k                   as 5. above
    4. k -> peer -> k      refresh-request, refreshed

Key-holders see entries under statistical masks, for a whole run within 2**-40 of something independent of
the values (securefed.crypto.hidden); everybody else sees ciphertexts of others' keys. Nothing is opened, so
the ledger stays empty. FedBCD-s runs the exchange once for each turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from securefed.crypto.hidden import HiddenArray, HiddenSum, HidingKey, PlainMatrix, Wide
from securefed.errors import SettingError
from securefed.protocols.agreement import Agreement
from securefed.protocols.blind_algebra import (
    MARGIN_BITS,
    MOVED_BITS,
    PARAMETER_BITS,
    RESIDUAL_BITS,
    BlindPlan,
)
from securefed.protocols.blind_scores import (
    BlindScorer,
    blind_scores,
    release,
    serve_blind_scores,
    serve_release,
)
from securefed.protocols.channel import Channel
from securefed.protocols.keyring import Keyring, exchange_switching
from securefed.protocols.loop import PartyLoop, State, Surroundings, checkpoint_array
from securefed.protocols.prediction_run import BlindShard
from securefed.protocols.range_check import Answer, Check, Gate
from securefed.protocols.refresh import (
    Refresh,
    Refresher,
    ask_refresh,
    hear_report,
    hiding,
    shifted,
    take_refreshed,
)
from securefed.protocols.steps import OwnSteps
from securefed.transport import Link

__all__ = ["BlindKeyHolder", "BlindParty"]

Array = NDArray[np.float64]
CUT = MARGIN_BITS - RESIDUAL_BITS
"""Low bits cut off when margins become residuals."""
MOST_KEPT_BATCHES = 16


class _Refreshes:
    """The refreshes of a run, as both sides derive them."""

    def __init__(self, agreement: Agreement, plan: BlindPlan) -> None:
        self._agreement, self._plan = agreement, plan
        self.sizes = {member.name: member.equations for member in agreement.members}
        self.rows, self.outputs = agreement.batches.effective_size, agreement.columns
        self.lift_step = 2 * len(agreement.turns)

    def residuals(self, key: HidingKey) -> Refresh:
        shape, blocks = (self.rows, self.outputs), self._plan.residual_blocks(key, self._agreement)
        return Refresh(shape, self._plan.margins, self._plan.slack, CUT, blocks)

    def parameters(self, key: HidingKey, name: str) -> Refresh:
        """Moved parameters, back to their scale."""
        plan, size = self._plan, self.sizes[name]
        shift = MOVED_BITS - PARAMETER_BITS
        return Refresh((size, self.outputs), plan.moved, plan.slack, shift, self.blocks(key, name))

    def lifted(self, key: HidingKey, name: str) -> Refresh:
        """Parameters, for scoring."""
        shape = (self.sizes[name], self.outputs)
        return Refresh(shape, self._plan.parameters, self._plan.slack, -key.scoring_lift)

    def blocks(self, key: HidingKey, name: str) -> int:
        return key.blocks_for(self.sizes[name], self.rows, rough=self._agreement.takes_on_trust)


class BlindParty(PartyLoop):
    """A party with columns whose parameters stay hidden."""

    def __init__(
        self,
        agreement: Agreement,
        plan: BlindPlan,
        features: Array,
        labels: Array | None,
        around: Surroundings,
        *,
        steps: OwnSteps | None = None,
    ) -> None:
        super().__init__(agreement, around)
        self._plan, self._features = plan, features
        self._steps = steps or OwnSteps(agreement, plan.loss, features, l2=plan.l2, allow_unstable=True)
        self._labels = None if labels is None else labels.reshape(len(labels), -1)
        if self._labels is not None and self._labels.shape[1] != agreement.columns:
            given = self._labels.shape[1]
            raise SettingError(f"labels: {given} outputs given, {agreement.columns} were agreed")
        self._refreshes = _Refreshes(agreement, plan)
        self._received: dict[str, HiddenSum] = {}
        self._matrices: dict[object, PlainMatrix | tuple[PlainMatrix, PlainMatrix]] = {}
        self._saved: list[bytes] | None = None
        self._previous: HiddenArray
        """The parameters of the round before."""
        self.theta: HiddenArray
        self.lifted: HiddenArray
        """The parameters for scoring, at the end of the run."""
        self.parameters: Array | None = None
        """In the clear only if all agreed to release them: (columns, outputs)."""

    def _model_state(self) -> State:
        return {
            "theta": np.frombuffer(self.theta.to_bytes(), dtype=np.uint8),
            "previous": np.frombuffer(self._previous.to_bytes(), dtype=np.uint8),
        }

    def _restore_model(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        self._saved = [
            np.asarray(checkpoint_array(state, name), dtype=np.uint8).tobytes()
            for name in ("theta", "previous")
        ]

    async def _begin(self, link: Link, keys: Keyring) -> None:
        key, plan = hiding(keys), self._plan
        plan.check_room(key)
        scoring = self._agreement.scores_rows or self._agreement.release
        await exchange_switching(
            link, self._agreement, keys, plan.results(key, self._agreement, scoring=scoring)
        )
        self._refresher = None if keys.own is None else Refresher(keys.own, self._agreement.check_every)
        self._take_model(link, keys)

    def _take_model(self, link: Link, keys: Keyring) -> None:
        key, parameters = hiding(keys), self._plan.parameters
        shape = (self._features.shape[1], self._agreement.columns)
        blocks = self._refreshes.blocks(key, link.name)
        if self._saved is None:
            self.theta = self._previous = key.hidden_zeros(shape, parameters, blocks)
        else:
            self.theta, self._previous = (
                key.load_array(blob, shape, parameters, blocks) for blob in self._saved
            )

    async def _round(self, link: Link, keys: Keyring, t: int) -> None:
        agreement, rate = self._agreement, self._agreement.check_every
        for position, active in enumerate(agreement.turns):
            step, masks, request, answer, gate = 2 * position + 1, None, None, None, Gate()
            g: HiddenArray | None
            if agreement.mutual:
                g, gate = await self._pair_residuals(link, keys, t, position)
            else:
                senders = agreement.names[:-1] if position == 0 else agreement.turns[position - 1]
                g = await self._star_residuals(link, keys, t, position, senders, active)
            peers = [name for name in active if name != link.name and agreement.mutual]

            def ask(active: tuple[str, ...] = active, g: HiddenArray | None = g, step: int = step) -> None:
                nonlocal masks
                if link.name in active and g is not None:
                    masks = self._ask_moved(link, keys, g, t, step)

            async def hear(peers: list[str] = peers, step: int = step) -> None:
                nonlocal request
                for peer in peers:
                    request = await link.receive("refresh-request", peer, round=t, step=step)

            await gate.passed(ask, hear)
            if request is not None and self._refresher is not None:
                due = self._refreshes.parameters(self._refresher.public, peers[0])
                answer = self._refresher.answer(link, peers[0], due, t, step, request)
            check = None
            if masks is not None:
                due = self._refreshes.parameters(hiding(keys), link.name)
                self._previous = self.theta
                self.theta, check = await take_refreshed(link, keys, masks, due, t, step, rate)
            await Gate(check, answer).passed()

    def _ask_moved(self, link: Link, keys: Keyring, g: HiddenArray, t: int, step: int) -> Wide:
        """The local steps of a round, and the request to bring the parameters back to their scale."""
        due = self._refreshes.parameters(hiding(keys), link.name)
        with link.activity("products"):
            theta = self._moved(g, t).within(due.range, due.slack)
        return ask_refresh(link, keys, theta, t, step)

    # Plain matrices of this party's own columns

    def _batch(self, t: int) -> NDArray[np.intp]:
        return self._agreement.batches.batch(t)

    def _rows(self, t: int) -> Array:
        """The batch of own columns; all rows are not copied."""
        return self._features if self._agreement.batches.all_rows else self._features[self._batch(t)]

    def _kept(self, t: int) -> object | None:
        """What tells a batch that comes again; None where it does not."""
        batches = self._agreement.batches
        count = -(-batches.rows // batches.effective_size)
        if count == 1:
            return 0
        return t % count if batches.fixed and count <= MOST_KEPT_BATCHES else None

    def _margin(self, t: int) -> PlainMatrix:
        again, rough = self._kept(t), self._agreement.takes_on_trust
        if again is None:
            return self._plan.margin_matrix(self._rows(t), rough=rough)
        found = self._matrices.get(("margin", again))
        if not isinstance(found, PlainMatrix):
            found = self._plan.margin_matrix(self._rows(t), keep=True, rough=rough)
            self._matrices["margin", again] = found
        return found

    def _moved(self, g: HiddenArray, t: int) -> HiddenSum:
        """The parameters after round t."""
        moved, kept = self._update(t)
        total = (kept @ self.theta) + (moved @ g)
        momentum = self._steps.momentum(t)
        if momentum:
            size = self._features.shape[1]
            total = total + (self._plan.momentum_matrix(size, momentum) @ self._previous)
        return total

    def _update(self, t: int) -> tuple[PlainMatrix, PlainMatrix]:
        """-P_Q X'/S and (1 + momentum) I - l2 P_Q of round t; the same in every round where batch and rate
        are.
        """
        again, rate = self._kept(t), self._agreement.learning_rate(t)
        found = self._matrices.get(("update", again, rate))
        if again is None or not isinstance(found, tuple):
            keep = again is not None and self._agreement.learning_rate(t + 1) == rate
            matrix, momentum = self._steps.matrix(t), self._steps.momentum(t)
            learnt, batches = self._agreement.batches.trained(t), self._agreement.batches
            idle = np.isin(np.arange(batches.rows), learnt, invert=True) if batches.aside else None
            rough = self._agreement.takes_on_trust
            found = self._plan.update_matrices(
                matrix, self._rows(t), len(learnt), momentum, idle=idle, keep=keep, rough=rough
            )
            if keep:
                self._matrices["update", again, rate] = found
        return found

    # The exchange: from hidden parameters to hidden residuals

    def _targets(self, t: int, fraction_bits: int) -> Wide | int:
        """a y of the batch, at the label party."""
        if self._labels is None:
            return 0
        return self._plan.label_integers(self._labels[self._batch(t)], fraction_bits)

    async def _star_residuals(
        self,
        link: Link,
        keys: Keyring,
        t: int,
        position: int,
        senders: tuple[str, ...],
        active: tuple[str, ...],
    ) -> HiddenArray | None:
        plan, label_party, key = self._plan, self._agreement.label_party, hiding(keys)
        due = self._refreshes.residuals(key)
        if link.name != label_party:
            if link.name in senders:
                with link.activity("products"):
                    margin = (self._margin(t) @ self.theta).within(plan.margins, plan.slack).rerandomise()
                Channel(link, label_party, t, position).send("margin", margin)
            if link.name not in active:
                return None
            channel = Channel(link, label_party, t, position)

            def load(blob: bytes) -> HiddenArray:
                return key.load_array(blob, due.shape, plan.residuals, due.blocks)

            return await channel.take("residual", load, "shape", "scale", "ciphertexts", activity="unmask")
        with link.activity("products"):
            total = (self._margin(t) @ self.theta).within(plan.margins, plan.slack)
        for name in senders:
            if name != label_party:
                load_sum = partial(key.load_sum, shape=due.shape, range_=plan.margins, slack=plan.slack)
                channel = Channel(link, name, t, position)
                self._received[name] = await channel.take("margin", load_sum, "layout", "ciphertexts")
        for part in self._received.values():
            total = total + part
        targets = self._targets(t, MARGIN_BITS)
        if isinstance(targets, int):
            raise SettingError(f"{label_party} has no labels")
        masks = ask_refresh(link, keys, total.add_plain(targets), t, 2 * position)
        rate = self._agreement.check_every
        g, check = await take_refreshed(link, keys, masks, due, t, 2 * position, rate)
        await Gate(check).passed()
        for name in active:
            if name != label_party:
                Channel(link, name, t, position).send("residual", g, source=keys.opener)
        return g

    async def _pair_residuals(
        self, link: Link, keys: Keyring, t: int, position: int
    ) -> tuple[HiddenArray, Gate]:
        """[[g]] under the peer's key, and the checks before it is used; the exchange is symmetric but for the
        labels.
        """
        plan, peer, refresher = self._plan, keys.opener, self._refresher
        due = self._refreshes.residuals(hiding(keys))
        if refresher is None:
            raise SettingError("two parties hold keys for each other")
        with link.activity("products"):
            block, masks = (self._margin(t) @ self.theta).within(plan.margins, plan.slack).hide()
        channel = Channel(link, peer, t, position)
        channel.ask("masked-margin", block, masks)
        read = refresher.read

        def seen_of(blob: bytes) -> Wide:
            return shifted(read(blob, due.shape, plan.margins, plan.slack), CUT)

        checks = ("layout", "ciphertexts", "not seen")
        seen = await channel.take("masked-margin", seen_of, *checks, activity="open")
        own = seen - shifted(masks, CUT) + self._targets(t, RESIDUAL_BITS)
        channel.spend("masked-margin", masks)
        wide = due.wide.masked(0)
        with link.activity("encrypt"):
            converted = refresher.holder.conceal(own, wide, due.blocks)
        channel.send("converted", converted, activity="encrypt")

        def load(blob: bytes) -> HiddenArray:
            return hiding(keys).load_array(blob, due.shape, wide, due.blocks)

        array = await channel.take("converted", load, "shape", "scale", "ciphertexts", activity="unmask")
        with link.activity("unmask"):
            g = array.add_plain(own, plan.residuals)
        rate, step = self._agreement.check_every, 2 * position
        check = Check(link, keys, rate, t, step, array, own, due.blocks) if rate else None
        return g, Gate(check, refresher.checkable(link, peer, own, wide, due.blocks, t, step))

    # Evaluation, the end of the run

    def scorer(self) -> BlindScorer:
        """This party's part of the finished model."""
        return BlindScorer(self._plan, self.lifted, self.model)

    def shard(self) -> BlindShard:
        """The same to keep: ciphertexts under the key-holder's key."""
        return BlindShard(self._plan, self.lifted.to_bytes(), self.lifted.shape[0], self.model)

    @property
    def model(self) -> bytes:
        """A name for the parameters as they are now."""
        return sha256(self.theta.to_bytes()).digest()

    async def _lift(self, link: Link, keys: Keyring, t: int) -> HiddenArray:
        """The parameters as they are scored: where openings carry noise, lifted far above it."""
        if not hiding(keys).scoring_lift:
            return self.theta
        due = self._refreshes.lifted(hiding(keys), link.name)
        step = self._refreshes.lift_step
        masks = ask_refresh(link, keys, self.theta.packed().within(due.range, due.slack), t, step)
        if self._refresher is not None:
            theirs = self._refreshes.lifted(self._refresher.public, keys.opener)
            await self._refresher.serve(link, keys.opener, theirs, t, step)
        return (await take_refreshed(link, keys, masks, due, t, step))[0]

    async def _scores(self, link: Link, keys: Keyring, rows: Array | None, t: int) -> Array | None:
        if rows is None:
            raise SettingError("evaluation: no rows to evaluate on")
        scorer = BlindScorer(self._plan, await self._lift(link, keys, t), self.model)
        return await blind_scores(link, self._agreement, keys, scorer, rows, t, self.guard)

    async def _end(self, link: Link, keys: Keyring) -> None:
        """The finished model; own parameters in the clear, if all agreed; the key-holders' word."""
        link.phase = "release"
        t = self._agreement.stopping.rounds
        self.lifted = await self._lift(link, keys, t)
        if self._agreement.release:
            self.parameters = await release(link, self._agreement, keys, self.scorer(), t)
        if self._refresher is not None:
            self._refresher.tell(link, [keys.opener], t)
        await hear_report(link, keys, t)


class BlindKeyHolder(PartyLoop):
    """The key-holder party of a blind run: reads entries under masks, and hides them again."""

    def __init__(
        self,
        agreement: Agreement,
        plan: BlindPlan,
        around: Surroundings,
    ) -> None:
        super().__init__(agreement, around)
        self._plan, self._own = plan, around.key
        self._refresher = Refresher(self._own, agreement.check_every)
        self._refreshes = _Refreshes(agreement, plan)

    async def _begin(self, link: Link, keys: Keyring) -> None:
        key, agreement = hiding(keys), self._agreement
        self._plan.check_room(key)
        scoring = agreement.scores_rows or agreement.release
        await exchange_switching(link, agreement, keys, self._plan.results(key, agreement, scoring=scoring))

    async def _round(self, link: Link, keys: Keyring, t: int) -> None:
        agreement, refreshes = self._agreement, self._refreshes
        for position, active in enumerate(agreement.turns):
            due, label_party = refreshes.residuals(hiding(keys)), agreement.label_party
            answers = [await self._refresher.serve(link, label_party, due, t, 2 * position)]
            await _checked(answers)
            # Everybody is served before anybody's choice is waited for.
            dues = {name: refreshes.parameters(hiding(keys), name) for name in active}
            answers = [await self._refresher.serve(link, n, d, t, 2 * position + 1) for n, d in dues.items()]
            await _checked(answers)

    async def _lift(self, link: Link, keys: Keyring, t: int) -> None:
        if hiding(keys).scoring_lift:
            for name in self._agreement.names:
                due = self._refreshes.lifted(hiding(keys), name)
                await self._refresher.serve(link, name, due, t, self._refreshes.lift_step)

    async def _scores(self, link: Link, keys: Keyring, rows: Array | None, t: int) -> None:
        await self._lift(link, keys, t)
        await serve_blind_scores(link, self._agreement, self._own, t, self._plan)

    async def _end(self, link: Link, keys: Keyring) -> None:
        link.phase = "release"
        t = self._agreement.stopping.rounds
        await self._lift(link, keys, t)
        if self._agreement.release:
            for member in self._agreement.members:
                await serve_release(link, self._agreement, self._plan, self._own, member.name, t)
        self._refresher.tell(link, list(self._agreement.names), t)
        self._refresher.check()


async def _checked(answers: Iterable[Answer | None]) -> None:
    for answer in answers:
        if answer is not None:
            await answer.serve()
