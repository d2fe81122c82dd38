"""Data for the demonstration: nothing to download, split over the parties as organisations would have it.

    breast      569 patients (scikit-learn's bundled Wisconsin data): a clinic has the diagnosis and four
                measurements that say little alone, one or more laboratories have the rest
    generated   people that do not exist, for any number of parties

Every party has some people that another one lacks, so that there is something to align.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from securefed.errors import SettingError
from securefed.labels.metrics import Answers, get_metric

Array = NDArray[np.float64]
DATA = ("breast", "generated")
LABEL_PARTY = {"breast": "clinic", "generated": "bank"}
OTHERS = {"breast": "lab", "generated": "shop"}
ABSENT = 0.06
"""Part of the people that each party does not know."""
CLINIC = (1, 4, 8, 9)
"""Mean texture, smoothness, symmetry and fractal dimension: no measure of size, which says most.

Chosen among four sets of columns, by unprotected models, so that the gain over the clinic alone is easy to
see.
"""


@dataclass(frozen=True)
class Baselines:
    """AUC on the new people of models without any protection."""

    central: float
    alone: float | None


@dataclass(frozen=True, eq=False)
class DemoData:
    """Who has what. `columns` of each party, the label party last."""

    title: str
    ids: list[str]
    table: Array
    names: Sequence[str]
    columns: Mapping[str, list[int]]
    labels: NDArray[np.int64]
    train: Mapping[str, NDArray[np.intp]]
    """Row numbers that each party has for the training."""
    new: NDArray[np.intp]
    transform: str = "none"
    """Of the columns, as in [data]: "auto" where effects are not straight lines."""
    label: str = "label"

    @property
    def parties(self) -> list[str]:
        return list(self.columns)

    @property
    def label_party(self) -> str:
        return self.parties[-1]

    def write(self, folder: Path, party: str) -> None:
        """The party's two files: training rows, with labels where it has them, and new rows, without."""
        self._write(folder / "train.csv", party, self.train[party], labels=party == self.label_party)
        self._write(folder / "new.csv", party, self.new, labels=False)

    def _write(self, path: Path, party: str, rows: NDArray[np.intp], *, labels: bool) -> None:
        columns = self.columns[party]
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            head = ["id", *(self.names[column] for column in columns)]
            writer.writerow([*head, self.label] if labels else head)
            for row in rows.tolist():
                fields: list[object] = [self.ids[row], *(repr(float(self.table[row, c])) for c in columns)]
                writer.writerow([*fields, int(self.labels[row])] if labels else fields)

    def auc(self, scores: Mapping[str, float]) -> float:
        """Return the AUC of scores by id, on the new people."""
        return float(get_metric("AUC").function(self.answers(scores)))

    def answers(self, scores: Mapping[str, float], likely: Mapping[str, float] | None = None) -> Answers:
        """True labels beside scores, and beside probabilities where all have one."""
        place = {self.ids[row]: row for row in self.new.tolist()}
        truth = self.labels[[place[id_] for id_ in scores]].astype(np.float64)
        whole = likely is not None and set(likely) == set(scores)
        probabilities = np.array([likely[id_] for id_ in scores]) if likely is not None and whole else None
        return Answers("two classes", truth, np.array(list(scores.values())), probabilities)

    def baselines(self, objective: str) -> Baselines:
        """Models that see everything: what encryption is compared with."""
        common = sorted(set.intersection(*(set(rows.tolist()) for rows in self.train.values())))
        if objective == "transfer":
            # New people are known to the other party alone; nothing of the label party's columns helps.
            return Baselines(self._fit(common, self.columns[self.parties[0]]), None)
        everything = [column for columns in self.columns.values() for column in columns]
        own = self.train[self.label_party].tolist()
        return Baselines(self._fit(common, everything), self._fit(own, self.columns[self.label_party]))

    def _fit(self, rows: list[int], columns: list[int]) -> float:
        model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
        model.fit(self.table[rows][:, columns], self.labels[rows])
        scores = model.decision_function(self.table[self.new][:, columns])
        return float(roc_auc_score(self.labels[self.new], scores))


def demo_data(name: str, parties: int, objective: str, seed: int) -> DemoData:
    """The data set of that name for so many parties."""
    if name == "breast":
        bunch = load_breast_cancer()
        table, labels = bunch.data, bunch.target.astype(np.int64)
        names = [word.replace(" ", "_") for word in bunch.feature_names]
        own, title = list(CLINIC), "breast cancer (Wisconsin, 569 patients)"
    else:
        table, labels = make_classification(
            1200, 24, n_informative=14, n_redundant=6, class_sep=1.1, flip_y=0.02, random_state=seed
        )
        names, own = [f"x{i:02d}" for i in range(24)], list(range(8))
        title = "generated people (1,200 that do not exist)"
    rest = [column for column in range(table.shape[1]) if column not in own]
    if parties - 1 > len(rest):
        raise SettingError(f"parties: {parties} given, {name} has columns for at most {len(rest) + 1}")
    groups = np.array_split(np.array(rest), parties - 1)
    other = OTHERS[name]
    columns = {
        (f"{other}-{place + 1}" if parties > 2 else other): group.tolist()
        for place, group in enumerate(groups)
    }
    columns[LABEL_PARTY[name]] = own
    rng = np.random.default_rng(seed)
    known, new = train_test_split(np.arange(len(labels)), test_size=0.3, stratify=labels, random_state=seed)
    train = {
        party: rng.permutation(known)[: round(len(known) * (1 - ABSENT))].astype(np.intp) for party in columns
    }
    ids = [f"P{number:05d}" for number in rng.permutation(100_000)[: len(labels)]]
    # The measurements of cells rank patients as well as splines of them do.
    transform = "none" if name == "breast" or objective == "transfer" else "auto"
    return DemoData(title, ids, table, names, columns, labels, train, new.astype(np.intp), transform)
