"""The generalised linear objective: all parties have the same people, and H is the sum of their parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefed import models
from securefed.assembly.kit import SMALL, Model, ObjectiveKit, Part, Trained, unfit
from securefed.assembly.recipe import LinearRecipe, PartyContext
from securefed.errors import DataError
from securefed.models import HiddenLayer, LocalModel, NetworkModel
from securefed.protocols.agreement import Agreement, Member
from securefed.protocols.blind.linear import BlindHelper, BlindParty
from securefed.protocols.blind.scoring import ModelPart, ScorePlan
from securefed.protocols.loop import PartyLoop
from securefed.protocols.optimisers import SGD, get_optimiser
from securefed.protocols.scoring.scorers import LinearScorer

__all__ = ["LinearKit"]

Array = NDArray[np.float64]


class LinearKit(ObjectiveKit[LinearRecipe]):
    recipe_class = LinearRecipe
    estimator = "generalised-linear"
    aims = True
    accelerates = True
    free_steps = True
    holdout = 0.2

    @classmethod
    def alternatives(cls, values: Mapping[str, Any], hides: bool) -> list[tuple[str, dict[str, Any]]]:
        found = [("own gradients", {"reveal": "own-gradient", "release": False})]
        asked = {"local_model": "linear", "optimiser": "sgd", "exchange": "star"}
        if hides and all(values[key] == word for key, word in asked.items()):
            found.insert(0, ("reveals nothing", {"reveal": "nothing"}))
        return found

    def rehearsed(self) -> LinearRecipe:
        """With automatic steps, where there are such: they take products of their own."""
        recipe = self.recipe
        by_gradient = isinstance(get_optimiser(recipe.optimiser), SGD)
        rate = "auto" if recipe.local_model == "linear" and by_gradient else SMALL
        return replace(recipe, learning_rate=rate, allow_determined=True)

    def model(
        self, name: str, columns: int, *, last: bool, index: int, seed: int | None = None
    ) -> LocalModel:
        recipe = self.recipe
        model = recipe.model(name, columns, last=last, index=index)
        if isinstance(model, NetworkModel) and seed is not None:
            return NetworkModel(columns, tuple(recipe.hidden), recipe.activation, seed=seed)
        return model

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
        context: PartyContext,
    ) -> PartyLoop:
        if isinstance(model, HiddenLayer):
            raise unfit(model, agreement.objective)
        return self.recipe.party(agreement, name, model, features, targets, context)

    def key_holder(self, agreement: Agreement, context: PartyContext) -> PartyLoop:
        return self.recipe.key_holder(agreement, context)

    @property
    def many_classes(self) -> bool:
        recipe = self.recipe
        return recipe.blind and recipe.loss_function.binary and not recipe.release

    @property
    def taylor(self) -> bool:
        return not self.recipe.exact

    def save(self, agreement: Agreement, trained: Trained) -> tuple[dict[str, Any], dict[str, Any]]:
        recipe, program, model = self.recipe, trained.program, trained.model
        arrays: dict[str, Any] = {}
        public: dict[str, Any] = {
            "loss": recipe.loss,
            "margin_bound": recipe.margin_bound,
            "fit_intercept": recipe.fit_intercept,
        }
        if isinstance(program, BlindParty | BlindHelper):
            public["blind"] = program.part.plan.to_dict()
            arrays |= program.part.to_arrays()
            # Released parameters lie beside the shares, for their owner to read; scores take the shares.
            parameters = program.parameters if isinstance(program, BlindParty) else None
            if parameters is None:
                return public, arrays
            if model is not None:
                model.parameters = parameters.ravel()
        if model is None or isinstance(model, HiddenLayer):
            raise unfit(model, agreement.objective)
        return public, {**arrays, **model.to_arrays()}

    def load(
        self, public: Mapping[str, Any], arrays: dict[str, Any], parties: Sequence[str], outputs: int = 1
    ) -> Part:
        if "blind" in public:
            return ModelPart.from_arrays(ScorePlan.from_dict(public["blind"]), arrays)
        model = models.from_arrays(arrays)
        if isinstance(model, HiddenLayer):
            raise DataError("holds a hidden layer, not a local model")
        return LinearScorer(model, float(public["margin_bound"]))

    def scored(self, part: Part, prepared: Array, untransformed: NDArray[np.intp], *, last: bool) -> Array:
        return self.recipe.augmented(prepared, last=last) if isinstance(part, ModelPart) else prepared

    def for_prediction(self) -> LinearRecipe:
        return replace(self.recipe, local_model="linear", dp_noise=0.0, release=False)
