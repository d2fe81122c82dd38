"""A training run of the bench: parties from a assembly, in this process, with a look inside after each round.

The same recipes and programs as in `securefed.api`; besides, the bench chooses the timer, keeps the
parties' events, and reads what no party of a real run would see together: all parameters after each round,
for the loss and for the AUC on people whom nobody asked about.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from research.attacks.transfer import labels_by_fitting, layers
from research.attacks.views import View, Watched
from research.data.vertical import TransferData, VerticalData
from securefed.assembly import LinearAssembly, TransferAssembly
from securefed.assembly.base import KEY_HOLDER, TrainingRows
from securefed.crypto import KeyHolder, Mapper, generate, key_kind, protects
from securefed.engine import get_engine
from securefed.models import HiddenLayer, LocalModel
from securefed.protocols.agreement import Agreement
from securefed.protocols.loop import EvaluationRows, Outcome, PartyContext, Round
from securefed.protocols.messages import KINDS
from securefed.protocols.own_gradient.ledger import LedgerEntry, LedgerWarning
from securefed.protocols.own_gradient.sides import TransferSide
from securefed.protocols.own_gradient.training import DataParty
from securefed.protocols.scoring.score_ledger import ScoreGuard
from securefed.transport.link import Link, LocalRun, Program, run_local
from securefed.transport.message import get_network

Array = NDArray[np.float64]
Look = dict[str, float]
OnLook = Callable[[int, Look], None]
TIED = 2.0**-22
"""Scores this near to each other are the same. CKKS opens them with an error of about 2**-25, which would
break the ties of people who have the same columns, each way once in two, and move an AUC of 100 people.
"""


OPENINGS = 40
"""As many of B's openings as are fitted to: more find no fewer labels, and take longer."""


@dataclass(frozen=True)
class Simulation:
    """How a run is made: keys, workers a party, and what a second is.

    With one worker, time is the processor's (a neighbour on the machine does not count); a pool of processes
    can only be measured by the wall.
    """

    key_bits: int = 2048
    workers: int = 1

    @property
    def timer(self) -> Callable[[], float]:
        return time.process_time if self.workers == 1 else time.perf_counter


@dataclass(frozen=True)
class Finished:
    """What a run left."""

    agreement: Agreement
    links: Mapping[str, Link]
    points: list[Look]
    """After each round: `auc` as the label party learnt it, and what the bench looked up."""
    reason: str
    ledger: list[LedgerEntry]
    ciphertexts: int
    """Of one contribution."""


class Transfer:
    """Parties of the transfer objective, ready to run. `held_out`: the AUC is taken there, and not on the
    people that the parties share.
    """

    def __init__(self, assembly: TransferAssembly, data: TransferData, *, held_out: bool) -> None:
        self.assembly, self._data, self._held_out = assembly, data, held_out
        a, b = data.a, data.b
        signs = signs_of(a.labels)
        place_b = {value: row for row, value in enumerate(b.ids.tolist())}
        shared = [(row, place_b[value]) for row, value in enumerate(a.ids.tolist()) if value in place_b]
        rows_a, rows_b = (np.array(rows, dtype=np.intp) for rows in zip(*shared, strict=True))
        layers: Any = {
            "B": assembly.model("B", len(b.columns), last=False, index=0),
            "A": assembly.model("A", len(a.columns), last=True, index=1),
        }
        labelled = np.ones(len(shared), dtype=bool)
        self.sides = {
            "B": assembly.side(layers["B"], TrainingRows(b.features, None, rows_b, labelled)),
            "A": assembly.side(layers["A"], TrainingRows(a.features, signs, rows_a, labelled)),
        }
        self.layers: dict[str, HiddenLayer] = layers
        members = tuple(assembly.member(name, layer) for name, layer in layers.items())
        self.agreement = assembly.agreement(members, len(shared))
        self._shared = (b.features[rows_b], signs[rows_a], a.features[rows_a])
        self._tests = (data.held_out.features, signs_of(data.held_out.labels))
        self._view = View("B")

    @property
    def columns(self) -> dict[str, int]:
        return {name: layer.columns for name, layer in self.layers.items()}

    def evaluation(self, name: str) -> EvaluationRows | None:
        if not self.agreement.evaluate_every:
            return None
        features, signs = self._tests if self._held_out else self._shared[:2]
        return EvaluationRows(None, _auc(signs)) if name == "A" else EvaluationRows(features)

    def program(self, name: str, context: PartyContext) -> Program:
        side: Any = self.sides[name]
        if name == "B" and protects(self.agreement.scheme):  # a plain side takes its sums without multipliers
            side = Watched(side, self._view, sums_only=True)
        return DataParty(self.agreement, side, self.assembly.settings.optimiser, context).run

    def programs(self, context: Callable[[str], PartyContext]) -> dict[str, Program]:
        return {name: self.program(name, context(name)) for name in self.agreement.names}

    def inferred(self) -> float | None:
        """The AUC of the labels that B finds by fitting them to what was opened to it, either sign; None
        where nothing was (a plain run shows A's numbers as they are).
        """
        opened = self._view.opened[:OPENINGS]
        if not opened or not protects(self.agreement.scheme):
            return None
        features, signs, _ = self._shared
        found = labels_by_fitting(
            layers(opened, self.layers["B"], features), len(features), restarts=0, iterations=30
        )
        reached = float(roc_auc_score(signs, found.values))
        return max(reached, 1.0 - reached)

    def contribution(self) -> tuple[str, Any, Any]:
        return "B", self.sides["B"].contribution(), self.sides["B"].fixed()

    def look(self) -> Look:
        """AUC on the people held out and on those shared, and the loss, from both parties' parameters."""
        side: TransferSide = self.sides["A"]
        phi, layer = side.phi(), self.layers["B"]
        features, signs = self._tests
        shared_b, labels, shared_a = self._shared
        hidden = layer.forward(shared_b)
        scores = hidden @ phi
        distance = np.sum((hidden - self.layers["A"].forward(shared_a)) ** 2, axis=1)
        loss = np.log(2.0) - labels * scores / 2 + scores**2 / 8 + self.assembly.settings.gamma * distance
        return {
            "held_out_auc": float(roc_auc_score(signs, layer.forward(features) @ phi)),
            "overlap_auc": area(labels, scores),
            "loss": float(np.mean(loss)),
        }


class Linear:
    """Parties of the generalised linear objective, ready to run; the AUC is taken on `test`."""

    def __init__(
        self,
        assembly: LinearAssembly,
        train: VerticalData,
        test: VerticalData,
        models: Mapping[str, LocalModel] | None = None,
    ) -> None:
        """`models`: the parties' own, where the assembly's words do not say them."""
        self.assembly, self._train, self._test = assembly, train, test
        parties = train.parties()
        self._columns = {party.name: party.features for party in parties}
        self._signs, self._test_signs = signs_of(train.labels), signs_of(test.labels)
        last = train.label_party
        self.models: dict[str, LocalModel] = dict(models or {}) or {
            party.name: assembly.model(party.name, len(party.columns), last=party.name == last, index=index)
            for index, party in enumerate(parties)
        }
        members = tuple(assembly.member(name, model) for name, model in self.models.items())
        self.agreement = assembly.agreement(members, train.rows)

    @property
    def columns(self) -> dict[str, int]:
        return {name: features.shape[1] for name, features in self._columns.items()}

    def evaluation(self, name: str) -> EvaluationRows | None:
        if not self.agreement.evaluate_every:
            return None
        metric = _auc(self._test_signs) if name == self.agreement.label_party else None
        return EvaluationRows(self._test.parts[name], metric)

    def program(self, name: str, context: PartyContext) -> Program:
        if name == KEY_HOLDER:
            return self.assembly.key_holder(self.agreement, context).run
        targets = self._signs if name == self.agreement.label_party else None
        data = TrainingRows.whole(self._columns[name], targets)
        return self.assembly.program(self.agreement, name, self.models[name], data, context).run

    def programs(self, context: Callable[[str], PartyContext]) -> dict[str, Program]:
        names = [*self.agreement.names, *([] if self.agreement.mutual else [KEY_HOLDER])]
        return {name: self.program(name, context(name)) for name in names}

    def contribution(self) -> tuple[str, Any, Any]:
        from securefed.protocols.own_gradient.sides import LinearSide

        name = self.agreement.names[0]
        side = LinearSide(
            self.models[name],
            self._columns[name][self.agreement.batches.batch(0)],
            None,
            self.assembly.settings.loss_function,
            l2=self.agreement.l2,
            exact=self.assembly.settings.exact,
            margin_bound=self.assembly.settings.option("margin_bound"),
        )
        return name, side.contribution(), side.fixed()

    def look(self) -> Look:
        """The loss over all training rows, and the AUC on the test rows."""
        margins = sum(model.forward(self._columns[name]) for name, model in self.models.items())
        scores = sum(model.forward(self._test.parts[name]) for name, model in self.models.items())
        return {
            "loss": float(np.mean(np.logaddexp(0.0, -self._signs * np.asarray(margins)))),
            "test_auc": float(roc_auc_score(self._test_signs, np.asarray(scores))),
        }


class Task(Protocol):
    """Parties, ready to run."""

    @property
    def assembly(self) -> LinearAssembly | TransferAssembly: ...

    @property
    def agreement(self) -> Agreement: ...

    @property
    def columns(self) -> dict[str, int]: ...

    def evaluation(self, name: str) -> EvaluationRows | None: ...

    def program(self, name: str, context: PartyContext) -> Program: ...

    def programs(self, context: Callable[[str], PartyContext]) -> dict[str, Program]: ...

    def contribution(self) -> tuple[str, Any, Any] | None:
        """Who sends the first, and what: to count ciphertexts."""
        ...

    def look(self) -> Look: ...


def finish(
    task: Task, simulation: Simulation, on_look: OnLook | None = None, *, look: bool = True
) -> Finished:
    """Run the parties to the end. `look`: read their parameters after each round."""
    agreement = task.agreement
    points: list[Look] = []
    # Of a blind model both parties' shares are looked at, so both have to be through with the round.
    tellers = agreement.names if agreement.reveal == "nothing" else (agreement.label_party,)
    told: dict[int, list[float | None]] = {}

    def on_round(state: Round) -> None:
        told.setdefault(state.number, []).append(state.metric)
        if len(told[state.number]) < len(tellers):
            return
        metrics = [metric for metric in told[state.number] if metric is not None]
        point = {"auc": metrics[0]} if metrics else {}
        if look:
            with state.link.off_the_clock("evaluation"):
                point |= task.look()
        points.append(point)
        if on_look is not None:
            on_look(state.number, point)

    names = agreement.names if agreement.mutual else [str(agreement.key_holder)]
    kind = key_kind(agreement.scheme, agreement.reveal)
    # Blind runs make keys of their own.
    holders = {name: generate(kind, key_bits=simulation.key_bits) for name in names if kind is not None}

    def context(name: str, mapper: Mapper) -> PartyContext:
        tell = on_round if name in tellers else None
        evaluation = task.evaluation(name) if name in agreement.names else None
        # Public data, looked at in every round: nobody keeps a ledger of it.
        return PartyContext(holders.get(name), mapper, evaluation, tell, ScoreGuard(party=name, mode="off"))

    with get_engine(simulation.workers, agreement.scheme) as mapper, warnings.catch_warnings():
        warnings.simplefilter("ignore", LedgerWarning)  # the table says what the ledger found
        run = run_local(
            task.programs(lambda name: context(name, mapper)),
            run="bench",
            kinds=KINDS,
            # Any will do: what the run takes on a network is told from its events (bench.replay).
            network=get_network("lan"),
            timer=simulation.timer,
        )
    inferred = task.inferred() if isinstance(task, Transfer) and look else None
    if inferred is not None and points:
        points[-1]["label_inference_auc"] = inferred
    return Finished(
        agreement,
        run.links,
        points,
        run.outcomes[agreement.label_party].reason,
        _ledger(run),
        _ciphertexts(task, holders),
    )


def _ciphertexts(task: Task, holders: Mapping[str, KeyHolder]) -> int:
    sent = task.contribution()
    if sent is None:
        return 0
    name, values, fixed = sent
    holder = holders.get(name) or holders[KEY_HOLDER]
    return holder.encrypt(values, fixed).ciphertexts


def _ledger(run: LocalRun) -> list[LedgerEntry]:
    outcomes: dict[str, Outcome] = run.outcomes
    entries = {(e.party, e.block): e for o in outcomes.values() for e in o.ledger.entries}
    return sorted(entries.values(), key=lambda e: (e.advisory, -e.ratio))


def signs_of(labels: NDArray[np.int64] | None) -> Array:
    """-1 and +1."""
    if labels is None:
        raise ValueError("labels: none given")
    return np.where(labels > 0, 1.0, -1.0)


def area(signs: Array, scores: Array) -> float:
    """The AUC; neighbours by score that are TIED count as equal."""
    order = np.argsort(scores)
    levels = np.empty(len(scores))
    levels[order] = np.cumsum(np.diff(scores[order], prepend=scores[order[0]]) > TIED)
    return float(roc_auc_score(signs, levels))


def _auc(signs: Array) -> Callable[[Array], float]:
    return lambda scores: area(signs, scores)
