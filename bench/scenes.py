"""Runs to attack: real ones, recorded, in the sizes that `python -m bench attacks` and the tests use.

Data are generated, so that the truth is known: Gaussian columns, labels that the columns of all parties
together half explain, a quarter of them positive. What a column holder could guess without any protocol is
small, and an attack has to beat it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from research.attacks.views import Tape, View, Watched
from securefed.assembly import LinearAssembly
from securefed.crypto import KeyHolder, generate
from securefed.crypto.blind.interface import CrossScheme
from securefed.models import HiddenLayer, LinearModel
from securefed.protocols.agreement import Agreement, Member
from securefed.protocols.blind.linear import BlindParty
from securefed.protocols.loop import PartyContext
from securefed.protocols.losses import get_loss
from securefed.protocols.messages import KINDS
from securefed.protocols.own_gradient.ledger import LedgerEntry, LedgerWarning
from securefed.protocols.own_gradient.sides import LinearSide, TransferSide
from securefed.protocols.own_gradient.training import DataParty
from securefed.protocols.schedules import Algorithm, Batches, Constant, FedBCD, FedSGD, Stopping
from securefed.protocols.steps import SGD, Adam
from securefed.settings import LinearSettings
from securefed.transport.link import LocalRun, Program, run_local
from securefed.transport.message import get_network

Array = NDArray[np.float64]


class Keys:
    """Key pairs, made when first asked for."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, int], KeyHolder] = {}

    def holder(self, scheme: str, index: int) -> KeyHolder:
        """A key-holder without a past."""
        if (scheme, index) not in self._made:
            self._made[scheme, index] = generate(scheme, key_bits=2048)
        return KeyHolder(self._made[scheme, index]._secret)


def generated(
    rows: int, columns: int, seed: int, signal: float = 1.0, positive: float = 0.25
) -> tuple[Array, Array]:
    """Columns, and labels of -1 and +1, that share of them +1."""
    generator = np.random.default_rng(seed)
    features = generator.normal(size=(rows, columns))
    weights = generator.normal(size=columns) / np.sqrt(columns)
    margins = signal * features @ weights + generator.logistic(size=rows)
    return features, np.where(margins > np.quantile(margins, 1.0 - positive), 1.0, -1.0)


@dataclass
class LinearScene:
    """Two parties of the generalised linear objective: p0, and p1 with the labels."""

    features: dict[str, Array]
    labels: Array
    views: dict[str, View]
    tape: Tape
    agreement: Agreement
    parameters: dict[str, Array]
    ledger: list[LedgerEntry] = field(default_factory=list)
    parties: dict[str, BlindParty] = field(default_factory=dict)
    """The programs of a blind run, for what each party itself keeps."""


def linear_scene(
    scheme: str,
    keys: Keys,
    *,
    rows: int,
    batch: int | None,
    rounds: int,
    local_steps: int = 5,
    columns: tuple[int, int] = (10, 10),
    rate: float = 0.3,
    seed: int = 0,
    shape: Callable[[Array], Array] = lambda features: features,
    fixed: bool = False,
    positive: float = 0.25,
) -> LinearScene:
    """FedBCD-p on linear models. `shape` may alter p0's columns; `fixed` cuts the batches once."""
    joined, labels = generated(rows, sum(columns), seed, positive=positive)
    features = {"p0": shape(joined[:, : columns[0]]), "p1": joined[:, columns[0] :]}
    loss = get_loss("logistic")
    sides = {
        name: LinearSide(
            LinearModel(block.shape[1]),
            block,
            labels if name == "p1" else None,
            loss,
            l2=1e-3,
            exact=False,
            margin_bound=64.0,
        )
        for name, block in features.items()
    }
    views = {name: View(name) for name in sides}
    agreement = Agreement(
        "linear",
        scheme,
        tuple(Member(name, side.equations, side.is_linear) for name, side in sides.items()),
        _algorithm(local_steps),
        Constant(rate),
        Batches(rows, batch, seed, fixed),
        Stopping(rounds),
        allow_determined=True,
    )
    watched: dict[str, Any] = {name: Watched(side, views[name]) for name, side in sides.items()}
    programs = {
        name: DataParty(agreement, side, SGD(), PartyContext(keys.holder(scheme, index))).run
        for index, (name, side) in enumerate(watched.items())
    }
    tape, run = _record(programs, views)
    parameters = {name: side.parameters for name, side in sides.items()}
    return LinearScene(features, labels, views, tape, agreement, parameters, _ledger(run))


def blind_scene(
    *,
    rows: int,
    rounds: int,
    seed: int = 0,
    columns: tuple[int, int] = (10, 10),
    scheme: CrossScheme | None = None,
) -> LinearScene:
    """The same with blind training: nothing is opened, so views hold messages only.

    `scheme`: another encrypted product than the ring's, for naive variants.
    """
    joined, labels = generated(rows, sum(columns), seed)
    features = {"p0": joined[:, : columns[0]], "p1": joined[:, columns[0] :]}
    assembly = LinearAssembly(LinearSettings(rounds=rounds, algorithm=FedBCD(5), seed=seed))
    members = tuple(Member(name, block.shape[1], True) for name, block in features.items())
    agreement = assembly.agreement(members, rows)
    views = {name: View(name) for name in features}
    parties = {
        name: BlindParty(
            agreement,
            assembly.settings.loss_function,
            block,
            labels[:, None] if name == "p1" else None,
            PartyContext(),
            scheme or assembly.settings.cross_scheme(),
            steps=assembly.steps(agreement, block),
        )
        for name, block in features.items()
    }
    tape, run = _record({name: party.run for name, party in parties.items()}, views)
    scene = LinearScene(features, labels, views, tape, agreement, {}, _ledger(run))
    scene.parties = dict(parties)
    return scene


@dataclass
class TransferScene:
    """The transfer objective: B, and A with labels. The first `rows` people of A are the shared ones."""

    rows: int
    labels: Array
    """Of the shared rows."""
    views: dict[str, View]
    tape: Tape
    sides: dict[str, TransferSide]
    hidden: list[Array]
    """B's representation at the start of each round: the truth that A is after."""
    squares: list[Array]
    """A's Phi Phi' / 4 at the start of each round: the truth that B is after."""
    ledger: list[LedgerEntry] = field(default_factory=list)


def transfer_scene(
    scheme: str,
    keys: Keys,
    *,
    rows: int,
    width: int,
    rounds: int,
    local_steps: int = 1,
    more: int = 100,
    columns: tuple[int, int] = (15, 15),
    rate: float = 0.07,
    seed: int = 0,
    batch: int | None = None,
    wrap: Callable[[TransferSide], Any] = lambda side: side,
) -> TransferScene:
    """FTL as in the paper's Table 2: sigmoid, Adam, alignment 0.05 / h. `wrap` may alter what is opened."""
    joined, labels = generated(rows + more, sum(columns), seed)
    blocks = {"B": joined[:, columns[0] :], "A": joined[:, : columns[0]]}
    overlap, labelled = np.arange(rows), np.ones(rows, dtype=bool)
    sides = {
        name: TransferSide(
            HiddenLayer(block.shape[1], width, "sigmoid", seed=seed * 10 + index),
            block,
            overlap,
            labelled,
            labels if name == "A" else None,
            gamma=0.05 / width,
            l2=1e-5,
            activation_bound=64.0,
        )
        for index, (name, block) in enumerate(blocks.items())
    }
    wrapped = {name: wrap(side) for name, side in sides.items()}
    views = {name: View(name) for name in sides}
    agreement = Agreement(
        "transfer",
        scheme,
        tuple(Member(name, side.equations, False) for name, side in wrapped.items()),
        _algorithm(local_steps),
        Constant(rate),
        Batches(rows, batch, seed),
        Stopping(rounds),
        width=width,
        allow_determined=True,
    )
    scene = TransferScene(rows, labels[:rows], views, Tape([]), sides, [], [])

    class Noting(Watched):
        """Also keeps the truth, for the score."""

        def contribution(self) -> Array:
            if self.view.party == "A":
                scene.squares.append(0.25 * np.outer(sides["A"].phi(), sides["A"].phi()))
            else:
                scene.hidden.append(sides["B"].model.forward(sides["B"].features[:rows]))
            return super().contribution()

    watched: dict[str, Any] = {name: Noting(side, views[name]) for name, side in wrapped.items()}
    programs = {
        name: DataParty(agreement, side, Adam(), PartyContext(keys.holder(scheme, index))).run
        for index, (name, side) in enumerate(watched.items())
    }
    scene.tape, run = _record(programs, views)
    scene.ledger = _ledger(run)
    return scene


def _algorithm(local_steps: int) -> Algorithm:
    return FedBCD(local_steps) if local_steps > 1 else FedSGD()


def _record(programs: Mapping[str, Program], views: Mapping[str, View]) -> tuple[Tape, LocalRun]:
    tape = Tape(list(views.values()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LedgerWarning)  # crossing the line is what some scenes are for
        run = run_local(programs, run="attacked", kinds=KINDS, network=get_network("lan"), tap=tape)
    return tape, run


def _ledger(run: LocalRun) -> list[LedgerEntry]:
    found = {(e.party, e.block): e for outcome in run.outcomes.values() for e in outcome.ledger.entries}
    return sorted(found.values(), key=lambda e: (e.advisory, -e.ratio))
