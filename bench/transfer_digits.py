"""`python -m bench.transfer_digits [SEEDS]`: blind transfer learning on scikit-learn's digits, even or odd.

A has one half of the image of 1,500 people and their labels, B the other half of 300 of these and of the 297
that A does not have; the AUC is taken on those 297, by B's columns alone. TransferLearner's defaults, in
plain (the same steps on the same numbers); one JSON object, medians over the seeds (0 to 4).
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
from bench.blind_transfer import features_of
from bench.simulate import signs_of
from research.transfer_plain import PlainTransfer
from securefed.assembly import TransferAssembly
from securefed.models.local import with_ones
from securefed.protocols.agreement import Member
from securefed.protocols.blind.transfer import transfer_plan
from securefed.protocols.blind.transfer_algebra import TransferRows
from securefed.settings import TransferSettings

LABELLED, SHARED = 1500, 300
Array = NDArray[np.float64]


def reached(a: Array, b: Array, odd: NDArray[np.int64], seed: int) -> float:
    people = np.random.default_rng(seed).permutation(len(odd))
    known, others = people[:LABELLED], people[LABELLED:]
    features_a, _ = features_of("A", a[known])
    features_b, _ = features_of("B", b[np.concatenate([known[:SHARED], others])])
    assembly = TransferAssembly(TransferSettings(seed=seed))
    members = (
        Member("B", features_b.shape[1] + 1, True),
        Member("A", features_a.shape[1] + 1, True),
    )
    agreement = assembly.agreement(members, SHARED)
    shared, labelled = np.arange(SHARED), np.ones(SHARED, dtype=bool)
    run = PlainTransfer(
        transfer_plan(agreement),
        TransferRows(with_ones(features_a), shared, labelled, signs_of(odd[known])),
        TransferRows(with_ones(features_b), shared, labelled, None),
    )
    for _ in range(agreement.stopping.rounds):
        run.round()
    return float(roc_auc_score(odd[others], with_ones(features_b)[SHARED:] @ run.score_map))


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
