"""Training that opens each party's own aggregated gradients, as in the paper, for every objective.

A data party's round t (Algorithms 1 to 3):

    parallel     exchange with all; Q local steps, with openings where the agreement has them
    sequential   for each party in turn: it gets the others' newest contributions and makes its Q local steps

A local step is theta <- optimiser(theta, g + mu (theta - theta_start)), with g from opened sums and the
party's own rows. The batch and the others' values stay fixed during the Q steps. A key-holder party answers
the openings that the agreement lists.

| party | learns |
|---|---|
| data party | its own aggregated parameter gradients: one a round if its model is linear, else Q |
| key-holder | nothing |
| label party | also the scores of the evaluation rows, if evaluation is on |
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from securefed.crypto import FixedPoint
from securefed.crypto.fixed import Multipliers
from securefed.crypto.scheme import Bare, Mask
from securefed.errors import SettingError
from securefed.protocols.agreement import FRACTION_BITS, Agreement
from securefed.protocols.channel import Keyring, distribute_keys
from securefed.protocols.loop import (
    PartyContext,
    PartyLoop,
    State,
    checkpoint_array,
    part_of,
)
from securefed.protocols.own_gradient.exchange import Exchange, PeerSum
from securefed.protocols.own_gradient.ledger import Ledger
from securefed.protocols.own_gradient.openings import (
    ask,
    ask_sums,
    fix_ledger,
    levelled,
    normalised,
    serve,
    sums_width,
    take,
)
from securefed.protocols.own_gradient.prediction import scores, serve_scores
from securefed.protocols.own_gradient.privacy import own_noise
from securefed.protocols.own_gradient.sides import Side
from securefed.protocols.schedules import proximal_pull
from securefed.protocols.scoring.scorers import TransferScorer
from securefed.protocols.steps import Optimiser, OwnSteps
from securefed.transport import Link

__all__ = ["DataParty", "KeyHolderParty"]

Array = NDArray[np.float64]
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
        self._side, self._optimiser, self._steps = side, optimiser, steps
        self._start = self._previous = side.parameters
        """Parameters at the start of the run, and of the last round."""
        self._sealed = b""
        """The label party's encrypted model that asks for scores in a transfer run."""
        if agreement.scores_rows and context.evaluation is None:
            raise SettingError(
                "evaluate_every: evaluations were agreed, and there are no rows to evaluate on"
            )

    @property
    def side(self) -> Side:
        """This party's side of the objective."""
        return self._side

    def _model_state(self) -> State:
        moments = {f"{OPTIMISER}{name}": array for name, array in self._optimiser.state().items()}
        return {"parameters": self._side.parameters, "previous": self._previous, **moments}

    def _restore_model(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        parameters = np.asarray(checkpoint_array(state, "parameters"), dtype=np.float64)
        self._optimiser.restore(part_of(state, OPTIMISER))
        self._side.parameters = parameters
        self._previous = np.asarray(checkpoint_array(state, "previous"), dtype=np.float64)

    async def _begin(self, link: Link) -> None:
        self._keys = await distribute_keys(link, self._agreement, self._holder, self._mapper, self._read_key)
        self._exchange = Exchange(link, self._agreement, self._keys, self._side)

    async def _round(self, link: Link, t: int) -> None:
        agreement, keys = self._agreement, self._keys
        if agreement.batches.begins_anew(t):
            self._side.parameters = self._previous = self._start
        self._side.begin(agreement.batches.trained(t))
        if agreement.algorithm.order == "parallel":
            operand = await self._exchange.all(t)
            link.mark("exchange", t)
            await self._local_steps(link, keys, self.ledger, operand, t, agreement.names)
        else:
            await self._turns(link, keys, self.ledger, self._exchange, t)

    async def _turns(self, link: Link, keys: Keyring, ledger: Ledger, exchange: Exchange, t: int) -> None:
        """Run a round of FedBCD-s (Algorithm 3)."""
        await exchange.before_turns(t)
        for turn in self._agreement.names:
            operand = await exchange.for_turn(t, turn)
            await self._local_steps(link, keys, ledger, operand, t, (turn,))
            await exchange.after_turn(t, turn)

    async def _local_steps(
        self,
        link: Link,
        keys: Keyring,
        ledger: Ledger,
        operand: PeerSum | None,
        t: int,
        active: tuple[str, ...],
    ) -> None:
        """Make Q local steps of the `active` parties, and open for them as their key-holder."""
        agreement, side = self._agreement, self._side
        peers = [name for name in active if name != link.name] if agreement.mutual else []
        for name in peers:
            fix_ledger(ledger, agreement, name)
        start = side.parameters
        sums: Array | None = None
        for q in range(agreement.algorithm.local_steps):
            mask = None
            if operand is not None and agreement.opens_at(link.name, q):
                mask, powers, norm = self._ask(link, keys, operand, t, q)
            for name in peers:
                if keys.own is not None and agreement.opens_at(name, q):
                    await serve(link, agreement, keys.own, ledger, name, t, q)
            if operand is None:
                continue
            if mask is not None:
                sums = await take(link, keys, mask, t, q)
                sums = sums * powers.reshape(sums.shape)
                if agreement.dp_noise and link.name == agreement.label_party:
                    # Its own gradient has the labels in the clear, and what others open has its parameters.
                    change = agreement.label_change * norm
                    sums = sums + own_noise(agreement.dp_noise, change, sums.size).reshape(sums.shape)
            with link.activity("local model"):
                gradient = self._gradient(operand, sums)
                if self._steps is not None and sums is not None:
                    # All Q steps at once; nothing that was opened changes during them.
                    again = self._steps.momentum(t) * (start - self._previous)
                    self._previous = start
                    side.parameters = start + again - self._steps.matrix(t) @ gradient
                    break
                gradient = gradient + proximal_pull(side.parameters, start, agreement.algorithm.proximal)
                rate = agreement.learning_rate(t) if self._steps is None else self._steps.rate(t)
                side.parameters = self._optimiser.step(side.parameters, gradient, rate)

    def _ask(self, link: Link, keys: Keyring, operand: PeerSum, t: int, q: int) -> tuple[Mask, Array, float]:
        """Request the sums. Return the mask, the factors that restore the sums, and the longest row's
        norm.
        """
        agreement, side = self._agreement, self._side
        # Of the class itself: what stands around a side to watch its multipliers is not passed by.
        direct = getattr(type(side), "sums", None)
        if direct is not None and isinstance(operand.encrypted, Bare) and not agreement.dp_noise:
            with link.activity("products"):
                sums: Array = direct(side, operand.encrypted.values)
                fixed = FixedPoint(max(1.0, float(np.abs(sums).max())), FRACTION_BITS)
                asked = operand.encrypted.public.encrypt(sums, fixed)
            return ask(link, keys, asked, t, q), np.ones(sums.shape), 1.0
        with link.activity("local model"):
            multipliers, powers, norm = self._scaled()
        width = sums_width(agreement) if agreement.dp_noise else None
        mask = ask_sums(link, keys, operand, multipliers, agreement.batches.effective_size, t, q, width)
        return mask, powers, norm

    def _scaled(self) -> tuple[Array | Multipliers, Array, float]:
        """Return multipliers for a request, the factors that restore the sums, and the longest row's norm."""
        multipliers = self._side.multipliers()
        if not self._agreement.dp_noise:
            return *levelled(multipliers), 1.0
        scaled, norm = normalised(np.asarray(multipliers))
        return scaled, np.full(multipliers.shape[:2], norm).T, norm

    def _gradient(self, operand: PeerSum, sums: Array | None) -> Array:
        if sums is not None:
            return self._side.gradient(sums, operand.included)
        if not isinstance(operand.encrypted, Bare):
            raise SettingError("exact: only possible where nothing is encrypted")
        return self._side.exact_gradient(operand.encrypted.values, operand.included)

    async def _fix_question(self, link: Link, t: int) -> None:
        """Encrypt the label party's model of a transfer run once. Other bytes would be another question."""
        scorer = self._side.scorer()
        self._sealed = b""
        if isinstance(scorer, TransferScorer) and scorer.phi is not None and self._keys.own is not None:
            self._sealed = self._keys.own.encrypt(scorer.phi, scorer.fixed).to_bytes()

    def _question_state(self) -> State:
        return {SEALED: np.frombuffer(self._sealed, np.uint8)}

    def _restore_question(self, state: State) -> None:
        self._sealed = checkpoint_array(state, SEALED).tobytes()

    async def _scores(self, link: Link, rows: Array | None, t: int) -> Array | None:
        scorer = self._side.scorer()
        if isinstance(scorer, TransferScorer) and self._keys.own is not None and self._sealed:
            scorer.sealed[self._keys.own.public.key_id] = self._sealed
        return await scores(link, self._agreement, self._keys, scorer, rows, t, self.guard)


class KeyHolderParty(PartyLoop):
    """The program of a party without columns that holds the key (K > 2). It sees only masked values."""

    def __init__(
        self,
        agreement: Agreement,
        context: PartyContext,
    ) -> None:
        super().__init__(agreement, context)
        self._own = context.key

    async def _begin(self, link: Link) -> None:
        await distribute_keys(link, self._agreement, self._own, self._mapper)

    async def _round(self, link: Link, t: int) -> None:
        agreement, algorithm = self._agreement, self._agreement.algorithm
        for active in agreement.turns:
            for name in active:
                fix_ledger(self.ledger, agreement, name)
            for q in range(algorithm.local_steps):
                for name in active:
                    if agreement.opens_at(name, q):
                        await serve(link, agreement, self._own, self.ledger, name, t, q)

    async def _scores(self, link: Link, rows: Array | None, t: int) -> None:
        await serve_scores(link, self._agreement, self._own, None, t)
