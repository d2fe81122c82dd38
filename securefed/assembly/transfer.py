"""The transfer objective: two parties that share some people, of whom some have labels.

B has columns alone and comes first; A has the labels. See protocols.own_gradient.sides for the objective.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefed.assembly.base import Assembly, Model, Part, TrainingRows
from securefed.errors import DataError
from securefed.models import HiddenLayer, LinearModel
from securefed.models.local import with_ones
from securefed.protocols.agreement import Agreement, Member, encoded_bits
from securefed.protocols.blind.transfer import BlindTransferParty
from securefed.protocols.blind.transfer_algebra import WAVES, TransferRows, with_waves
from securefed.protocols.loop import PartyContext, PartyLoop
from securefed.protocols.own_gradient.sides import TransferScorer, TransferSide
from securefed.protocols.own_gradient.training import DataParty
from securefed.protocols.schedules import Automatic, Constant, as_learning_rate
from securefed.settings.objectives import TransferSettings

Array = NDArray[np.float64]
TRANSFER_RATE = 0.01
"""What learning_rate="auto" is for hidden layers: Adam's usual rate; they have no curvature to go by."""


class TransferAssembly(Assembly[TransferSettings]):
    """From TransferSettings to models, agreement, programs and shards."""

    settings_class = TransferSettings
    estimator = "transfer"
    needed = ("hidden", "activation", "activation_bound")
    rehearsed_rate = "auto"

    def model(self, name: str, columns: int, *, last: bool, index: int, seed: int | None = None) -> Model:
        settings = self.settings
        if settings.blind:
            return LinearModel(columns, bias=True)
        start = settings.seed * 1000 + index if seed is None else seed
        return HiddenLayer(columns, settings.hidden, settings.activation, seed=start)

    def columns(self, prepared: int) -> int:
        return prepared + WAVES if self.settings.blind else prepared

    def features(self, prepared: Array, untransformed: NDArray[np.intp] | None) -> Array:
        """Return the columns, with random features on top in a blind run."""
        if not self.settings.blind:
            return prepared
        return with_waves(prepared, np.arange(prepared.shape[1]) if untransformed is None else untransformed)

    def agreement(
        self, members: tuple[Member, ...], rows: int, outputs: int = 1, holdout: int = 0
    ) -> Agreement:
        """Return what both run by. `outputs`: classes, where there are more than two."""
        settings, overlap = self.settings, rows - holdout
        rate = as_learning_rate(settings.learning_rate)
        if isinstance(rate, Automatic):
            rate = Constant(1.0 if settings.blind else TRANSFER_RATE)
        more = [] if settings.blind else [("activation_bound", settings.option("activation_bound"))]
        return self.agreed(
            members,
            rate,
            settings.batches(overlap),
            holdout,
            width=outputs if settings.blind else settings.hidden,
            value_bits=0 if settings.blind else self._value_bits(overlap),
            details=(
                ("activation", settings.activation),
                ("gamma", settings.gamma),
                ("l2", settings.penalty(overlap)),
                *more,
            ),
        )

    def _value_bits(self, overlap: int) -> int:
        """Bits of the largest number that either party sends (TransferSide.fixed)."""
        u, gamma = self.settings.option("activation_bound"), self.settings.gamma
        return encoded_bits(2.0 * max(u * (0.5 + 2.0 * gamma), sqrt(overlap) * u * u, 1.0))

    def program(
        self, agreement: Agreement, name: str, model: Any, data: TrainingRows, context: PartyContext
    ) -> PartyLoop:
        """Return a party's program. The parties' other rows count too: their labels make Phi."""
        if self.settings.blind:
            return self.blind_party(agreement, data, context)
        return DataParty(agreement, self.side(model, data), self.settings.optimiser, context)

    def side(self, layer: HiddenLayer, data: TrainingRows) -> TransferSide:
        """Return one party's view of the objective with hidden layers."""
        settings = self.settings
        return TransferSide(
            layer,
            data.features,
            data.rows,
            data.labelled,
            data.targets,
            gamma=settings.gamma,
            l2=settings.l2,
            activation_bound=settings.option("activation_bound"),
        )

    def blind_party(
        self, agreement: Agreement, data: TrainingRows, context: PartyContext
    ) -> BlindTransferParty:
        """Return one party's blind program: linear maps over fixed features, which nobody sees.

        A is the party with labels.
        """
        is_a = data.targets is not None
        name = agreement.names[is_a]
        rows = TransferRows(with_ones(data.features), data.rows, data.labelled, data.targets)
        context = context.evaluating(lambda table: self._scored(table, label_party=is_a))
        context = context.guarding(name, data.features)
        return BlindTransferParty(agreement, rows, context, self.scheme)

    def load_scorer(self, public: Mapping[str, Any], arrays: dict[str, Any]) -> TransferScorer:
        phi = arrays.pop("phi", None)
        layer = HiddenLayer.from_arrays(arrays)
        if phi is not None:
            phi = np.asarray(phi, dtype=np.float64)
            if phi.shape != (layer.width,) or not np.isfinite(phi).all():
                raise DataError(f"Phi has shape {phi.shape}, ({layer.width},) of finite numbers is allowed")
        bound = self.settings.option("activation_bound") if layer.activation == "relu" else 1.0
        return TransferScorer(layer, phi, bound)

    def scored(
        self, part: Part, prepared: Array, untransformed: NDArray[np.intp] | None, *, last: bool
    ) -> Array:
        features = self.features(prepared, untransformed)
        return self._scored(features, label_party=last) if self.settings.blind else features

    @staticmethod
    def _scored(features: Array, *, label_party: bool) -> Array:
        """What stands for rows in a score: B's columns and ones; of A's nothing but their number."""
        return np.zeros((len(features), 1)) if label_party else with_ones(features)
