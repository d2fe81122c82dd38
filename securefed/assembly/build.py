"""A party's program from settings and its own data: the same in simulations and party processes.

What a party puts in is its own: prepared columns, labels if it has them, the start of its model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefed.assembly.base import Array, Assembly, Model, PartyData, Places, TrainingRows, known_rows
from securefed.data.storage import take_rows
from securefed.errors import DataError, SettingError
from securefed.labels.base_model import LabelOptions
from securefed.labels.label_model import LabelModel, binary_labels, check_known, missing_labels
from securefed.labels.quality import HeldOut, OwnRows
from securefed.labels.several import ClassModels, TargetModels
from securefed.protocols.agreement import Agreement, get_objective
from securefed.protocols.loop import EvaluationRows, PartyContext, PartyLoop
from securefed.protocols.schedules import held_out
from securefed.settings.objectives import ObjectiveSettings
from securefed.settings.protection import Blind


@dataclass(frozen=True, eq=False)
class Measured:
    """What the label party measures the model with."""

    quality: HeldOut
    own: OwnRows


def label_targets(
    settings: ObjectiveSettings,
    labels: NDArray[Any],
    party: str,
    wishes: LabelOptions | None = None,
    *,
    classes: int | None = None,
    standardise: bool = True,
) -> tuple[Array, LabelModel]:
    """Return labels as the objective takes them, and what the label party knows of them.

    `classes`: how many were agreed on; None: as many as there are.
    """
    loss, wishes = settings.loss_function, wishes or LabelOptions(start=True)
    several = loss.binary and labels.ndim == 1 and (classes or _count(labels)) > 2
    if settings.aims:
        own_fit = settings.trains_like == Blind.kind and loss.name == "logistic"
        wishes = replace(wishes, start=wishes.start and own_fit)
        wishes.check(loss, taylor=settings.taylor)
    elif wishes.any:
        raise SettingError("weights, offset, class_weight and family work only with objective 'linear'")
    bound, same_people = settings.option("margin_bound"), get_objective(settings.objective).same_people
    if labels.ndim == 2:
        if not settings.blind or settings.option("release"):
            raise SettingError(
                f"labels: {labels.shape[1]} columns given; several targets take Blind() without a release"
            )
        if wishes.any:
            raise SettingError("weights, offset and family need exactly one label column")
        many, targets = TargetModels.of_columns(labels, party, loss, bound, standardise=standardise)
        return targets, many
    if not loss.binary or (same_people and not several and classes is None):
        side, targets = LabelModel.of(
            labels, party, loss, bound, standardise=standardise, taylor=settings.taylor, wishes=wishes
        )
        return targets, side
    if not several:
        signs, names = binary_labels(labels, party, allow_missing=not same_people)
        return signs, LabelModel(loss, names, taylor=settings.taylor, wishes=wishes)
    if wishes.any:
        what = "weight, offset and class_weight"
        raise SettingError(f"{what} need two classes; in Python, GeneralisedLinear trains one run per class")
    if same_people:
        check_known(labels, party)
    if classes is not None and _count(labels) != classes:
        names = np.unique(np.array(labels[~missing_labels(labels)].tolist()))
        few = ", ".join(str(each) for each in names[:5]) + (", ..." if len(names) > 5 else "")
        raise DataError(f"{party}: labels have {len(names)} classes ({few}), classes = {classes} was agreed")
    model, targets = ClassModels.with_gaps(labels, party, loss)
    return targets, model


def _count(labels: NDArray[Any]) -> int:
    """How many classes labels have, missing ones aside."""
    return len(set(labels[~missing_labels(labels)].tolist()))


def build(
    assembly: Assembly[Any],
    agreement: Agreement,
    name: str,
    data: PartyData,
    rows: Places,
    labelled: NDArray[np.bool_],
    model: Model,
    context: PartyContext,
) -> tuple[PartyLoop, Measured | None]:
    """Return a data party's program, and what the label party measures the model with.

    `rows`: the common rows of the party's data, in the agreed order. `labelled`: which of them have labels.
    """
    everybody = get_objective(agreement.objective).same_people
    settings, batches = assembly.settings, agreement.batches
    # Where the last rounds learn from the held-out rows too, programs take all.
    again = batches.holdout_rows > 0
    kept, aside = batches.division if again else held_out(len(labelled), settings.holdout, settings.seed)
    learning, trained = (rows, kept) if again else (rows[kept], np.arange(len(kept)))
    features = columns = assembly.features(data.features, data.untransformed)
    aimed = data.targets
    if data.labels is not None:
        data.labels.check_measured(name, len(aside))
    if everybody:  # before anything is measured: scores are added to what it fits
        columns = take_rows(features, learning)
        aimed = _aimed(settings, data, learning, columns, trained, name)
    elif aimed is not None:
        aimed = aimed.copy()
        aimed[rows[aside]] = np.nan  # all other labels make Phi
    measured: Measured | None = None
    if agreement.scores_rows:
        place, known = (rows[aside], labelled[aside]) if len(aside) else (learning, labelled[kept])
        place = place if everybody else place[known]
        if len(aside) and not len(place):
            raise DataError(f"holdout: none of the {len(aside)} people that are held out has a label")
        subset = take_rows(features, place) if len(aside) or not everybody else columns
        metric: Callable[[Array], float] | None = None
        aim: Callable[[Array], Array] | None = None
        if data.targets is not None and data.labels is not None and aimed is not None:
            truth, folds = data.targets[place], batches.fold_sizes if batches.folds > 1 else []
            offset = _taken(data.offset, place)
            metric = quality = data.labels.held_out(truth, subset, offset, aside if folds else None)
            if batches.stages > 1:
                aim = _aiming(settings, data.labels, aimed, truth, aside)
            if agreement.evaluate_every and quality.name == "accuracy":
                lacking = "are all of one class" if data.labels.outputs == 1 else "lack a class"
                raise DataError(f"evaluation: the labels of the rows to evaluate on {lacking}")
            if len(aside) and everybody:
                parts = np.split(aside, np.cumsum(folds)[:-1]) if folds else []
                own = OwnRows(take_rows(columns, trained), data.targets[rows[kept]], subset, parts)
                measured = Measured(quality, own)
            elif len(aside):  # of people that only the other party knows: how frequent the classes are
                others = aimed[known_rows(aimed)]
                own = OwnRows(np.zeros((len(others), 1)), others, np.zeros((len(subset), 1)))
                measured = Measured(quality, own)
        context = replace(context, evaluation=EvaluationRows(subset, metric, _people(data, place), aim))
    own_rows = np.arange(len(learning)) if everybody else learning
    training = TrainingRows(columns, aimed, own_rows, labelled if again else labelled[kept])
    return assembly.program(agreement, name, model, training, context), measured


def _taken(values: Array | None, rows: Places) -> Array | None:
    return None if values is None else values[rows]


def _people(data: PartyData, rows: Places) -> list[bytes] | None:
    names = None if data.ids is None else list(data.ids)
    return None if names is None else [names[row].encode() for row in rows]


def _aimed(
    settings: ObjectiveSettings, data: PartyData, rows: Places, columns: Array, trained: Places, name: str
) -> Array | None:
    """What the training fits of these rows, at the label party."""
    targets = _taken(data.targets, rows)
    if targets is None or data.labels is None or not settings.aims:
        return targets
    weights, offset = _taken(data.weights, rows), _taken(data.offset, rows)
    bound = settings.option("margin_bound")
    return data.labels.aim(name, bound, columns, targets, weights, offset, trained)


def _aiming(
    settings: ObjectiveSettings, labels: LabelModel, first: Array, truth: Array, places: Places
) -> Callable[[Array], Array]:
    """Return a function from first-stage scores to second-stage targets.

    `truth`: the labels of the scored rows. `places`: where these are among all.
    """

    def aim(scores: Array) -> Array:
        working = labels.aim_again(scores, truth, places, settings.option("margin_bound"))
        targets = first.copy()
        if working is not None:
            targets[places] = working
        return targets

    return aim
