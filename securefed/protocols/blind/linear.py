"""Blind training of linear models: nobody sees a gradient, H, a residual or even its own parameters.

    setup       the pass (statistics): shares of M and c at the two holders; then prepared products. Where
                few rows have two stages, a pass for c alone comes between them
    round t     holders exchange differences and compute their shares of M phi - c, then
                phi <- phi + m_t (phi - phi of the round before) - eta_t (M phi - c)
    progress    label party -> parties that hold no shares: a round is over
    end         shares for scores (scoring); own parameters in the clear only if all agreed

phi = P^(-1/2) theta: in it the Q local steps of all parties are one scalar step, so Q costs nothing. FedBCD-s
moves one party's block at a time, on products of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from securefed.crypto import shares
from securefed.crypto.blind.interface import CrossScheme
from securefed.crypto.shares import Share
from securefed.errors import SettingError
from securefed.protocols.agreement import Agreement
from securefed.protocols.blind.correlations import Count, FixedMatrix, Move, Name
from securefed.protocols.blind.cross import At
from securefed.protocols.blind.loop import BlindLoop
from securefed.protocols.blind.scoring import (
    RELEASE_LIMIT,
    blurred_share,
    cut,
    release_bits,
    released,
)
from securefed.protocols.blind.statistics import (
    MATRIX_BITS,
    SCALAR_BITS,
    SHARE_BITS,
    PassColumns,
    PassPlan,
    check_wraps,
    run_pass,
    wrap_bound,
)
from securefed.protocols.loop import PartyContext
from securefed.protocols.losses import Loss
from securefed.protocols.schedules import Automatic, Batches
from securefed.protocols.steps import OwnSteps
from securefed.transport import Link

Array = NDArray[np.float64]
RELEASE_STEP = 1


def folds_and_systems(batches: Batches) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """Return the rows of each fold of the pass, and the folds of each system.

    Rows that are never held out are a fold of their own, the first. A system leaves out one of the others;
    the last system is all rows.
    """
    if not batches.holdout_rows:
        return (batches.rows,), ((0,),)
    rest = batches.rows - batches.holdout_rows
    sizes = (*([rest] if rest else []), *batches.fold_sizes)
    everything = tuple(range(len(sizes)))
    holdout = everything[-batches.folds :]
    return sizes, (*(tuple(each for each in everything if each != out) for out in holdout), everything)


def systems_of(batches: Batches, t: int) -> list[int]:
    """Return the systems that round t solves: one for each model."""
    return [*batches.left_out(t)] or [batches.folds if batches.holdout_rows else 0]


def pass_plan(agreement: Agreement, loss: Loss | None = None) -> PassPlan:
    """Return what is public about the pass. Lengths of messages do not depend on the loss."""
    sizes, batches = tuple(member.parameters for member in agreement.members), agreement.batches
    parties = agreement.names, sizes, agreement.key_holder, agreement.outputs
    weights = (0.0, 0.0) if loss is None else (loss.label_weight, loss.margin_weight)
    return PassPlan(*parties, batches.rows, *folds_and_systems(batches), *weights, agreement.l2)


def moving_rows(agreement: Agreement, plan: PassPlan) -> list[slice]:
    """Return the parameters that move in each turn."""
    return [slice(plan.block(turn[0]).start, plan.block(turn[-1]).stop) for turn in agreement.turns]


def round_products(
    agreement: Agreement, plan: PassPlan, rounds: range
) -> tuple[dict[Name, FixedMatrix], Count]:
    """Return the rows of M that move in each turn, by system, and how often these rounds need them."""
    systems = [system for t in rounds for system in systems_of(agreement.batches, t)]
    matrices: dict[Name, FixedMatrix] = {
        ("M", system, turn): FixedMatrix(rows.stop - rows.start, plan.columns, "both", SHARE_BITS)
        for system in dict.fromkeys(systems)
        for turn, rows in enumerate(moving_rows(agreement, plan))
    }
    count = Count(matrices)
    for name in matrices:
        count.columns[name] = systems.count(name[1]) * plan.outputs
    return matrices, count


class BlindParty(BlindLoop):
    """A party of a linear run. Without `features` it is the helper of more than two parties: it has shares,
    and no columns, no key and no output.
    """

    def __init__(
        self,
        agreement: Agreement,
        loss: Loss,
        features: Array | None,
        labels: Array | None,
        context: PartyContext,
        scheme: CrossScheme,
        *,
        steps: OwnSteps | None = None,
    ) -> None:
        plan, batches = pass_plan(agreement, loss), agreement.batches
        super().__init__(agreement, plan.sizes, context, scheme, first=labels is not None)
        self._plan = plan
        rounds, turns = agreement.stopping.rounds, len(agreement.turns)
        models = batches.folds * batches.stages + 1 if batches.holdout_rows else 1
        bound = wrap_bound(plan.sizes, rounds, plan.outputs, turns, len(plan.systems), models)
        check_wraps(bound, rounds, plan.columns, plan.outputs)
        self._moving = moving_rows(agreement, plan)
        self._own: PassColumns | None = None
        if features is not None and steps is not None:
            folds = [batches.held(fold) for fold in range(batches.folds)] if batches.holdout_rows else []
            rest = np.setdiff1d(np.arange(batches.rows), np.concatenate([*folds, []]))
            folds = [rest, *folds] if len(rest) else folds
            self._own = PassColumns(plan, features, steps.root(), folds, labels)
        self._phi: Share = shares.zeros(plan.columns, batches.folds * plan.outputs)
        """Of a model for each fold; the last one goes on to learn from all rows."""
        self._previous: Share = self._phi
        """phi of the round before."""
        self._vectors: list[Share] = []
        """Shares of c by system, at a holder."""
        self.parameters: Array | None = None
        """In the clear only if all agreed to release them: (columns, outputs)."""
        if agreement.release:
            self._check_release()

    def _check_release(self) -> None:
        agreement = self._agreement
        for member in agreement.members[:-1]:
            bits = release_bits(member.parameters, agreement.width)
            if bits > RELEASE_LIMIT and not agreement.trusted:
                raise SettingError(
                    f"release: {member.parameters * agreement.width} parameters of {member.name} would show"
                    f" it {bits} bits, at most {RELEASE_LIMIT} are allowed; release='trusted' at all parties"
                    " says that they trust each other"
                )

    # Setup

    async def _begin(self, link: Link) -> None:
        if self.first_round >= self.last_round:
            return  # a run that only has to end needs no statistics
        statistics = await run_pass(self._tools(link), self._plan, self._own)
        if statistics is None:
            return
        rounds = range(self.first_round, self.last_round)
        matrices, count = round_products(self._agreement, self._plan, rounds)
        whole = {system: statistics.matrix(system) for _, system, _ in matrices}
        own = {name: np.ascontiguousarray(whole[name[1]][:, self._moving[name[2]]]) for name in matrices}
        self._vectors = statistics.vectors()
        await self._prepare(link, matrices, own, count)

    def _aim(self, targets: Array | None) -> None:
        if self._own is not None and targets is not None:
            self._own.aim(targets)

    async def _share_targets(self, link: Link, t: int) -> None:
        link.phase = "setup"
        statistics = await run_pass(self._tools(link), replace(self._plan, only_targets=True), self._own, t)
        link.phase = "training"
        if statistics is not None:
            self._vectors = statistics.vectors()

    # A round

    def _moves(self, t: int) -> Move:
        batches, rate, first = self._agreement.batches, self._agreement.learning_rate, self._first
        if batches.begins_anew(t):
            self._phi = self._previous = shares.zeros(*self._phi.shape[1:])
        momentum = rate.momentum(t) if isinstance(rate, Automatic) else 0.0
        factor = rate(t) if isinstance(rate, Automatic) else rate(t) / rate(0)
        start, phi, systems = self._phi, self._phi.copy(), systems_of(batches, t)
        models = slice(0 if len(systems) > 1 else self._model_at(batches.folds - 1).start, None)
        for turn, rows in enumerate(self._moving):
            products = yield [
                self._products.times(("M", system, turn), phi[:, :, self._model_at(system)])
                for system in systems
            ]
            vectors = np.concatenate([self._vectors[system][:, rows] for system in systems], axis=2)
            excess = shares.subtract(np.concatenate(products, axis=2), vectors)
            gradient = shares.truncate(excess, MATRIX_BITS, first=first)
            moved = shares.times(gradient, -round(factor * 2**SCALAR_BITS))
            if momentum:
                change = shares.subtract(start[:, rows, models], self._previous[:, rows, models])
                moved = shares.add(moved, shares.times(change, round(momentum * 2**SCALAR_BITS)))
            step = shares.truncate(moved, SCALAR_BITS, first=first)
            phi[:, rows, models] = shares.add(phi[:, rows, models], step)
        self._previous, self._phi = start, phi

    def _model_at(self, system: int) -> slice:
        """Return the columns of phi that solve a system."""
        outputs, model = self._plan.outputs, min(system, self._agreement.batches.folds - 1)
        return slice(model * outputs, (model + 1) * outputs)

    # Scores, and the end of the run

    async def _blocks(self, link: Link, t: int, fold: int) -> dict[str, Share]:
        system = fold if self._agreement.batches.left_out(t) else self._agreement.batches.folds
        phi = cut(self._phi[:, :, self._model_at(system)], first=self._first)
        return {name: phi[:, self._plan.block(name)] for name in self._plan.names}

    def _root(self) -> Array | None:
        return None if self._own is None else self._own.root

    async def _end(self, link: Link) -> None:
        await super()._end(link)
        if self._agreement.release:
            await self._release(link, At(RELEASE_STEP, self._agreement.stopping.rounds))

    async def _release(self, link: Link, at: At) -> None:
        """Holders open each party's own parameters to it, blurred."""
        plan, (label_party, second) = self._plan, self._plan.holders
        receivers = {label_party: plan.names[:-1], second: (label_party,)}.get(link.name, ())
        for name in receivers:
            limit = None if self._agreement.trusted or name == label_party else RELEASE_LIMIT
            blurred = blurred_share(self.part.blocks[name], self.guard, name, limit)
            link.send(name, "released", shares.to_bytes(blurred), round=at.round, step=at.step)
        if self._own is not None:
            sender, own = second if link.name == label_party else label_party, self.part.blocks[link.name]
            message = await link.receive("released", sender, round=at.round, step=at.step)
            self.parameters = self._own.root @ released(own, shares.from_bytes(message, own.shape))

    # Checkpoints

    def _shares(self) -> dict[str, Share]:
        return {"phi": self._phi, "previous": self._previous}

    def _take_shares(self, restored: Mapping[str, Share]) -> None:
        self._phi, self._previous = restored["phi"], restored["previous"]
