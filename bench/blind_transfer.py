"""Credit-FTL with nothing revealed: parties as in TransferLearner(protection=Blind()), ready for the bench.

Features are those that a party without `transform` gets: splines and one-hot, fitted on its own people, and
random waves. A "plain" run makes the same steps on the same numbers in the clear, without parties: the rounds
that the hidden one has to take.

The bench sees both parties' shares, which nobody else does: their sum is the model. What B alone holds is
asked for the labels: least squares by B's columns on its share of c = F_B'(w y)/n, and its share of W_B as if
it were the map itself. The same two guesses with both shares, as if c and W_B had been opened, say how much
there is to be found.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from bench.simulate import Finished, Look, OnLook, area, signs_of
from research.data.vertical import TransferData
from research.transfer_plain import PlainTransfer
from securefed import Party
from securefed.assembly import TransferAssembly
from securefed.assembly.base import TrainingRows
from securefed.crypto import shares
from securefed.crypto.shares import Share
from securefed.models.local import with_ones
from securefed.protocols.agreement import Member
from securefed.protocols.blind.statistics import VALUE_BITS
from securefed.protocols.blind.transfer import BlindTransferParty, transfer_plan
from securefed.protocols.blind.transfer_algebra import TransferRows, with_waves
from securefed.protocols.loop import EvaluationRows, PartyContext
from securefed.transport import Program

Array = NDArray[np.float64]
DRAWS = 2000


class BlindTransferData:
    """Both parties' features, the shared people's row numbers, and labels as -1 and +1."""

    def __init__(self, data: TransferData, *, raw: bool = False) -> None:
        """`raw`: the columns as they are, without splines and waves."""
        self.name = data.name
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
    party, fitted = Party(name, columns, transform="auto").fitted()

    def again(rows: Array) -> Array:
        ready = Party(name, rows).transformed(fitted)
        return with_waves(ready.features, fitted.untransformed)

    return with_waves(party.features, fitted.untransformed), again


class Observer:
    """B, who would like to know the labels of the shared people."""

    def __init__(self, rows: TransferRows, signs: Array) -> None:
        self._rows, self._positive = rows, signs > 0

    @cached_property
    def _by_labels(self) -> Array:
        found: Array = self._rows.shared @ np.linalg.pinv(self._rows.labelled_gram, hermitian=True)
        return found

    def guess(self, told: Array, maps: Array) -> Array:
        """Each column's AUC of what c, or B's map, says of the labels: the one farther from 1/2."""
        aucs = np.array([self._areas(self._by_labels @ told), self._areas(self._rows.shared @ maps)])
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
        told, maps = np.random.default_rng(0).uniform(-1, 1, (2, self._rows.features.shape[1], DRAWS))
        return float(np.quantile(np.abs(self.guess(told, maps) - 0.5), 0.999))


class BlindTransfer:
    """The parties of a blind run. `held_out`: the AUC is taken there, else on the shared people."""

    def __init__(
        self, assembly: TransferAssembly, data: BlindTransferData, *, held_out: bool, clear: bool
    ) -> None:
        """`clear`: there are no parties, and `finish` makes the steps."""
        self.assembly, self._data, self._held_out, self.clear = assembly, data, held_out, clear
        self.columns = {"B": data.b.shape[1], "A": data.a.shape[1]}
        members = tuple(Member(name, size + 1, True) for name, size in self.columns.items())
        self.agreement = assembly.agreement(members, len(data.rows_a))
        self._labelled = np.ones(len(data.rows_a), dtype=bool)
        self._rows = {
            "A": TransferRows(with_ones(data.a), data.rows_a, self._labelled, data.signs),
            "B": TransferRows(with_ones(data.b), data.rows_b, self._labelled, None),
        }
        self._observer = Observer(self._rows["B"], data.signs[data.rows_a])
        self._parties: dict[str, BlindTransferParty] = {}
        self._maps: tuple[Array, Array] | None = None

    def evaluation(self, name: str) -> EvaluationRows | None:
        if not self.agreement.evaluate_every:
            return None
        data = self._data
        features = data.test if self._held_out else data.b[data.rows_b]
        signs = data.test_signs if self._held_out else data.signs[data.rows_a]
        return EvaluationRows(features, (lambda scores: area(signs, scores)) if name == "A" else None)

    def program(self, name: str, context: PartyContext) -> Program:
        data = self._data
        given = (data.b, data.rows_b, None) if name == "B" else (data.a, data.rows_a, data.signs)
        features, rows, signs = given
        own = TrainingRows(features, signs, rows, self._labelled)
        party = self.assembly.blind_party(self.agreement, own, context)
        self._parties[name] = party
        return party.run

    def programs(self, context: Callable[[str], PartyContext]) -> dict[str, Program]:
        return {name: self.program(name, context(name)) for name in self.agreement.names}

    def contribution(self) -> tuple[str, Any, Any] | None:
        """Nothing is sent as a contribution."""
        return None

    def look(self) -> Look:
        """AUC on the people held out and on those shared, from both parties' shares."""
        data, found = self._data, dict[str, float]()
        if self._maps is None:
            a, b = self._parties["A"], self._parties["B"]
            w_a, w_b = _opened(a.maps.a, b.maps.a), _opened(a.maps.b, b.maps.b)
            # A share that counts from below 0 has a mean that says nothing.
            told, maps = (held - held.mean() for held in (_opened(b._labels), _opened(b.maps.b)))
            found = {
                "label_inference_auc": float(self._observer.guess(told, maps)[0]),
                "label_inference_if_opened": float(
                    self._observer.guess(_opened(a._labels, b._labels), w_b)[0]
                ),
                "label_inference_chance": self._observer.chance,
            }
        else:
            w_a, w_b = self._maps
        v = w_b @ (w_a.T @ self._rows["A"].pull)[:, 0]
        return {
            "held_out_auc": float(roc_auc_score(data.test_signs, with_ones(data.test) @ v)),
            "overlap_auc": area(data.signs[data.rows_a], with_ones(data.b[data.rows_b]) @ v),
            **found,
        }

    def finish(self, on_look: OnLook | None) -> Finished:
        """The same steps in the clear."""
        assembly, agreement = self.assembly, self.agreement
        run = PlainTransfer(transfer_plan(agreement), self._rows["A"], self._rows["B"])
        points: list[Look] = []
        metric, reason = "held_out_auc" if self._held_out else "overlap_auc", "rounds"
        for t in range(agreement.stopping.rounds):
            run.round()
            self._maps = run.w_a, run.w_b
            points.append(self.look())
            if on_look is not None:
                on_look(t, points[-1])
            if (
                assembly.settings.monitoring.target is not None
                and points[-1][metric] >= assembly.settings.monitoring.target
            ):
                reason = "target"
                break
        return Finished(agreement, {}, points, reason, [], 0)


def _opened(*held: Share) -> Array:
    """The number that these shares add up to; of one share alone, what its holder reads."""
    return shares.to_floats(shares.add(*held) if len(held) > 1 else held[0], VALUE_BITS)
