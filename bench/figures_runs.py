"""The runs behind the figures, and what is read off them.

    curves    AUC and loss against rounds on MIMIC-LR, FedBCD-p and FedBCD-s
    optimum   rounds to three targets against Q, on MIMIC-LR and on Credit-FTL (the reading "overlap")
    proximal  large Q with and without the proximal term, on the same two
    parties   MIMIC-LR over 2, 5 and 17 parties: with one step size for all, and with the paper's
    nus       NUS-FTL at full width, 634 + 1,000 columns and 1,000 shared people: own gradients (h = 64) and
              nothing revealed, for several Q and with the proximal term

All are in plain: rounds do not depend on the scheme (Table 2 checks that they do not). Runs of Table 1 and
Table 2 with the same settings are used again.

The coefficient of the proximal term on MIMIC-LR is the best of 1, 10 and 30 for Q = 200 on validation rows of
one seed; the paper's 0.1 changed nothing at Q = 100. On Credit-FTL 0.01 and 0.1 were tried, on the shared
people themselves: both slow training down, and the figure shows the smaller one.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, sqrt
from statistics import median
from typing import Any

from bench import table1, table2
from bench.runs import Order, Record, Spec
from bench.tasks import DEFAULTS

PARTIES = (2, 5, 17)
SAME_STEP = "the same step for every K"
PAPERS_STEP = "the paper's step, smaller by sqrt(K)"
MIMIC_MU, CREDIT_MU = 30.0, 0.01
CREDIT_SEEDS = (0, 1, 2, 3, 4)
NUS = {"overlap": 1000, "labelled": 2000, "held_out": 2000}
NUS_PANELS: dict[str, tuple[str, dict[str, Any], float]] = {
    "nus": ("own gradients", {**NUS, "eta": 0.003}, 0.01),
    "nus-blind": ("nothing revealed", NUS, 1.0),
}
"""Panel, settings (of the rates 0.003, 0.01 and 0.05 that with FedSGD's best AUC) and mu of each task."""


@dataclass(frozen=True)
class Case:
    """One line of a figure: its panel, its words, and a run for each seed."""

    panel: str
    label: str
    specs: tuple[Spec, ...]


@dataclass(frozen=True)
class Curve:
    """A line as drawn: medians over the seeds after each round."""

    panel: str
    label: str
    auc: list[float]
    loss: list[float]


@dataclass(frozen=True)
class Sweep:
    """Runs by Q and seed, and the targets that are read off them."""

    title: str
    specs: dict[tuple[int, int], Spec]
    targets: tuple[float, ...]


def _mimic(
    order: Order, steps: int, seed: int, rounds: int, *, look: bool = False, mu: float = 0.0, **given: Any
) -> Spec:
    spec = Spec("mimic", steps, order, mu, seed, rounds=rounds, look=look)
    return spec.with_options(**{**DEFAULTS["mimic"], **given})


def _name(order: Order, steps: int) -> str:
    if steps == 1:
        return "FedSGD" if order == "parallel" else "Q = 1"
    return f"Q = {steps}"


def curve_cases(quick: bool) -> list[Case]:
    orders: tuple[tuple[Order, str], ...] = (("parallel", "FedBCD-p"), ("sequential", "FedBCD-s"))
    rounds, steps = (20, (1, 5)) if quick else (200, (1, 5, 50))
    return [
        Case(words, _name(order, q), (_mimic(order, q, 0, rounds, look=True),))
        for order, words in orders
        for q in steps
    ]


def mimic_sweep(quick: bool) -> Sweep:
    """The runs of Table 1, and further Q."""
    experiment = (table1.QUICK if quick else table1.FULL)[0]
    grid = (1, 5, 50) if quick else (1, 2, 5, 10, 25, 50, 100)
    specs = {(q, seed): experiment.spec("parallel", q, seed) for q in grid for seed in experiment.seeds}
    # Where a round has so many steps, a run that has not got there by then gives up.
    specs = {key: replace(spec, rounds=min(spec.rounds, 400)) if key[0] > 50 else spec
             for key, spec in specs.items()}  # fmt: skip
    targets = (0.76, 0.78, 0.80) if quick else (0.82, 0.83, 0.84)
    return Sweep("MIMIC-LR", specs, targets)


def table2_plan(quick: bool, scheme: str) -> table2.Plan:
    """What Table 2 runs by the reading "overlap"."""
    parser = argparse.ArgumentParser()
    table2.add_arguments(parser)
    args = parser.parse_args(["--scheme", scheme, "--reading", "overlap"])
    return table2.Plan(argparse.Namespace(**vars(args), quick=quick, seed=0, json=None))


def credit_sweep(quick: bool) -> Sweep:
    """The plain runs of Table 2, and further Q."""
    plan = table2_plan(quick, "ckks")
    grid = (1, 5, 10) if quick else (*table2.GRID["overlap"], 50, 100)
    seeds = plan.seeds if quick else CREDIT_SEEDS
    specs = {(q, seed): plan.plain(q, seed) for q in grid for seed in seeds}
    return Sweep("Credit-FTL", specs, plan.within)


def proximal_cases(quick: bool) -> list[Case]:
    cases = []
    for q in (20,) if quick else (50, 100, 200):
        for mu in (0.0, MIMIC_MU):
            runs = (_mimic("parallel", q, 0, 15 if quick else 100, mu=mu),)
            cases.append(Case("MIMIC-LR", _with_mu(q, mu), runs))
    plan = table2_plan(quick, "ckks")
    for q in (20,) if quick else (25, 50, 100):
        for mu in (0.0, CREDIT_MU):
            runs = (replace(plan.plain(q, 0), proximal=mu, rounds=5 if quick else 10, target=None),)
            cases.append(Case("Credit-FTL", _with_mu(q, mu), runs))
    return cases


def nus_cases(quick: bool) -> list[Case]:
    """In plain, both: the blind one makes the steps of the encrypted one in the clear."""
    size = {"overlap": 100, "labelled": 300, "held_out": 300} if quick else {}
    cases = []
    for task, (panel, options, term) in NUS_PANELS.items():
        for q, mu in ((1, 0.0), (5, 0.0), (10, 0.0), (10, term)):
            spec = Spec(task, q, "parallel", mu, 0, rounds=2 if quick else 8, look=True)
            cases.append(Case(panel, _with_mu(q, mu), (spec.with_options(**{**options, **size}),)))
    return cases


def _with_mu(steps: int, mu: float) -> str:
    return f"Q = {steps}" + (f", μ = {mu:g}" if mu else "")


def party_cases(quick: bool) -> list[Case]:
    """K parties, Q = 5. The task's rate divides eta0 by sqrt(K) for more than two parties (the paper's
    eta0 / sqrt(T k)); a step that is the same for every K needs an eta0 that makes up for it.
    """
    eta = DEFAULTS["mimic"]["eta"]
    rounds = 12 if quick else 150
    orders: tuple[tuple[Order, str], ...] = (("parallel", "FedBCD-p"), ("sequential", "FedBCD-s"))
    cases = []
    for rate in (SAME_STEP, PAPERS_STEP):
        for order, words in orders:
            for parties in PARTIES:
                scale = sqrt(parties) if rate == SAME_STEP else sqrt(2.0)
                own = eta if parties == 2 else eta * scale
                runs = (_mimic(order, 5, 0, rounds, parties=parties, eta=own),)
                cases.append(Case(f"{words}, {rate}", f"K = {parties}", runs))
    return cases


def median_curve(records: Sequence[Record], metric: str) -> list[float]:
    """After each round the median over the runs, as long as all of them went on."""
    curves = [record.metric(metric) for record in records]
    return [median(values) for values in zip(*curves, strict=False)]


def curves_of(cases: Iterable[Case], made: Mapping[Spec, Record]) -> list[Curve]:
    curves = []
    for case in cases:
        records = [made[spec] for spec in case.specs]
        point = records[0].points[0]
        held_out = case.specs[0].task.startswith("nus")
        names = ("auc", "held_out_auc" if held_out else "overlap_auc", "test_auc")
        auc = next(name for name in names if name in point)
        loss = median_curve(records, "loss") if "loss" in point else []
        curves.append(Curve(case.panel, case.label, median_curve(records, auc), loss))
    return curves


def rounds_by_steps(sweep: Sweep, made: Mapping[Spec, Record], target: float) -> dict[int, float]:
    """The median over the seeds for each Q; a run that does not get there counts as infinitely long."""
    found: dict[int, list[float]] = {}
    for (steps, _), spec in sweep.specs.items():
        number = made[spec].rounds_to(target)
        found.setdefault(steps, []).append(inf if number is None else number)
    return {steps: median(numbers) for steps, numbers in sorted(found.items())}


def optimum(rounds: Mapping[int, float]) -> int | None:
    """The Q with the fewest rounds, of several the smallest, which has the fewest steps; None if no Q gets
    there.
    """
    best = min(rounds, key=lambda steps: (rounds[steps], steps))
    return None if rounds[best] == inf else best
