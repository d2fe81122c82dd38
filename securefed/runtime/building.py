"""From agreed settings and the party's own data to its program: the same recipes as in a simulation.

What a party puts in is its own: prepared columns, labels if it has them, the start of its model. A network or
hidden layer starts at random numbers of this party (`start_seed`), not at ones that follow from the shared
seed, since whoever knows the start and sees gradients knows more than it should.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import r2_score

from securefed.data.labels import auc
from securefed.errors import DataError
from securefed.models import HiddenLayer, LocalModel, Network
from securefed.protocols.agreement import Agreement, Member
from securefed.protocols.blind import BlindParty
from securefed.protocols.recipe import LinearRecipe, Surroundings
from securefed.protocols.training import DataParty, Evaluation
from securefed.protocols.transfer import TransferSide
from securefed.protocols.transfer_recipe import TransferRecipe
from securefed.runtime.alignment import Alignment
from securefed.runtime.own_data import OwnData
from securefed.runtime.resumption import Standing
from securefed.runtime.shared import SharedSettings

__all__ = ["Trained", "agreement_of", "build", "make_model", "training_rows"]

Array = NDArray[np.float64]
Model = LocalModel | HiddenLayer


@dataclass(eq=False)
class Trained:
    """A party's program and what it will leave behind."""

    program: DataParty | BlindParty
    model: Model
    side: TransferSide | None = None
    """Of the label party in transfer learning: it has Phi."""


def make_model(shared: SharedSettings, name: str, columns: int, seed: int) -> Model:
    """The party's part of the model before training."""
    recipe = shared.recipe()
    if isinstance(recipe, TransferRecipe):
        return HiddenLayer(columns, recipe.hidden, recipe.activation, seed=seed)
    last = name == shared.label_party
    model = recipe.model(name, columns, last=last, index=shared.parties.index(name))
    if isinstance(model, Network):
        return Network(columns, tuple(recipe.hidden), recipe.activation, seed=seed)
    return model


def training_rows(shared: SharedSettings, common: int) -> int:
    """Rows that are trained on; the rest of the common ones, at the end of the agreed order, are held out.

    That order is by SHA-256 of the ids, so that the end of it is a sample of all.
    """
    held = round(shared.holdout * common)
    if held and (held < 2 or common - held < 2):
        raise DataError(f"holdout: {shared.holdout:g} of {common} common rows leaves too few on one side")
    return common - held


def agreement_of(shared: SharedSettings, standings: Mapping[str, Standing], common: int) -> Agreement:
    """What all parties run by, from what they said of themselves."""
    recipe = shared.recipe()
    members = tuple(
        Member(name, standings[name].equations, standings[name].affine) for name in shared.parties
    )
    agreement = recipe.agreement(members, training_rows(shared, common))
    return replace(agreement, key_holder=shared.key_holder)


def build(
    shared: SharedSettings,
    agreement: Agreement,
    name: str,
    data: OwnData,
    alignment: Alignment,
    model: Model,
    around: Surroundings,
) -> Trained:
    """A data party's program."""
    recipe, count = shared.recipe(), agreement.batches.rows
    train, held = alignment.rows[:count], alignment.rows[count:]
    if isinstance(recipe, TransferRecipe) and isinstance(model, HiddenLayer):
        labelled = alignment.labelled
        side = recipe.side(model, data.features, train, labelled[:count], data.targets)
        seen = held[labelled[count:]] if len(held) else train[labelled[:count]]
        if agreement.evaluate_every:
            around = replace(around, evaluation=_transfer_evaluation(data, seen))
        phi_here = None if data.targets is None else side
        return Trained(recipe.party(agreement, side, around), model, phi_here)
    if not isinstance(recipe, LinearRecipe) or isinstance(model, HiddenLayer):
        raise DataError(f"{name}: a {type(model).__name__} does not fit the objective {shared.objective}")
    if agreement.evaluate_every:
        around = replace(around, evaluation=_linear_evaluation(recipe, data, held if len(held) else train))
    targets = None if data.targets is None else data.targets[train]
    return Trained(recipe.party(agreement, name, model, data.features[train], targets, around), model)


def _linear_evaluation(recipe: LinearRecipe, data: OwnData, rows: NDArray[np.intp]) -> Evaluation:
    metric: Callable[[Array], float] | None = None
    if data.targets is not None:
        targets = data.targets[rows]
        metric = auc(targets) if recipe.loss_function.binary else _r2(targets)
    return Evaluation(data.features[rows], metric)


def _r2(targets: Array) -> Callable[[Array], float]:
    return lambda scores: float(r2_score(targets, scores))


def _transfer_evaluation(data: OwnData, rows: NDArray[np.intp]) -> Evaluation:
    if data.targets is not None:
        return Evaluation(None, auc(data.targets[rows]))
    return Evaluation(data.features[rows])
