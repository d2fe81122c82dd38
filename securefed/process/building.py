"""From agreed settings and the party's own data to its program: the same recipes as in a simulation.

What a party puts in is its own: prepared columns, labels if it has them, the start of its model. A network or
hidden layer starts at random numbers of this party (`start_seed`), not at ones that follow from the shared
seed, since whoever knows the start and sees gradients knows more than it should.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefed.assembly import ObjectiveKit, Trained
from securefed.assembly.kit import Model
from securefed.assembly.recipe import PartyContext
from securefed.data.storage import take_rows
from securefed.errors import DataError
from securefed.labels.quality import HeldOut
from securefed.process.alignment import Alignment
from securefed.process.own_data import OwnData
from securefed.process.resumption import ResumeState
from securefed.process.run_settings import RunSettings
from securefed.protocols.agreement import Agreement, Member
from securefed.protocols.loop import EvaluationRows
from securefed.protocols.schedules import held_out

__all__ = ["Measured", "agreement_of", "build", "divided", "make_model"]

Array = NDArray[np.float64]
Places = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Measured:
    """What the label party measures the model with."""

    held: HeldOut
    own: tuple[Array, Array, Array]
    """Its columns and targets of the training rows, and its columns of the held-out ones."""


def make_model(shared: RunSettings, name: str, columns: int, seed: int) -> Model:
    """The party's part of the model before training; `columns`: prepared ones."""
    kit, last = shared.kit(), name == shared.label_party
    place = shared.parties.index(name)
    return kit.model(name, kit.columns(columns), last=last, index=place, seed=seed)


def divided(shared: RunSettings, common: int) -> tuple[Places, Places]:
    """Of the common rows in the agreed order: those to train on, and those that are held out."""
    return held_out(common, shared.holdout, int(shared.values["seed"]))


def agreement_of(shared: RunSettings, standings: Mapping[str, ResumeState], common: int) -> Agreement:
    """What all parties run by, from what they said of themselves."""
    told = [(name, standings[name]) for name in shared.parties]
    members = tuple(Member(name, each.parameters, each.is_linear) for name, each in told)
    _, held = divided(shared, common)
    agreement = shared.kit().agreement(members, common, shared.outputs, held=len(held))
    return replace(agreement, key_holder=shared.key_holder)


def build(
    shared: RunSettings,
    agreement: Agreement,
    name: str,
    data: OwnData,
    alignment: Alignment,
    model: Model,
    context: PartyContext,
) -> tuple[Trained, Measured | None]:
    """A data party's program; and what the label party measures it with, where rows were held out."""
    kit, everybody = shared.kit(), shared.same_people
    kept, aside = divided(shared, len(alignment))
    train, held = alignment.rows[kept], alignment.rows[aside]
    # Where the last rounds learn from the held-out rows too, programs take all.
    again = agreement.batches.holdout_rows > 0
    learning, labelled = (alignment.rows if again else train), alignment.labelled
    features, targets = kit.features(data.features, data.untransformed), data.targets
    columns = take_rows(features, learning) if everybody else features
    aimed = targets
    if not everybody and targets is not None:
        aimed = targets.copy()
        aimed[held] = np.nan  # all other labels make Phi
    if data.labels is not None:
        data.labels.check_measured(name, len(held))
    if everybody:  # before anything is measured: scores are added to what it fits
        aimed = _aimed(data, learning, columns, kept if again else np.arange(len(train)), name, kit)
    measured: Measured | None = None
    if agreement.evaluate_every or agreement.holdout:
        rows, known = (held, labelled[aside]) if len(held) else (train, labelled[kept])
        rows = rows if everybody else rows[known]
        seen = columns if everybody and not len(held) and not again else take_rows(features, rows)
        metric: Callable[[Array], float] | None = None
        if len(held) and not len(rows):
            raise DataError(f"holdout: none of the {len(held)} people that are held out has a label")
        if targets is not None and data.labels is not None:
            offset = None if data.offset is None else data.offset[rows]
            metric = found = data.labels.held_out(targets[rows], seen, offset)
            if agreement.evaluate_every and not everybody and found.name == "accuracy":
                raise DataError("evaluation: the labels of the rows to evaluate on lack a class")
            if len(held):
                own = (take_rows(features, train) if again else columns), targets[train], seen
                measured = Measured(found, own if everybody else _without_columns(aimed, len(rows)))
        context = replace(context, evaluation=EvaluationRows(seen, metric))
    if everybody:
        learning = np.arange(len(learning))
    wanted = labelled if again else labelled[kept]
    program = kit.program(agreement, name, model, columns, aimed, learning, wanted, context)
    return Trained(program, model), measured


def _without_columns(targets: Array | None, rows: int) -> tuple[Array, Array, Array]:
    """What the label party has of people that only the other one knows: how frequent its classes are."""
    if targets is None:
        raise DataError("the label party has no labels")
    known = targets[~np.isnan(targets.reshape(len(targets), -1)).any(axis=1)]
    return np.zeros((len(known), 1)), known, np.zeros((rows, 1))


def _aimed(
    data: OwnData, rows: Places, columns: Array, trained: Places, name: str, kit: ObjectiveKit[Any]
) -> Array | None:
    """What the training fits of these rows, at the label party."""
    if data.targets is None or data.labels is None or not kit.aims:
        return data.targets if data.targets is None else data.targets[rows]
    weights, offset = (None if each is None else each[rows] for each in (data.weights, data.offset))
    bound = kit.recipe.margin_bound
    return data.labels.aim(name, bound, columns, data.targets[rows], weights, offset, trained)
