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

from securefed.crypto.blind import shares
from securefed.crypto.blind.interface import CrossScheme
from securefed.crypto.blind.shares import LIMBS, Share
from securefed.errors import SettingError
from securefed.protocols.agreement import Agreement
from securefed.protocols.blind.correlations import Constant, Correlations, Count, Name, prepare_all, trip
from securefed.protocols.blind.cross import Encryptor, Multiplier
from securefed.protocols.blind.precision import MATRIX_BITS, SCALAR_BITS, SHARE_BITS, check_wraps
from securefed.protocols.blind.rebase import rebase
from securefed.protocols.blind.scoring import (
    QUESTION_SEED,
    RELEASE_LIMIT,
    ModelPart,
    ScorePlan,
    blurred_share,
    cut,
    introduce,
    release_bits,
    released,
    score_rows,
    score_secret,
    seal,
)
from securefed.protocols.blind.statistics import Columns, PassPlan, Statistics, run_pass
from securefed.protocols.loop import PartyContext, PartyLoop, State, checkpoint_array
from securefed.protocols.losses import Loss
from securefed.protocols.schedules import Automatic
from securefed.protocols.steps import OwnSteps
from securefed.transport import Link

__all__ = ["BlindHelper", "BlindParty", "pass_plan", "round_products", "score_plan"]

Array = NDArray[np.float64]
PREPARE_STEP = 1 << 16
"""Step of the messages that prepare products: beyond those of the pass."""
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
        batches.rows,
        folds,
        systems,
        agreement.width,
        loss.label_weight,
        loss.margin_weight,
        agreement.l2,
    )


def round_products(
    plan: PassPlan, moving: Sequence[slice], systems: Sequence[int]
) -> tuple[dict[Name, Constant], Count]:
    """Return the rows of M that move in each turn, and how often rounds of these systems need them."""
    constants: dict[Name, Constant] = {
        ("M", system, turn): Constant(rows.stop - rows.start, plan.columns, "both", SHARE_BITS)
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


class BlindLoop(PartyLoop):
    """What parties with and without data have in common."""

    def __init__(self, agreement: Agreement, loss: Loss, context: PartyContext, scheme: CrossScheme) -> None:
        super().__init__(agreement, context)
        self._plan, self._score_plan, self._scheme = pass_plan(agreement, loss), score_plan(agreement), scheme
        turns = len(agreement.turns)
        check_wraps(list(self._plan.sizes), agreement.stopping.rounds, agreement.width, turns)
        shape = (self._plan.columns, agreement.width)
        self._phi: Share = shares.zeros(*shape)
        self._previous: Share = self._phi
        """phi of the round before."""
        self._products: Correlations
        """At a holder: prepared products by ("M", system, turn), and shares of c by system."""
        self._vectors: list[Share] = []
        self._score_keys: Encryptor | Multiplier | None = None
        self._score_secret: bytes | None = None
        self.part: ModelPart
        """This party's part of the finished model."""

    def _columns(self) -> Columns | None:
        """A helper has none."""
        return None

    def _is_holder(self, name: str) -> bool:
        return name in self._plan.holders

    # Setup

    async def _begin(self, link: Link) -> None:
        if self.first_round >= self.last_round:
            return  # a run that only has to end needs no statistics
        statistics = await run_pass(link, self._plan, self._columns(), self._scheme, self._mapper)
        if self._agreement.warm_start and self.first_round == 0:
            await self._rebase(link)
        if statistics is not None:
            await self._prepare(link, statistics)

    def _turn(self) -> Array | None:
        """From the basis of an earlier run to this one's; a helper has none."""
        return None

    async def _rebase(self, link: Link) -> None:
        phi = self._phi if self._is_holder(link.name) else None
        turned = await rebase(link, self._plan, phi, self._turn(), self._scheme, self._mapper)
        if turned is not None:
            self._phi = self._previous = turned

    async def _prepare(self, link: Link, statistics: Statistics) -> None:
        """Products for all rounds that are left: by system and turn."""
        plan = self._plan
        systems = [self._system(t) for t in range(self.first_round, self.last_round)]
        constants, count = round_products(plan, self._moving_blocks(), systems)
        matrices = {system: statistics.matrix(system) for system in dict.fromkeys(systems)}
        held = {
            name: np.ascontiguousarray(matrices[name[1]][:, self._moving_blocks()[name[2]]])
            for name in constants
        }
        self._vectors = [statistics.vector(system) for system in range(len(plan.systems))]
        self._products = await prepare_all(
            link,
            self._peer(link.name),
            constants,
            held,
            count,
            self._scheme,
            self._mapper,
            first=link.name == plan.label_party,
            step=PREPARE_STEP,
        )

    def _peer(self, name: str) -> str:
        return self._plan.second if name == self._plan.label_party else self._plan.label_party

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
        agreement, plan = self._agreement, self._plan
        if self._is_holder(link.name):
            await self._move(link, t)
        others = [name for name in agreement.names if not self._is_holder(name)]
        if link.name == plan.label_party:
            for name in others:
                link.send(name, "progress", b"\1", round=t)
        elif link.name in others:
            await link.receive("progress", plan.label_party, round=t)

    async def _move(self, link: Link, t: int) -> None:
        agreement, system, first = self._agreement, self._system(t), link.name == self._plan.label_party
        rate = agreement.learning_rate
        momentum = rate.momentum(t) if isinstance(rate, Automatic) else 0.0
        factor = rate(t) if isinstance(rate, Automatic) else rate(t) / rate(0)
        start, phi = self._phi, self._phi.copy()
        for turn, rows in enumerate(self._moving_blocks()):
            request = self._products.times(("M", system, turn), phi)
            (product,) = await trip(link, self._peer(link.name), [request], round=t, step=turn)
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

    def _blocks(self, link: Link) -> dict[str, Share]:
        """A holder's shares of the model, by party."""
        if not self._is_holder(link.name):
            return {}
        phi = cut(self._phi, first=link.name == self._plan.label_party)
        return {name: phi[:, self._plan.block(name)] for name in self._plan.names}

    async def _model(self, link: Link, t: int) -> tuple[ModelPart, Encryptor | Multiplier]:
        plan, secret = self._score_plan, self._own_secret(link)
        if self._score_keys is None:
            self._score_keys = await introduce(link, plan, self._scheme, self._mapper, secret, t)
        part = await seal(link, plan, self._score_keys, self._blocks(link), secret, t)
        return part, self._score_keys

    def _own_secret(self, link: Link) -> bytes:
        if self._score_secret is None:
            self._score_secret = score_secret(link, self._score_plan, self._scheme)
        return self._score_secret

    async def _fix_question(self, link: Link, t: int) -> None:
        self._own_secret(link)

    def _question_state(self) -> State:
        return {QUESTION_SEED: np.frombuffer(self._score_secret or b"", np.uint8)}

    def _restore_question(self, state: State) -> None:
        self._score_secret = checkpoint_array(state, QUESTION_SEED).tobytes()

    async def _scores(self, link: Link, rows: Array | None, t: int) -> Array | None:
        part, keys = await self._model(link, t)
        count = self._agreement.holdout or self._agreement.batches.rows
        scores = await score_rows(link, part, keys, self._scored(rows), count, self.guard, t)
        if scores is None:
            return None
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def _scored(self, rows: Array | None) -> Array | None:
        """The rows to score; a helper has none."""
        return None

    async def _end(self, link: Link) -> None:
        link.phase = "release"
        t = self._agreement.stopping.rounds
        self.part, _ = await self._model(link, t)
        if self._agreement.release:
            await self._release(link, t)

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

    def _model_state(self) -> State:
        return {
            "phi": np.frombuffer(shares.to_bytes(self._phi), dtype=np.uint8),
            "previous": np.frombuffer(shares.to_bytes(self._previous), dtype=np.uint8),
        }

    def _restore_model(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        shape = (LIMBS, self._plan.columns, self._agreement.width)
        self._phi, self._previous = (
            shares.from_bytes(np.asarray(checkpoint_array(state, name), dtype=np.uint8).tobytes(), shape)
            for name in ("phi", "previous")
        )


class BlindParty(BlindLoop):
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

    def _scored(self, rows: Array | None) -> Array:
        if rows is None:
            raise SettingError("evaluation: no rows to evaluate on")
        return rows

    async def _model(self, link: Link, t: int) -> tuple[ModelPart, Encryptor | Multiplier]:
        part, keys = await super()._model(link, t)
        part.root = self._own.root
        return part, keys

    async def _take_released(self, link: Link, peer: str, t: int) -> None:
        own = self.part.blocks[link.name]
        arrived = await link.receive("released", peer, round=t, step=RELEASE_STEP)
        self.parameters = self._own.root @ released(own, shares.from_bytes(arrived, own.shape))


class BlindHelper(BlindLoop):
    """The second holder of more than two parties: shares, and no columns, no key and no output."""
