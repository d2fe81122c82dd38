"""A run that may come to be: what a plan is made for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from securefed.errors import SettingError
from securefed.protocols.agreement import Agreement, Member
from securefed.protocols.blind import BlindKeyHolder, BlindParty
from securefed.protocols.blind_transfer import BlindTransferParty
from securefed.protocols.recipe import LinearRecipe, Surroundings
from securefed.protocols.schedules import FedBCD, FedSGD
from securefed.protocols.training import DataParty, KeyHolderParty
from securefed.protocols.transfer_recipe import TransferRecipe

__all__ = ["Scenario"]

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Scenario:
    """A run that may come to be: settings, and the columns of each party (label party last)."""

    recipe: LinearRecipe | TransferRecipe
    columns: Mapping[str, int]
    rows: int
    """In common, for training."""
    key_bits: int = 3072
    key_holder: str = "key-holder"
    outputs: int = 1
    """Columns of the labels, in blind runs."""

    @cached_property
    def agreement(self) -> Agreement:
        names, recipe = list(self.columns), self.recipe
        members = [
            self._member(name, columns, place) for place, (name, columns) in enumerate(self.columns.items())
        ]
        if isinstance(recipe, LinearRecipe):
            agreement = recipe.agreement(tuple(members), self.rows, self.outputs)
        else:
            agreement = recipe.agreement(tuple(members), self.rows)
        return replace(agreement, key_holder=None if len(names) == 2 else self.key_holder)

    def _member(self, name: str, columns: int, place: int) -> Member:
        recipe, last = self.recipe, name == list(self.columns)[-1]
        if isinstance(recipe, LinearRecipe):
            return recipe.member(name, recipe.model(name, columns, last=last, index=place))
        if recipe.blind:
            return recipe.blind_member(name, columns)
        return recipe.member(name, recipe.layer(columns, place))

    def program(
        self, name: str, features: Array, labels: Array | None, around: Surroundings
    ) -> DataParty | BlindParty | BlindTransferParty:
        """A party's program; in transfer learning all rows are shared and labelled."""
        recipe, agreement, place = self.recipe, self.agreement, list(self.columns).index(name)
        if isinstance(recipe, LinearRecipe):
            model = recipe.model(name, features.shape[1], last=labels is not None, index=place)
            return recipe.party(agreement, name, model, features, labels, around)
        everybody, labelled = np.arange(self.rows), np.ones(self.rows, dtype=bool)
        if recipe.blind:
            return recipe.blind_party(agreement, features, everybody, labelled, labels, around)
        layer = recipe.layer(features.shape[1], place)
        side = recipe.side(layer, features, everybody, labelled, labels)
        return recipe.party(agreement, side, around)

    def key_holder_program(self, around: Surroundings) -> KeyHolderParty | BlindKeyHolder:
        if not isinstance(self.recipe, LinearRecipe):
            raise SettingError("plan: this objective has no party that only holds the key")
        return self.recipe.key_holder(self.agreement, around)

    @property
    def blind(self) -> bool:
        return self.recipe.blind

    def with_steps(self, local_steps: int) -> Scenario:
        """The same with another Q."""
        order, proximal = self.recipe.algorithm.order, self.recipe.algorithm.proximal
        chosen: FedBCD | FedSGD = FedBCD(local_steps, order, proximal)
        if local_steps == 1 and order == "parallel":
            chosen = FedSGD(proximal)
        return replace(self, recipe=replace(self.recipe, algorithm=chosen))
