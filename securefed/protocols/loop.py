"""The one loop: FedSGD, FedBCD-p, FedBCD-s and their proximal forms, for every objective and protection.

Every party of a run, the key-holder too, goes through the same stages; what a round consists of is the
protection's business (`training`: own gradients are opened; `blind`: nothing is):

    keys; then each round: the round itself, an evaluation if one is due, the label party's verdict; the end

What a round shows whom stands with the protections. The verdict shows everybody whether the label party saw
its target, the best so far or no progress, where such a rule was agreed; the best model is the one kept.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from securefed.crypto import KeyHolder, Mapper, Serial, load_public_key
from securefed.data.entropy import column_bits
from securefed.errors import DataError, SettingError
from securefed.protocols.agreement import Agreement
from securefed.protocols.keyring import ReadKey, note_agreement
from securefed.protocols.own_gradient.ledger import Ledger
from securefed.protocols.schedules import Reason
from securefed.protocols.scoring.blur import ScoreGuard
from securefed.transport import Link
from securefed.transport.message import IllegalMessage

__all__ = ["EvaluationRows", "Outcome", "PartyContext", "PartyLoop", "Round", "checkpoint_round"]

Array = NDArray[np.float64]
State = dict[str, NDArray[np.generic]]
TRACKER = "stopping."
BEST = "best."
QUESTION = "question"
"""Marks a checkpoint that was taken before the evaluation of its round."""


@dataclass(frozen=True)
class EvaluationRows:
    """Rows that the label party scores during training: each party's features, and the metric where the
    labels are.
    """

    features: Array | None
    metric: Callable[[Array], float] | None = None


@dataclass(frozen=True)
class Round:
    """The state of a run after a round, as one party sees it; for progress and checkpoints."""

    number: int
    metric: float | None
    link: Link


@dataclass(frozen=True)
class PartyContext:
    """What a party's program needs besides settings and data: keys, workers, somebody to tell about
    progress.
    """

    holder: KeyHolder | None = None
    mapper: Mapper | None = None
    evaluation: EvaluationRows | None = None
    on_round: Callable[[Round], None] | None = None
    guard: ScoreGuard | None = None
    """Of a party that is scored; a fresh one where none is given."""
    read_key: ReadKey = load_public_key
    """Reads the public key that arrives."""
    on_scoring: Callable[[Round], None] | None = None
    """Told before a model is scored: a checkpoint that is written now repeats the question, not the round."""

    @property
    def key(self) -> KeyHolder:
        """Of a party that is there for it alone."""
        if self.holder is None:
            raise SettingError("keys: the key-holder has no key")
        return self.holder

    def guarding(self, name: str, features: Array) -> PartyContext:
        """With a guard that knows what there is to tell of these columns, unless somebody said it already."""
        guard = self.guard or ScoreGuard(party=name)
        if guard.column_bits is None:
            guard.column_bits = column_bits(features)
        return replace(self, guard=guard)


@dataclass
class Outcome:
    """What a party has at the end."""

    rounds: int = 0
    reason: Reason = "rounds"
    history: list[tuple[int, float]] = field(default_factory=list)
    """(round, metric), at the label party."""
    ledger: Ledger = field(default_factory=Ledger)

    best: int | None = None
    """The round whose model is kept, where evaluations were watched; else the last one's."""

    def kept(self, evaluations: int) -> int:
        """Which of the last so many evaluations was of the model that is kept."""
        rounds = [t for t, _ in self.history][-evaluations:]
        return rounds.index(self.best) if self.best in rounds else evaluations - 1


class PartyLoop(ABC):
    """One party's program. A protection says what happens in its stages."""

    def __init__(
        self,
        agreement: Agreement,
        context: PartyContext,
    ) -> None:
        self._agreement, self._holder = agreement, context.holder
        self._evaluation, self._on_round = context.evaluation, context.on_round
        self._on_scoring = context.on_scoring
        self.guard = context.guard or ScoreGuard()
        self._mapper = context.mapper or Serial()
        self._read_key = context.read_key
        self._tracker = agreement.stopping.tracker()
        self._best: State = {}
        """The model that was best so far, and its round; as in a checkpoint."""
        self.first_round = 0
        """Rounds that are done."""
        self.last_round = agreement.stopping.rounds
        self._repeats = False
        """The run goes on with the evaluation of the last round, asked as it was asked before."""
        self._asked: State | None = None
        """The state before the last evaluation, with everything that its question follows from."""
        self.ledger = Ledger(allow_determined=agreement.allow_determined)

    async def run(self, link: Link) -> Outcome:
        """The party's program."""
        agreement = self._agreement
        note_agreement(link, agreement)
        await self._begin(link)
        link.mark("setup")
        link.phase = "training"
        self._expect_evaluations(link.name)
        outcome = Outcome(ledger=self.ledger)
        for t in range(self.first_round - self._repeats, self.last_round):
            if not self._repeats:
                self._asked = None
                await self._round(link, t)
            metric = None
            if agreement.evaluates_after(t):
                with link.off_the_clock("evaluation"):
                    await self._before_scores(link, t)
                    metric = await self._metric(link, t)
            self._repeats = False
            if metric is not None:
                outcome.history.append((t, metric))
            outcome.rounds = self.first_round = t + 1
            reason, best = await self._verdict(link, t, metric)
            if best:
                self._best = {"round": np.array(t), **self._model_state()}
            link.mark("round", t)
            if self._on_round is not None:
                self._on_round(Round(t, metric, link))
            if reason is not None:
                outcome.reason = reason
                break
        if self._best:
            outcome.best = int(self._best["round"])
            self._restore_model(self._best)
            self._take_model()
        await self._end(link)
        return outcome

    async def _begin(self, link: Link) -> None:  # noqa: B027  # nothing to do is allowed
        """Before the first round: keys, and whatever is prepared once."""

    @abstractmethod
    async def _round(self, link: Link, t: int) -> None: ...

    async def _before_scores(self, link: Link, t: int) -> None:
        """Fix the question of an evaluation, and let it be written down before anybody is asked.

        A party that is killed after this asks the same question again. It has the same answer, and the score
        ledgers count it once.
        """
        if self._repeats:
            return
        await self._fix_question(link, t)
        self._asked = {**self._state(t + 1), **self._question_state(), QUESTION: np.array(t)}
        if self._on_scoring is not None:
            self._on_scoring(Round(t, None, link))

    async def _fix_question(self, link: Link, t: int) -> None:  # noqa: B027  # nothing to do is allowed
        """Draw and compute whatever a question depends on besides the model and the rows."""

    def _question_state(self) -> State:
        """Return what `_fix_question` fixed, for a checkpoint."""
        return {}

    def _restore_question(self, state: State) -> None:  # noqa: B027  # likewise
        """Take over what `_question_state` returned."""

    @abstractmethod
    async def _scores(self, link: Link, rows: Array | None, t: int) -> Array | None:
        """This party's part of an evaluation; the scores, at the label party."""

    async def _end(self, link: Link) -> None:  # noqa: B027  # likewise
        """After the last round."""

    def _expect_evaluations(self, name: str) -> None:
        """A party that will be scored looks ahead: ScoreRefusal now rather than amid the training."""
        agreement, evaluation = self._agreement, self._evaluation
        scored = agreement.blurs and name != agreement.label_party
        if scored and evaluation is not None and evaluation.features is not None:
            due = agreement.evaluations_from(self.first_round)
            self.guard.expect(evaluation.features, due, agreement.score_precision, agreement.outputs)

    async def _metric(self, link: Link, t: int) -> float | None:
        evaluation = self._evaluation
        scores = await self._scores(link, None if evaluation is None else evaluation.features, t)
        if scores is None or evaluation is None or evaluation.metric is None:
            return None
        return float(evaluation.metric(scores))

    async def _verdict(self, link: Link, t: int, metric: float | None) -> tuple[Reason | None, bool]:
        """The label party says whether to go on, and whether this model is the best so far, where the run may
        end early.
        """
        agreement = self._agreement
        if not agreement.watched:
            return self._tracker.update(t, metric), False
        if link.name != agreement.label_party:
            return await _receive_verdict(link, agreement, t)
        reason = self._tracker.update(t, metric)
        return _send_verdict(link, agreement, t, reason, metric is not None and self._tracker.best_now)

    # Checkpoints

    def state(self) -> State:
        """Return counters and this party's part of the model."""
        return self._state(self.first_round)

    def checkpoint(self) -> State:
        """Return what a checkpoint holds: after an evaluation, the state that its question came from."""
        return self.state() if self._asked is None else self._asked

    def _state(self, rounds: int) -> State:
        tracker = {f"{TRACKER}{name}": array for name, array in self._tracker.state().items()}
        best = {f"{BEST}{name}": array for name, array in self._best.items()}
        return {"round": np.array(rounds), **self._model_state(), **tracker, **best}

    def go_on_after(self, rounds: int, *, evaluates: bool, over: bool = False) -> None:
        """Skip so many rounds. `evaluates`: repeat the last one's evaluation. `over`: train no more."""
        self.first_round, self._repeats = rounds, evaluates
        if over:
            self.last_round = rounds

    def restore(self, state: Mapping[str, NDArray[np.generic]], *, over: bool = False) -> None:
        """Go on after the round that `state` was taken in. `over`: the training was over after it."""
        first_round = checkpoint_round(state)
        self._restore_model(state)
        self._tracker.restore(part_of(state, TRACKER))
        self._best = part_of(state, BEST)
        if QUESTION in state:
            self._asked = dict(state)
            self._restore_question(self._asked)
        self.go_on_after(first_round, evaluates=QUESTION in state, over=over)

    def start_from(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Begin with the model of `state`, from another run under the same keys, and with nothing else."""
        self._restore_model(state)

    def _model_state(self) -> State:
        return {}

    def _take_model(self) -> None:  # noqa: B027  # likewise
        """Go on with the model that was restored last."""

    def _restore_model(self, state: Mapping[str, NDArray[np.generic]]) -> None:  # noqa: B027  # likewise
        """A key-holder has no model."""


def part_of(state: Mapping[str, NDArray[np.generic]], prefix: str) -> State:
    return {name[len(prefix) :]: array for name, array in state.items() if name.startswith(prefix)}


def checkpoint_round(state: Mapping[str, NDArray[np.generic]]) -> int:
    """The round to go on with."""
    number = np.asarray(checkpoint_array(state, "round"))
    if number.shape != () or number.dtype.kind not in "iu" or int(number) < 0:
        raise DataError(f"checkpoint's 'round' must be one integer of at least 0, not {number!r}")
    return int(number)


def checkpoint_array(state: Mapping[str, NDArray[np.generic]], name: str) -> NDArray[np.generic]:
    if name not in state:
        raise DataError(f"checkpoint has no {name!r}; it holds {', '.join(sorted(state)) or 'nothing'}")
    return state[name]


VERDICTS: tuple[Reason | None, ...] = (None, "target", "rounds", "no progress")


def _send_verdict(
    link: Link, agreement: Agreement, t: int, reason: Reason | None, best: bool
) -> tuple[Reason | None, bool]:
    """The label party tells everybody whether to go on, and whether to keep this model."""
    code = (VERDICTS.index(reason) + len(VERDICTS) * best).to_bytes(1, "little")
    for name in [*agreement.names[:-1], *([] if agreement.mutual else [str(agreement.key_holder)])]:
        link.send(name, "verdict", code, round=t)
    return reason, best


async def _receive_verdict(link: Link, agreement: Agreement, t: int) -> tuple[Reason | None, bool]:
    code = await link.receive("verdict", agreement.label_party, round=t)
    most = 2 * len(VERDICTS)
    if len(code) != 1 or code[0] >= most:
        peer = agreement.label_party
        raise IllegalMessage(f"{peer} sent 'verdict' of {len(code)} bytes, one byte below {most} is allowed")
    return VERDICTS[code[0] % len(VERDICTS)], code[0] >= len(VERDICTS)
