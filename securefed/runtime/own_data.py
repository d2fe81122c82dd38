"""A party's own data for a training: its file as numbers, whom they are about, and its labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefed.data.ids import normalise_ids
from securefed.data.labels import binary_labels
from securefed.errors import DataError, SettingError
from securefed.protocols.recipe import LinearRecipe
from securefed.runtime.preparation import Preparation
from securefed.runtime.rows import file_digest, read_rows
from securefed.runtime.settings import PartyFile
from securefed.runtime.shared import SharedSettings

__all__ = ["OwnData", "check_labels", "load_data"]

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class OwnData:
    """A party's rows: numbers, who they are about, and labels if it has them."""

    features: Array
    ids: list[object] | None
    targets: Array | None = None
    """-1 and +1 (NaN where unknown), or numbers for the linear loss."""
    classes: tuple[Any, ...] | None = None

    @property
    def known(self) -> NDArray[np.bool_] | None:
        return None if self.targets is None else ~np.isnan(self.targets)


def check_labels(
    labels: NDArray[Any], party: str, shared: SharedSettings
) -> tuple[Array, tuple[Any, ...] | None]:
    """Labels as the objective takes them, and the two classes where there are classes."""
    recipe = shared.recipe()
    if isinstance(recipe, LinearRecipe) and not recipe.loss_function.binary:
        try:
            targets = recipe.loss_function.check_labels(labels)
        except DataError as error:
            raise DataError(f"{party}: {error}") from None
        if float(np.max(np.abs(targets))) > recipe.margin_bound:
            raise DataError(
                f"{party}: labels up to {np.max(np.abs(targets)):.4g} given, at most margin_bound="
                f"{recipe.margin_bound:g} is allowed; scale them or raise it"
            )
        return targets, None
    if labels.dtype.kind != "f":
        labels = np.array([None if word == "" else word for word in labels.tolist()], dtype=object)
    signs, classes = binary_labels(labels, party, allow_missing=shared.objective == "transfer")
    return signs, tuple(value.item() if hasattr(value, "item") else value for value in classes)


def load_data(party: PartyFile) -> tuple[OwnData, Preparation, str]:
    """The party's file as numbers, how they were made, and the file's digest."""
    if party.data is None:
        raise SettingError("data: missing; a party needs the table [data] with its file")
    settings, path = party.data, party.folder / party.data.file
    rows = read_rows(path)
    digest = file_digest(path)
    ids = None
    if settings.id is not None:
        ids = rows.ids(settings.id)
        normalise_ids(ids, party.own.name)  # what cannot be aligned is refused before anybody is called
    targets = classes = None
    if settings.label is not None:
        labels = rows.column(settings.label, "label")
        targets, classes = check_labels(labels, party.own.name, party.shared)
    preparation, features = Preparation.fit(rows, settings)
    return OwnData(features, ids, targets, classes), preparation, digest
