"""Blind training of linear models: nobody sees a gradient, H, a residual or even its own parameters.

    setup       the pass (statistics): shares of M and c at the two holders; then prepared products. Where
                few rows have two stages, a pass for c alone comes between them
    round t     holders exchange differences and compute their shares of M phi - c, then
                phi <- phi + m_t (phi - phi of the round before) - eta_t (M phi - c)
    progress    label party -> parties that hold no shares: a round is over
    end         shares for scores (scoring); own parameters in the clear only if all agreed

phi = P^(-1/2) theta: in it the Q local steps of all parties are one scalar step, so Q costs nothing. FedBCD-s
moves one party's block at a time, on products of its own.

The model and its checkpoints are shares that are uniform by themselves. Each attempt at a run prepares
products of its own, under new keys; only the shares of the model go on from a checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from securefed.crypto import shares
from securefed.crypto.blind.interface import CrossScheme
from securefed.crypto.shares import LIMBS, Share
from securefed.errors import SettingError
from securefed.protocols.agreement import Agreement, get_objective
from securefed.protocols.blind.correlations import Correlations, Name, Size, prepare_all
from securefed.protocols.blind.cross import At, CrossTools, Encryptor, Multiplier
from securefed.protocols.blind.scoring import (
    RELEASE_LIMIT,
    ModelPart,
    ScorePlan,
    blurred_share,
    chunks_of,
    cut,
    introduce,
    release_bits,
    released,
    score_rows,
    score_secret,
    seal,
)
from securefed.protocols.blind.statistics import (
    MATRIX_BITS,
    SCALAR_BITS,
    PassColumns,
    PassPlan,
    check_wraps,
    run_pass,
    wrap_bound,
)
from securefed.protocols.loop import Array, PartyContext, PartyLoop, State, part_of
from securefed.protocols.losses import Loss
from securefed.protocols.schedules import Automatic, Batches
from securefed.protocols.steps import OwnSteps
from securefed.transport.link import Link

RELEASE_STEP = 1
PREPARE_STEP = 1 << 16
"""Step of the messages that prepare products: beyond those of the pass."""
QUESTION_SEED = "question_seed"
"""Name of a party's `score_secret` in its checkpoint."""
BLOCK = "scored."


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


def round_products(agreement: Agreement, plan: PassPlan, rounds: range) -> dict[Name, Size]:
    """Return the rows of M that move in each turn, by system, and how many columns these rounds need."""
    systems = [system for t in rounds for system in systems_of(agreement.batches, t)]
    return {
        (system, turn): Size(rows.stop - rows.start, plan.columns, systems.count(system) * plan.outputs)
        for system in dict.fromkeys(systems)
        for turn, rows in enumerate(moving_rows(agreement, plan))
    }


class BlindParty(PartyLoop):
    """A party of a blind run. Without `features` it is the helper of more than two parties: it has shares,
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
        super().__init__(agreement, context)
        self._plan, self._scheme, self._score_plan = plan, scheme, ScorePlan.of(agreement, plan.sizes)
        self._first = labels is not None
        """This is the label party, the first holder."""
        self._products: Correlations
        """Prepared products, at a holder."""
        self._score_keys: Encryptor | Multiplier | None = None
        self._score_secret = b""
        self.part: ModelPart
        """This party's part of the finished model."""
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
        """Shares of phi of a model for each fold; the last one goes on to learn from all rows."""
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
        sizes = round_products(self._agreement, self._plan, range(self.first_round, self.last_round))
        whole = {system: statistics.matrix(system) for system, _ in sizes}
        own = {(s, turn): np.ascontiguousarray(whole[s][:, self._moving[turn]]) for s, turn in sizes}
        self._vectors = statistics.vectors()
        tools, peer, at = self._tools(link), self._plan.peer(link.name), At(PREPARE_STEP)
        self._products = await prepare_all(tools, peer, sizes, own, first=self._first, at=at)

    def _tools(self, link: Link) -> CrossTools:
        return CrossTools(link, self._scheme, self._mapper)

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

    async def _round(self, link: Link, t: int) -> None:
        """Move the shares. The label party tells parties that hold none that the round is over."""
        plan = self._plan
        if link.name in plan.holders:
            await self._move(link, t)
        others = [name for name in plan.names if name not in plan.holders]
        if link.name == plan.label_party:
            for name in others:
                link.send(name, "progress", b"\1", round=t)
        elif link.name in others:
            await link.receive("progress", plan.label_party, round=t)

    async def _move(self, link: Link, t: int) -> None:
        batches, rate, first = self._agreement.batches, self._agreement.learning_rate, self._first
        if batches.begins_anew(t):
            self._phi = self._previous = shares.zeros(*self._phi.shape[1:])
        momentum = rate.momentum(t) if isinstance(rate, Automatic) else 0.0
        factor = rate(t) if isinstance(rate, Automatic) else rate(t) / rate(0)
        start, phi, systems = self._phi, self._phi.copy(), systems_of(batches, t)
        models = slice(0 if len(systems) > 1 else self._model_at(batches.folds - 1).start, None)
        for turn, rows in enumerate(self._moving):
            factors = [((system, turn), phi[:, :, self._model_at(system)]) for system in systems]
            peer, at = self._plan.peer(link.name), At(turn, t)
            products = await self._products.multiply(link, peer, factors, at)
            with link.activity("rounds"):
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

    async def _model(self, link: Link, t: int, fold: int = 0) -> tuple[ModelPart, Encryptor | Multiplier]:
        self._question = question = self._question or self._make_question(link, t)
        if fold == max(self._agreement.scored_after(t)):
            self._question = {}
        plan, stored = self._score_plan, part_of(question, f"{BLOCK}{fold}.")
        secret = self._score_secret = question[QUESTION_SEED].tobytes()
        blocks = {name: _restored(stored, name, (LIMBS, plan.size(name), plan.outputs)) for name in stored}
        if self._score_keys is None:
            self._score_keys = await introduce(self._tools(link), plan, secret, t)
        part = await seal(link, plan, self._score_keys, blocks, secret, t)
        part.root = None if self._own is None else self._own.root
        return part, self._score_keys

    def _make_question(self, link: Link, t: int) -> State:
        """Compute the shares that scores are made of once: doing it again may round them otherwise."""
        secret = self._score_secret or score_secret(link, self._score_plan, self._scheme)
        stored: State = {QUESTION_SEED: np.frombuffer(secret, np.uint8)}
        for fold in self._agreement.scored_after(t):
            blocks = self._blocks(t, fold) if link.name in self._plan.holders else {}
            stored |= {f"{BLOCK}{fold}.{name}": _stored(block) for name, block in blocks.items()}
        return stored

    def _forget_question(self) -> None:
        self._score_keys, self._score_secret = None, b""

    async def _scores(self, link: Link, rows: Array | None, t: int, fold: int) -> Array | None:
        if rows is None and link.name in self._score_plan.names:
            raise SettingError("evaluation: no rows to evaluate on")
        scored, folds = self._agreement.scored_after(t), self._agreement.batches.folds > 1
        same_people = get_objective(self._agreement.objective).same_people
        count = scored[fold].stop - scored[fold].start if rows is None or same_people else len(rows)
        part, keys = await self._model(link, t, fold)
        part.plan = replace(part.plan, precision=self._agreement.training_precision)
        scoring = self._scoring.tobytes() if folds else self._scoring.tobytes() + t.to_bytes(8, "little")
        before = [places for each, places in scored.items() if each < fold]
        chunk = sum(chunks_of(places.stop - places.start) for places in before)
        return await score_rows(link, part, keys, rows, count, self.guard, t, scoring, chunk)

    def _blocks(self, t: int, fold: int) -> dict[str, Share]:
        """Return a holder's shares of the score's parameters, by party: of the model without that fold."""
        system = fold if self._agreement.batches.left_out(t) else self._agreement.batches.folds
        phi = cut(self._phi[:, :, self._model_at(system)], first=self._first)
        return {name: phi[:, self._plan.block(name)] for name in self._plan.names}

    async def _end(self, link: Link) -> None:
        link.phase = "release"
        self.part, _ = await self._model(link, self._agreement.stopping.rounds)
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

    def _model_state(self) -> State:
        return {"phi": _stored(self._phi), "previous": _stored(self._previous)}

    def _restore_model(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        shape = self._phi.shape
        self._phi, self._previous = (_restored(state, name, shape) for name in ("phi", "previous"))


def _stored(share: Share) -> NDArray[np.uint8]:
    return np.frombuffer(shares.to_bytes(share), np.uint8)


def _restored(state: Mapping[str, NDArray[np.generic]], name: str, shape: tuple[int, ...]) -> Share:
    return shares.from_bytes(state[name].tobytes(), shape)
