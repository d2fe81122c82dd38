"""A party's own data for a training: its file as numbers, whom they are about, and its labels."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefed.data.columns import Columns
from securefed.data.labels import binary_labels, check_known, missing_labels
from securefed.data.preparation import choose_columns, prepare
from securefed.data.psi_local import check_ids
from securefed.data.rows import Rows, file_digest, read_rows
from securefed.errors import DataError, Problems, SettingError
from securefed.labels.base_model import LabelOptions
from securefed.labels.label_model import LabelModel
from securefed.process.run_settings import RunSettings
from securefed.process.settings import DataSettings, PartyFile

__all__ = ["OwnData", "check_labels", "load_data", "prepare_columns", "row_numbers"]

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class OwnData:
    """A party's rows: numbers, who they are about, and labels if it has them."""

    features: Array
    ids: Collection[str] | None
    """In the agreed form."""
    targets: Array | None = None
    """-1 and +1 (NaN where unknown), or numbers for the linear loss."""
    labels: LabelModel | None = None
    """How labels became targets, and how scores will become answers."""
    untransformed: NDArray[np.intp] | None = None
    """Which of the numbers are columns as they were given; all of them where nobody said."""
    weights: Array | None = None
    offset: Array | None = None

    @property
    def known(self) -> NDArray[np.bool_] | None:
        if self.targets is None:
            return None
        table = self.targets.reshape(len(self.targets), -1)
        return np.asarray(~np.isnan(table).any(axis=1), dtype=np.bool_)


def check_labels(
    labels: NDArray[Any], party: str, shared: RunSettings, wishes: LabelOptions | None = None
) -> tuple[Array, LabelModel]:
    """Labels as the objective takes them, and what the label party knows of them."""
    kit, wishes = shared.kit(), wishes or LabelOptions()
    recipe, loss = kit.recipe, kit.recipe.loss_function
    if kit.aims:
        free = recipe.weighs_rare_classes and shared.outputs == 1 and shared.holdout > 0.0
        wishes = wishes.settled(labels, free=free)
        wishes.check(loss, taylor=kit.taylor, dp_noise=recipe.dp_noise)
    elif wishes.any:
        raise SettingError(f"weight, offset, class_weight, family and base: not for {shared.objective!r}")
    if not loss.binary:
        side = LabelModel.of(labels, party, loss, standardise=True, taylor=True, wishes=wishes)
        return side.targets(labels, party, recipe.margin_bound), side
    if labels.dtype.kind != "f":
        labels = np.array([None if word == "" else word for word in labels.tolist()], dtype=object)
    if shared.outputs > 1:
        return _classes(labels, party, shared, wishes)
    signs, classes = binary_labels(labels, party, allow_missing=not shared.same_people)
    return signs, LabelModel(loss, classes, taylor=kit.taylor, wishes=wishes)


def _classes(
    labels: NDArray[Any], party: str, shared: RunSettings, wishes: LabelOptions
) -> tuple[Array, LabelModel]:
    """Labels of three classes or more, a column for each."""
    from securefed.labels.classes import ClassModels

    if wishes.any:
        raise SettingError("weights, an offset or base='own' take one run a class, or two classes")
    if shared.same_people:
        check_known(labels, party)
    found = np.unique(np.array(labels[~missing_labels(labels)].tolist()))
    if len(found) != shared.outputs:
        few = ", ".join(str(each) for each in found[:5]) + (", ..." if len(found) > 5 else "")
        raise DataError(
            f"{party}: labels have {len(found)} classes ({few}), classes = {shared.outputs} was agreed"
        )
    side, targets = ClassModels.with_gaps(labels, party, shared.recipe().loss_function)
    return targets, side


def row_numbers(rows: Rows, column: str | None, what: str, least: float = -np.inf) -> Array | None:
    """A number for each row, from a column of its own."""
    if column is None:
        return None
    values = rows.column(column, what)
    if values.dtype.kind != "f" or not np.isfinite(values).all() or (values < least).any():
        allowed = "numbers of at least 0" if least == 0.0 else "numbers"
        raise DataError(f"{rows.name}: column {column!r} is the {what}; {allowed} are allowed, none missing")
    return values


def prepare_columns(rows: Rows, settings: DataSettings) -> tuple[Columns, Array]:
    """Fit the columns that the settings choose, and return the rows as numbers too."""
    special = {settings.id, settings.label, settings.weight, settings.offset}
    chosen = choose_columns(rows, special, settings.columns, settings.drop)
    return prepare(rows, chosen, transform=settings.transform, standardise=settings.standardise)


def load_data(party: PartyFile) -> tuple[OwnData, Columns, str]:
    """The party's file as numbers, how they were made, and the file's digest."""
    if party.data is None:
        raise SettingError("data: missing; a party needs the table [data] with its file")
    settings, path = party.data, party.folder / party.data.file
    rows = read_rows(path, settings.policy)
    digest = file_digest(path)
    problems, fitted = Problems(settings.file), None
    ids = targets = side = weights = offset = None
    with problems.gathered():
        if settings.id is not None:  # what cannot be aligned is refused before anybody is called
            ids = rows.each_id(settings.id, party.own.name, party.shared.id_form)
            check_ids(ids, party.own.name)
    with problems.gathered():
        if settings.label is not None:
            labels = rows.column(settings.label, "label")
            targets, side = check_labels(labels, party.own.name, party.shared, settings.wishes)
    with problems.gathered():
        weights = row_numbers(rows, settings.weight, "weight", least=0.0)
        offset = row_numbers(rows, settings.offset, "offset")
    with problems.gathered():
        fitted = prepare_columns(rows, settings)
    problems.check()
    if fitted is None:
        raise DataError(f"{settings.file}: no feature columns are left")
    preparation, features = fitted
    data = OwnData(features, ids, targets, side, preparation.untransformed, weights, offset)
    return data, preparation, digest
