"""Data that several parties hold by columns, and the row sets of a transfer-learning task.

Plain values: what a loader returns and what the estimators and the command line turn into parties. The label
party is last in `parties()`, as the paper's party K is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from research.data.splits import equal_counts, share_counts, stratified_rows
from securefed.errors import DataError

Array = NDArray[np.float64]
Rows = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class PartyRows:
    """What one party has: its columns for some people, and their labels if it knows them."""

    name: str
    features: Array
    columns: tuple[str, ...]
    ids: NDArray[Any]
    labels: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        if self.features.ndim != 2 or self.features.size == 0:
            raise DataError(
                f"{self.name}: features of shape {self.features.shape}, (rows, columns) is allowed"
            )
        if self.features.shape[1] != len(self.columns):
            raise DataError(
                f"{self.name}: {len(self.columns)} column names for {self.features.shape[1]} columns"
            )
        for what, array in (("ids", self.ids), ("labels", self.labels)):
            if array is not None and array.shape != (len(self.features),):
                raise DataError(f"{self.name}: {what} of shape {array.shape} for {len(self.features)} rows")
        bad = ~np.isfinite(self.features)
        if bad.any():
            column = self.columns[int(np.flatnonzero(bad.any(axis=0))[0])]
            raise DataError(f"{self.name}: {int(bad.sum())} values are not finite, the first in {column}")

    @property
    def rows(self) -> int:
        return len(self.features)

    def take(self, rows: Rows) -> PartyRows:
        """These rows, in this order."""
        labels = None if self.labels is None else self.labels[rows]
        return replace(self, features=self.features[rows], ids=self.ids[rows], labels=labels)


@dataclass(frozen=True, eq=False)
class VerticalData:
    """People that all parties have, row by row: `parts` holds each party's columns.

    `generated` says that no person stands behind the rows; the name says so too, so that no table can hide
    it.
    """

    name: str
    parts: Mapping[str, Array]
    columns: Mapping[str, tuple[str, ...]]
    labels: NDArray[np.int64]
    label_party: str
    ids: NDArray[Any]
    generated: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", MappingProxyType(dict(self.parts)))
        object.__setattr__(self, "columns", MappingProxyType({k: tuple(v) for k, v in self.columns.items()}))
        if len(self.parts) < 2 or set(self.parts) != set(self.columns):
            raise DataError(
                f"{self.name}: columns of {', '.join(self.columns)} for parties {', '.join(self.parts)};"
                " two or more parties with columns each are allowed"
            )
        if self.label_party not in self.parts:
            raise DataError(
                f"{self.name}: label party {self.label_party!r} is not among {', '.join(self.parts)}"
            )
        if self.generated != ("(generated)" in self.name):
            raise DataError(f"{self.name}: generated data, and no other, has '(generated)' in its name")
        self.parties()

    @property
    def rows(self) -> int:
        return len(self.labels)

    def party(self, name: str) -> PartyRows:
        """One party's rows; the labels are with the label party alone."""
        labels = self.labels if name == self.label_party else None
        return PartyRows(name, self.parts[name], self.columns[name], self.ids, labels)

    def parties(self) -> list[PartyRows]:
        """All parties, the label party last."""
        names = [name for name in self.parts if name != self.label_party]
        return [self.party(name) for name in [*names, self.label_party]]

    def take(self, rows: Rows) -> VerticalData:
        """These rows, in this order."""
        parts = {name: part[rows] for name, part in self.parts.items()}
        return replace(self, parts=parts, labels=self.labels[rows], ids=self.ids[rows])

    def split(self, test: int | float, seed: int) -> tuple[VerticalData, VerticalData]:
        """Training and test rows, each class in both in its share. `test`: how many rows, or which part."""
        rest, chosen = stratified_rows(self.labels, test, seed)
        return self.take(rest), self.take(chosen)


def standardise(train: VerticalData, *others: VerticalData) -> tuple[VerticalData, ...]:
    """Every column with mean 0 and variance 1 on the training rows, and the others by the same measure."""
    from sklearn.preprocessing import StandardScaler

    scalers = {name: StandardScaler().fit(part) for name, part in train.parts.items()}
    return tuple(
        replace(data, parts={name: scalers[name].transform(part) for name, part in data.parts.items()})
        for data in (train, *others)
    )


@dataclass(frozen=True, eq=False)
class TransferData:
    """Two parties who share some people, by id. `held_out` are more of B's people, with the labels that a
    model is judged by; neither party trains on them.
    """

    name: str
    a: PartyRows
    b: PartyRows
    held_out: PartyRows
    generated: bool = False

    def __post_init__(self) -> None:
        if self.a.labels is None or self.held_out.labels is None or self.b.labels is not None:
            raise DataError(f"{self.name}: labels belong to A and to the held-out rows, and not to B")
        if self.held_out.columns != self.b.columns:
            raise DataError(f"{self.name}: the held-out rows have other columns than B's")
        if not self.overlap:
            raise DataError(f"{self.name}: A and B share nobody")
        if np.isin(self.held_out.ids, np.concatenate([self.a.ids, self.b.ids])).any():
            raise DataError(f"{self.name}: held-out people are among A's or B's")

    @property
    def overlap(self) -> int:
        """How many people A and B share."""
        return int(np.isin(self.b.ids, self.a.ids).sum())


def transfer(
    data: VerticalData,
    *,
    overlap: int,
    labelled: int,
    held_out: int,
    seed: int,
    name: str | None = None,
) -> TransferData:
    """A transfer task from two parties' common rows: A keeps `labelled` people, half of each class; B knows
    `overlap` of them, half of each class, and as many others as A has; `held_out` more are set apart, with
    the classes in their natural shares. Each party standardises its columns on its own people.
    """
    if len(data.parts) != 2:
        raise DataError(f"{data.name}: {len(data.parts)} parties, a transfer task takes 2")
    if not 2 <= overlap <= labelled:
        raise DataError(f"overlap: {overlap} given, 2 to {labelled} (the labelled rows) is allowed")
    rng = np.random.default_rng(seed)
    # Each class in one random order: A's from its front, the held-out from its end, B's others in between. So
    # A's people do not depend on how many are held out.
    orders = [rng.permutation(np.flatnonzero(data.labels == c)) for c in np.unique(data.labels)]
    sizes = [len(order) for order in orders]
    counts = zip(
        orders,
        equal_counts(len(orders), labelled),
        equal_counts(len(orders), overlap),
        share_counts(sizes, held_out),
        share_counts(sizes, labelled - overlap),
        strict=True,
    )
    of_a, shared, others, test = [], [], [], []
    for order, in_a, in_both, out, in_b in counts:
        spare = len(order) - in_a - out
        if spare < 0:
            raise DataError(
                f"{data.name}: {labelled} class-balanced and {held_out} held-out rows asked for;"
                f" a class has {len(order)} rows, {in_a + out} are needed"
            )
        of_a.append(order[:in_a])
        shared.append(order[:in_both])
        others.append(order[in_a : in_a + min(in_b, spare)])
        test.append(order[len(order) - out :])
    rows_a, rows_b = rng.permutation(np.concatenate(of_a)), rng.permutation(np.concatenate(shared + others))
    rows_out = rng.permutation(np.concatenate(test))
    second, first = data.parties()
    a, b, unseen = first.take(rows_a), second.take(rows_b), second.take(rows_out)
    from sklearn.preprocessing import StandardScaler

    scale_a, scale_b = StandardScaler().fit(a.features), StandardScaler().fit(b.features)
    return TransferData(
        data.name if name is None else name,
        replace(a, features=scale_a.transform(a.features)),
        replace(b, features=scale_b.transform(b.features)),
        replace(unseen, features=scale_b.transform(unseen.features), labels=data.labels[rows_out]),
        data.generated,
    )
