"""Data for the demonstration: nothing to download, split over the parties as organisations would have it.

569 patients (scikit-learn's bundled Wisconsin data): a clinic has the diagnosis and four measurements that
say little alone, one or more laboratories have the rest. Every party has some people that another one lacks,
so that there is something to align.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from securefed.errors import SettingError

TITLE = "breast cancer (Wisconsin, 569 patients)"
LABEL_PARTY = "clinic"
ABSENT = 0.06
"""Part of the people that each party does not know."""
CLINIC = (1, 4, 8, 9)
"""Mean texture, smoothness, symmetry and fractal dimension: no measure of size, which says most.

Chosen among four sets of columns, by unprotected models, so that the gain over the clinic alone is easy to
see.
"""


@dataclass(frozen=True, eq=False)
class DemoData:
    """Who has what. `columns` of each party, the label party last."""

    ids: list[str]
    table: NDArray[np.float64]
    names: Sequence[str]
    columns: Mapping[str, list[int]]
    labels: NDArray[np.int64]
    train: Mapping[str, NDArray[np.intp]]
    """Row numbers that each party has for the training."""
    new: NDArray[np.intp]

    @property
    def parties(self) -> list[str]:
        return list(self.columns)

    @property
    def label_party(self) -> str:
        return self.parties[-1]

    def write(self, folder: Path, party: str) -> None:
        """Write the party's two files: training rows and new rows, both with labels where it has them."""
        columns, known = self.columns[party], party == self.label_party
        for name, rows in (("train.csv", self.train[party]), ("new.csv", self.new)):
            with (folder / name).open("w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file, lineterminator="\n")
                writer.writerow(["id", *(self.names[c] for c in columns), *["label"] * known])
                for row in rows.tolist():
                    numbers = [repr(float(self.table[row, c])) for c in columns]
                    writer.writerow([self.ids[row], *numbers, *[int(self.labels[row])] * known])

    def baselines(self, objective: str) -> tuple[float, float | None]:
        """Return the AUC on new people of two models without protection: all data, the label party alone."""
        common = sorted(set.intersection(*(set(rows.tolist()) for rows in self.train.values())))
        if objective == "transfer":
            # New people are known to the other party alone; nothing of the label party's columns helps.
            return self._fit(common, self.columns[self.parties[0]]), None
        everything = [column for columns in self.columns.values() for column in columns]
        own = self.train[self.label_party].tolist()
        return self._fit(common, everything), self._fit(own, self.columns[self.label_party])

    def _fit(self, rows: list[int], columns: list[int]) -> float:
        model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
        model.fit(self.table[rows][:, columns], self.labels[rows])
        scores = model.decision_function(self.table[self.new][:, columns])
        return float(roc_auc_score(self.labels[self.new], scores))


def demo_data(parties: int, seed: int) -> DemoData:
    """Return the data of so many parties."""
    bunch = load_breast_cancer()
    labels = bunch.target.astype(np.int64)
    rest = [column for column in range(bunch.data.shape[1]) if column not in CLINIC]
    if parties - 1 > len(rest):
        raise SettingError(f"parties: {parties} given, the data have columns for at most {len(rest) + 1}")
    groups = np.array_split(np.array(rest), parties - 1)
    others = ["lab"] if parties == 2 else [f"lab-{place + 1}" for place in range(parties - 1)]
    columns = {name: group.tolist() for name, group in zip(others, groups, strict=True)}
    columns[LABEL_PARTY] = list(CLINIC)
    rng = np.random.default_rng(seed)
    known, new = train_test_split(np.arange(len(labels)), test_size=0.3, stratify=labels, random_state=seed)
    train = {
        party: rng.permutation(known)[: round(len(known) * (1 - ABSENT))].astype(np.intp) for party in columns
    }
    ids = [f"P{number:05d}" for number in rng.permutation(100_000)[: len(labels)]]
    names = [word.replace(" ", "_") for word in bunch.feature_names]
    return DemoData(ids, bunch.data, names, columns, labels, train, new.astype(np.intp))
