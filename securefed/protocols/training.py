"""The one loop: FedSGD, FedBCD-p, FedBCD-s and their proximal forms, for every objective and scheme.

A data party's program, round t (Algorithms 1 to 3):

    parallel     exchange with all; Q local steps, in each of which whoever has to opens its sums
    sequential   for each party in turn: it gets the others' newest contributions and makes its Q local steps

A local step is theta <- optimiser(theta, g + mu (theta - theta_start)) with g from opened sums and the
party's own rows; the batch and what came from others stay fixed during the Q steps. The key-holder party's
program answers the openings that the agreement lists.

What each learns: a data party its own aggregated parameter gradients (one a round if its model is linear,
else Q); the key-holder nothing; the label party also the scores of the rows that it evaluates on, if
evaluation is on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from securefed.crypto import KeyHolder, Mapper, Serial
from securefed.crypto.plain import PlainEncrypted
from securefed.errors import DataError, SettingError
from securefed.protocols.agreement import Agreement
from securefed.protocols.blur import ScoreGuard
from securefed.protocols.exchange import Exchange, Held
from securefed.protocols.keyring import Keyring, distribute_keys
from securefed.protocols.ledger import Ledger
from securefed.protocols.openings import ask_sums, fix_ledger, levelled, serve, take
from securefed.protocols.optimisers import Optimiser
from securefed.protocols.prediction import scores, serve_scores
from securefed.protocols.schedules import Reason, proximal_pull
from securefed.protocols.sides import Side
from securefed.protocols.steps import OwnSteps
from securefed.transport import Link

__all__ = [
    "DataParty",
    "Evaluation",
    "KeyHolderParty",
    "Outcome",
    "Round",
    "expect_evaluations",
    "receive_verdict",
    "send_verdict",
]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Evaluation:
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


@dataclass
class Outcome:
    """What a party has at the end."""

    rounds: int = 0
    reason: Reason = "rounds"
    history: list[tuple[int, float]] = field(default_factory=list)
    """(round, metric), at the label party."""
    ledger: Ledger = field(default_factory=Ledger)


class DataParty:
    """A party with columns."""

    def __init__(
        self,
        agreement: Agreement,
        side: Side,
        optimiser: Optimiser,
        *,
        steps: OwnSteps | None = None,
        holder: KeyHolder | None,
        evaluation: Evaluation | None = None,
        mapper: Mapper | None = None,
        on_round: Callable[[Round], None] | None = None,
        guard: ScoreGuard | None = None,
        allow_small: bool = False,
    ) -> None:
        self._agreement, self._side, self._optimiser = agreement, side, optimiser
        self._steps = steps
        self._holder, self._evaluation, self.guard = holder, evaluation, guard or ScoreGuard()
        self._mapper = mapper or Serial()
        self._on_round = on_round
        self._allow_small = allow_small
        self._tracker = agreement.stopping.tracker()
        self._first_round = 0
        if agreement.evaluate_every and evaluation is None:
            raise SettingError(
                "evaluate_every: evaluations were agreed, and there are no rows to evaluate on"
            )

    def state(self) -> dict[str, NDArray[np.generic]]:
        """What a checkpoint has to hold: this party's own parameters and counters."""
        prefixed = {f"optimiser.{name}": array for name, array in self._optimiser.state().items()}
        tracker = {f"stopping.{name}": array for name, array in self._tracker.state().items()}
        return {
            "round": np.array(self._first_round),
            "parameters": self._side.parameters,
            **prefixed,
            **tracker,
        }

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Go on after the round that `state` was taken in."""

        def part(prefix: str) -> dict[str, NDArray[np.generic]]:
            return {name[len(prefix) :]: array for name, array in state.items() if name.startswith(prefix)}

        first_round = checkpoint_round(state, "parameters")
        self._optimiser.restore(part("optimiser."))
        self._tracker.restore(part("stopping."))
        self._side.parameters = np.asarray(state["parameters"], dtype=np.float64)
        self._first_round = first_round

    async def run(self, link: Link) -> Outcome:
        """The party's program."""
        agreement = self._agreement
        keys = await distribute_keys(
            link, agreement, self._holder, self._mapper, allow_small=self._allow_small
        )
        link.mark("setup")
        link.phase = "training"
        expect_evaluations(agreement, link.name, self._evaluation, self.guard, self._first_round)
        outcome = Outcome(ledger=Ledger(allow_determined=agreement.allow_determined))
        exchange = Exchange(link, agreement, keys, self._side)
        for t in range(self._first_round, agreement.stopping.rounds):
            self._side.begin(agreement.batches.batch(t))
            if agreement.algorithm.order == "parallel":
                held = await exchange.all(t)
                link.mark("exchange", t)
                await self._local_steps(link, keys, outcome.ledger, held, t, agreement.names)
            else:
                await self._turns(link, keys, outcome.ledger, exchange, t)
            metric = await self._evaluate(link, keys, t)
            if metric is not None:
                outcome.history.append((t, metric))
            outcome.rounds = self._first_round = t + 1
            reason = await self._verdict(link, t, metric)
            link.mark("round", t)
            if self._on_round is not None:
                self._on_round(Round(t, metric, link))
            if reason is not None:
                outcome.reason = reason
                break
        return outcome

    async def _turns(self, link: Link, keys: Keyring, ledger: Ledger, exchange: Exchange, t: int) -> None:
        """FedBCD-s (Algorithm 3)."""
        await exchange.before_turns(t)
        for turn in self._agreement.names:
            held = await exchange.for_turn(t, turn)
            await self._local_steps(link, keys, ledger, held, t, (turn,))
            await exchange.after_turn(t, turn)

    async def _local_steps(
        self, link: Link, keys: Keyring, ledger: Ledger, held: Held | None, t: int, active: tuple[str, ...]
    ) -> None:
        """Q local steps of the `active` parties; the others open for them if they are their key-holders."""
        agreement, side = self._agreement, self._side
        peers = [name for name in active if name != link.name] if agreement.mutual else []
        for name in peers:
            fix_ledger(ledger, agreement, name)
        start = side.parameters
        sums: Array | None = None
        for q in range(agreement.algorithm.local_steps):
            mask = None
            if held is not None and agreement.opens_at(link.name, q):
                with link.activity("local model"):
                    multipliers, powers = levelled(side.multipliers())
                mask = ask_sums(link, keys, held, multipliers, agreement.batches.effective_size, t, q)
            for name in peers:
                if keys.own is not None and agreement.opens_at(name, q):
                    await serve(link, agreement, keys.own, ledger, name, t, q)
            if held is None:
                continue
            if mask is not None:
                sums = await take(link, keys, mask, t, q)
                sums = sums * powers.reshape(sums.shape)
            with link.activity("local model"):
                gradient = self._gradient(held, sums)
                if self._steps is not None and sums is not None:
                    # All Q steps at once; nothing that was opened changes during them.
                    side.parameters = side.parameters - self._steps.matrix(t) @ gradient
                    break
                gradient = gradient + proximal_pull(side.parameters, start, agreement.algorithm.proximal)
                rate = agreement.learning_rate(t) if self._steps is None else self._steps.rate(t)
                side.parameters = self._optimiser.step(side.parameters, gradient, rate)

    def _gradient(self, held: Held, sums: Array | None) -> Array:
        if sums is not None:
            return self._side.gradient(sums, held.included)
        if not isinstance(held.encrypted, PlainEncrypted):
            raise SettingError("exact: only possible with scheme 'plain'")
        return self._side.exact_gradient(held.encrypted.values, held.included)

    async def _evaluate(self, link: Link, keys: Keyring, t: int) -> float | None:
        if not self._agreement.evaluates_after(t) or self._evaluation is None:
            return None
        with link.off_the_clock("evaluation"):
            rows = self._evaluation.features
            found = await scores(link, self._agreement, keys, self._side.scorer(), rows, t, self.guard)
            if found is None or self._evaluation.metric is None:
                return None
            return float(self._evaluation.metric(found))

    async def _verdict(self, link: Link, t: int, metric: float | None) -> Reason | None:
        """The label party says whether to go on, where the run may end early."""
        agreement = self._agreement
        if not agreement.watched:
            return self._tracker.update(t, metric)
        if link.name != agreement.label_party:
            return await receive_verdict(link, agreement, t)
        return send_verdict(link, agreement, t, self._tracker.update(t, metric))


def expect_evaluations(
    agreement: Agreement, name: str, evaluation: Evaluation | None, guard: ScoreGuard, first_round: int
) -> None:
    """A party that will be scored looks ahead: ScoreRefusal now rather than in the middle of a training."""
    scored = agreement.blurs and name != agreement.label_party
    if scored and evaluation is not None and evaluation.features is not None:
        guard.expect(evaluation.features, agreement.evaluations_from(first_round), agreement.score_precision)


def checkpoint_round(state: Mapping[str, NDArray[np.generic]], *names: str) -> int:
    """The round to go on with, from a checkpoint that also has these."""
    for name in ("round", *names):
        if name not in state:
            raise DataError(f"checkpoint has no {name!r}; it holds {', '.join(sorted(state)) or 'nothing'}")
    found = np.asarray(state["round"])
    if found.shape != () or found.dtype.kind not in "iu" or int(found) < 0:
        raise DataError(f"checkpoint's 'round' must be one integer of at least 0, not {found!r}")
    return int(found)


VERDICTS: tuple[Reason | None, ...] = (None, "target", "rounds", "no progress")


def send_verdict(link: Link, agreement: Agreement, t: int, reason: Reason | None) -> Reason | None:
    """The label party tells everybody whether to go on."""
    code = VERDICTS.index(reason).to_bytes(1, "little")
    for name in [*agreement.names[:-1], *([] if agreement.mutual else [str(agreement.key_holder)])]:
        link.send(name, "verdict", code, round=t)
    return reason


async def receive_verdict(link: Link, agreement: Agreement, t: int) -> Reason | None:
    code = await link.receive("verdict", agreement.label_party, round=t)
    if len(code) != 1 or code[0] >= len(VERDICTS):
        raise SettingError(f"verdict: {code.hex()!r} given, one byte below {len(VERDICTS)} is allowed")
    return VERDICTS[code[0]]


class KeyHolderParty:
    """A party without columns that holds the key (K > 2). It sees masked values and nothing else."""

    def __init__(self, agreement: Agreement, holder: KeyHolder, *, mapper: Mapper | None = None) -> None:
        self._agreement, self._holder = agreement, holder
        self._mapper = mapper or Serial()
        self.first_round = 0

    async def run(self, link: Link) -> Outcome:
        agreement, algorithm = self._agreement, self._agreement.algorithm
        await distribute_keys(link, agreement, self._holder, self._mapper)
        link.mark("setup")
        link.phase = "training"
        outcome = Outcome(ledger=Ledger(allow_determined=agreement.allow_determined))
        for t in range(self.first_round, agreement.stopping.rounds):
            for active in (
                [agreement.names] if algorithm.order == "parallel" else [(n,) for n in agreement.names]
            ):
                for name in active:
                    fix_ledger(outcome.ledger, agreement, name)
                for q in range(algorithm.local_steps):
                    for name in active:
                        if agreement.opens_at(name, q):
                            await serve(link, agreement, self._holder, outcome.ledger, name, t, q)
            if agreement.evaluates_after(t):
                with link.off_the_clock("evaluation"):
                    await serve_scores(link, agreement, self._holder, None, t)
            outcome.rounds = t + 1
            reason = await receive_verdict(link, agreement, t) if agreement.watched else None
            link.mark("round", t)
            if reason is not None:
                outcome.reason = reason
                break
        return outcome
