"""The generalised linear objective: all parties have the same people, and H is the sum of their parts."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefed.assembly.base import HELPER, KEY_HOLDER, AnyPart, Array, Assembly, TrainingRows
from securefed.data.storage import new_table, row_blocks
from securefed.errors import DataError, SettingError
from securefed.models.local import HiddenLayer, LinearModel, LocalModel, NetworkModel, from_arrays
from securefed.protocols.agreement import Agreement, Member, encoded_bits, halved_precision
from securefed.protocols.blind.linear import BlindParty
from securefed.protocols.blind.scoring import ModelPart
from securefed.protocols.blind.statistics import MOST_WRAPS, wrap_bound
from securefed.protocols.loop import PartyContext
from securefed.protocols.own_gradient.sides import LinearScorer, LinearSide
from securefed.protocols.own_gradient.training import DataParty, KeyHolderParty
from securefed.protocols.schedules import Automatic, Batches, Constant, LearningRate, as_learning_rate
from securefed.protocols.steps import OwnSteps
from securefed.settings.objectives import LinearSettings

REFIT_SHARE = 3
"""One round in so many is left for learning from the held-out rows too."""
FEW_HELD_OUT = 800
"""Fewer held-out rows are too few to calibrate with. Then all rows take turns (docs/choosing.md)."""
FOLDS, STAGES = 5, 2
MOST_FOLDED = 500
"""Columns of all parties up to which every fold may have a matrix of its own."""
NETWORK_RATE, ADAM_RATE = 0.5, 0.01
"""What learning_rate="auto" is where no curvature says it: for networks, and for Adam."""


class LinearAssembly(Assembly[LinearSettings]):
    settings_class = LinearSettings
    estimator = "generalised-linear"
    needed = ("loss", "margin_bound", "fit_intercept")

    @property
    def rehearsed_rate(self) -> Any:
        """Automatic steps, where there are such: they take products of their own."""
        linear = self.settings.option("local_model") == "linear" and self.settings.by_gradient
        return "auto" if linear else super().rehearsed_rate

    def model(
        self, name: str, columns: int, *, last: bool, index: int, seed: int | None = None
    ) -> LocalModel:
        """Return a party's local model before training. Only the label party has an intercept.

        A model of the user's own is where training starts; the user's object stays as it is.
        """
        settings = self.settings
        words = settings.option("local_model")
        chosen = words if isinstance(words, str) else words.get(name, "linear")
        if not isinstance(chosen, str):
            own: LocalModel = deepcopy(chosen)
            return own
        if chosen == "linear":
            return LinearModel(columns, bias=bool(last and settings.fit_intercept))
        start = settings.seed * 1000 + index if seed is None else seed
        activation = settings.option("activation") or "tanh"
        return NetworkModel(columns, settings.option("hidden"), activation, seed=start)

    def refit_rounds(self, members: tuple[Member, ...]) -> int:
        """Return how many of the last rounds learn from the held-out rows too, once they are measured.

        None where gradients are opened (every round shows more of them), where evaluations look at the rows
        again, with batches, and where steps are set or models are not linear.
        """
        settings = self.settings
        automatic = isinstance(as_learning_rate(settings.learning_rate), Automatic) and settings.by_gradient
        linear = all(member.is_linear for member in members)
        again = settings.refit and settings.trains_like != "own-gradient" and automatic and linear
        if not again or settings.monitoring.every or settings.option("batch_size"):
            return 0
        return int(settings.rounds) // REFIT_SHARE

    def agreement(
        self, members: tuple[Member, ...], rows: int, outputs: int = 1, holdout: int = 0
    ) -> Agreement:
        """Return what all parties run by; `members` in the order of turns, the label party last.

        Where the last rounds learn from held-out rows too (`batches.holdout_rows`), programs take all rows,
        else the others. Few rows are all held out, in turns: a model for each fold, from statistics of the
        same pass, scores the rows that it did not learn from. With classes they take turns twice.
        """
        settings = self.settings.for_parties(len(members))
        if settings is not self.settings:
            return LinearAssembly(settings).agreement(members, rows, outputs, holdout)
        names, models_ = {member.name for member in members}, settings.option("local_model")
        if not isinstance(models_, str) and not set(models_) <= names:
            unknown = ", ".join(sorted(set(models_) - names))
            raise SettingError(f"local_model: {unknown} given, the parties are {', '.join(sorted(names))}")
        again, stopping = self.refit_rounds(members) if holdout else 0, settings.stopping()
        if again:
            folds, stages = self._turns(members, again, outputs) if holdout < FEW_HELD_OUT else (1, 1)
            holdout = rows if folds > 1 else holdout
            # In plain every round opens gradients of one model.
            abreast = settings.blind and folds > 1
            until = (1 if abreast else folds) * stages * (settings.rounds - again)
            batches = Batches(rows, None, settings.seed, False, holdout, until, folds, stages, abreast)
            stopping = replace(stopping, rounds=until + again)
        else:
            batches = settings.batches(rows - holdout)
        blind = settings.blind
        return self.agreed(
            members,
            self._rate(members, batches),
            batches,
            holdout,
            stopping=stopping,
            width=outputs,
            exchange=settings.option("exchange"),
            key_holder=None if len(members) == 2 else HELPER if blind else KEY_HOLDER,
            exact=settings.exact,
            value_bits=0 if blind or settings.exact else self._value_bits(),
            release=bool(settings.option("release")),
            trusted=settings.option("release") == "trusted",
            details=(
                ("loss", settings.loss),
                ("l2", settings.penalty(rows, sum(member.columns for member in members))),
                ("margin_bound", settings.option("margin_bound")),
                *((("like", "blind"),) if settings.trains_like == "blind" and not blind else ()),
            ),
        )

    def _turns(self, members: tuple[Member, ...], again: int, outputs: int) -> tuple[int, int]:
        """Folds and stages of few rows: as many as there is room for, and as shares bear.

        Least squares is exact for numbers. A second stage is for the logistic loss, where two scores can have
        half of the bits each.
        """
        settings, sizes = self.settings, [member.parameters for member in members]
        turns = 1 if settings.algorithm.order == "parallel" else len(members)
        classes = settings.loss == "logistic" and settings.taylor
        twice = classes and halved_precision(settings.option("score_precision")) >= 0
        for stages in (STAGES, 1) if twice else (1,):
            models = FOLDS * stages
            rounds = models * (settings.rounds - again) + again
            bound = wrap_bound(sizes, rounds, outputs, turns, FOLDS + 1, models + 1)
            if sum(sizes) <= MOST_FOLDED and bound <= MOST_WRAPS:
                return FOLDS, stages
        return 1, 1

    def _value_bits(self) -> int:
        """Bits of a contribution or a score with its noise, whichever is larger."""
        loss, bound = self.settings.loss_function, self.settings.option("margin_bound")
        labels = 1.0 if loss.binary else bound
        residual = loss.margin_weight * bound + abs(loss.label_weight) * labels
        return encoded_bits(max(bound + 1.0, residual))

    def _rate(self, members: tuple[Member, ...], batches: Batches) -> LearningRate:
        """The learning rate; "auto" is each party's own step where all models are linear."""
        settings = self.settings
        rate = as_learning_rate(settings.learning_rate)
        if not isinstance(rate, Automatic):
            return rate
        if not settings.by_gradient:
            return Constant(ADAM_RATE)
        if not all(member.is_linear for member in members):
            return Constant(NETWORK_RATE)
        share = batches.effective_size / batches.rows
        plain_rounds = settings.exact or settings.algorithm.order != "parallel"
        if not batches.holdout_until:
            return Automatic(share, share == 1.0 and not plain_rounds)
        again, restarts = batches.model_rounds, batches.holdout_until // batches.model_rounds
        return Automatic(share, share == 1.0 and not plain_rounds, again, restarts)

    def steps(self, agreement: Agreement, columns: Array) -> OwnSteps:
        """Return how a party with a linear model moves; `columns` with the intercept's."""
        loss, allow = self.settings.loss_function, self.settings.allow_unstable
        return OwnSteps(agreement, loss, columns, l2=agreement.l2, allow_unstable=allow)

    def augmented(self, features: Array, *, last: bool) -> Array:
        """Return the columns with the label party's intercept, a column of ones."""
        if not (last and self.settings.fit_intercept):
            return features
        table = new_table(len(features), features.shape[1] + 1)
        for block in row_blocks(len(features)):
            table[block, :-1], table[block, -1] = features[block], 1.0
        return table

    def program(
        self, agreement: Agreement, name: str, model: Any, data: TrainingRows, context: PartyContext
    ) -> DataParty | BlindParty:
        features, targets = data.features, data.targets
        settings, last = self.settings, name == agreement.label_party
        columns = self.augmented(features, last=last)
        steps: OwnSteps | None = None
        if model.is_linear and settings.by_gradient:
            steps = self.steps(agreement, columns)
        if settings.blind and not columns.any():
            raise DataError(f"{name}: every column is constant, which tells nothing; leave the party out")
        context = context.guarding(name, features)
        if settings.blind and steps is not None:
            context = context.evaluating(lambda table: self.augmented(table, last=last))
            loss = settings.loss_function
            return BlindParty(agreement, loss, columns, targets, context, self.scheme, steps=steps)
        side = LinearSide(
            model,
            features,
            targets,
            settings.loss_function,
            l2=agreement.l2,
            exact=settings.exact,
            margin_bound=settings.option("margin_bound"),
            overlap=1 if steps is None else steps.overlap,
        )
        automatic = steps if steps is not None and steps.automatic else None
        return DataParty(agreement, side, settings.optimiser, context, steps=automatic)

    def key_holder(self, agreement: Agreement, context: PartyContext) -> KeyHolderParty | BlindParty:
        settings = self.settings
        if settings.blind:
            return BlindParty(agreement, settings.loss_function, None, None, context, self.scheme)
        return KeyHolderParty(agreement, context)

    def released(self, program: Any, *, last: bool) -> LocalModel | None:
        if not isinstance(program, BlindParty) or program.parameters is None:
            return None
        bias = last and self.settings.fit_intercept
        model = LinearModel(len(program.parameters) - bias, bias)
        model.parameters = program.parameters.ravel()
        return model

    def load_scorer(self, public: Mapping[str, Any], arrays: dict[str, Any]) -> LinearScorer:
        model = from_arrays(arrays)
        if isinstance(model, HiddenLayer):
            raise DataError("holds a hidden layer, not a local model")
        return LinearScorer(model, float(public["margin_bound"]))

    def scored(
        self, part: AnyPart, prepared: Array, untransformed: NDArray[np.intp] | None, *, last: bool
    ) -> Array:
        return self.augmented(prepared, last=last) if isinstance(part, ModelPart) else prepared
