"""The training loop: FedSGD, FedBCD-p, FedBCD-s and their proximal forms, for every objective and protection.

Every party runs the same stages, the key-holder too. A round's content belongs to the protection:
`own_gradient` opens own gradients, `blind` opens nothing.

    keys; then each round: the round itself, an evaluation if one is due, the label party's verdict; the end

If a stopping rule was agreed, the verdict shows every party whether the label party saw its target, a new
best or no progress. The run keeps the best model.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from securefed.crypto import KeyHolder, Mapper, Serial
from securefed.data.columns import column_bits
from securefed.protocols.agreement import Agreement
from securefed.protocols.channel import note_agreement
from securefed.protocols.own_gradient.ledger import Ledger
from securefed.protocols.schedules import Reason, StoppingTracker
from securefed.protocols.scoring.score_ledger import ScoreGuard
from securefed.transport.link import Link
from securefed.transport.message import IllegalMessage

Array = NDArray[np.float64]
State = dict[str, NDArray[np.generic]]
TRACKER = "stopping."
BEST = "best."
METRIC = "metric"
"""Names the metric of an evaluation that was answered, in its checkpoint."""
SCORING, SCORING_BYTES = "scoring", 16
HELD = "held."
"""Begins the names of earlier folds' scores, in the label party's checkpoint."""
QUESTION = "question"
"""Marks a checkpoint from before the evaluation of its round."""
VERDICTS: tuple[Reason | None, ...] = (None, "target", "rounds", "no progress")


@dataclass(frozen=True)
class EvaluationRows:
    """Rows that the label party scores during training. Only the label party has the metric."""

    features: Array | None
    metric: Callable[[Array], float] | None = None
    people: Sequence[bytes] | None = None
    """Whom each row is about, where ids say so."""
    aim: Callable[[Array], Array] | None = None
    """Returns the targets of the second stage, for all rows, from scores of the first stage."""


@dataclass(frozen=True)
class Round:
    """The state of a run after a round, as one party sees it, for progress and checkpoints."""

    number: int
    metric: float | None
    link: Link
    reason: Reason | None = None
    """Why the training ends with this round."""


@dataclass(frozen=True)
class PartyContext:
    """Keys, workers and callbacks of a party's program."""

    holder: KeyHolder | None = None
    mapper: Mapper | None = None
    evaluation: EvaluationRows | None = None
    on_round: Callable[[Round], None] | None = None
    guard: ScoreGuard | None = None
    """The score guard of a scored party. None: make a new one."""
    on_scoring: Callable[[Round], None] | None = None
    """Called before a model is scored. A checkpoint written now repeats the question, not the round."""

    def guarding(self, name: str, features: Array) -> PartyContext:
        """Return a context with a guard that knows the entropy of these columns, unless it is set already."""
        guard = self.guard or ScoreGuard(party=name)
        if guard.column_bits is None:
            guard.column_bits = column_bits(features)
        return replace(self, guard=guard)

    def evaluating(self, columns: Callable[[Array], Array]) -> PartyContext:
        """Return a context whose rows to evaluate on have these columns of their own."""
        rows = self.evaluation
        if rows is None or rows.features is None:
            return self
        return replace(self, evaluation=replace(rows, features=columns(rows.features)))


@dataclass
class Outcome:
    rounds: int = 0
    reason: Reason = "rounds"
    history: list[tuple[int, float]] = field(default_factory=list)
    """(round, metric) pairs, at the label party."""
    ledger: Ledger = field(default_factory=Ledger)

    best: int | None = None
    """The round whose model is kept if evaluations were watched. None: the last round's model is kept."""

    def kept(self, evaluations: int) -> int:
        """Return the index, among the last evaluations, of the kept model."""
        rounds = [t for t, _ in self.history][-evaluations:]
        return rounds.index(self.best) if self.best in rounds else evaluations - 1


class PartyLoop(ABC):
    """One party's program. A protection implements its stages."""

    def __init__(self, agreement: Agreement, context: PartyContext) -> None:
        self._agreement, self._context, self._evaluation = agreement, context, context.evaluation
        self.guard = context.guard or ScoreGuard()
        if (rows := context.evaluation) and rows.features is not None and rows.people is not None:
            self.guard.know(rows.features, rows.people)
        self._mapper = context.mapper or Serial()
        self._tracker = StoppingTracker(agreement.stopping)
        self._best: State = {}
        """The best model so far and its round, as in a checkpoint."""
        self.first_round = 0
        """Completed rounds."""
        self.last_round = agreement.stopping.rounds
        self._repeats = False
        """The run repeats the last round's evaluation with the same question."""
        self._scoring = np.frombuffer(secrets.token_bytes(SCORING_BYTES), np.uint8)
        """What questions about held-out rows belong to, in a scored party's ledger."""
        self._held_scores: State = {}
        """Scores of held-out rows by stage and fold, at the label party."""
        self._prior: State | None = None
        """The state before the last evaluation, with everything that determines its question."""
        self._question: State = {}
        self.ledger = Ledger(allow_determined=agreement.allow_determined)

    async def run(self, link: Link) -> Outcome:
        agreement = self._agreement
        note_agreement(link, agreement)
        if agreement.batches.stage(self.first_round) and not agreement.batches.aims_anew(self.first_round):
            self._take_next_targets()
        await self._begin(link)
        link.mark("setup")
        link.phase = "training"
        self._expect_evaluations(link.name)
        outcome = Outcome(ledger=self.ledger)
        for t in range(self.first_round - self._repeats, self.last_round):
            if not self._repeats:
                self._prior = None
                if agreement.batches.aims_anew(t):
                    self._take_next_targets()
                    await self._share_targets(link, t)
                await self._round(link, t)
            metric = None
            if agreement.evaluates_after(t):
                with link.off_the_clock("evaluation"):
                    await self._before_scores(link, t)
                    metric = await self._metric(link, t)
            if self._repeats:
                self._forget_question()
            self._repeats = False
            if metric is not None:
                outcome.history.append((t, metric))
            outcome.rounds = self.first_round = t + 1
            reason, best = await self._verdict(link, t, metric)
            if best:
                self._best = {"round": np.array(t), **self._model_state()}
            link.mark("round", t)
            if self._context.on_round is not None:
                self._context.on_round(Round(t, metric, link, reason))
            if reason is not None:
                outcome.reason = reason
                break
        if self._best:
            outcome.best = int(self._best["round"])
            self._restore_model(self._best)
        await self._end(link)
        return outcome

    @abstractmethod
    async def _begin(self, link: Link) -> None:
        """Exchange keys and prepare before the first round."""

    def _aim(self, targets: Array) -> None:  # noqa: B027  # likewise
        """Take the targets of the second stage, at the label party."""

    async def _share_targets(self, link: Link, t: int) -> None:  # noqa: B027  # likewise
        """Bring new targets to where round t needs them."""

    @abstractmethod
    async def _round(self, link: Link, t: int) -> None: ...

    async def _before_scores(self, link: Link, t: int) -> None:
        """Fix the question of an evaluation, and report it before any party is asked.

        A party that is killed after this asks the same question again. The score ledgers count it once.
        """
        if self._repeats:
            return
        self._question = self._make_question(link, t)
        self._prior = {**self._state(t + 1), **self._question, QUESTION: np.array(t)}
        if self._context.on_scoring is not None:
            self._context.on_scoring(Round(t, None, link))

    def _make_question(self, link: Link, t: int) -> State:
        """Draw and compute everything that a question needs besides the model and the rows."""
        return {}

    def _forget_question(self) -> None:  # noqa: B027  # likewise
        """Let later questions follow from new secrets.

        A peer may have lost later rounds, or say so. Then their evaluations come again, and must not be
        answered twice under one key.
        """

    @abstractmethod
    async def _scores(self, link: Link, rows: Array | None, t: int, fold: int) -> Array | None:
        """Take part in evaluating the model without `fold`. Return scores at the label party, else None."""

    async def _end(self, link: Link) -> None:  # noqa: B027  # likewise
        """Finish after the last round."""

    def _expect_evaluations(self, name: str) -> None:
        """Raise ScoreRefusal before training if a scored party would refuse a planned evaluation."""
        agreement, evaluation = self._agreement, self._evaluation
        scored = agreement.blurs and name != agreement.label_party
        if scored and evaluation is not None and evaluation.features is not None:
            due = agreement.evaluations_from(self.first_round)
            scoring = self._scoring.tobytes() if agreement.batches.folds > 1 else b""
            sizes = agreement.score_precision, agreement.outputs
            self.guard.expect(evaluation.features, due, *sizes, scoring)

    async def _metric(self, link: Link, t: int) -> float | None:
        evaluation, batches = self._evaluation, self._agreement.batches
        features = None if evaluation is None else evaluation.features
        several, stage, scores = batches.folds > 1, batches.stage(t), None
        for fold, part in self._agreement.scored_after(t).items():
            rows = features[part] if several and features is not None else features
            scores = await self._scores(link, rows, t, fold)
            if scores is not None and several:
                self._held_scores[f"{stage}.{fold}"] = scores
        if scores is None or evaluation is None or evaluation.metric is None:
            return None
        if several:
            if stage < batches.stages - 1 or fold < batches.folds - 1:
                return None
            scores = self._scores_of(stage)
        metric = float(evaluation.metric(scores))
        # The first answer to a question counts. A peer that breaks off and answers otherwise would get
        # another verdict under the same key.
        return metric if self._prior is None else float(self._prior.setdefault(METRIC, np.array(metric)))

    def _scores_of(self, stage: int) -> Array:
        folds = self._agreement.batches.folds
        return np.concatenate([self._held_scores[f"{stage}.{fold}"] for fold in range(folds)])

    def _take_next_targets(self) -> None:
        if self._evaluation is not None and self._evaluation.aim is not None:
            self._aim(self._evaluation.aim(self._scores_of(0)))

    async def _verdict(self, link: Link, t: int, metric: float | None) -> tuple[Reason | None, bool]:
        """Return the label party's reason to stop, or None, and whether this model is the best so far."""
        agreement = self._agreement
        if not agreement.watched:
            return self._tracker.update(t, metric), False
        if (peer := agreement.label_party) != link.name:
            code = await link.receive("verdict", peer, round=t)
            most = 2 * len(VERDICTS)
            if len(code) != 1 or code[0] >= most:
                raise IllegalMessage(
                    f"{peer} sent 'verdict' of {len(code)} bytes, one byte below {most} is allowed"
                )
            return VERDICTS[code[0] % len(VERDICTS)], code[0] >= len(VERDICTS)
        reason = self._tracker.update(t, metric)
        best = metric is not None and self._tracker.best_now
        code = (VERDICTS.index(reason) + len(VERDICTS) * best).to_bytes(1, "little")
        for name in agreement.others:
            link.send(name, "verdict", code, round=t)
        return reason, best

    # Checkpoints

    def state(self) -> State:
        """Return counters and this party's part of the model."""
        return self._state(self.first_round)

    def checkpoint(self) -> State:
        """Return the state for a checkpoint. After an evaluation it is the state behind the question."""
        return self.state() if self._prior is None else self._prior

    def _state(self, rounds: int) -> State:
        tracker = {f"{TRACKER}{name}": array for name, array in self._tracker.state().items()}
        best = {f"{BEST}{name}": array for name, array in self._best.items()}
        scores = {f"{HELD}{name}": array for name, array in self._held_scores.items()}
        counts: State = {"round": np.array(rounds), SCORING: self._scoring}
        return {**counts, **self._model_state(), **tracker, **best, **scores}

    def go_on_after(self, rounds: int, *, evaluates: bool, over: bool = False) -> None:
        """Skip `rounds` rounds. `evaluates` repeats the last evaluation, `over` ends the training."""
        self.first_round, self._repeats = rounds, evaluates
        if over:
            self.last_round = rounds

    def restore(self, state: Mapping[str, NDArray[np.generic]], *, over: bool = False) -> None:
        """Continue after the round of `state`. `over`: the training ended with that round."""
        self._restore_model(state)
        self._tracker.restore(part_of(state, TRACKER))
        self._best, self._held_scores = part_of(state, BEST), part_of(state, HELD)
        self._scoring = np.asarray(state.get(SCORING, self._scoring), dtype=np.uint8)
        if QUESTION in state:
            self._prior = self._question = dict(state)
        self.go_on_after(int(state["round"]), evaluates=QUESTION in state, over=over)

    def _model_state(self) -> State:
        return {}

    def _restore_model(self, state: Mapping[str, NDArray[np.generic]]) -> None:  # noqa: B027  # likewise
        """Restore the model. A key-holder has none."""


def part_of(state: Mapping[str, NDArray[np.generic]], prefix: str) -> State:
    return {name[len(prefix) :]: array for name, array in state.items() if name.startswith(prefix)}
