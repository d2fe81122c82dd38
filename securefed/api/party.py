"""A party and its data, and the alignment of several parties' rows.

`Party` takes what users have: numpy arrays, lists, pandas DataFrames and Series (pandas is not required).
Everything is checked here, once: what cannot be used is refused in one line that names the party.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone

from securefed.checks import check_choice
from securefed.data.columns import Columns
from securefed.data.fields import field_kind, typed
from securefed.data.ids import ID_FORMS, id_hint, id_shape, normalise_ids
from securefed.data.policy import Policy
from securefed.data.storage import row_blocks, take_rows
from securefed.errors import DataError, Problems, SettingError

__all__ = ["Fitted", "Party", "align", "label_party"]

Array = NDArray[np.float64]
NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*")


@dataclass(frozen=True, eq=False)
class Fitted:
    """What a party learned about its own columns in training; it stays with the party."""

    transform: Any
    """A scikit-learn transformer of the user's, or None."""
    columns: Columns
    named: bool
    """The columns came with names (a DataFrame)."""


class Party:
    """An organisation's columns about some people, and its labels if it has them.

    features: rows x columns of finite numbers, or whatever `transform` takes. labels: one per row (transfer
    learning: NaN or None where unknown), or several columns of numbers to predict at once. ids: one per row,
    to align rows with the other parties'; without ids all parties must have the same people in the same
    order; `id_form` says what counts as the same id (securefed.data.ids), alike at all parties. transform:
    "auto" (splines for numbers, one-hot for words with rare ones together, indicators for what is missing),
    or a scikit-learn transformer or pipeline; the party fits it on its own columns alone. Strong columns make
    a linear model strong, and nobody else learns how they came about.

    weights, offset: of the label party's rows, one number each: how much a row counts, and what its margin
    has besides the columns' part (log of the exposure, for counts). The joint model is then one around the
    label party's own fit (securefed.labels.base_model), and nobody else learns of it.

    impute, dates, missing, rare, unknown: gaps, dates and categories, as [data] of party.toml has them
    (securefed.data.policy); with one of them given, words are one-hot encoded. What they fit is fitted on
    this party's own training rows.
    """

    def __init__(
        self,
        name: str,
        features: ArrayLike,
        labels: ArrayLike | None = None,
        ids: ArrayLike | None = None,
        *,
        transform: Any = None,
        impute: str | Mapping[str, str] | None = None,
        dates: Mapping[str, str] | None = None,
        missing: Sequence[str] = (),
        rare: int | None = None,
        unknown: str = "ignore",
        id_form: str = "exact",
        weights: ArrayLike | None = None,
        offset: ArrayLike | None = None,
    ) -> None:
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise SettingError(f"name: {name!r} given, letters, digits and - _ . are allowed")
        self.name = name
        columns = getattr(features, "columns", None)
        self.columns = None if columns is None else [str(c) for c in columns]
        # A class has the methods of its instances and would pass for one.
        foreign = transform is not None and transform != "auto"
        if foreign and (isinstance(transform, type) or not hasattr(transform, "transform")):
            raise SettingError(
                f"{name}: transform is {transform!r}, 'auto' or a scikit-learn transformer is allowed"
            )
        try:
            self.policy = Policy(impute, dates or {}, missing, rare, unknown)  # type: ignore[arg-type]
        except SettingError as error:
            raise SettingError(f"{name}: {error}") from None
        if foreign and not self.policy.plain:
            raise SettingError(f"{name}: a scikit-learn transformer decides on gaps, dates and words itself")
        self.transform, self.id_form = transform, check_choice("id_form", id_form, ID_FORMS)
        raw = transform is None and self.policy.plain
        self.features: Any = self._features(features) if raw else _table(name, features)
        problems = Problems(name)
        self.ids = self.labels = None
        with problems.gathered():
            self.ids = None if ids is None else self._ids(ids)
        with problems.gathered():
            self.labels = None if labels is None else self._labels(labels)
        self.weights = self.offset = None
        with problems.gathered():
            self.weights = None if weights is None else self._numbers("weights", weights, least=0.0)
        with problems.gathered():
            self.offset = None if offset is None else self._numbers("offset", offset)
        problems.check()

    @property
    def rows(self) -> int:
        return len(self.features)

    def _features(self, given: Any) -> Array:
        try:
            array = np.asarray(given, dtype=np.float64)
        except (TypeError, ValueError) as error:
            self._explain(given)
            raise DataError(
                f"{self.name}: features have to be numbers ({error}); transform='auto' encodes words"
            ) from None
        if array.ndim == 1:
            array = array[:, None]
        if array.ndim != 2 or array.size == 0:
            raise DataError(
                f"{self.name}: features have shape {array.shape}, (rows, columns), none of them 0, is allowed"
            )
        if not all(np.isfinite(array[block]).all() for block in row_blocks(len(array))):
            self._explain(array)
        return array

    def _explain(self, given: Any) -> None:
        """Everything about a table that is no numbers, if it is a table."""
        try:
            shape = np.shape(given)
        except ValueError:  # rows of different lengths
            return
        if len(shape) != 2 or 0 in shape:
            return
        problems = Problems(self.name)
        for name, values in as_table(self.name, given, self.columns, problems=problems).items():
            named = repr(name) if self.columns else f"number {name}"
            if (kind := field_kind(values)) == "number":
                bad = int((~np.isfinite(values)).sum())
                if bad:
                    problems.add(
                        f"{self.name}: {bad} of {len(values)} features of column {named} are NaN or infinite;"
                        " fill or drop them, or say impute='median', 'most-frequent' or 'indicator'"
                    )
            elif kind == "date":
                problems.add(
                    f"{self.name}: column {named} holds dates; say dates={{{name!r}: 'age'}} or 'parts'"
                )
            else:
                few = ", ".join(repr(str(word)) for word in np.unique(values)[:3])
                problems.add(
                    f"{self.name}: features have to be numbers, column {named} holds {few}; transform='auto'"
                    " or a policy such as impute='indicator' encodes words"
                )
        problems.check()

    def _ids(self, given: Any) -> NDArray[Any]:
        array = np.asarray(given)
        if array.shape != (self.rows,):
            raise DataError(f"{self.name}: {array.shape} ids given for {self.rows} rows")
        normalise_ids(array, self.name, self.id_form)
        return array

    def _labels(self, given: Any) -> NDArray[Any]:
        array = np.asarray(given)
        if array.ndim == 2 and array.shape[1] == 1:
            array = array[:, 0]
        if array.shape[:1] != (self.rows,) or array.ndim > 2 or 0 in array.shape:
            raise DataError(f"{self.name}: labels of shape {array.shape} given for {self.rows} rows")
        return array

    def _numbers(self, what: str, given: Any, least: float = -np.inf) -> Array:
        try:
            array = np.asarray(given, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise DataError(f"{self.name}: {what} have to be numbers ({error})") from None
        if array.shape != (self.rows,):
            raise DataError(f"{self.name}: {what} of shape {array.shape} given for {self.rows} rows")
        if not np.isfinite(array).all() or (array < least).any() or not (array > least).any():
            allowed = "finite numbers of at least 0, not all 0," if least == 0.0 else "finite numbers"
            raise DataError(f"{self.name}: {what}: {allowed} are allowed")
        return array

    def relabelled(self, labels: ArrayLike) -> Party:
        """The party with these labels in place of its own."""
        party = copy(self)
        party.labels = party._labels(labels)
        return party

    def take(self, rows: NDArray[np.intp]) -> Party:
        """The party with these rows only, in this order."""
        party = copy(self)
        frame = hasattr(self.features, "iloc")
        party.features = self.features.iloc[rows] if frame else take_rows(self.features, rows)
        party.ids = None if self.ids is None else self.ids[rows]
        for name in ("labels", "weights", "offset"):
            given = getattr(self, name)
            setattr(party, name, None if given is None else given[rows])
        return party

    def with_transform(self, transform: Any) -> Party:
        """The same party with another transform, where it has none yet."""
        party = copy(self)
        party.transform = transform
        return party

    def with_features(self, numbers: Array) -> Party:
        """The same people with other numbers."""
        return self._with(numbers)

    def fitted(self, *, standardise: bool = True) -> tuple[Party, Fitted]:
        """This party as numbers, with what it fitted on its own rows for that."""
        foreign, rows = None, self.features
        if self.transform is not None and self.transform != "auto":
            foreign = clone(self.transform)
            try:
                foreign.fit(rows)
            except (TypeError, ValueError) as error:
                raise DataError(f"{self.name}: transform cannot be fitted ({_line(error)})") from None
            rows = self._through(foreign)
        kind = "auto" if self.transform is not None and foreign is None else "none"
        names = self.columns if foreign is None else None
        policy = self.policy if foreign is None else Policy()
        problems = Problems(self.name)
        table = as_table(self.name, rows, names, policy=policy, problems=problems)
        problems.check()
        columns, numbers = Columns.fit(
            table, transform=kind, standardise=standardise, owner=self.name, policy=policy
        )
        return self._with(numbers), Fitted(foreign, columns, names is not None)

    def transformed(self, fitted: Fitted | None) -> Party:
        """This party's rows by what was fitted in training (None: numbers as they are)."""
        if fitted is None:
            return self._with(self._features(self.features))
        rows = self.features if fitted.transform is None else self._through(fitted.transform)
        names = self.columns if fitted.transform is None else None
        given, due = np.shape(rows)[1], len(fitted.columns.given)
        if given != due:
            raise DataError(f"{self.name}: {given} columns given, the model has {due}")
        if fitted.named != (names is not None) and fitted.transform is None:
            now, then = ("without", "with") if fitted.named else ("with", "without")
            warnings.warn(
                f"{self.name}: columns {now} names given, training had them {then}; taken in their order",
                stacklevel=2,
            )
            names = None
        if names is not None:
            strange = [name for name in names if name not in fitted.columns.given]
            if strange:
                raise DataError(
                    f"{self.name}: column {strange[0]!r} given, training had {_few(fitted.columns.given)}"
                )
        kinds, gaps = fitted.columns.kinds, Policy(missing=fitted.columns.missing)
        problems = Problems(self.name)
        table = as_table(self.name, rows, names or fitted.columns.given, gaps, kinds, problems)
        problems.check()
        numbers, unknown = fitted.columns.apply(table, self.name)
        for column, count in unknown.items():
            warnings.warn(
                f"{self.name}: {count} of {self.rows} values of column {column!r} were not there in training",
                stacklevel=2,
            )
        return self._with(numbers)

    def _with(self, numbers: Array) -> Party:
        party = copy(self)
        party.transform, party.columns, party.policy = None, None, Policy()
        party.features = party._features(numbers)
        return party

    def _through(self, transform: Any) -> Any:
        try:
            found = transform.transform(self.features)
        except (TypeError, ValueError) as error:
            raise DataError(f"{self.name}: transform cannot be applied ({_line(error)})") from None
        return self._features(found.toarray() if hasattr(found, "toarray") else found)

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


def as_table(
    name: str,
    rows: Any,
    names: Sequence[str] | None,
    policy: Policy | None = None,
    kinds: Mapping[str, str] | None = None,
    problems: Problems | None = None,
) -> dict[str, NDArray[Any]]:
    """Columns by name (by number where they have none): floats, days or words, what is missing marked.

    `kinds`: what they were in training. What cannot be read is left out and told to `problems`.
    """
    policy, problems = policy or Policy(), problems or Problems(name)
    frame = hasattr(rows, "iloc")
    array = None if frame else np.asarray(rows)
    keys = list(names) if names is not None else [str(i) for i in range(np.shape(rows)[1])]
    if len(set(keys)) < len(keys):
        raise DataError(f"{name}: column {Counter(keys).most_common(1)[0][0]!r} occurs more than once")
    made = {}
    for place, key in enumerate(keys):
        column = rows.iloc[:, place].to_numpy() if array is None else array[:, place]
        kind = (kinds or {}).get(key, "date" if key in policy.dates else None)
        with problems.gathered():
            made[key] = _typed(column, key, name, kind, policy.missing)
    return made


def _typed(
    column: NDArray[Any], name: str, owner: str, kind: str | None, missing: Sequence[str]
) -> NDArray[Any]:
    if column.dtype.kind in "fiub" and kind in (None, "number"):
        return column.astype(np.float64)
    if column.dtype.kind == "M" and kind in (None, "date"):
        return column.astype("datetime64[D]")
    if kind == "number" and column.dtype.kind != "O":
        kind = None  # words where numbers were: refused by name, with what training had
    return typed(column.tolist(), name, owner, missing=missing, kind=kind, texts=False)


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) + (" ..." if len(names) > 6 else "")


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
        hint = id_hint({name: id_shape(place) for name, place in places.items()}, forms.pop())
        raise DataError(f"ids: {', '.join(p.name for p in parties)} have no id in common: {hint}")
    return [
        party.take(np.array([places[party.name][value] for value in order], dtype=np.intp))
        for party in parties
    ]
