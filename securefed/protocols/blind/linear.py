"""Blind training of linear models: nobody sees a gradient, H, a residual or even its own parameters.

    setup       the pass (statistics): shares of M and c at the two holders; then prepared products
    round t     holders exchange differences and compute their shares of M phi - c, then
                phi <- phi + m_t (phi - phi of the round before) - eta_t (M phi - c)
    progress    label party -> parties that hold no shares: a round is over
    end         shares for scores (scoring); own parameters in the clear only if all agreed

phi = P^(-1/2) theta: in it the Q local steps of all parties, theta_k <- theta_k - P_k gradient_k, are one
scalar step, so Q costs nothing. FedBCD-s moves one party's block at a time, on products of its own. The
model, its checkpoints and everything between are shares that are uniform by themselves. Each attempt at a
run makes a pass and products of its own, under new keys; only phi goes on from a checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from securefed.crypto import shares
from securefed.crypto.blind.interface import CrossScheme
from securefed.crypto.shares import Share
from securefed.errors import SettingError
from securefed.protocols.agreement import Agreement
from securefed.protocols.blind.correlations import ConstantMatrix, Count, Name, trip
from securefed.protocols.blind.loop import BlindLoop
from securefed.protocols.blind.precision import MATRIX_BITS, SCALAR_BITS, SHARE_BITS, check_wraps, wrap_bound
from securefed.protocols.blind.rebase import rebase
from securefed.protocols.blind.scoring import (
    RELEASE_LIMIT,
    ScorePlan,
    blurred_share,
    cut,
    release_bits,
    released,
)
from securefed.protocols.blind.statistics import Columns, PassPlan, Statistics, run_pass
from securefed.protocols.loop import PartyContext, checkpoint_array
from securefed.protocols.losses import Loss
from securefed.protocols.schedules import Automatic
from securefed.protocols.steps import OwnSteps
from securefed.transport import Link

__all__ = ["BlindHelper", "BlindParty", "pass_plan", "round_products", "score_plan"]

Array = NDArray[np.float64]
RELEASE_STEP = 1


def pass_plan(agreement: Agreement, loss: Loss) -> PassPlan:
    """What is public about the pass of a run."""
    batches = agreement.batches
    folds: tuple[int, ...] = (batches.rows,)
    systems: tuple[tuple[int, ...], ...] = ((0,),)
    if batches.holdout_rows:
        folds, systems = (batches.rows - batches.holdout_rows, batches.holdout_rows), ((0,), (0, 1))
    return PassPlan(
        agreement.names,
        tuple(member.parameters for member in agreement.members),
        agreement.key_holder,
        agreement.width,
        batches.rows,
        folds,
        systems,
        loss.label_weight,
        loss.margin_weight,
        agreement.l2,
    )


def round_products(
    plan: PassPlan, moving: Sequence[slice], systems: Sequence[int]
) -> tuple[dict[Name, ConstantMatrix], Count]:
    """Return the rows of M that move in each turn, and how often rounds of these systems need them."""
    constants: dict[Name, ConstantMatrix] = {
        ("M", system, turn): ConstantMatrix(rows.stop - rows.start, plan.columns, "both", SHARE_BITS)
        for system in dict.fromkeys(systems)
        for turn, rows in enumerate(moving)
    }
    count = Count(constants)
    for name in constants:
        count.columns[name] = systems.count(name[1]) * plan.outputs
    return constants, count


def score_plan(agreement: Agreement) -> ScorePlan:
    """What is public about scores of a run's model."""
    sizes = tuple(member.parameters for member in agreement.members)
    return ScorePlan(
        agreement.names, sizes, agreement.key_holder, agreement.outputs, agreement.score_precision
    )


class LinearLoop(BlindLoop):
    """What parties with and without data have in common."""

    def __init__(self, agreement: Agreement, loss: Loss, context: PartyContext, scheme: CrossScheme) -> None:
        super().__init__(agreement, score_plan(agreement), context, scheme)
        plan = self._plan = pass_plan(agreement, loss)
        rounds, turns = agreement.stopping.rounds, len(agreement.turns)
        bound = wrap_bound(list(plan.sizes), rounds, plan.outputs, turns)
        check_wraps(bound, rounds, plan.columns, plan.outputs)
        self._phi: Share = shares.zeros(plan.columns, plan.outputs)
        self._previous: Share = self._phi
        """phi of the round before."""
        self._vectors: list[Share] = []
        """Shares of c by system, at a holder."""

    def _columns(self) -> Columns | None:
        """A helper has none."""
        return None

    # Setup

    async def _begin(self, link: Link) -> None:
        if self.first_round >= self.last_round:
            return  # a run that only has to end needs no statistics
        statistics = await run_pass(link, self._plan, self._columns(), self._scheme, self._mapper)
        if self._agreement.warm_start and self.first_round == 0:
            await self._rebase(link)
        if statistics is not None:
            await self._prepare_rounds(link, statistics)

    def _turn(self) -> Array | None:
        """From the basis of an earlier run to this one's; a helper has none."""
        return None

    async def _rebase(self, link: Link) -> None:
        phi = self._phi if self._is_holder(link.name) else None
        turned = await rebase(link, self._plan, phi, self._turn(), self._scheme, self._mapper)
        if turned is not None:
            self._phi = self._previous = turned

    async def _prepare_rounds(self, link: Link, statistics: Statistics) -> None:
        """Products for all rounds that are left: by system and turn."""
        plan = self._plan
        systems = [self._system(t) for t in range(self.first_round, self.last_round)]
        constants, count = round_products(plan, self._moving_blocks(), systems)
        matrices = {system: statistics.matrix(system) for system in dict.fromkeys(systems)}
        own = {
            name: np.ascontiguousarray(matrices[name[1]][:, self._moving_blocks()[name[2]]])
            for name in constants
        }
        self._vectors = [statistics.vector(system) for system in range(len(plan.systems))]
        await self._prepare(link, constants, own, count)

    def _system(self, t: int) -> int:
        batches = self._agreement.batches
        return int(batches.holdout_rows > 0 and t >= batches.holdout_until)

    def _moving_blocks(self) -> list[slice]:
        """The parameters that move in each turn."""
        if len(self._agreement.turns) == 1:
            return [slice(0, self._plan.columns)]
        return [self._plan.block(name) for name in self._plan.names]

    # A round

    async def _round(self, link: Link, t: int) -> None:
        if self._is_holder(link.name):
            await self._move(link, t)
        await self._tell_progress(link, t)

    async def _move(self, link: Link, t: int) -> None:
        agreement, system, first = self._agreement, self._system(t), link.name == self._plan.label_party
        rate = agreement.learning_rate
        momentum = rate.momentum(t) if isinstance(rate, Automatic) else 0.0
        factor = rate(t) if isinstance(rate, Automatic) else rate(t) / rate(0)
        start, phi = self._phi, self._phi.copy()
        for turn, rows in enumerate(self._moving_blocks()):
            request = self._products.times(("M", system, turn), phi)
            (product,) = await trip(link, self._plan.peer(link.name), [request], round=t, step=turn)
            with link.activity("rounds"):
                excess = shares.subtract(product, self._vectors[system][:, rows])
                gradient = shares.truncate(excess, MATRIX_BITS, first=first)
                moved = shares.times(gradient, -round(factor * 2**SCALAR_BITS))
                if momentum:
                    change = shares.subtract(self._phi[:, rows], self._previous[:, rows])
                    moved = shares.add(moved, shares.times(change, round(momentum * 2**SCALAR_BITS)))
                step = shares.truncate(moved, SCALAR_BITS, first=first)
                phi[:, rows] = shares.add(phi[:, rows], step)
        self._previous, self._phi = start, phi

    # Scores, and the end of the run

    async def _blocks(self, link: Link, t: int) -> dict[str, Share]:
        phi = cut(self._phi, first=self._is_first(link.name))
        return {name: phi[:, self._plan.block(name)] for name in self._plan.names}

    async def _rows_to_score(self, link: Link, rows: Array | None, t: int) -> int:
        return self._agreement.holdout or self._agreement.batches.rows

    async def _end(self, link: Link) -> None:
        await super()._end(link)
        if self._agreement.release:
            await self._release(link, self._agreement.stopping.rounds)

    async def _release(self, link: Link, t: int) -> None:
        """Holders open each party's own parameters to it, blurred."""
        plan = self._plan
        label_party, second = plan.holders
        if link.name == label_party:
            for name in plan.names[:-1]:
                self._open_to(link, name, self.part.blocks[name], t)
        elif link.name == second:
            self._open_to(link, label_party, self.part.blocks[label_party], t)
        if link.name in plan.names:
            await self._take_released(link, second if link.name == label_party else label_party, t)

    def _open_to(self, link: Link, name: str, share: Share, t: int) -> None:
        unlimited = self._agreement.trusted or name == self._plan.label_party
        blurred = blurred_share(share, self.guard, name, None if unlimited else RELEASE_LIMIT)
        link.send(name, "released", shares.to_bytes(blurred), round=t, step=RELEASE_STEP)

    async def _take_released(self, link: Link, peer: str, t: int) -> None:
        raise SettingError("release: this party has no parameters")

    # Checkpoints

    def _shares(self) -> dict[str, Share]:
        return {"phi": self._phi, "previous": self._previous}

    def _take_shares(self, restored: Mapping[str, Share]) -> None:
        self._phi, self._previous = restored["phi"], restored["previous"]


class BlindParty(LinearLoop):
    """A party with columns."""

    def __init__(
        self,
        agreement: Agreement,
        loss: Loss,
        features: Array,
        labels: Array | None,
        context: PartyContext,
        scheme: CrossScheme,
        *,
        steps: OwnSteps,
    ) -> None:
        super().__init__(agreement, loss, context, scheme)
        batches = agreement.batches
        folds = [np.arange(batches.rows)]
        if batches.holdout_rows:
            trained = batches.trained(0)
            folds = [trained, np.setdiff1d(folds[0], trained)]
        self._own = Columns(self._plan, features, steps.root(), folds, labels)
        self.parameters: Array | None = None
        """In the clear only if all agreed to release them: (columns, outputs)."""
        if agreement.release:
            self._check_release()

    def start_from(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        super().start_from(state)
        self._earlier_root = np.asarray(checkpoint_array(state, "root"), dtype=np.float64)

    def _turn(self) -> Array:
        return np.asarray(np.linalg.solve(self._own.root, self._earlier_root), dtype=np.float64)

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

    def _columns(self) -> Columns:
        return self._own

    def _root(self) -> Array:
        return self._own.root

    async def _take_released(self, link: Link, peer: str, t: int) -> None:
        own = self.part.blocks[link.name]
        arrived = await link.receive("released", peer, round=t, step=RELEASE_STEP)
        self.parameters = self._own.root @ released(own, shares.from_bytes(arrived, own.shape))


class BlindHelper(LinearLoop):
    """The second holder of more than two parties: shares, and no columns, no key and no output."""
