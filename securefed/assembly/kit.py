"""What a run of one objective is made of: everything that differs between objectives, said once in one file.

A kit has the settings of a run (a recipe) and makes a party's part of it: model, program, shard. Those who
use one (securefed.process, securefed.plan) know no objective by its name. What the protocols have to know
besides stands in securefed.protocols.objectives.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from securefed.assembly.recipe import PartyContext, Recipe
from securefed.checks import check_choice
from securefed.crypto import DEFAULT_SCHEME
from securefed.errors import DataError, SettingError
from securefed.models import HiddenLayer, LocalModel
from securefed.protocols.agreement import Agreement, Member
from securefed.protocols.blind.scoring import ModelPart
from securefed.protocols.loop import PartyLoop
from securefed.protocols.objectives import Objective
from securefed.protocols.objectives import register as register_objective
from securefed.protocols.scoring.scorers import Scorer

__all__ = ["KITS", "Arrays", "Model", "ObjectiveKit", "Part", "Trained", "kit_of", "register"]

Array = NDArray[np.float64]
Arrays = Mapping[str, NDArray[np.generic]]
Model = LocalModel | HiddenLayer
Part = Scorer | ModelPart
R = TypeVar("R", bound=Recipe)
SMALL = 1e-3
"""A rate that moves nothing far."""


@dataclass(frozen=True, eq=False)
class Trained:
    """A party's program, and the model that it starts from; a helper has none."""

    program: PartyLoop
    model: Model | None


class ObjectiveKit(ABC, Generic[R]):
    """An objective with the settings of one run."""

    recipe_class: ClassVar[type[Recipe]]
    estimator: ClassVar[str]
    """The word in a shard that says which estimator reads it too."""
    aims: ClassVar[bool] = False
    """The label party may weigh rows and classes, and fit around a model of its own."""
    accelerates: ClassVar[bool] = False
    """Rounds with automatic steps are accelerated, so that it is known how many are enough."""
    holdout: ClassVar[float] = 0.0
    """The share of the common rows that `securefed party` holds out by default."""
    rounds_floor: ClassVar[float] = 0.15
    """The part of the rounds at Q = 1 that local steps do not save (securefed.plan.planner)."""
    free_steps: ClassVar[bool] = False
    """A blind round costs the same whatever the number of local steps is."""

    def __init__(self, recipe: R) -> None:
        self.recipe = recipe

    # Settings

    @classmethod
    def defaults(cls, reveal: str | None = None, scheme: str = DEFAULT_SCHEME) -> dict[str, Any]:
        """Of all settings, as a recipe has them: `reveal` and `scheme` where others are usual then."""
        found: dict[str, Any] = {}
        for each in fields(cls.recipe_class):
            default = each.default if each.default_factory is MISSING else each.default_factory()
            found[each.name] = scheme if default is MISSING else default
        return found if reveal is None else {**found, "reveal": reveal}

    @classmethod
    def alternatives(cls, values: Mapping[str, Any], hides: bool) -> list[tuple[str, dict[str, Any]]]:
        """Other settings of what a run reveals, and a title for each: for a plan. `hides`: the scheme can
        train blind.
        """
        return [("own gradients", {"reveal": "own-gradient"} if "reveal" in values else {})]

    def rehearsed(self) -> Recipe:
        """Settings that random columns and keys without a key take, and that change nothing of what is sent:
        a rate was chosen for the real columns, and what the ledger would refuse, a plan says by itself.
        """
        return replace(self.recipe, learning_rate=SMALL, allow_determined=True)

    # A run

    @abstractmethod
    def model(self, name: str, columns: int, *, last: bool, index: int, seed: int | None = None) -> Model:
        """A party's part of the model before training. `seed`: where it starts, if that is random."""

    def columns(self, prepared: int) -> int:
        """Columns that a program takes, of so many prepared ones."""
        return prepared

    def features(self, prepared: Array, untransformed: NDArray[np.intp] | None) -> Array:
        """Them. `straight`: which are as they were given."""
        return prepared

    def check_columns(self, prepared: Array) -> None:
        """Raise SettingError where a program would refuse the columns."""
        return

    @abstractmethod
    def agreement(
        self, members: tuple[Member, ...], rows: int, outputs: int = 1, held: int = 0
    ) -> Agreement: ...

    @abstractmethod
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
        """A party's program: `rows` of the features and targets are the common ones, in the agreed order; all
        of them where everybody has the same people.
        """

    def key_holder(self, agreement: Agreement, context: PartyContext) -> PartyLoop:
        """The program of the party without data: a helper, or a key-holder where gradients are opened."""
        raise SettingError(f"objective: {agreement.objective!r} has no party without data")

    def check_key_holder(self, name: str | None, parties: int) -> None:
        """Raise SettingError where so many parties with data have one and should not, or the other way."""
        if (name is None) != (parties == 2):
            raise SettingError(
                f"key_holder: {name!r} given for {parties} parties; two need none, and more need a party "
                "without data (a helper, or the holder of the key where own gradients are revealed)"
            )

    @property
    def many_classes(self) -> bool:
        """Whether more than two are possible with these settings."""
        return False

    @property
    def taylor(self) -> bool:
        """Scores are those of a Taylor form of the loss, which probabilities have to be fitted to."""
        return True

    # What is kept

    @abstractmethod
    def save(self, agreement: Agreement, trained: Trained) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what all know of the model, and the party's own arrays; a helper's too."""

    @abstractmethod
    def load(
        self, public: Mapping[str, Any], arrays: dict[str, Any], parties: Sequence[str], outputs: int = 1
    ) -> Part:
        """What `save` gave."""

    def scored(self, part: Part, prepared: Array, untransformed: NDArray[np.intp], *, last: bool) -> Array:
        """The columns of rows that are scored."""
        return self.features(prepared, untransformed)

    def for_prediction(self) -> Recipe:
        """The settings of a run that only predicts."""
        return self.recipe


KITS: dict[str, type[ObjectiveKit[Any]]] = {}


def register(name: str, kit: type[ObjectiveKit[Any]], objective: Objective | None = None) -> None:
    """Make an objective known; `objective`: what the protocols have to know of it, unless they do."""
    if objective is not None:
        register_objective(name, objective)
    if name in KITS or kit.recipe_class.objective != name:
        raise SettingError(f"objective: {name!r} given, of {kit.recipe_class.objective!r}, or known already")
    KITS[name] = kit


def kit_of(recipe: Recipe) -> ObjectiveKit[Any]:
    """The kit of these settings."""
    return KITS[check_choice("objective", recipe.objective, KITS)](recipe)


def unfit(model: object, objective: str) -> DataError:
    return DataError(f"a {type(model).__name__} does not fit the objective {objective}")
