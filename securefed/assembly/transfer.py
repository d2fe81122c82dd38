"""The transfer objective: two parties that share some people, of whom some have labels.

B has columns alone and comes first; A has the labels. protocols.own_gradient.sides has the objective with
hidden layers.

A blind run is linear training of the shared people (protocols.blind.linear): of B's columns, and of a column
of ones that A brings. What it fits is A's own business: labels, and what A's columns say of the same people
(labels.base_model.transfer_targets). A score needs B's columns alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefed.assembly.base import AnyPart, Array, Assembly, Model, TrainingRows
from securefed.errors import DataError
from securefed.labels.base_model import transfer_targets
from securefed.models import HiddenLayer, LinearModel
from securefed.protocols.agreement import Agreement, Member, encoded_bits
from securefed.protocols.blind.linear import BlindParty
from securefed.protocols.loop import PartyContext, PartyLoop
from securefed.protocols.own_gradient.sides import TransferScorer, TransferSide
from securefed.protocols.own_gradient.training import DataParty
from securefed.protocols.schedules import Automatic, Constant, as_learning_rate
from securefed.protocols.steps import OwnSteps
from securefed.settings.objectives import TransferSettings

TRANSFER_RATE = 0.01
"""What learning_rate="auto" is for hidden layers: Adam's usual rate; they have no curvature to go by."""
WAVES = 64
"""Random features of a blind run: cosines, so that a linear model can bend (Rahimi, Recht)."""
MADE_SIZE, WAVE_SIZE = 0.35, 0.15
"""The size of columns that were made of others, and of waves, beside the columns themselves. What is smaller
has to say more about the labels to count as much. docs/transfer.md has what this was chosen by."""
CONSTANT = 8.0
"""A's only column in a blind run. It is large, so that the penalty hardly weighs on the intercept."""


class TransferAssembly(Assembly[TransferSettings]):
    settings_class = TransferSettings
    estimator = "transfer"
    needed = ("hidden", "activation", "activation_bound")
    rehearsed_rate = "auto"

    def model(self, name: str, columns: int, *, last: bool, index: int, seed: int | None = None) -> Model:
        settings = self.settings
        if settings.blind:
            return LinearModel(1 if last else columns, bias=False)
        start = settings.seed * 1000 + index if seed is None else seed
        return HiddenLayer(columns, settings.hidden, settings.activation, seed=start)

    def columns(self, prepared: int) -> int:
        return prepared + WAVES if self.settings.blind else prepared

    def features(self, prepared: Array, untransformed: NDArray[np.intp] | None) -> Array:
        """Return the columns, with random features beside them in a blind run."""
        if not self.settings.blind:
            return prepared
        raw = np.arange(prepared.shape[1]) if untransformed is None else untransformed
        rng = np.random.default_rng([WAVES, len(raw)])  # the same for all who have as many columns
        directions = rng.normal(size=(len(raw), WAVES)) / sqrt(len(raw))
        phases = rng.uniform(0.0, 2.0 * np.pi, size=WAVES)
        waves = sqrt(2.0) * np.cos(prepared[:, raw] @ directions + phases)
        sizes = np.full(prepared.shape[1], MADE_SIZE)
        sizes[raw] = 1.0
        return np.hstack([prepared * sizes, WAVE_SIZE * waves])

    def agreement(
        self, members: tuple[Member, ...], rows: int, outputs: int = 1, holdout: int = 0
    ) -> Agreement:
        """Return what both run by. `outputs`: classes, where there are more than two."""
        settings, overlap = self.settings, rows - holdout
        rate = as_learning_rate(settings.learning_rate)
        if settings.blind:
            gamma, l2 = settings.blind_weights(overlap, outputs, members[0].columns)
            details = {"loss": "logistic", "gamma": gamma, "l2": l2}
            rate = Automatic(1.0, settings.algorithm.order == "parallel")
        else:
            bound = settings.option("activation_bound")
            details = {"activation": settings.activation, "gamma": settings.gamma, "l2": settings.l2}
            details["activation_bound"] = bound
            rate = Constant(TRANSFER_RATE) if isinstance(rate, Automatic) else rate
        return self.agreed(
            members,
            rate,
            settings.batches(overlap),
            holdout,
            width=outputs if settings.blind else settings.hidden,
            value_bits=0 if settings.blind else self._value_bits(overlap),
            details=tuple(details.items()),
        )

    def _value_bits(self, overlap: int) -> int:
        """Bits of the largest number that either party sends (TransferSide.fixed)."""
        u, gamma = self.settings.option("activation_bound"), self.settings.gamma
        return encoded_bits(2.0 * max(u * (0.5 + 2.0 * gamma), sqrt(overlap) * u * u, 1.0))

    def program(
        self, agreement: Agreement, name: str, model: Any, data: TrainingRows, context: PartyContext
    ) -> PartyLoop:
        """Return a party's program. A's other people count too: it learns from their labels."""
        if self.settings.blind:
            return self._blind_party(agreement, name, data, context)
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

    def _blind_party(
        self, agreement: Agreement, name: str, data: TrainingRows, context: PartyContext
    ) -> BlindParty:
        last, loss, targets = name == agreement.label_party, self.settings.loss_function, None
        columns = self._scored(data.features[data.rows], last=last)
        if data.targets is not None:
            # B's map v minimises the sum of (-y s / 2 + s^2 / 8) + gamma (e - s)^2 for scores s = f'v and
            # A's representation e = 2 E[y]: squared distances to a mean of 2 y and e.
            pull = 8.0 * dict(agreement.details)["gamma"]
            targets = transfer_targets(data.features, data.targets, data.rows, pull / (1.0 + pull))
        steps = OwnSteps(agreement, loss, columns, l2=agreement.l2)
        context = context.evaluating(lambda table: self._scored(table, last=last))
        context = context.guarding(name, data.features)
        return BlindParty(agreement, loss, columns, targets, context, self.scheme, steps=steps)

    def load_scorer(self, public: Mapping[str, Any], arrays: dict[str, Any]) -> TransferScorer:
        phi = arrays.pop("phi", None)
        layer = HiddenLayer.from_arrays(arrays)
        if phi is not None:
            phi = np.asarray(phi, dtype=np.float64)
            if phi.shape != (layer.width,) or not np.isfinite(phi).all():
                raise DataError(f"the shard is damaged: Phi has shape {phi.shape}, expected ({layer.width},)")
        bound = self.settings.option("activation_bound") if layer.activation == "relu" else 1.0
        return TransferScorer(layer, phi, bound)

    def scored(
        self, part: AnyPart, prepared: Array, untransformed: NDArray[np.intp] | None, *, last: bool
    ) -> Array:
        features = prepared if last else self.features(prepared, untransformed)
        return self._scored(features, last=last) if self.settings.blind else features

    @staticmethod
    def _scored(features: Array, *, last: bool) -> Array:
        """What stands for rows in a blind run: B's columns; of A's nothing but their number."""
        return np.full((len(features), 1), CONSTANT) if last else features
