"""An objective from outside the package: least squares in which rows weigh less the later they come, by
weights that all parties know.

    mean over i of w_i (H_i - y_i)^2 / 2,  H_i = sum_k x_i^k . theta^k,  w_i = 2^(-i / half_life)

A party contributes w_i H_i^k (the label party less w_i y_i), the sum of all is the weighted residual, and a
gradient is its product with the party's columns. Like the package's linear objective, a party opens sums of
residuals over the rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from securefed.assembly import ObjectiveKit, Trained
from securefed.assembly.kit import Model
from securefed.assembly.recipe import PartyContext, Recipe
from securefed.checks import check_number
from securefed.crypto import FixedPoint
from securefed.models import LinearModel
from securefed.protocols.agreement import Agreement, Member, encoded_bits
from securefed.protocols.losses import Loss, get_loss
from securefed.protocols.objectives import Objective
from securefed.protocols.optimisers import get_optimiser
from securefed.protocols.own_gradient.training import DataParty
from securefed.protocols.schedules import as_learning_rate
from securefed.protocols.scoring.scorers import LinearScorer

Array = NDArray[np.float64]
BOUND = 64.0

WEIGHTED = Objective(
    opened_by_label_party="weighted residuals of a batch",
    opened_by_others="weighted residuals of a batch",
    unknowns=lambda rows, columns: rows,
)


class WeightedSide:
    """One party of it: what securefed.protocols.own_gradient.sides.Side asks for."""

    is_linear, exact = True, False

    def __init__(self, features: Array, weights: Array, labels: Array | None) -> None:
        self.model = LinearModel(features.shape[1], bias=False)
        self._features, self._weights, self._labels = features, weights, labels
        self.begin(np.arange(len(features)))

    @property
    def parameters(self) -> Array:
        return self.model.parameters

    @parameters.setter
    def parameters(self, values: Array) -> None:
        self.model.parameters = values

    @property
    def equations(self) -> int:
        return self.model.size

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


@dataclass(frozen=True, kw_only=True)
class WeightedRecipe(Recipe):
    """Its settings: what all have, and one of its own."""

    objective: ClassVar[str] = "weighted"

    learning_rate: Any = 0.2
    half_life: float = 100.0
    margin_bound: float = BOUND

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("half_life", self.half_life, above=0.0)

    @property
    def loss_function(self) -> Loss:
        return get_loss("linear")


class WeightedKit(ObjectiveKit[WeightedRecipe]):
    """What a run is made of."""

    recipe_class = WeightedRecipe
    estimator = "weighted"

    def model(
        self, name: str, columns: int, *, last: bool, index: int, seed: int | None = None
    ) -> LinearModel:
        return LinearModel(columns, bias=False)

    def agreement(self, members: tuple[Member, ...], rows: int, outputs: int = 1, held: int = 0) -> Agreement:
        recipe = self.recipe
        return Agreement(
            recipe.objective,
            recipe.scheme,
            members,
            recipe.algorithm,
            as_learning_rate(recipe.learning_rate),
            recipe.batches(rows - held),
            recipe.stopping(),
            allow_determined=recipe.allow_determined,
            value_bits=encoded_bits(BOUND),
            details=(("half_life", recipe.half_life),),
        )

    def program(
        self,
        agreement: Agreement,
        name: str,
        model: Model,
        features: Array,
        targets: Array | None,
        rows: NDArray[np.intp],
        labelled: NDArray[np.bool_],
        context: PartyContext,
    ) -> DataParty:
        weights = 0.5 ** (np.arange(len(rows)) / self.recipe.half_life)
        side = WeightedSide(features[rows], weights, None if targets is None else targets[rows])
        return DataParty(
            agreement,
            side,
            get_optimiser(self.recipe.optimiser),
            context.guarding(name, features),
        )

    def save(self, agreement: Agreement, trained: Trained) -> tuple[dict[str, Any], dict[str, Any]]:
        trained.model.parameters = trained.program.side.parameters  # type: ignore[attr-defined]
        return {}, dict(trained.model.to_arrays())

    def load(
        self, public: Mapping[str, Any], arrays: dict[str, Any], parties: Sequence[str], outputs: int = 1
    ) -> LinearScorer:
        return LinearScorer(LinearModel.from_arrays(arrays), BOUND)
