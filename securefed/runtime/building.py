"""From agreed settings and the party's own data to its program: the same recipes as in a simulation.

What a party puts in is its own: prepared columns, labels if it has them, the start of its model. A network or
hidden layer starts at random numbers of this party (`start_seed`), not at ones that follow from the shared
seed, since whoever knows the start and sees gradients knows more than it should.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from securefed.data.labels import auc
from securefed.data.storage import take_rows
from securefed.errors import DataError
from securefed.measure.quality import HeldOut
from securefed.models import HiddenLayer, Linear, LocalModel, Network
from securefed.protocols.agreement import Agreement, Member
from securefed.protocols.blind import BlindParty
from securefed.protocols.blind_transfer import BlindTransferParty
from securefed.protocols.recipe import LinearRecipe, Surroundings
from securefed.protocols.schedules import held_out
from securefed.protocols.training import DataParty, Evaluation
from securefed.protocols.transfer import TransferSide
from securefed.protocols.transfer_algebra import WAVES
from securefed.protocols.transfer_recipe import TransferRecipe
from securefed.runtime.alignment import Alignment
from securefed.runtime.own_data import OwnData
from securefed.runtime.resumption import Standing
from securefed.runtime.shared import SharedSettings

__all__ = ["Trained", "agreement_of", "build", "divided", "make_model"]

Array = NDArray[np.float64]
Places = NDArray[np.intp]
Model = LocalModel | HiddenLayer


@dataclass(eq=False)
class Trained:
    """A party's program and what it will leave behind."""

    program: DataParty | BlindParty | BlindTransferParty
    model: Model
    side: TransferSide | None = None
    """Of the label party in transfer learning: it has Phi."""
    measured: Measured | None = None
    """Of the label party, where rows were held out."""


@dataclass(frozen=True, eq=False)
class Measured:
    """What the label party measures the model with."""

    held: HeldOut
    own: tuple[Array, Array, Array]
    """Its columns and targets of the training rows, and its columns of the held-out ones."""


def make_model(shared: SharedSettings, name: str, columns: int, seed: int) -> Model:
    """The party's part of the model before training."""
    recipe = shared.recipe()
    if isinstance(recipe, TransferRecipe) and recipe.blind:
        return Linear(columns + WAVES, bias=True)
    if isinstance(recipe, TransferRecipe):
        return HiddenLayer(columns, recipe.width, recipe.activation, seed=seed)
    last = name == shared.label_party
    model = recipe.model(name, columns, last=last, index=shared.parties.index(name))
    if isinstance(model, Network):
        return Network(columns, tuple(recipe.hidden), recipe.activation, seed=seed)
    return model


def divided(shared: SharedSettings, common: int) -> tuple[Places, Places]:
    """Of the common rows in the agreed order: those to train on, and those that are held out."""
    return held_out(common, shared.holdout, int(shared.values["seed"]))


def agreement_of(shared: SharedSettings, standings: Mapping[str, Standing], common: int) -> Agreement:
    """What all parties run by, from what they said of themselves."""
    recipe = shared.recipe()
    members = tuple(
        Member(name, said.equations, said.affine, said.room)
        for name, said in ((name, standings[name]) for name in shared.parties)
    )
    train, held = divided(shared, common)
    if isinstance(recipe, LinearRecipe):
        agreement = recipe.agreement(members, common, shared.outputs, held=len(held))
    else:
        agreement = recipe.agreement(members, len(train))
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
    recipe = shared.recipe()
    kept, aside = divided(shared, len(alignment))
    train, held = alignment.rows[kept], alignment.rows[aside]
    if isinstance(recipe, TransferRecipe) and recipe.blind:
        labelled, features = alignment.labelled, data.waved()
        seen = held[labelled[aside]] if len(held) else train[labelled[kept]]
        if agreement.evaluate_every:
            metric_here = None if data.targets is None else auc(data.targets[seen])
            around = replace(around, evaluation=Evaluation(features[seen], metric_here))
        party = recipe.blind_party(agreement, features, train, labelled[kept], data.targets, around)
        return Trained(party, model)
    if isinstance(recipe, TransferRecipe) and isinstance(model, HiddenLayer):
        labelled = alignment.labelled
        side = recipe.side(model, data.features, train, labelled[kept], data.targets)
        seen = held[labelled[aside]] if len(held) else train[labelled[kept]]
        if agreement.evaluate_every:
            around = replace(around, evaluation=_transfer_evaluation(data, seen))
        phi_here = None if data.targets is None else side
        return Trained(recipe.party(agreement, side, around), model, phi_here)
    if not isinstance(recipe, LinearRecipe) or isinstance(model, HiddenLayer):
        raise DataError(f"{name}: a {type(model).__name__} does not fit the objective {shared.objective}")
    # Where the last rounds learn from the held-out rows too, programs take all.
    again = agreement.batches.aside > 0
    learning = alignment.rows if again else train
    columns = take_rows(data.features, learning)
    aimed = _aimed(data, learning, columns, kept if again else np.arange(len(train)), name, recipe)
    measured: Measured | None = None
    if agreement.evaluate_every or agreement.holdout:
        rows = held if len(held) else train
        seen_columns = take_rows(data.features, rows) if len(held) or again else columns
        metric: HeldOut | None = None
        if data.targets is not None and data.labels is not None:
            offset = None if data.offset is None else data.offset[rows]
            metric = data.labels.held_out(data.targets[rows], seen_columns, offset)
            if len(held):
                own = take_rows(data.features, train) if again else columns
                measured = Measured(metric, (own, data.targets[train], seen_columns))
        around = replace(around, evaluation=Evaluation(seen_columns, metric))
    program = recipe.party(agreement, name, model, columns, aimed, around)
    return Trained(program, model, measured=measured)


def _aimed(
    data: OwnData, rows: Places, columns: Array, trained: Places, name: str, recipe: LinearRecipe
) -> Array | None:
    """What the training fits of these rows, at the label party."""
    if data.targets is None or data.labels is None:
        return data.targets if data.targets is None else data.targets[rows]
    weights, offset = (None if each is None else each[rows] for each in (data.weights, data.offset))
    bound = recipe.margin_bound
    return data.labels.aim(name, bound, columns, data.targets[rows], weights, offset, trained)


def _transfer_evaluation(data: OwnData, rows: NDArray[np.intp]) -> Evaluation:
    if data.targets is not None:
        return Evaluation(None, auc(data.targets[rows]))
    return Evaluation(take_rows(data.features, rows))
