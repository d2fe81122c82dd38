"""The generalised linear objective: all parties have the same people, and H is the sum of their parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefed import models
from securefed.errors import DataError, SettingError
from securefed.models import HiddenLayer, LocalModel, Network
from securefed.objectives.kit import SMALL, Model, ObjectiveKit, Part, Trained, unfit
from securefed.protocols.agreement import Agreement, Member
from securefed.protocols.blind import BlindParty
from securefed.protocols.blind_algebra import BlindPlan, largest_of
from securefed.protocols.blur import ScoreGuard
from securefed.protocols.loop import PartyLoop
from securefed.protocols.optimisers import SGD, get_optimiser
from securefed.protocols.prediction_run import BlindShard
from securefed.protocols.recipe import LinearRecipe, Surroundings
from securefed.protocols.scorers import LinearScorer

__all__ = ["LinearKit"]

Array = NDArray[np.float64]
NEVER = 1 << 62
"""One check in so many arrays is none."""


class LinearKit(ObjectiveKit[LinearRecipe]):
    recipe_class = LinearRecipe
    estimator = "generalised-linear"
    aims = True
    accelerates = True
    holdout = 0.2

    @classmethod
    def alternatives(cls, values: Mapping[str, Any], hides: bool) -> list[tuple[str, dict[str, Any]]]:
        found = [("own gradients", {"reveal": "own-gradient", "release": False})]
        asked = {"local_model": "linear", "optimiser": "sgd", "exchange": "star"}
        if hides and all(values[key] == word for key, word in asked.items()):
            found.insert(0, ("reveals nothing", {"reveal": "nothing"}))
        return found

    def rehearsed(self) -> LinearRecipe:
        """With automatic steps, where there are such: they take products of their own. Checks of what comes
        back are drawn at random: their choices are sent, and none is drawn, since there is nothing to check.
        """
        recipe = self.recipe
        by_gradient = isinstance(get_optimiser(recipe.optimiser), SGD)
        rate = "auto" if recipe.local_model == "linear" and by_gradient else SMALL
        checks = recipe.check_every and NEVER
        return replace(recipe, learning_rate=rate, allow_determined=True, check_every=checks)

    def model(
        self, name: str, columns: int, *, last: bool, index: int, seed: int | None = None
    ) -> LocalModel:
        recipe = self.recipe
        model = recipe.model(name, columns, last=last, index=index)
        if isinstance(model, Network) and seed is not None:
            return Network(columns, tuple(recipe.hidden), recipe.activation, seed=seed)
        return model

    def check_columns(self, prepared: Array) -> None:
        if not self.recipe.blind:
            return
        largest, bound = largest_of(prepared), self.recipe.feature_bound
        if largest > bound:
            raise SettingError(
                f"feature_bound: a feature of magnitude {largest:.4g} in the data, at most "
                f"{bound:g} is allowed; standardise the columns or raise it everywhere"
            )

    def agreement(self, members: tuple[Member, ...], rows: int, outputs: int = 1, held: int = 0) -> Agreement:
        return self.recipe.agreement(members, rows, outputs, held)

    def program(
        self,
        agreement: Agreement,
        name: str,
        model: Model,
        features: Array,
        targets: Array | None,
        rows: NDArray[np.intp],
        labelled: NDArray[np.bool_],
        around: Surroundings,
    ) -> PartyLoop:
        if isinstance(model, HiddenLayer):
            raise unfit(model, agreement.objective)
        return self.recipe.party(agreement, name, model, features, targets, around)

    def key_holder(self, agreement: Agreement, around: Surroundings) -> PartyLoop:
        return self.recipe.key_holder(agreement, around)

    def room(self, guard: ScoreGuard, outputs: int = 1) -> bool:
        return self.recipe.room(guard, outputs)

    @property
    def many_classes(self) -> bool:
        recipe = self.recipe
        return recipe.blind and recipe.loss_function.binary and not recipe.release

    @property
    def taylor(self) -> bool:
        return not self.recipe.exact

    def save(self, agreement: Agreement, trained: Trained) -> tuple[dict[str, Any], dict[str, Any]]:
        recipe, program, model = self.recipe, trained.program, trained.model
        if isinstance(model, HiddenLayer):
            raise unfit(model, agreement.objective)
        public: dict[str, Any] = {
            "loss": recipe.loss,
            "margin_bound": recipe.margin_bound,
            "fit_intercept": recipe.fit_intercept,
        }
        if isinstance(program, BlindParty) and program.parameters is None:
            shard = program.shard()
            plan = shard.plan
            public["blind"] = [plan.columns, plan.l2, plan.feature_bound, plan.parameter_bound]
            return public, shard.to_arrays()
        if isinstance(program, BlindParty) and program.parameters is not None:
            model.parameters = program.parameters.ravel()
        return public, dict(model.to_arrays())

    def load(
        self, public: Mapping[str, Any], arrays: dict[str, Any], parties: Sequence[str], outputs: int = 1
    ) -> Part:
        if "blind" in public:
            columns, l2, feature_bound, parameter_bound = public["blind"]
            plan = BlindPlan(
                self.recipe.loss_function,
                len(parties),
                columns,
                l2,
                feature_bound,
                parameter_bound,
                public["margin_bound"],
                outputs,
            )
            return BlindShard.from_arrays(plan, arrays)
        model = models.from_arrays(arrays)
        if isinstance(model, HiddenLayer):
            raise DataError("holds a hidden layer, not a local model")
        return LinearScorer(model, float(public["margin_bound"]))

    def scored(self, part: Part, prepared: Array, straight: NDArray[np.intp], *, last: bool) -> Array:
        return self.recipe.augmented(prepared, last=last) if isinstance(part, BlindShard) else prepared

    def for_prediction(self) -> LinearRecipe:
        recipe = replace(self.recipe, local_model="linear", dp_noise=0.0)
        if recipe.blind and recipe.release:  # released parameters are scored like any linear model
            recipe = replace(recipe, reveal="own-gradient", release=False)
        return recipe
