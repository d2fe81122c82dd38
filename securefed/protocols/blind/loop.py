"""What all blind programs have in common: prepared products, scores, checkpoints and the end of a run.

The model and its checkpoints are shares that are uniform by themselves. Each attempt at a run prepares
products of its own, under new keys; only the shares of the model go on from a checkpoint.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from securefed.crypto import shares
from securefed.crypto.blind.interface import CrossScheme
from securefed.crypto.shares import LIMBS, Share
from securefed.errors import SettingError
from securefed.protocols.agreement import Agreement, get_objective
from securefed.protocols.blind.correlations import (
    Correlations,
    Count,
    FixedMatrix,
    Move,
    Name,
    prepare_all,
    run_moves,
)
from securefed.protocols.blind.cross import At, CrossTools, Encryptor, Multiplier
from securefed.protocols.blind.scoring import (
    ModelPart,
    ScorePlan,
    chunks_of,
    introduce,
    score_rows,
    score_secret,
    seal,
)
from securefed.protocols.loop import PartyContext, PartyLoop, State, part_of
from securefed.transport import Link

Array = NDArray[np.float64]
PREPARE_STEP = 1 << 16
"""Step of the messages that prepare products: beyond those of the pass."""
QUESTION_SEED = "question_seed"
"""Name of a party's `score_secret` in its checkpoint."""
BLOCK = "scored."


class BlindLoop(PartyLoop):
    """One party's program, with or without data."""

    def __init__(
        self,
        agreement: Agreement,
        sizes: tuple[int, ...],
        context: PartyContext,
        scheme: CrossScheme,
        *,
        first: bool,
    ) -> None:
        """`sizes`: each party's columns in a score; `first`: this is the label party, the first holder."""
        super().__init__(agreement, context)
        self._first = first
        self._score_plan, self._scheme = ScorePlan.of(agreement, sizes), scheme
        self._products: Correlations
        """Prepared products, at a holder."""
        self._score_keys: Encryptor | Multiplier | None = None
        self._score_secret = b""
        self.part: ModelPart
        """This party's part of the finished model."""

    def _is_holder(self, name: str) -> bool:
        return name in self._score_plan.holders

    async def _prepare(
        self, link: Link, matrices: Mapping[Name, FixedMatrix], own: Mapping[Name, Share], count: Count
    ) -> None:
        """Prepare all products that were counted; `own`: this holder's shares of the matrices."""
        tools, peer, at = self._tools(link), self._score_plan.peer(link.name), At(PREPARE_STEP)
        self._products = await prepare_all(tools, peer, matrices, own, count, first=self._first, at=at)

    def _tools(self, link: Link) -> CrossTools:
        return CrossTools(link, self._scheme, self._mapper)

    @abstractmethod
    def _moves(self, t: int) -> Move:
        """A holder's part of a round, in trips."""

    async def _round(self, link: Link, t: int) -> None:
        """Move the shares. The label party tells parties that hold none that the round is over."""
        plan = self._score_plan
        if self._is_holder(link.name):
            await run_moves(link, plan.peer(link.name), self._moves(t), At(0, t))
        others = [name for name in plan.names if not self._is_holder(name)]
        if link.name == plan.label_party:
            for name in others:
                link.send(name, "progress", b"\1", round=t)
        elif link.name in others:
            await link.receive("progress", plan.label_party, round=t)

    # Scores, and the end of the run

    @abstractmethod
    async def _blocks(self, link: Link, t: int, fold: int) -> dict[str, Share]:
        """Return a holder's shares of the score's parameters, by party: of the model without that fold."""

    def _root(self) -> Array | None:
        """Return the matrix that scored rows are multiplied by; a helper has none."""
        return None

    async def _model(self, link: Link, t: int, fold: int = 0) -> tuple[ModelPart, Encryptor | Multiplier]:
        self._question = question = self._question or await self._make_question(link, t)
        if fold == max(self._agreement.scored_after(t)):
            self._question = {}
        plan, stored = self._score_plan, part_of(question, f"{BLOCK}{fold}.")
        secret = self._score_secret = question[QUESTION_SEED].tobytes()
        blocks = {name: _restored(stored, name, (LIMBS, plan.size(name), plan.outputs)) for name in stored}
        if self._score_keys is None:
            self._score_keys = await introduce(self._tools(link), plan, secret, t)
        part = await seal(link, plan, self._score_keys, blocks, secret, t)
        part.root = self._root()
        return part, self._score_keys

    async def _make_question(self, link: Link, t: int) -> State:
        """Compute the shares that scores are made of once: doing it again may round them otherwise."""
        secret = self._score_secret or score_secret(link, self._score_plan, self._scheme)
        stored: State = {QUESTION_SEED: np.frombuffer(secret, np.uint8)}
        for fold in self._agreement.scored_after(t):
            blocks = await self._blocks(link, t, fold) if self._is_holder(link.name) else {}
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

    async def _end(self, link: Link) -> None:
        link.phase = "release"
        self.part, _ = await self._model(link, self._agreement.stopping.rounds)

    # Checkpoints

    @abstractmethod
    def _shares(self) -> dict[str, Share]:
        """Return this party's shares of the model, by their names in a checkpoint."""

    @abstractmethod
    def _take_shares(self, restored: Mapping[str, Share]) -> None:
        """Go on with shares of a checkpoint."""

    def _model_state(self) -> State:
        return {name: _stored(share) for name, share in self._shares().items()}

    def _restore_model(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        self._take_shares(
            {name: _restored(state, name, share.shape) for name, share in self._shares().items()}
        )


def _stored(share: Share) -> NDArray[np.uint8]:
    return np.frombuffer(shares.to_bytes(share), np.uint8)


def _restored(state: Mapping[str, NDArray[np.generic]], name: str, shape: tuple[int, ...]) -> Share:
    return shares.from_bytes(state[name].tobytes(), shape)
