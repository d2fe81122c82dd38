"""A label party or a second holder that departs from the protocol of blind runs, one way at a time.

Each runs inside the real program: only what the cheat sends or keeps is other. Under the product in the clear
(research.attacks.clear) the protocol's own protections show by themselves, and fast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from research.attacks.clear import CLEAR
from securefed.assembly import LinearAssembly
from securefed.assembly.base import HELPER
from securefed.crypto import shares
from securefed.crypto.blind.interface import CrossScheme
from securefed.crypto.shares import Share
from securefed.protocols.agreement import Member
from securefed.protocols.blind import scoring
from securefed.protocols.blind.cross import At, Encryptor
from securefed.protocols.blind.linear import BlindParty
from securefed.protocols.blind.scoring import SEAL_STEP
from securefed.protocols.blind.statistics import RANGE_BITS, SCORE_BITS
from securefed.protocols.loop import EvaluationRows, PartyContext
from securefed.protocols.messages import KINDS
from securefed.protocols.scoring.blur import PRECISION
from securefed.protocols.scoring.score_ledger import ScoreGuard
from securefed.settings import Blind, LinearSettings, Monitoring
from securefed.transport.link import LocalRun, run_local
from securefed.transport.message import get_network

Array = NDArray[np.float64]
BLUR_BITS = SCORE_BITS - PRECISION
"""Of the blur of a score at the default precision."""
SHOWN_BITS = SCORE_BITS + RANGE_BITS
"""f + m: what is opened of a score."""
MUCH = 1e6


@dataclass
class Seen:
    """What the label party reads in each scoring: sums modulo 2**(f + m), one a row."""

    totals: list[list[int]] = field(default_factory=list)
    scores: list[Array] = field(default_factory=list)


@dataclass
class Scored:
    """A run with evaluations, and everything about it."""

    programs: dict[str, Any]
    guards: dict[str, ScoreGuard]
    seen: Seen
    run: LocalRun
    columns: list[Array]
    shares_at: list[dict[str, dict[str, Share]]]
    """By scoring and party: the shares that it multiplied by."""


def people(rows: int, sizes: tuple[int, ...], seed: int = 0) -> tuple[list[Array], Array]:
    """Columns of each party, the label party's last, and labels."""
    rng = np.random.default_rng(seed)
    columns = [rng.normal(size=(rows, size)) for size in sizes]
    margin = np.hstack(columns) @ rng.normal(size=sum(sizes))
    return columns, np.where(margin + rng.normal(size=rows) > 0, 1.0, -1.0)[:, None]


def centred(number: int, bits: int = SHOWN_BITS) -> int:
    """The representative nearest to 0 modulo 2**bits."""
    number %= 1 << bits
    return number - (1 << bits) if number >> (bits - 1) else number


@contextmanager
def watched_scores(seen: Seen) -> Iterator[None]:
    """Keep what the label party opens."""
    opened = scoring.opened

    def keeping(total: Share) -> Array:
        seen.totals.append([number % (1 << SHOWN_BITS) for number in shares.to_integers(total[:, :, 0])])
        seen.scores.append(opened(total))
        return seen.scores[-1]

    with patch.object(scoring, "opened", keeping):
        yield


@contextmanager
def replayed_model() -> Iterator[None]:
    """The label party sends the ciphertexts of its first model share again for every later model."""
    sent: dict[tuple[int, str], list[bytes]] = {}
    send = Encryptor.send

    async def replaying(self: Encryptor, peer: str, *arguments: Any, at: At, **more: Any) -> None:
        if at.step != SEAL_STEP:
            return await send(self, peer, *arguments, at=at, **more)
        kept = sent.setdefault((id(self.key), peer), [])
        if kept:
            for block in kept:
                self.link.send(peer, "operand", block, round=at.round, step=at.step)
            return None
        before = len(self.link.outbox)
        await send(self, peer, *arguments, at=at, **more)
        kept += [message.payload for message in self.link.outbox[before:] if message.kind == "operand"]
        return None

    with patch.object(Encryptor, "send", replaying):
        yield


def score_run(
    columns: list[Array],
    labels: Array,
    *,
    scheme: CrossScheme = CLEAR,
    guards: dict[str, ScoreGuard] | None = None,
    states: dict[str, Any] | None = None,
    scored: list[Array] | None = None,
    own_rows: Callable[[int], Array] | None = None,
    know: bool = False,
    rounds: int = 3,
    evaluate_every: int = 1,
    held_out: int = 0,
    target: float | None = None,
    release: bool | str = False,
    **more: Any,
) -> Scored:
    """Blind training with evaluations on the training rows.

    `own_rows`: (number of a scoring) -> what a label party asks with in place of its own rows. `know`: the
    guards are told who the rows are about, as a run does. `held_out`: with few of them, and without
    `evaluate_every`, all rows are held out in folds.
    """
    settings = LinearSettings(
        rounds=rounds,
        protection=Blind(release=release),
        monitoring=Monitoring(evaluate_every=evaluate_every, target=target),
        **more,
    )
    assembly = LinearAssembly(settings)
    names = [f"p{k}" for k in range(len(columns) - 1)] + ["L"]
    members = tuple(Member(name, own.shape[1], True) for name, own in zip(names, columns, strict=True))
    agreement = assembly.agreement(members, len(labels), labels.shape[1], held_out)
    kept = guards or {name: ScoreGuard(party=name, column_bits=MUCH) for name in names}
    programs: dict[str, Any] = {}
    for name, own in zip(names, columns, strict=True):
        if know:
            kept[name].know(own, [f"person {row}".encode() for row in range(len(own))])
        last = name == "L"
        rows = own if scored is None else scored[names.index(name)]
        context = PartyContext(
            evaluation=EvaluationRows(rows, (lambda scores: float(np.mean(scores))) if last else None),
            guard=kept[name],
        )
        programs[name] = BlindParty(
            agreement, assembly.settings.loss_function, own, labels if last else None, context, scheme,
            steps=assembly.steps(agreement, own),
        )  # fmt: skip
    if len(columns) > 2:
        programs[HELPER] = BlindParty(
            agreement, assembly.settings.loss_function, None, None, PartyContext(), scheme
        )
    for name, state in (states or {}).items():
        programs[name].restore(state)
    if own_rows is not None:
        asked = iter(range(1 << 20))
        programs["L"]._scored = lambda rows: own_rows(next(asked))
    taken: list[dict[str, dict[str, Share]]] = []
    for name, program in programs.items():
        _keep_shares(program, name, taken)
    seen = Seen()
    with watched_scores(seen):
        run = run_local(
            {name: program.run for name, program in programs.items()},
            run="r",
            kinds=KINDS,
            network=get_network("lan"),
        )
    return Scored(programs, kept, seen, run, columns, taken)


def _keep_shares(program: Any, name: str, taken: list[dict[str, dict[str, Share]]]) -> None:
    """For the verdict only: the shares of each scoring."""
    model, count = program._model, iter(range(1 << 20))

    async def keeping(link: Any, t: int, fold: int = 0) -> Any:
        part, keys = await model(link, t, fold)
        number = next(count)
        while len(taken) <= number:
            taken.append({})
        taken[number][name] = dict(part.blocks)
        return part, keys

    program._model = keeping


def ask_again(done: Scored, rows: list[Array], scheme: CrossScheme = CLEAR) -> list[int]:
    """Score rows with the finished model: z of each party, the label party's last. What it opens."""
    names = [name for name in done.programs if name != HELPER]
    own = dict(zip(names, rows, strict=True))
    seen = Seen()

    def program(name: str) -> Any:
        async def run(link: Any) -> None:
            link.phase = "prediction"
            party = done.programs[name]
            keys = scoring.open_keys(link, party.part, scheme, party._mapper)
            guard = done.guards.get(name) or ScoreGuard()
            await scoring.score_rows(
                link, _as_given(party.part), keys, own.get(name), len(rows[-1]), guard, 0
            )

        return run

    with watched_scores(seen):
        run_local(
            {name: program(name) for name in done.programs}, run="r", kinds=KINDS, network=get_network("lan")
        )
    return seen.totals[0]


def _as_given(part: scoring.ModelPart) -> scoring.ModelPart:
    """A cheat takes any z, not what a step matrix makes of its columns."""
    if part.root is None:
        return part
    return replace(part, root=np.eye(len(part.root)))


def rows_at(done: Scored, name: str) -> Array:
    """z of a party's training rows."""
    party = done.programs[name]
    own: Array = done.columns[list(done.programs).index(name)] @ party._own.root
    return own
