"""What the attacks on both objectives share: the variants, the sizes of runs, areas under curves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from research.attacks.scores import Interval, area, area_under_curve

Array = NDArray[np.float64]
PLAIN, SINGLE, PAILLIER, CKKS, BLIND = VARIANTS = (
    "plain FedBCD",
    "per row (FATE-style)",
    "ours, Paillier",
    "ours, CKKS",
    "ours, blind",
)
SCHEMES = {PLAIN: "plain", PAILLIER: "paillier", CKKS: "ckks"}


@dataclass(frozen=True)
class Size:
    """How large the attacked runs are."""

    rows: int
    batch: int
    rounds: int
    full_rounds: int
    shared: int
    width: int
    transfer_rounds: int
    trials: int
    blind_rounds: int
    """Of transfer learning with nothing revealed."""


FULL = Size(
    rows=192,
    batch=48,
    rounds=40,
    full_rounds=16,
    shared=100,
    width=8,
    transfer_rounds=16,
    trials=40,
    blind_rounds=16,
)
QUICK = Size(
    rows=112,
    batch=56,
    rounds=20,
    full_rounds=12,
    shared=100,
    width=4,
    transfer_rounds=8,
    trials=16,
    blind_rounds=2,
)


def label_area(scores: Array, labels: Array) -> Interval:
    return area_under_curve(scores, labels > 0)


def either_sign(scores: Array, labels: Array) -> tuple[Interval, float]:
    """For attacks that leave one sign open: the better of the two, and what random scores reach that way."""
    turned = scores if area(scores, labels > 0) >= 0.5 else -scores
    generator = np.random.default_rng(0)
    lucky = [area(generator.normal(size=len(labels)), labels > 0) for _ in range(200)]
    return label_area(turned, labels), float(np.mean([max(a, 1 - a) for a in lucky]))
