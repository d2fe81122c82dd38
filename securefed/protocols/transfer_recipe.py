"""The recipe of the transfer objective: see securefed.protocols.recipe and securefed.protocols.transfer."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from securefed.checks import check_choice, check_integer, check_number
from securefed.models import ACTIVATIONS, HiddenLayer
from securefed.protocols.agreement import Agreement, Member, encoded_bits
from securefed.protocols.optimisers import get_optimiser
from securefed.protocols.recipe import Recipe, Surroundings
from securefed.protocols.schedules import as_learning_rate
from securefed.protocols.scorers import TransferScorer
from securefed.protocols.training import DataParty
from securefed.protocols.transfer import TransferSide

__all__ = ["TransferRecipe"]

Array = NDArray[np.float64]
TRANSFER_RATE = 0.01
"""What learning_rate="auto" is here: Adam's usual one; hidden layers have no curvature to go by."""


@dataclass(frozen=True, kw_only=True)
class TransferRecipe(Recipe):
    """Federated transfer learning between two parties."""

    hidden: int = 32
    activation: str = "sigmoid"
    gamma: float = 0.05 / 32
    activation_bound: float = 64.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("hidden", self.hidden, least=1, most=4096)
        check_choice("activation", self.activation, ACTIVATIONS)
        check_number("gamma", self.gamma, least=0.0)
        check_number("activation_bound", self.activation_bound, above=0.0)

    def layer(self, columns: int, index: int) -> HiddenLayer:
        """A party's hidden layer before training; index 0 is B, 1 is A."""
        return HiddenLayer(columns, self.hidden, self.activation, seed=self.seed * 1000 + index)

    def member(self, name: str, layer: HiddenLayer) -> Member:
        return Member(name, layer.size, False)

    def agreement(self, members: tuple[Member, ...], overlap: int) -> Agreement:
        """B first, then A, which has the labels."""
        rate = as_learning_rate(TRANSFER_RATE if self.learning_rate == "auto" else self.learning_rate)
        return Agreement(
            objective="transfer",
            scheme=self.scheme,
            members=members,
            algorithm=self.algorithm,
            learning_rate=rate,
            batches=self.batches(overlap),
            stopping=self.stopping(),
            columns=self.hidden,
            evaluate_every=self.evaluations(),
            score_precision=self.score_precision,
            allow_determined=self.allow_determined,
            value_bits=self._value_bits(overlap),
            details=(
                ("activation", self.activation),
                ("gamma", self.gamma),
                ("l2", self.l2),
                ("activation_bound", self.activation_bound),
            ),
        )

    def _value_bits(self, overlap: int) -> int:
        """Of the largest number that either party sends (TransferSide.fixed)."""
        u = self.activation_bound
        return encoded_bits(2.0 * max(u * (0.5 + 2.0 * self.gamma), sqrt(overlap) * u * u, 1.0))

    def side(
        self,
        layer: HiddenLayer,
        features: Array,
        overlap: NDArray[np.intp],
        labelled: NDArray[np.bool_],
        labels: Array | None,
    ) -> TransferSide:
        return TransferSide(
            layer,
            features,
            overlap,
            labelled,
            labels,
            gamma=self.gamma,
            l2=self.l2,
            activation_bound=self.activation_bound,
        )

    def party(self, agreement: Agreement, side: TransferSide, around: Surroundings) -> DataParty:
        """One party's program."""
        return DataParty(
            agreement,
            side,
            get_optimiser(self.optimiser),
            holder=around.holder,
            evaluation=around.evaluation,
            mapper=around.mapper,
            on_round=around.on_round,
            guard=around.guard,
        )

    def scorer(
        self, layer: HiddenLayer, phi: Array | None, sealed: dict[bytes, bytes] | None = None
    ) -> TransferScorer:
        bound = self.activation_bound if layer.activation == "relu" else 1.0
        return TransferScorer(layer, phi, bound, sealed={} if sealed is None else sealed)
