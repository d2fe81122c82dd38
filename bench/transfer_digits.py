"""`python -m bench.transfer_digits [SEEDS]`: blind transfer learning on scikit-learn's digits, even or odd.

A has one half of the image of 1,500 people and their labels, B the other half of 300 of these and of the 297
that A does not have; the AUC is taken on those 297, by B's columns alone. TransferLearner's defaults,
encrypted; one JSON object, medians over the seeds (0 to 4).
"""

from __future__ import annotations

import json
import sys
from statistics import median

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score

from bench.arguments import seed_list
from securefed import Party, TransferLearner

LABELLED, SHARED = 1500, 300
Array = NDArray[np.float64]


def reached(a: Array, b: Array, odd: NDArray[np.int64], seed: int) -> float:
    people = np.random.default_rng(seed).permutation(len(odd))
    known, others = people[:LABELLED], people[LABELLED:]
    own = np.concatenate([known[:SHARED], others])
    shop, bank = Party("shop", b[own], ids=own), Party("bank", a[known], labels=odd[known], ids=known)
    model = TransferLearner(seed=seed).fit([shop, bank])
    return float(roc_auc_score(odd[others], model.decision_function(Party("shop", b[others]))))


def main(seeds: tuple[int, ...]) -> None:
    images, digits = load_digits(return_X_y=True)
    grid = images.reshape(-1, 8, 8)
    halves = {
        "upper": grid[:, :4],
        "lower": grid[:, 4:],
        "left": grid[:, :, :4],
        "right": grid[:, :, 4:],
    }
    flat = {name: half.reshape(len(half), -1) for name, half in halves.items()}
    found = {
        f"B has the {b} half": round(median(reached(flat[a], flat[b], digits % 2, seed) for seed in seeds), 4)
        for a, b in (("upper", "lower"), ("lower", "upper"), ("left", "right"), ("right", "left"))
    }
    json.dump(found, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main(seed_list(sys.argv[1]) if len(sys.argv) > 1 else tuple(range(5)))
