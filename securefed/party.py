"""A party and its data, and the alignment of several parties' rows.

`Party` takes what users have: numpy arrays, lists, pandas DataFrames and Series (pandas is not required).
Everything is checked here, once: what cannot be used is refused in one line that names the party.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from copy import copy
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone

from securefed.errors import DataError, SettingError

__all__ = ["Party", "align", "label_party"]

Array = NDArray[np.float64]
NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*")


class Party:
    """An organisation's columns about some people, and its labels if it has them.

    features: rows x columns of finite numbers, or whatever `transform` takes. labels: one per row (transfer
    learning: NaN or None where unknown). ids: one per row, to align rows with the other parties'; without
    ids all parties must have the same people in the same order. transform: a scikit-learn transformer or
    pipeline that the party fits on its own columns alone (binning, one-hot, splines, PCA, ...); strong
    columns make a linear model strong, and nobody else learns how they came about.
    """

    def __init__(
        self,
        name: str,
        features: ArrayLike,
        labels: ArrayLike | None = None,
        ids: ArrayLike | None = None,
        *,
        transform: Any = None,
    ) -> None:
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise SettingError(f"name: {name!r} given, letters, digits and - _ . are allowed")
        self.name = name
        columns = getattr(features, "columns", None)
        self.columns = None if columns is None else [str(c) for c in columns]
        # A class has the methods of its instances and would pass for one.
        if transform is not None and (isinstance(transform, type) or not hasattr(transform, "transform")):
            raise SettingError(f"{name}: transform is {transform!r}, a scikit-learn transformer is allowed")
        self.transform = transform
        self.features: Any = self._features(features) if transform is None else _table(name, features)
        self.ids = None if ids is None else self._ids(ids)
        self.labels = None if labels is None else self._labels(labels)

    @property
    def rows(self) -> int:
        return len(self.features)

    def _features(self, given: Any) -> Array:
        try:
            array = np.asarray(given, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise DataError(
                f"{self.name}: features have to be numbers ({error}); encode words as numbers first"
            ) from None
        if array.ndim == 1:
            array = array[:, None]
        if array.ndim != 2 or array.size == 0:
            raise DataError(
                f"{self.name}: features have shape {array.shape}, (rows, columns), none of them 0, is allowed"
            )
        bad = ~np.isfinite(array)
        if bad.any():
            column = int(np.flatnonzero(bad.any(axis=0))[0])
            named = self.columns[column] if self.columns else f"number {column}"
            raise DataError(
                f"{self.name}: {int(bad.sum())} features are NaN or infinite, the first in column {named};"
                " fill or drop them"
            )
        return array

    def _ids(self, given: Any) -> NDArray[Any]:
        array = np.asarray(given)
        if array.shape != (self.rows,):
            raise DataError(f"{self.name}: {array.shape} ids given for {self.rows} rows")
        repeated = [value for value, count in Counter(array.tolist()).items() if count > 1]
        if repeated:
            few = ", ".join(str(value) for value in repeated[:3])
            raise DataError(
                f"{self.name}: {len(repeated)} ids occur more than once ({few}); each may occur once"
            )
        return array

    def _labels(self, given: Any) -> NDArray[Any]:
        array = np.asarray(given)
        if array.ndim == 2 and array.shape[1] == 1:
            array = array[:, 0]
        if array.shape != (self.rows,):
            raise DataError(f"{self.name}: labels of shape {array.shape} given for {self.rows} rows")
        return array

    def take(self, rows: NDArray[np.intp]) -> Party:
        """The party with these rows only, in this order."""
        party = copy(self)
        party.features = self.features.iloc[rows] if hasattr(self.features, "iloc") else self.features[rows]
        party.ids = None if self.ids is None else self.ids[rows]
        party.labels = None if self.labels is None else self.labels[rows]
        return party

    def fitted(self) -> tuple[Party, Any]:
        """This party with its transform fitted on its own rows and applied; and the fitted transform."""
        if self.transform is None:
            return self, None
        transform = clone(self.transform)
        try:
            transform.fit(self.features)
        except (TypeError, ValueError) as error:
            raise DataError(f"{self.name}: transform cannot be fitted ({_line(error)})") from None
        return self.transformed(transform), transform

    def transformed(self, transform: Any) -> Party:
        """This party's rows through a fitted transform (None: as they are, which have to be numbers)."""
        party = copy(self)
        party.transform = None
        if transform is None:
            party.features = self._features(self.features)
            return party
        try:
            found = transform.transform(self.features)
        except (TypeError, ValueError) as error:
            raise DataError(f"{self.name}: transform cannot be applied ({_line(error)})") from None
        party.columns = None
        party.features = party._features(found.toarray() if hasattr(found, "toarray") else found)
        return party

    def __repr__(self) -> str:
        known = ", labels" if self.labels is not None else ""
        return f"<Party {self.name}: {self.rows} rows, {np.shape(self.features)[1]} columns{known}>"


def _table(name: str, features: Any) -> Any:
    """Features for a transformer: a table or an array of anything, with rows and columns."""
    table = features if hasattr(features, "iloc") else np.asarray(features)
    if np.ndim(table) != 2 or 0 in np.shape(table):
        raise DataError(
            f"{name}: features have shape {np.shape(table)}, (rows, columns), none of them 0, is allowed"
        )
    return table


def _line(error: Exception) -> str:
    """The first line of what a foreign library says."""
    return str(error).strip().split("\n", 1)[0]


def label_party(parties: Sequence[Party]) -> Party:
    """The one party that has labels."""
    names = [party.name for party in parties]
    if len(parties) < 2:
        raise DataError(f"parties: {len(parties)} given, at least 2 are needed")
    if len(set(names)) != len(names):
        raise DataError(f"parties: names have to differ, {', '.join(names)} given")
    found = [party for party in parties if party.labels is not None]
    if len(found) != 1:
        words = ", ".join(p.name for p in found) or "nobody"
        raise DataError(f"labels: exactly one party has to have them, {words} does")
    return found[0]


def align(parties: Sequence[Party], first: str) -> list[Party]:
    """The parties cut down to their common rows, in the order of the party called `first`."""
    with_ids = [party for party in parties if party.ids is not None]
    if not with_ids:
        sizes = {party.name: party.rows for party in parties}
        if len(set(sizes.values())) > 1:
            raise DataError(
                f"parties without ids need equally many rows, {sizes} given; pass ids to align them"
            )
        return list(parties)
    if len(with_ids) < len(parties):
        missing = ", ".join(p.name for p in parties if p.ids is None)
        raise DataError(f"ids: {missing} has none while others have; give ids to all parties or to none")
    places = {
        p.name: {value: row for row, value in enumerate(p.ids.tolist())} for p in parties if p.ids is not None
    }
    order = [value for value in places[first] if all(value in place for place in places.values())]
    if not order:
        raise DataError(f"ids: {', '.join(p.name for p in parties)} have no id in common")
    return [
        party.take(np.array([places[party.name][value] for value in order], dtype=np.intp))
        for party in parties
    ]
