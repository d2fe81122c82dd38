"""Blind transfer learning with default settings, encrypted, beside logistic regressions of scikit-learn.

    python -m bench.transfer_quality [--seeds 8] [--first 30]           # real tables, two classes
    python -m bench.transfer_quality --digits [--seeds 5] [--first 0]   # ten digits, by halves

*Tables* (the extra "tables"). Half of the columns are A's. 150 or 300 people are shared; of the others a
third are A's, a third B's, and a third are predicted. Beside it stands what nobody could fit, since A has the
labels: a logistic regression of B's columns on the labels of the shared people.

*Digits.* A has the left half of 900 digits and their labels, B the right half of 900 others, of which 300 are
the same. B's other people, and those that nobody has seen, are scored.
"""

from __future__ import annotations

import argparse
import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from bench.quality_tables import PACKAGED, loader
from securefed import Party, TransferLearner

Array = NDArray[np.float64]
Labels = NDArray[np.intp]
MOST_ROWS = 3000
TABLES = ("mroz", "anes96", "affairs", "smoke", "recid", "loanapp", "breast cancer", "odd digits")
A, B, SHARED = slice(0, 900), slice(600, 1500), slice(600, 900)
NEW = slice(900, None)
"""People that A knows nothing about."""


def usual(columns: Array, labels: Labels) -> Pipeline:
    """A logistic regression, by whoever has these columns and labels."""
    return make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000)).fit(columns, labels)


# Tables


def table(name: str) -> tuple[Array, Labels]:
    """Columns and labels, 0 and 1."""
    if name == "breast cancer":
        columns, labels = load_breast_cancer(return_X_y=True)
        return columns, labels
    if name == "odd digits":
        columns, digits = load_digits(return_X_y=True)
        return columns, digits % 2
    package, of, _, label, condition, leaks = next(row for row in PACKAGED if row[1:3] == (name, "two"))
    columns, labels = loader(package, of, label, condition, leaks)()
    return np.asarray(columns, np.float64), np.asarray(labels, np.intp)


def on_table(name: str, shared: int, seed: int) -> tuple[float, float]:
    """The AUC of blind transfer, and of the logistic regression, on people of B alone."""
    columns, labels = table(name)
    rng = np.random.default_rng(seed)
    people = rng.permutation(len(labels))[:MOST_ROWS]
    order = rng.permutation(columns.shape[1])
    own, other = np.split(order, [len(order) // 2])
    of_a, of_b, new = np.array_split(people[shared:], 3)
    of_a, of_b = (np.concatenate([people[:shared], each]) for each in (of_a, of_b))
    shop = Party("shop", columns[of_b][:, other], ids=of_b)
    bank = Party("bank", columns[of_a][:, own], labels=labels[of_a], ids=of_a)
    model = TransferLearner().fit([shop, bank])
    scores = model.decision_function(Party("shop", columns[new][:, other]))
    alone = usual(columns[people[:shared]][:, other], labels[people[:shared]])
    known = alone.decision_function(columns[new][:, other])
    return float(roc_auc_score(labels[new], scores)), float(roc_auc_score(labels[new], known))


def on_tables(seeds: range) -> None:
    print("| table | shared | blind transfer | logistic regression | mean difference (standard error) |")
    print("|---|---|---|---|---|")
    for name in TABLES:
        for shared in (150, 300):
            pairs = np.array([on_table(name, shared, seed) for seed in seeds])
            ours, theirs = np.median(pairs, axis=0)
            more = pairs[:, 0] - pairs[:, 1]
            error = more.std(ddof=1) / np.sqrt(len(more)) if len(more) > 1 else np.nan
            middle = f"{name} | {shared} | {ours:.4f} | {theirs:.4f}"
            print(f"| {middle} | {more.mean():+.4f} ({error:.4f}) |", flush=True)


# Ten digits


@dataclass(frozen=True, eq=False)
class Halves:
    """What A and B see of each person, and what A knows."""

    left: Array
    right: Array
    labels: Labels

    def parties(self) -> list[Party]:
        names = np.arange(len(self.labels)).astype(str)
        shop = Party("shop", self.right[B], ids=names[B])
        return [shop, Party("bank", self.left[A], labels=self.labels[A], ids=names[A])]

    def learnt(self) -> float:
        """The accuracy that a blind run with default settings has on B's other people."""
        model = TransferLearner().fit(self.parties())
        return float(np.mean(model.predict(Party("shop", self.right[NEW])) == self.labels[NEW]))

    def usual(self, columns: Array, rows: slice) -> float:
        return float(usual(columns[rows], self.labels[rows]).score(columns[NEW], self.labels[NEW]))

    @property
    def baselines(self) -> dict[str, float]:
        """B's half with A's labels of the shared people (nobody has both), A's half of people that it does
        not know, and the joined table.
        """
        whole = np.hstack([self.left, self.right])
        return {
            "B's half, 300 labels": self.usual(self.right, SHARED),
            "A's half, 900 labels": self.usual(self.left, A),
            "both halves, 300 labels": self.usual(whole, SHARED),
            "both halves, 900 labels": self.usual(whole, A),
            "chance": float(np.bincount(self.labels[NEW]).max() / len(self.labels[NEW])),
        }


def digits_by_halves(seed: int) -> Halves:
    columns, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(columns))
    pictures = columns[order].reshape(-1, 8, 8)
    left, right = (half.reshape(len(half), -1) for half in (pictures[:, :, :4], pictures[:, :, 4:]))
    return Halves(left, right, labels[order])


def on_digits(seeds: range) -> None:
    halves = [digits_by_halves(seed) for seed in seeds]
    rows = [{"blind transfer": each.learnt(), **each.baselines} for each in halves]
    for name in rows[0]:
        values = [row[name] for row in rows]
        print(f"{name:<26} {np.mean(values):.4f}   " + "  ".join(f"{value:.4f}" for value in values))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--digits", action="store_true")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--first", type=int, default=30)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    (on_digits if args.digits else on_tables)(range(args.first, args.first + args.seeds))


if __name__ == "__main__":
    main()
