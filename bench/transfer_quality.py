"""Ten classes by transfer learning with default settings: digits by halves, beside scikit-learn.

    python -m bench.transfer_quality [--seeds 5] [--rounds R] [--encrypted]

A has the left half of 900 digits and their labels, B the right half of 900 others, of which 300 are the same;
B's other people, and those that nobody has seen, are scored. Runs are emulated: the arithmetic of the blind
run on the same numbers, in the clear, which encrypted runs follow to 2^-20 or so
(tests/protocols/test_blind_transfer.py). `--encrypted` makes a real one of the first seed: ten times the
products of a run of two classes, in as many messages.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from research.transfer_plain import PlainTransfer
from securefed import Party, TransferLearner
from securefed.assembly import TransferAssembly
from securefed.labels.several import ClassModels
from securefed.models.local import with_ones
from securefed.protocols.agreement import Member
from securefed.protocols.blind.transfer import transfer_plan
from securefed.protocols.blind.transfer_algebra import TransferRows, with_waves
from securefed.settings import TransferSettings

Array = NDArray[np.float64]
A, B, SHARED = slice(0, 900), slice(600, 1500), slice(600, 900)
NEW = slice(900, None)
"""People that A knows nothing about."""


@dataclass(frozen=True, eq=False)
class Halves:
    """What A and B see of each person, and what A knows."""

    left: Array
    right: Array
    labels: NDArray[np.intp]

    def parties(self) -> list[Party]:
        names = np.arange(len(self.labels)).astype(str)
        shop = Party("shop", self.right[B], ids=names[B])
        return [shop, Party("bank", self.left[A], labels=self.labels[A], ids=names[A])]

    def emulated(self, rounds: int | None = None) -> float:
        """The accuracy that a blind run with default settings has on B's other people."""
        made = TransferAssembly(TransferSettings(rounds=rounds))
        a, b = _features(self.left[A]), _features(self.right[600:], B.stop - B.start)
        side, signs = ClassModels.with_gaps(self.labels[A], "A", made.settings.loss_function)
        count, known = SHARED.stop - SHARED.start, np.ones(SHARED.stop - SHARED.start, dtype=np.bool_)
        members = Member("B", b.shape[1] + 1, True), Member("A", a.shape[1] + 1, True)
        run = PlainTransfer(
            transfer_plan(made.agreement(members, count, side.outputs)),
            TransferRows(with_ones(a), np.arange(SHARED.start, SHARED.stop), known, signs),
            TransferRows(with_ones(b[:900]), np.arange(count), known, None),
        )
        for _ in range(made.settings.rounds):
            run.round()
        return float(np.mean(side.answers(with_ones(b[count:]) @ run.score_map, "half") == self.labels[NEW]))

    def encrypted(self, rounds: int | None) -> float:
        model = TransferLearner(rounds=rounds).fit(self.parties())
        print(model.result_)
        return float(np.mean(model.predict(Party("shop", self.right[NEW])) == self.labels[NEW]))

    def usual(self, columns: Array, rows: slice) -> float:
        """A logistic regression of these columns, by whoever has them and the labels of these rows."""
        fitted = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000)).fit(
            columns[rows], self.labels[rows]
        )
        return float(fitted.score(columns[NEW], self.labels[NEW]))

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


def _features(columns: Array, fitted_on: int | None = None) -> Array:
    _, fitted = Party("x", columns[:fitted_on], transform="auto").fitted(standardise=True)
    ready = Party("x", columns, transform="auto").transformed(fitted)
    return with_waves(ready.features, fitted.untransformed)


def digits_by_halves(seed: int) -> Halves:
    table, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(table))
    pictures = table[order].reshape(-1, 8, 8)
    left, right = (half.reshape(len(half), -1) for half in (pictures[:, :, :4], pictures[:, :, 4:]))
    return Halves(left, right, labels[order])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, help="default: as the estimator has it")
    parser.add_argument("--encrypted", action="store_true")
    args = parser.parse_args()
    found = [digits_by_halves(seed) for seed in range(args.seeds)]
    rows = [{"blind transfer, emulated": each.emulated(args.rounds), **each.baselines} for each in found]
    for name in rows[0]:
        values = [row[name] for row in rows]
        print(f"{name:<26} {np.mean(values):.4f}   " + "  ".join(f"{value:.4f}" for value in values))
    if args.encrypted:
        print(f"blind transfer, encrypted  {found[0].encrypted(args.rounds):.4f} (first seed)")


if __name__ == "__main__":
    main()
