"""A party's own data for a training: its file as numbers, whom they are about, and its labels."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefed.assembly.build import PartyData, label_targets
from securefed.data.columns import FittedColumns
from securefed.data.preparation import choose_columns, prepare
from securefed.data.psi_local import check_ids
from securefed.data.rows import Rows, file_digest, read_rows
from securefed.errors import DataError, Problems, SettingError
from securefed.labels.base_model import LabelOptions
from securefed.labels.label_model import LabelModel, warn_of_label_columns
from securefed.settings.party import DataSettings, PartyFile
from securefed.settings.run import RunSettings

__all__ = ["OwnData", "check_labels", "load_data", "prepare_columns", "row_numbers"]

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False, kw_only=True)
class OwnData(PartyData):
    """A party's rows, with who they are about."""

    ids: Collection[str] | None
    """In the agreed form."""


def check_labels(
    labels: NDArray[Any], party: str, shared: RunSettings, wishes: LabelOptions | None = None
) -> tuple[Array, LabelModel]:
    """Return labels of a file as the objective takes them, and what the label party knows of them."""
    if shared.settings.loss_function.binary and labels.dtype.kind != "f":
        labels = np.array([None if word == "" else word for word in labels.tolist()], dtype=object)
    return label_targets(shared.settings, labels, party, wishes, classes=shared.meeting.classes)


def row_numbers(rows: Rows, column: str | None, what: str, least: float = -np.inf) -> Array | None:
    """A number for each row, from a column of its own."""
    if column is None:
        return None
    values = rows.column(column, what)
    if values.dtype.kind != "f" or not np.isfinite(values).all() or (values < least).any():
        allowed = "numbers of at least 0" if least == 0.0 else "numbers"
        raise DataError(f"{rows.name}: column {column!r} is the {what}; {allowed} are allowed, none missing")
    return values


def prepare_columns(rows: Rows, settings: DataSettings) -> tuple[FittedColumns, Array]:
    """Fit the columns that the settings choose, and return the rows as numbers too."""
    special = {settings.id, settings.label, settings.weight, settings.offset}
    chosen = choose_columns(rows, special, settings.columns, settings.drop)
    return prepare(rows, chosen, transform=settings.transform, standardise=settings.standardise)


def load_data(party: PartyFile) -> tuple[OwnData, FittedColumns, str]:
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
    if settings.label is not None:
        warn_of_label_columns(labels, features, preparation.names, party.own.name)
    data = OwnData(
        features=features,
        ids=ids,
        targets=targets,
        labels=side,
        untransformed=preparation.untransformed,
        weights=weights,
        offset=offset,
    )
    return data, preparation, digest
