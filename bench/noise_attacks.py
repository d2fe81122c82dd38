"""Labels over the rounds against noise on what is opened: by size and epsilon, beside what the model keeps.

The attack that finds every label where batches are drawn anew (research.attacks.linear.labels_over_rounds),
made as good as it gets against noise of a known size: ridge regression. The runs are plain ones with the
encrypted runs' losses and openings, since noise does not depend on the scheme; `dp_noise` is what epsilon
takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import sqrt
from typing import Any

import numpy as np

from bench.attack_variants import label_area
from bench.scenes import Keys, linear_scene
from research.attacks.linear import labels_over_rounds
from research.attacks.scores import area
from securefed.protocols.losses import get_loss
from securefed.protocols.own_gradient.openings import epsilon, participations
from securefed.protocols.schedules import Batches

EPSILONS = (None, 8.0, 4.0, 1.0)
ROUNDS = 40
COLUMNS = 10
PARTS = 4
"""Of the rows, one is a batch."""
LABEL_WEIGHT = get_loss("logistic").label_weight


@dataclass(frozen=True)
class NoiseRow:
    """One size, one epsilon."""

    rows: int
    epsilon: float | None
    noise: float
    attack_auc: float
    attack_low: float
    attack_high: float
    by_design: float
    """What the column holder's own part of the model says of the labels."""
    model_auc: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def noise_for(wanted: float, mechanisms: int, delta: float) -> float:
    """Return the smallest noise multiplier that keeps epsilon at or below `wanted`."""
    low, high = 1e-3, 1e6
    for _ in range(100):
        middle = sqrt(low * high)
        low, high = (middle, high) if epsilon(middle, mechanisms, delta) > wanted else (low, middle)
    return high


def noise_rows(keys: Keys, sizes: tuple[int, ...], seed: int) -> Iterator[NoiseRow]:
    for rows in sizes:
        mechanisms = 2 * participations(Batches(rows, rows // PARTS, seed), ROUNDS)
        for wanted in EPSILONS:
            noise = 0.0 if wanted is None else noise_for(wanted, mechanisms, 0.1 / rows)
            yield _row(keys, rows, wanted, noise, seed)


def _row(keys: Keys, rows: int, wanted: float | None, noise: float, seed: int) -> NoiseRow:
    scene = linear_scene(
        "plain",
        keys,
        rows=rows,
        batch=rows // PARTS,
        rounds=ROUNDS,
        columns=(COLUMNS, COLUMNS),
        seed=seed,
        noise=noise,
    )
    opened, labels = scene.views["p0"].opened, scene.labels
    if noise:
        longest = max(float(np.sqrt((o.multipliers[0] ** 2).sum(axis=0)).max()) for o in opened)
        found = _ridge(opened, rows, noise * longest)
    else:
        found = labels_over_rounds(opened, rows, LABEL_WEIGHT)
    interval = label_area(found, labels)
    own = scene.features["p0"] @ scene.parameters["p0"]
    joint = own + scene.features["p1"] @ scene.parameters["p1"]
    numbers = (interval.score, interval.low, interval.high)
    return NoiseRow(rows, wanted, noise, *numbers, area(own, labels > 0), area(joint, labels > 0))


def _ridge(opened: Any, rows: int, deviation: float) -> Any:
    """The likeliest labels of variance 1 under noise of that deviation on every sum."""
    gram, right = deviation**2 * np.eye(rows), np.zeros(rows)
    for opening in opened:
        block = LABEL_WEIGHT * opening.multipliers[0]
        gram[np.ix_(opening.batch, opening.batch)] += block.T @ block
        right[opening.batch] += block.T @ opening.sums
    return np.linalg.solve(gram, right)


def noise_table(rows: list[NoiseRow]) -> str:
    """Markdown."""
    lines = [
        "| rows | epsilon | noise multiplier | labels over the rounds, AUC | own part, AUC | model, AUC |",
        "|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        wanted = "no noise" if row.epsilon is None else f"{row.epsilon:g}"
        attack = f"{row.attack_auc:.2f} [{row.attack_low:.2f}, {row.attack_high:.2f}]"
        known = f"{row.by_design:.2f} | {row.model_auc:.2f}"
        lines.append(f"| {row.rows:,} | {wanted} | {row.noise:.1f} | {attack} | {known} |")
    return "\n".join(lines)
