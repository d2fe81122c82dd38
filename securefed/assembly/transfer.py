"""The transfer objective: two parties that share some people, of whom some have labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefed.assembly.kit import Model, ObjectiveKit, Part, Trained, unfit
from securefed.assembly.recipe import PartyContext
from securefed.assembly.transfer_recipe import TransferRecipe
from securefed.crypto import DEFAULT_SCHEME
from securefed.models import HiddenLayer, LinearModel
from securefed.protocols.agreement import Agreement, Member
from securefed.protocols.blind.scoring import ModelPart, ScorePlan
from securefed.protocols.blind.transfer import BlindTransferHelper, BlindTransferParty
from securefed.protocols.blind.transfer_algebra import WAVES, with_waves
from securefed.protocols.loop import PartyLoop
from securefed.protocols.own_gradient.training import DataParty
from securefed.protocols.own_gradient.transfer import TransferSide

__all__ = ["TransferKit"]

Array = NDArray[np.float64]
BY_REVEAL = ("rounds", "l2", "hidden", "gamma")
"""Settings whose defaults depend on what is revealed."""


class TransferKit(ObjectiveKit[TransferRecipe]):
    recipe_class = TransferRecipe
    estimator = "transfer"
    rounds_floor = 0.04

    @classmethod
    def defaults(cls, reveal: str | None = None, scheme: str = DEFAULT_SCHEME) -> dict[str, Any]:
        found = super().defaults(reveal, scheme)
        # Not offered: nobody sees when steps that are too long leave the ranges, and scores of such a model
        # tell far more about a row than the score ledger counts.
        del found["allow_unstable"]
        made = TransferRecipe(scheme=scheme, reveal=found["reveal"])
        usual = {"rounds": made.rounds, "l2": made.l2, "hidden": made.width, "gamma": made.pull}
        return {**found, **usual}

    @classmethod
    def alternatives(cls, values: Mapping[str, Any], hides: bool) -> list[tuple[str, dict[str, Any]]]:
        """Other widths and weights are usual then, where nobody has said otherwise."""
        usual = {reveal: cls.defaults(reveal) for reveal in ("nothing", "own-gradient")}
        found = [("reveals nothing", "nothing")] if hides and not values["batch_size"] else []
        said = {key for key in BY_REVEAL if values[key] not in [each[key] for each in usual.values()]}
        return [
            (title, {"reveal": reveal, **{key: usual[reveal][key] for key in BY_REVEAL if key not in said}})
            for title, reveal in [*found, ("own gradients", "own-gradient")]
        ]

    def rehearsed(self) -> TransferRecipe:
        return replace(self.recipe, learning_rate="auto", allow_determined=True)

    def model(self, name: str, columns: int, *, last: bool, index: int, seed: int | None = None) -> Model:
        recipe = self.recipe
        if recipe.blind:
            return LinearModel(columns, bias=True)
        if seed is None:
            return recipe.layer(columns, index)
        return HiddenLayer(columns, recipe.width, recipe.activation, seed=seed)

    def columns(self, prepared: int) -> int:
        return prepared + WAVES if self.recipe.blind else prepared

    def features(self, prepared: Array, untransformed: NDArray[np.intp] | None) -> Array:
        """Random ones on top in a blind run."""
        if not self.recipe.blind:
            return prepared
        return with_waves(prepared, np.arange(prepared.shape[1]) if untransformed is None else untransformed)

    def agreement(self, members: tuple[Member, ...], rows: int, outputs: int = 1, held: int = 0) -> Agreement:
        return self.recipe.agreement(members, rows - held, outputs, held)

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
        """The parties' other rows count too: their labels make Phi."""
        recipe = self.recipe
        if recipe.blind:
            return recipe.blind_party(agreement, features, rows, labelled, targets, context)
        if not isinstance(model, HiddenLayer):
            raise unfit(model, agreement.objective)
        side = recipe.side(model, features, rows, labelled, targets)
        return recipe.party(agreement, side, context)

    def key_holder(self, agreement: Agreement, context: PartyContext) -> PartyLoop:
        return self.recipe.key_holder(agreement, context)

    def check_key_holder(self, name: str | None, parties: int) -> None:
        """Two parties may have one."""
        self.recipe.check_key_holder(name)

    @property
    def many_classes(self) -> bool:
        return self.recipe.blind

    @property
    def taylor(self) -> bool:
        return False

    def save(self, agreement: Agreement, trained: Trained) -> tuple[dict[str, Any], dict[str, Any]]:
        recipe, program, model = self.recipe, trained.program, trained.model
        if isinstance(program, BlindTransferParty | BlindTransferHelper):
            return {"blind": program.part.plan.to_dict()}, program.part.to_arrays()
        if not isinstance(model, HiddenLayer):
            raise unfit(model, agreement.objective)
        public = {
            "hidden": recipe.width,
            "activation": recipe.activation,
            "activation_bound": recipe.activation_bound,
        }
        arrays = dict(model.to_arrays())
        side = program.side if isinstance(program, DataParty) else None
        if isinstance(side, TransferSide) and side.labelled:
            arrays["phi"] = side.phi()
        return public, arrays

    def load(
        self, public: Mapping[str, Any], arrays: dict[str, Any], parties: Sequence[str], outputs: int = 1
    ) -> Part:
        recipe = self.recipe
        if "blind" in public:
            return ModelPart.from_arrays(ScorePlan.from_dict(public["blind"]), arrays)
        phi = arrays.pop("phi", None)
        layer = HiddenLayer.from_arrays(arrays)
        return recipe.scorer(layer, None if phi is None else np.asarray(phi, dtype=np.float64))

    def scored(self, part: Part, prepared: Array, untransformed: NDArray[np.intp], *, last: bool) -> Array:
        found = self.features(prepared, untransformed)
        return self.recipe.scored(found, label_party=last) if self.recipe.blind else found
