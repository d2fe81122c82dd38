"""What the paper reports (Tables 1 and 2), to be set beside what is measured here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PaperCell:
    """A row of Table 2: rounds, and minutes on two machines of 20 cores each."""

    rounds: int
    computation: float
    communication: float
    total: float


TABLE2: dict[tuple[float, int], PaperCell] = {
    (0.70, 1): PaperCell(17, 11.33, 11.34, 22.67),
    (0.70, 5): PaperCell(4, 13.40, 2.94, 16.34),
    (0.70, 10): PaperCell(2, 10.87, 2.74, 13.61),
    (0.75, 1): PaperCell(30, 20.50, 20.10, 40.60),
    (0.75, 5): PaperCell(8, 26.78, 5.57, 32.35),
    (0.75, 10): PaperCell(4, 23.73, 2.93, 26.66),
    (0.80, 1): PaperCell(46, 32.20, 30.69, 62.89),
    (0.80, 5): PaperCell(13, 43.52, 9.05, 52.57),
    (0.80, 10): PaperCell(7, 41.53, 5.12, 46.65),
}
"""(target AUC, Q): Credit-FTL under homomorphic encryption; Q = 1 is FedSGD, the others FedBCD-p."""

TABLE1: dict[str, dict[tuple[str, int], int]] = {
    "MIMIC-LR": {
        ("FedSGD", 1): 334,
        ("FedBCD-p", 5): 71,
        ("FedBCD-p", 50): 52,
        ("FedBCD-s", 1): 407,
        ("FedBCD-s", 5): 74,
        ("FedBCD-s", 50): 52,
    },
    "MNIST-CNN": {
        ("FedSGD", 1): 46,
        ("FedBCD-p", 3): 16,
        ("FedBCD-p", 5): 8,
        ("FedBCD-s", 1): 48,
        ("FedBCD-s", 3): 15,
        ("FedBCD-s", 5): 9,
    },
}
"""Rounds to an AUC of 84% and of 99.7%, by algorithm and Q."""


def table2_cell(target: float, steps: int) -> PaperCell | None:
    return TABLE2.get((round(target, 4), steps))


def table1_rounds(task: str, algorithm: str, steps: int) -> int | None:
    return TABLE1.get(task, {}).get((algorithm, steps))
