"""Credit-FTL with nothing revealed: parties as in TransferLearner(protection=Blind()), ready for the bench.

Features are those that a party without `transform` gets: splines and one-hot, fitted on its own people, and
random waves. A "plain" run makes the same steps on the same numbers in the clear, without parties: the rounds
that the hidden one has to take.

The bench sees both parties' shares, which nobody else does: their sum is the model. What B alone holds is
asked for the labels: least squares by B's columns on its share of c, and its share of the parameters as if
it were the model itself. The same two guesses with both shares, as if they had been opened, say how much
there is to be found.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from bench.emulation import plain_rounds
from bench.simulate import Finished, Look, OnLook, area, signs_of
from research.data.vertical import TransferData
from securefed import Party
from securefed.assembly import TransferAssembly
from securefed.assembly.base import TrainingRows
from securefed.assembly.transfer import CONSTANT
from securefed.crypto import shares
from securefed.crypto.shares import Share
from securefed.labels.base_model import transfer_targets
from securefed.models import LinearModel
from securefed.protocols.agreement import Member
from securefed.protocols.blind.linear import BlindParty
from securefed.protocols.blind.statistics import PRODUCT_BITS, VALUE_BITS
from securefed.protocols.loop import EvaluationRows, PartyContext
from securefed.protocols.steps import OwnSteps
from securefed.settings import TransferSettings
from securefed.transport.link import Program

Array = NDArray[np.float64]
DRAWS = 2000


class BlindTransferData:
    """Both parties' features, the shared people's row numbers, and labels as -1 and +1."""

    def __init__(self, data: TransferData, *, raw: bool = False) -> None:
        """`raw`: the columns as they are, without splines and waves. `counted`: B's columns in a penalty."""
        self.name, self.counted = data.name, data.b.features.shape[1]
        self.signs, self.test_signs = signs_of(data.a.labels), signs_of(data.held_out.labels)
        if raw:
            self.a, self.b, self.test = data.a.features, data.b.features, data.held_out.features
        else:
            self.a, _ = features_of("A", data.a.features)
            self.b, again = features_of("B", data.b.features)
            self.test = again(data.held_out.features)
        place = {value: row for row, value in enumerate(data.b.ids.tolist())}
        shared = [(row, place[value]) for row, value in enumerate(data.a.ids.tolist()) if value in place]
        self.rows_a, self.rows_b = (np.array(rows, dtype=np.intp) for rows in zip(*shared, strict=True))


def features_of(name: str, columns: Array) -> tuple[Array, Callable[[Array], Array]]:
    """What a party makes of its columns, and how it does so with others' rows."""
    assembly = TransferAssembly(TransferSettings())
    party, fitted = Party(name, columns, transform="auto").fitted()

    def again(rows: Array) -> Array:
        ready = Party(name, rows).transformed(fitted)
        return assembly.features(ready.features, fitted.untransformed)

    return assembly.features(party.features, fitted.untransformed), again


class Observer:
    """B, who would like to know the labels of the shared people."""

    def __init__(self, columns: Array, signs: Array) -> None:
        """`columns`: B's Z = X P^(1/2) of the shared people."""
        self._columns, self._positive = columns, signs > 0

    @cached_property
    def _by_labels(self) -> Array:
        found: Array = self._columns @ np.linalg.pinv(self._columns.T @ self._columns, hermitian=True)
        return found

    def guess(self, vectors: Array, parameters: Array) -> Array:
        """Each column's AUC of what c, or the parameters, say of the labels: the one farther from 1/2."""
        aucs = np.array([self._areas(self._by_labels @ vectors), self._areas(self._columns @ parameters)])
        found: Array = np.take_along_axis(aucs, np.abs(aucs - 0.5).argmax(axis=0)[None], axis=0)[0]
        return found

    def _areas(self, scores: Array) -> Array:
        ranks, ones = scores.argsort(axis=0).argsort(axis=0) + 1, int(self._positive.sum())
        won: Array = ranks[self._positive].sum(axis=0) - ones * (ones + 1) / 2
        return won / (ones * (len(scores) - ones))

    @cached_property
    def chance(self) -> float:
        """How far from 1/2 random numbers in the place of shares get, all but once in a thousand draws: B's
        columns say something of the labels, so a direction by chance does too.
        """
        told, maps = np.random.default_rng(0).uniform(-1, 1, (2, self._columns.shape[1], DRAWS))
        return float(np.quantile(np.abs(self.guess(told, maps) - 0.5), 0.999))


class BlindTransfer:
    """The parties of a blind run. `held_out`: the AUC is taken there, else on the shared people."""

    def __init__(
        self, assembly: TransferAssembly, data: BlindTransferData, *, held_out: bool, clear: bool
    ) -> None:
        """`clear`: there are no parties, and `finish` makes the steps."""
        self.assembly, self._data, self._held_out, self.clear = assembly, data, held_out, clear
        self.columns = {"B": data.b.shape[1], "A": 1}
        members = tuple(Member(name, size, True, data.counted) for name, size in self.columns.items())
        self.agreement = agreement = assembly.agreement(members, len(data.rows_a))
        loss = assembly.settings.loss_function
        pull = 8.0 * dict(agreement.details)["gamma"]
        self._targets = transfer_targets(data.a, data.signs, data.rows_a, pull / (1.0 + pull))
        self._shared = [data.b[data.rows_b], np.full((len(data.rows_a), 1), CONSTANT)]
        self._roots = [OwnSteps(agreement, loss, each, l2=agreement.l2).root() for each in self._shared]
        self._observer = Observer(self._shared[0] @ self._roots[0], data.signs[data.rows_a])
        self._parties: dict[str, BlindParty] = {}
        self._map: Array | None = None
        """B's parameters, in the clear."""

    def evaluation(self, name: str) -> EvaluationRows | None:
        if not self.agreement.evaluate_every:
            return None
        data = self._data
        features = data.test if self._held_out else data.b[data.rows_b]
        signs = data.test_signs if self._held_out else data.signs[data.rows_a]
        return EvaluationRows(features, (lambda scores: area(signs, scores)) if name == "A" else None)

    def program(self, name: str, context: PartyContext) -> Program:
        data = self._data
        tables = {"B": (data.b, None, data.rows_b), "A": (data.a, data.signs, data.rows_a)}
        features, signs, rows = tables[name]
        own = TrainingRows(features, signs, rows, np.ones(len(rows), dtype=np.bool_))
        party = self.assembly.program(self.agreement, name, LinearModel(1), own, context)
        if not isinstance(party, BlindParty):
            raise TypeError(f"{name}: not a blind party")
        self._parties[name] = party
        return party.run

    def programs(self, context: Callable[[str], PartyContext]) -> dict[str, Program]:
        return {name: self.program(name, context(name)) for name in self.agreement.names}

    def contribution(self) -> tuple[str, Any, Any] | None:
        """Nothing is sent as a contribution."""
        return None

    def look(self) -> Look:
        """AUC on the people held out and on those shared, from both parties' shares."""
        data, found, theta = self._data, dict[str, float](), self._map
        if theta is None:
            size, both = self.columns["B"], [self._parties[name] for name in "BA"]
            c = [each._vectors[0][:, :size] for each in both]
            phi = [each._phi[:, :size] for each in both]
            opened = _opened(PRODUCT_BITS, *c), _opened(VALUE_BITS, *phi)
            own = _opened(PRODUCT_BITS, c[0]), _opened(VALUE_BITS, phi[0])
            # A share that counts from below 0 has a mean that says nothing.
            own = own[0] - own[0].mean(), own[1] - own[1].mean()
            found = {
                "label_inference_auc": float(self._observer.guess(*own)[0]),
                "label_inference_if_opened": float(self._observer.guess(*opened)[0]),
                "label_inference_chance": self._observer.chance,
            }
            theta = self._roots[0] @ opened[1]
        return {
            "held_out_auc": float(roc_auc_score(data.test_signs, data.test @ theta[:, 0])),
            "overlap_auc": area(data.signs[data.rows_a], data.b[data.rows_b] @ theta[:, 0]),
            **found,
        }

    def finish(self, on_look: OnLook | None) -> Finished:
        """The same steps in the clear."""
        settings, agreement = self.assembly.settings, self.agreement
        rounds = plain_rounds(agreement, self._shared, self._targets, settings.loss_function, self._roots)
        points: list[Look] = []
        metric, reason = "held_out_auc" if self._held_out else "overlap_auc", "rounds"
        for t, theta in enumerate(rounds):
            self._map = theta[: self.columns["B"]]
            points.append(self.look())
            if on_look is not None:
                on_look(t, points[-1])
            if settings.monitoring.target is not None and points[-1][metric] >= settings.monitoring.target:
                reason = "target"
                break
        return Finished(agreement, {}, points, reason, [], 0)


def _opened(bits: int, *held: Share) -> Array:
    """The number that these shares add up to; of one share alone, what its holder reads."""
    return shares.to_floats(shares.add(*held) if len(held) > 1 else held[0], bits)
