"""A party's own data for a training: its file as numbers, whom they are about, and its labels."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefed.data.columns import Columns
from securefed.data.labels import binary_labels
from securefed.data.psi_work import check_ids
from securefed.errors import DataError, Problems, SettingError
from securefed.measure.labels import LabelSide
from securefed.protocols.losses import get_loss
from securefed.protocols.recipe import LinearRecipe
from securefed.protocols.transfer_algebra import with_waves
from securefed.runtime.preparation import prepare
from securefed.runtime.rows import file_digest, read_rows
from securefed.runtime.settings import PartyFile
from securefed.runtime.shared import SharedSettings

__all__ = ["OwnData", "check_labels", "load_data"]

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class OwnData:
    """A party's rows: numbers, who they are about, and labels if it has them."""

    features: Array
    ids: Collection[str] | None
    """In the agreed form."""
    targets: Array | None = None
    """-1 and +1 (NaN where unknown), or numbers for the linear loss."""
    labels: LabelSide | None = None
    """How labels became targets, and how scores will become answers."""
    straight: NDArray[np.intp] | None = None
    """Which of the numbers are columns as they were given; all of them where nobody said."""

    def waved(self) -> Array:
        """The features of a blind transfer run: random ones on top."""
        found = np.arange(self.features.shape[1]) if self.straight is None else self.straight
        return with_waves(self.features, found)

    @property
    def known(self) -> NDArray[np.bool_] | None:
        return None if self.targets is None else ~np.isnan(self.targets)


def check_labels(labels: NDArray[Any], party: str, shared: SharedSettings) -> tuple[Array, LabelSide]:
    """Labels as the objective takes them, and what the label party knows of them."""
    recipe = shared.recipe()
    if isinstance(recipe, LinearRecipe) and not recipe.loss_function.binary:
        side = LabelSide.of(labels, party, recipe.loss_function, standardise=True, taylor=True)
        return side.targets(labels, party, recipe.margin_bound), side
    if labels.dtype.kind != "f":
        labels = np.array([None if word == "" else word for word in labels.tolist()], dtype=object)
    signs, classes = binary_labels(labels, party, allow_missing=not shared.same_people)
    if not isinstance(recipe, LinearRecipe):
        return signs, LabelSide(get_loss("logistic"), classes, taylor=False)
    return signs, LabelSide(recipe.loss_function, classes, taylor=not recipe.exact)


def load_data(party: PartyFile) -> tuple[OwnData, Columns, str]:
    """The party's file as numbers, how they were made, and the file's digest."""
    if party.data is None:
        raise SettingError("data: missing; a party needs the table [data] with its file")
    settings, path = party.data, party.folder / party.data.file
    rows = read_rows(path)
    digest = file_digest(path)
    problems, fitted = Problems(settings.file), None
    ids = targets = side = None
    with problems.gathered():
        if settings.id is not None:  # what cannot be aligned is refused before anybody is called
            ids = rows.each_id(settings.id, party.own.name, party.shared.id_form)
            check_ids(ids, party.own.name)
    with problems.gathered():
        if settings.label is not None:
            labels = rows.column(settings.label, "label", missing=settings.missing)
            targets, side = check_labels(labels, party.own.name, party.shared)
    with problems.gathered():
        fitted = prepare(rows, settings)
    problems.check()
    if fitted is None:
        raise DataError(f"{settings.file}: no feature columns are left")
    preparation, features = fitted
    return OwnData(features, ids, targets, side, preparation.straight), preparation, digest
