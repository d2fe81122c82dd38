"""An objective from outside the package: least squares in which rows weigh less the later they come, by
weights that all parties know.

    mean over i of w_i (H_i - y_i)^2 / 2,  H_i = sum_k x_i^k . theta^k,  w_i = 2^(-i / half_life)

A party contributes w_i H_i^k (the label party less w_i y_i), the sum of all is the weighted residual, and a
gradient is its product with the party's columns. Like the package's linear objective, a party opens sums of
residuals over the rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefed import OwnGradient
from securefed.api.federated import Federated, parameters
from securefed.assembly import Assembly, register
from securefed.assembly.base import Model, TrainingRows
from securefed.crypto import FixedPoint
from securefed.declare import number, setting
from securefed.models import LinearModel
from securefed.protocols.agreement import Agreement, Member, Objective, encoded_bits
from securefed.protocols.loop import PartyContext, PartyLoop
from securefed.protocols.losses import Loss, get_loss
from securefed.protocols.own_gradient.sides import LinearScorer, Side
from securefed.protocols.own_gradient.training import DataParty
from securefed.protocols.schedules import as_learning_rate
from securefed.settings import ObjectiveSettings, Protection
from securefed.settings.protection import check_protection

Array = NDArray[np.float64]
BOUND = 64.0

WEIGHTED = Objective(
    opened_by_label_party="weighted residuals of a batch",
    opened_by_others="weighted residuals of a batch",
    unknowns=lambda rows, columns: rows,
)


class WeightedSide(Side):
    """One party of it: what securefed.protocols.own_gradient.sides.Side asks for."""

    is_linear = True

    def __init__(self, model: Any, features: Array, weights: Array, labels: Array | None) -> None:
        self.model = model
        self._features, self._weights, self._labels = features, weights, labels
        self.begin(np.arange(len(features)))

    def begin(self, batch: NDArray[np.intp]) -> None:
        self._rows, self._w = self._features[batch], self._weights[batch]
        self._y = None if self._labels is None else self._labels[batch]
        self._start = self.model.forward(self._rows)

    def contribution(self) -> Array:
        self._start = self.model.forward(self._rows)
        return self._part(self._start)

    def _part(self, margins: Array) -> Array:
        return self._w * (margins if self._y is None else margins - self._y)

    def fixed(self) -> FixedPoint:
        return FixedPoint(BOUND, 32)

    def peer_shape(self) -> tuple[int, ...]:
        return (len(self._rows),)

    def multipliers(self) -> Array:
        return self._rows.T[None]

    def gradient(self, sums: Array, included: bool) -> Array:
        now = self.model.forward(self._rows)
        own = self._w * (now - self._start) if included else self._part(now)
        return np.asarray((sums + self._rows.T @ own) / len(self._rows))

    def exact_gradient(self, others: Array, included: bool) -> Array:
        return self.gradient(self._rows.T @ others, included)

    def scorer(self) -> LinearScorer:
        return LinearScorer(self.model, BOUND)


@dataclass(frozen=True, kw_only=True, repr=False)
class WeightedSettings(ObjectiveSettings):
    """Its settings: what all objectives have, and one of its own."""

    objective = "weighted"

    protection: Protection = setting(OwnGradient(), check_protection, "OwnGradient(...) or Plain(...).")
    learning_rate: Any = setting(0.2, number(above=0.0), "The learning rate.")
    half_life: float = setting(100.0, number(above=0.0), "After so many rows a row weighs half.")

    @property
    def loss_function(self) -> Loss:
        return get_loss("linear")


class WeightedAssembly(Assembly[WeightedSettings]):
    """What a run is made of."""

    settings_class = WeightedSettings
    estimator = "weighted"

    def model(
        self, name: str, columns: int, *, last: bool, index: int, seed: int | None = None
    ) -> LinearModel:
        return LinearModel(columns, bias=False)

    def agreement(
        self, members: tuple[Member, ...], rows: int, outputs: int = 1, holdout: int = 0
    ) -> Agreement:
        settings = self.settings
        return self.agreed(
            members,
            as_learning_rate(settings.learning_rate),
            settings.batches(rows - holdout),
            holdout,
            value_bits=encoded_bits(BOUND),
            details=(("half_life", settings.half_life),),
        )

    def program(
        self, agreement: Agreement, name: str, model: Model, data: TrainingRows, context: PartyContext
    ) -> DataParty:
        weights = 0.5 ** (np.arange(len(data.rows)) / self.settings.half_life)
        targets = None if data.targets is None else data.targets[data.rows]
        side = WeightedSide(model, data.features[data.rows], weights, targets)
        return DataParty(agreement, side, self.settings.optimiser, context.guarding(name, data.features))

    def part(self, program: PartyLoop) -> LinearScorer:
        return LinearScorer(program.side.model, BOUND)  # type: ignore[attr-defined]

    def facts(self) -> dict[str, Any]:
        return {"half_life": self.settings.half_life}

    def load_scorer(self, public: Mapping[str, Any], arrays: dict[str, Any]) -> LinearScorer:
        return LinearScorer(LinearModel.from_arrays(arrays), BOUND)


class WeightedLeastSquares(Federated):
    """Least squares in which rows weigh less the later they come."""

    assembly = WeightedAssembly

    @parameters(WeightedSettings)
    def __init__(self, *first: Any, **named: Any) -> None:
        super().__init__(*first, **named)


register(WeightedAssembly, WEIGHTED)
