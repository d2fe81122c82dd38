"""A party and its data, and the alignment of several parties' rows.

`Party(...)` checks shapes, ids and labels. `fit` and `predict` read the columns, by the same rules as
`securefed party` (securefed.data.readings). An error names the party, the column and the row.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from securefed.assembly.base import Array, PartyData
from securefed.data.columns import TRANSFORMS, FittedColumns, prepare, prepared
from securefed.data.ids import FEW_MEET, ID_FORMS, normalise_ids
from securefed.data.readings import Policy
from securefed.data.rows import Rows, read_rows, rows_of
from securefed.data.storage import new_table, take_rows
from securefed.declare import check_choice
from securefed.errors import DataError, Problems, SettingError
from securefed.labels.label_model import warn_of_label_columns

MOST_NAMED = 5
"""Ids that a warning names."""
NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*")


class Party:
    """An organisation's columns about some people, and its labels if it has them.

    Parameters
    ----------
    name: the party's name: letters, digits and - _ .
    data: rows x columns: a path of a CSV, Parquet or .npy file, a pandas frame, an array or a list. Numbers
        are standardised, words become one column for each category.
    labels: the name of a column of `data`, or one value for each row. Exactly one party has labels. Transfer
        learning allows missing ones (NaN or None). Several columns of numbers are predicted at once.
    ids: the name of a column of `data`, or one id for each row. Rows of all parties are aligned by id.
        Without ids all parties must have the same people in the same order.
    transform: "auto": splines for numbers, rare categories together, a mark where a value is missing. "none":
        columns as they are. Left out: "auto" in blind transfer learning, else "none".
    id_form: which ids count as the same (securefed.data.ids); all parties use the same form.
    weights, offset: for the label party, the name of a column or one number for each row: how much a row
        counts, and what is added to its margin (the logarithm of the exposure, for counts).
    policy: impute, dates, missing, rare, unknown, one_hot, decimal, dayfirst, separator: how values are
        written, and what becomes of gaps, dates and categories, as in party.toml (securefed.data.readings).

    Raises
    ------
    SettingError
        A setting is not allowed.
    DataError
        The file cannot be read, a named column is not there, or shapes, ids or labels do not fit.

    Examples
    --------
    >>> from securefed import Party
    >>> Party("shop", [[1.0, 20.0], [2.0, 30.0]], ids=["ann", "bob"])
    <Party shop: 2 rows, 2 columns>
    """

    def __init__(
        self,
        name: str,
        data: ArrayLike | PathLike[str] | str,
        labels: ArrayLike | str | None = None,
        ids: ArrayLike | str | None = None,
        *,
        transform: str | None = None,
        id_form: str = "exact",
        weights: ArrayLike | str | None = None,
        offset: ArrayLike | str | None = None,
        **policy: Any,
    ) -> None:
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise SettingError(f"name: {name!r} given, letters, digits and - _ . are allowed")
        self.name = name
        try:
            self.transform = None if transform is None else check_choice("transform", transform, TRANSFORMS)
            self.policy = Policy(**policy)
        except SettingError as error:
            raise SettingError(f"{name}: {error}") from None
        self.id_form = check_choice("id_form", id_form, ID_FORMS)
        self.columns: list[str] | None = None
        if isinstance(data, str | PathLike):
            rows = read_rows(Path(data).expanduser(), self.policy)
        elif self.policy.separator is not None:
            raise SettingError(f"{name}: separator is for text files, and data is no path")
        else:
            table = self._table(data)
            if hasattr(table, "columns"):
                self.columns = [str(column) for column in table.columns]
            rows = rows_of(name, table, self._names(table), self.policy)
        parts = {"ids": ids, "labels": labels, "weights": weights, "offset": offset}
        named = {what: value for what, value in parts.items() if isinstance(value, str)}
        problems = Problems(name)
        for what, column in named.items():
            with problems.gathered():
                rows.require(column, what)
                parts[what] = _special(rows, what, column)
        problems.check()
        kept = [each for each in rows.fields if each not in named.values()]
        if not kept:
            raise DataError(f"{name}: no feature columns are left besides {', '.join(named.values())}")
        if isinstance(data, str | PathLike):
            self.columns, table = kept, _as_array(rows, kept)
        elif named:
            places = [place for place, each in enumerate(rows.fields) if each in kept]
            self.columns = None if self.columns is None else kept
            table = table.iloc[:, places] if hasattr(table, "iloc") else table[:, places]
        self._row_numbers: NDArray[np.intp] = np.arange(1, len(table) + 1)
        self.features: Any = table
        self.id_name = named.get("ids")
        self.ids = self.labels = self.weights = self.offset = None
        with problems.gathered():
            self.ids = None if parts["ids"] is None else self._ids(parts["ids"])
        with problems.gathered():
            self.labels = None if parts["labels"] is None else self._labels(parts["labels"])
        with problems.gathered():
            self.weights = self._numbers("weights", parts["weights"], least=0.0)
        with problems.gathered():
            self.offset = self._numbers("offset", parts["offset"])
        problems.check()

    @property
    def rows(self) -> int:
        return len(self.features)

    def _table(self, values: Any) -> Any:
        """A frame as it is, anything else as an array of two dimensions; sparse matrices are filled up."""
        if hasattr(values, "toarray"):
            values = values.toarray()
        try:
            table = values if hasattr(values, "iloc") else np.asarray(values)
            if not hasattr(table, "iloc") and table.dtype.kind in "OUS":
                table = np.asarray(values, dtype=object)  # 1 stays a number beside words
        except ValueError:  # rows of different lengths
            raise DataError(f"{self.name}: the rows of data have different lengths") from None
        if getattr(table, "dtype", None) is not None and table.dtype.kind in "mM":
            raise DataError(
                f"{self.name}: data is an array of dates; give a pandas frame or a file, and say dates="
            )
        if np.ndim(table) == 1:
            table = table.to_frame() if hasattr(table, "to_frame") else table[:, None]
        if np.ndim(table) != 2 or 0 in np.shape(table):
            raise DataError(
                f"{self.name}: data has shape {np.shape(table)}, (rows, columns), none of them 0, is allowed"
            )
        return table

    def _names(self, table: Any) -> list[str]:
        return self.columns or [str(place) for place in range(np.shape(table)[1])]

    def _table_rows(self, names: Sequence[str]) -> Rows:
        """This party's columns for the reader that files have too."""
        rows = rows_of(self.name, self.features, names, self.policy)
        return replace(rows, numbers=self._row_numbers)

    def _ids(self, ids: Any) -> NDArray[Any]:
        array = np.asarray(ids)
        if array.shape != (self.rows,):
            raise DataError(f"{self.name}: {array.shape} ids given for {self.rows} rows")
        normalise_ids(array, self.name, self.id_form)
        return array

    def _labels(self, labels: Any) -> NDArray[Any]:
        array = np.asarray(labels)
        if array.ndim == 2 and array.shape[1] == 1:
            array = array[:, 0]
        if array.shape[:1] != (self.rows,) or array.ndim > 2 or 0 in array.shape:
            raise DataError(f"{self.name}: labels of shape {array.shape} given for {self.rows} rows")
        return array

    def _numbers(self, what: str, values: Any, least: float = -np.inf) -> Array | None:
        if values is None:
            return None
        try:
            array = np.asarray(values, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise DataError(f"{self.name}: {what} have to be numbers ({error})") from None
        if array.shape != (self.rows,):
            raise DataError(f"{self.name}: {what} of shape {array.shape} given for {self.rows} rows")
        if not np.isfinite(array).all() or (array < least).any() or not (array > least).any():
            allowed = "finite numbers of at least 0, not all 0," if least == 0.0 else "finite numbers"
            raise DataError(f"{self.name}: {what}: {allowed} are allowed")
        return array

    def known_labels(self) -> NDArray[Any]:
        """The labels; DataError where there are none."""
        if self.labels is None:
            raise DataError(f"{self.name}: no labels")
        return self.labels

    def relabelled(self, labels: ArrayLike) -> Party:
        return self._with(labels=self._labels(labels))

    def take(self, rows: NDArray[np.intp]) -> Party:
        frame = hasattr(self.features, "iloc")
        features = self.features.iloc[rows] if frame else take_rows(self.features, rows)
        parts = {name: getattr(self, name) for name in ("ids", "labels", "weights", "offset", "_row_numbers")}
        chosen = {name: None if values is None else values[rows] for name, values in parts.items()}
        return self._with(features=features, **chosen)

    def fitted(self, *, standardise: bool = True, usual: str = "none") -> tuple[PartyData, FittedColumns]:
        """The rows as numbers, and what was fitted on them for that. `usual`: the transform left out."""
        rows, transform = self._table_rows(self._names(self.features)), self.transform or usual
        columns, numbers = prepare(rows, list(rows.fields), transform=transform, standardise=standardise)
        if self.labels is not None:
            warn_of_label_columns(np.asarray(self.labels), numbers, columns.names, self.name)
        return self._data(numbers, columns), columns

    def transformed(self, columns: FittedColumns) -> PartyData:
        """This party's rows prepared as in training. Columns without names are taken in their order."""
        names, due = self._names(self.features), list(columns.kinds)
        unnamed = [each == list(map(str, range(len(each)))) for each in (names, due)]
        if any(unnamed):
            if len(names) != len(due):
                raise DataError(f"{self.name}: {len(names)} columns given, the model has {len(due)}")
            if not all(unnamed):
                now, then = ("without", "with") if unnamed[0] else ("with", "without")
                warnings.warn(
                    f"{self.name}: columns {now} names given, training had them {then}; taken in their order",
                    stacklevel=2,
                )
            names = due
        numbers, unknown = prepared(columns, self._table_rows(names))
        for column, count in unknown.items():
            warnings.warn(
                f"{self.name}: {count} of {self.rows} values of column {column!r} were not there in training",
                stacklevel=2,
            )
        return self._data(numbers, columns)

    def _data(self, numbers: Array, columns: FittedColumns) -> PartyData:
        return PartyData(
            features=numbers,
            untransformed=columns.untransformed,
            weights=self.weights,
            offset=self.offset,
            ids=None if self.ids is None else normalise_ids(self.ids, self.name, self.id_form),
        )

    def _with(self, **changes: Any) -> Party:
        party = copy(self)
        vars(party).update(changes)
        return party

    def __repr__(self) -> str:
        known = ", labels" if self.labels is not None else ""
        return f"<Party {self.name}: {self.rows} rows, {np.shape(self.features)[1]} columns{known}>"


def _special(rows: Rows, what: str, column: str) -> NDArray[Any]:
    """A column that is the ids, the labels, the weights or the offset."""
    fields: Any = rows.fields[column]
    if what == "ids" or (what == "labels" and isinstance(fields, np.ndarray)):
        return np.asarray(fields)
    values = rows.column(column, what)
    if what != "labels":
        return values
    if values.dtype.kind == "f":
        whole = (
            np.isfinite(values).all() and (values == np.rint(values)).all() and np.abs(values).max() < 2**53
        )
        return values.astype(np.int64) if whole else values
    return np.array([None if word == "" else word for word in values.tolist()], dtype=object)


def _as_array(rows: Rows, columns: Sequence[str]) -> NDArray[Any]:
    """A file's columns as an array: of floats where all are plain numbers, of anything where not."""
    if all(rows.fields.numbers(name) is not None for name in columns):
        table: NDArray[Any] = new_table(rows.count, len(columns))
    else:
        table = np.empty((rows.count, len(columns)), dtype=object)
    for place, name in enumerate(columns):
        numbers = rows.fields.numbers(name)
        table[:, place] = np.array(rows.fields[name], dtype=object) if numbers is None else numbers
    return table


def check_parties(parties: Iterable[Party]) -> list[Party]:
    """The parties in a list; DataError unless they are parties, each with a name of its own."""
    if isinstance(parties, Party) or not isinstance(parties, Iterable):
        raise DataError(f"parties: a {type(parties).__name__} given, a list of Party(...) is allowed")
    listed = list(parties)
    for party in listed:
        if not isinstance(party, Party):
            raise DataError(f"parties: a {type(party).__name__} given, Party(...) is allowed")
    names = [party.name for party in listed]
    if len(set(names)) != len(names):
        raise DataError(f"parties: names have to differ, {', '.join(names)} given")
    return listed


def label_party(parties: Sequence[Party]) -> Party:
    listed = check_parties(parties)
    if len(listed) < 2:
        raise DataError(f"parties: {len(listed)} given, at least 2 are needed")
    labelled = [party for party in listed if party.labels is not None]
    if len(labelled) != 1:
        words = ", ".join(p.name for p in labelled) or "nobody"
        raise DataError(f"labels: exactly one party has to have them, {words} does")
    return labelled[0]


def common_rows(parties: Sequence[Party], first: str) -> dict[str, NDArray[np.intp]]:
    """Each party's rows that all parties have, in the order of the party called `first`."""
    missing = ", ".join(party.name for party in parties if party.ids is None)
    if all(party.ids is None for party in parties):
        sizes = {party.name: party.rows for party in parties}
        if len(set(sizes.values())) > 1:
            raise DataError(
                f"parties without ids need equally many rows, {sizes} given; pass ids to align them"
            )
        return {name: np.arange(count, dtype=np.intp) for name, count in sizes.items()}
    if missing:
        raise DataError(f"ids: {missing} has none while others have; give ids to all parties or to none")
    forms = {party.id_form for party in parties}
    if len(forms) > 1:
        raise SettingError(f"id_form: {', '.join(sorted(forms))} given, all parties take the same")
    places = {
        p.name: {value: row for row, value in enumerate(normalise_ids(p.ids, p.name, p.id_form))}
        for p in parties
        if p.ids is not None
    }
    order = [value for value in places[first] if all(value in place for place in places.values())]
    if not order:
        raise DataError(f"ids: {', '.join(p.name for p in parties)} have no id in common: {FEW_MEET}")
    return {name: np.array([rows[value] for value in order], dtype=np.intp) for name, rows in places.items()}


def align(parties: Sequence[Party], first: str) -> list[Party]:
    """The parties cut down to their common rows, in the order of the party called `first`."""
    rows = common_rows(parties, first)
    return [party if party.ids is None else party.take(rows[party.name]) for party in parties]


def missing_elsewhere(parties: Sequence[Party], kept: Party) -> str | None:
    """Return a line about a party's rows that another party does not have, or None.

    `kept` is one of `parties` after the alignment.
    """
    original = next(party for party in parties if party.name == kept.name)
    gone = ~np.isin(original._row_numbers, kept._row_numbers)
    if original.ids is None or not gone.any():
        return None
    ids = original.ids[gone].tolist()
    shown = ", ".join(map(str, ids[:MOST_NAMED])) + (", ..." if len(ids) > MOST_NAMED else "")
    return (
        f"{original.name}: {len(ids)} of {original.rows} rows get no answer, since not all parties have them:"
        f" {shown}"
    )
