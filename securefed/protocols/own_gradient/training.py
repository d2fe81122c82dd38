"""Training that opens each party's own aggregated gradients, as in the paper, for every objective.

docs/protocols.md has the messages (own gradients). A local step is theta <- optimiser(theta, g + mu (theta -
theta_start)), with g from opened sums and the party's own rows. The batch and the others' values stay fixed
during the Q steps.

A data party learns its own aggregated parameter gradients: one a round if its model is linear, else Q. The
label party also learns the scores of the evaluation rows. A key-holder learns nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import add

import numpy as np
from numpy.typing import NDArray

from securefed.crypto import Encrypted, FixedPoint
from securefed.crypto.scheme import Bare, Mask
from securefed.errors import SettingError
from securefed.protocols.agreement import FRACTION_BITS, Agreement
from securefed.protocols.channel import Channel, Keyring, distribute_keys
from securefed.protocols.loop import Array, PartyContext, PartyLoop, State, part_of
from securefed.protocols.own_gradient.openings import ask, ask_sums, levelled, serve
from securefed.protocols.own_gradient.prediction import Scores, serve_scores
from securefed.protocols.own_gradient.sides import LinearSide, Side, TransferScorer
from securefed.protocols.steps import Optimiser, OwnSteps
from securefed.transport.link import Link


class Exchange:
    """One party's part in the exchanges of a run: contributions to H go, encrypted, to who adds them up."""

    def __init__(self, link: Link, agreement: Agreement, keys: Keyring, side: Side) -> None:
        self._link, self._agreement, self._keys, self._side = link, agreement, keys, side
        self._me, self._label = link.name, agreement.label_party
        self._star = not agreement.mutual and agreement.exchange == "star"
        """Contributions go to the label party alone."""
        self.included = self._star and self._me != self._label and agreement.algorithm.order == "parallel"
        """A sum of the others' contributions also has this party's own of the round's start."""
        self._parts: dict[str, Encrypted] = {}
        """The newest contributions of other parties."""

    async def all(self, round_: int) -> Encrypted:
        """Exchange({1 .. K}): return this party's sum. Parallel schedules start a round with it."""
        others = [name for name in self._agreement.names if name != self._me]
        if not (self._star and self._me == self._label):
            await self._share(self._me, round_)
        if self._star and self._me != self._label:
            return await self._receive("residual", self._label, round_)
        for name in others:
            await self._share(name, round_)
        received = self._sum(others)
        if self._star:
            total = self._encrypt() + received  # the fresh term re-randomises the sum
            for name in others:
                self._send(name, "residual", total, round_)
        return received

    async def before_turns(self, round_: int) -> None:
        """Sequential: share the contributions of all later turns. With a star the label party sends none."""
        if not self._agreement.mutual:
            later = self._agreement.names[1:-1] if self._star else self._agreement.names[1:]
            for position, name in enumerate(later, start=1):
                await self._share(name, round_, position)

    async def for_turn(self, round_: int, turn: str) -> Encrypted | None:
        """Sequential: return the sum of the others' newest contributions at the party of this turn."""
        others = [name for name in self._agreement.names if name != turn]
        if self._agreement.mutual:
            await self._share(others[0], round_)
        if self._star and turn != self._label:
            if self._me == self._label:
                self._parts[self._label] = self._encrypt()  # the fresh term re-randomises the sum
                self._send(turn, "residual", self._sum(others), round_)
            if self._me == turn:
                return await self._receive("residual", self._label, round_)
        return self._sum(others) if self._me == turn else None

    async def after_turn(self, round_: int, turn: str) -> None:
        """Sequential: Exchange({k, K}) after party k's local steps."""
        if not self._agreement.mutual and turn != self._label:
            await self._share(turn, round_, self._agreement.algorithm.local_steps)

    async def _share(self, sender: str, round_: int, step: int = 0) -> None:
        """Bring the contribution of a party to those who add contributions."""
        receivers = (self._label,) if self._star else self._agreement.names
        if self._me == sender:
            part = self._encrypt()
            for name in receivers:
                if name != sender:
                    self._send(name, "contribution", part, round_, step)
        elif self._me in receivers:
            self._parts[sender] = await self._receive("contribution", sender, round_, step)

    def _encrypt(self) -> Encrypted:
        with self._link.activity("local model"):
            values = self._side.contribution()
        with self._link.activity("encrypt"):
            return self._keys.encrypt(values, self._side.fixed())

    def _send(self, receiver: str, kind: str, encrypted: Encrypted, round_: int, step: int = 0) -> None:
        Channel(self._link, receiver, round_, step).send(kind, encrypted)

    async def _receive(self, kind: str, sender: str, round_: int, step: int = 0) -> Encrypted:
        def load(blob: bytes) -> Encrypted:
            return self._keys.public.load(blob, self._side.peer_shape())

        channel = Channel(self._link, sender, round_, step)
        return await channel.take(kind, load, "shape", "ciphertexts")

    def _sum(self, names: list[str]) -> Encrypted:
        with self._link.activity("add"):
            return reduce(add, (self._parts[name] for name in names))


OPTIMISER = "optimiser."
SEALED = "sealed"


class DataParty(PartyLoop):
    """The program of a party with columns."""

    def __init__(
        self,
        agreement: Agreement,
        side: Side,
        optimiser: Optimiser,
        context: PartyContext,
        *,
        steps: OwnSteps | None = None,
    ) -> None:
        super().__init__(agreement, context)
        self.side = side
        self._optimiser, self._steps = optimiser, steps
        self._start = self._previous = side.parameters
        """Parameters at the start of the run, and of the last round."""
        if agreement.scores_rows and context.evaluation is None:
            raise SettingError(
                "evaluate_every: evaluations were agreed, and there are no rows to evaluate on"
            )

    def _model_state(self) -> State:
        moments = {f"{OPTIMISER}{name}": array for name, array in self._optimiser.state().items()}
        return {"parameters": self.side.parameters, "previous": self._previous, **moments}

    def _restore_model(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        self._optimiser.restore(part_of(state, OPTIMISER))
        self.side.parameters = np.asarray(state["parameters"], dtype=np.float64)
        self._previous = np.asarray(state["previous"], dtype=np.float64)

    async def _begin(self, link: Link) -> None:
        self._keys = await distribute_keys(link, self._agreement, self._context.holder, self._mapper)
        self._exchange = Exchange(link, self._agreement, self._keys, self.side)

    def _aim(self, targets: Array) -> None:
        if isinstance(self.side, LinearSide):
            self.side.labels = targets

    async def _round(self, link: Link, t: int) -> None:
        agreement, exchange = self._agreement, self._exchange
        if agreement.batches.begins_anew(t):
            self.side.parameters = self._previous = self._start
        self.side.begin(agreement.batches.trained(t))
        if agreement.algorithm.order == "parallel":
            operand = await exchange.all(t)
            link.mark("exchange", t)
            await self._local_steps(link, operand, t, agreement.names)
            return
        await exchange.before_turns(t)
        for turn in agreement.names:  # Algorithm 3
            await self._local_steps(link, await exchange.for_turn(t, turn), t, (turn,))
            await exchange.after_turn(t, turn)

    async def _local_steps(
        self, link: Link, operand: Encrypted | None, t: int, active: tuple[str, ...]
    ) -> None:
        """Make Q local steps of the `active` parties, and open for them as their key-holder."""
        agreement, side, keys, ledger = self._agreement, self.side, self._keys, self.ledger
        peers = [name for name in active if name != link.name] if agreement.mutual else []
        start = side.parameters
        sums: Array | None = None
        for q in range(agreement.algorithm.local_steps):
            mask, channel = None, Channel(link, keys.opener, t, q)
            if operand is not None and agreement.opens_at(link.name, q):
                mask, powers = self._ask(channel, operand)
            for name in peers:
                if keys.own is not None and agreement.opens_at(name, q):
                    await serve(link, agreement, keys.own, ledger, name, t, q)
            if operand is None:
                continue
            if mask is not None:
                sums = await channel.unmask("opening", mask, keys.public)
                sums = sums * powers.reshape(sums.shape)
            with link.activity("local model"):
                gradient = self._gradient(operand, sums)
                if self._steps is not None and sums is not None:
                    # All Q steps at once; nothing that was opened changes during them.
                    again = self._steps.momentum(t) * (start - self._previous)
                    self._previous = start
                    side.parameters = start + again - self._steps.matrix(t) @ gradient
                    break
                # Equation 15: the gradient of mu/2 |theta - theta at the exchange|^2
                gradient = gradient + agreement.algorithm.proximal * (side.parameters - start)
                rate = agreement.learning_rate(t) if self._steps is None else self._steps.rate(t)
                side.parameters = self._optimiser.step(side.parameters, gradient, rate)

    def _ask(self, channel: Channel, operand: Encrypted) -> tuple[Mask, Array]:
        """Request the sums. Return the mask, and the factors that restore the sums."""
        side, link = self.side, channel.link
        # Of the class itself: what stands around a side to watch its multipliers is not passed by.
        direct = getattr(type(side), "sums", None)
        if direct is not None and isinstance(operand, Bare):
            with link.activity("products"):
                sums: Array = direct(side, operand.values)
                fixed = FixedPoint(max(1.0, float(np.abs(sums).max())), FRACTION_BITS)
                encrypted = operand.public.encrypt(sums, fixed)
            return ask(channel, encrypted), np.ones(sums.shape)
        with link.activity("local model"):
            scaled, powers = levelled(side.multipliers())
        return ask_sums(channel, operand, scaled, self._agreement.batches.effective_size), powers

    def _gradient(self, operand: Encrypted, sums: Array | None) -> Array:
        if sums is not None:
            return self.side.gradient(sums, self._exchange.included)
        if not isinstance(operand, Bare):
            raise SettingError("exact: only possible where nothing is encrypted")
        return self.side.exact_gradient(operand.values, self._exchange.included)

    def _make_question(self, link: Link, t: int) -> State:
        """Encrypt the label party's model of a transfer run once. Other bytes would be another question."""
        scorer, own = self.side.scorer(), self._keys.own
        if not isinstance(scorer, TransferScorer) or scorer.phi is None or own is None:
            return {}
        return {SEALED: np.frombuffer(own.encrypt(scorer.phi, scorer.fixed).to_bytes(), np.uint8)}

    async def _scores(self, link: Link, rows: Array | None, t: int, fold: int) -> Array | None:
        scorer, own = self.side.scorer(), self._keys.own
        if isinstance(scorer, TransferScorer) and own is not None and SEALED in self._question:
            scorer.sealed[own.public.key_id] = self._question[SEALED].tobytes()
        if not isinstance(scorer, TransferScorer):
            await _all_stored(link, self._agreement, t)
        return await Scores(link, self._agreement, self._keys, self.guard, t).run(scorer, rows)


class KeyHolderParty(PartyLoop):
    """The program of a party without columns that holds the key (K > 2). It sees only masked values."""

    def __init__(self, agreement: Agreement, context: PartyContext) -> None:
        super().__init__(agreement, context)
        if context.holder is None:
            raise SettingError("keys: the key-holder has no key")
        self._own = context.holder

    async def _begin(self, link: Link) -> None:
        await distribute_keys(link, self._agreement, self._own, self._mapper)

    async def _round(self, link: Link, t: int) -> None:
        agreement = self._agreement
        for active in agreement.turns:
            for q in range(agreement.algorithm.local_steps):
                for name in active:
                    if agreement.opens_at(name, q):
                        await serve(link, agreement, self._own, self.ledger, name, t, q)

    async def _scores(self, link: Link, rows: Array | None, t: int, fold: int) -> None:
        await _all_stored(link, self._agreement, t)
        await serve_scores(link, self._agreement, self._own, None, t)


async def _all_stored(link: Link, agreement: Agreement, t: int) -> None:
    """Wait until every party has stored what determines its part of the scores.

    A run that is interrupted later repeats the same question then, and nobody books it twice. In transfer
    learning the label party's question says as much.
    """
    if not agreement.blurs:
        return
    label_party = agreement.label_party
    if link.name != label_party:
        link.send(label_party, "received", b"\1", round=t)
        await link.receive("received", label_party, round=t)
        return
    for name in agreement.others:
        await link.receive("received", name, round=t)
    for name in agreement.others:
        link.send(name, "received", b"\1", round=t)
