"""`python -m bench figures`: the paper's figures, and one that it lacks, as PNG and SVG.

    curves    AUC and loss against rounds for several Q, FedBCD-p and FedBCD-s
    optimum   rounds against Q for three targets, the best Q marked
    proximal  large Q with and without the proximal term
    parties   K = 2, 5, 17
    nus       NUS-FTL: rounds against Q and the proximal term, own gradients and nothing revealed
    minutes   total minutes against Q on three networks, from encrypted runs; the planner's choice beside

What was generated says so in its panel's title. Runs are kept and found again like those of the tables; the
numbers behind the drawings are in figures.json.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from math import inf
from pathlib import Path
from typing import Any

from bench import figures_draw as drawing
from bench import machine
from bench.figures_minutes import SCHEME, Minutes, minutes_of
from bench.figures_runs import (
    CREDIT_MU,
    MIMIC_MU,
    Case,
    Curve,
    Sweep,
    credit_sweep,
    curve_cases,
    curves_of,
    mimic_sweep,
    nus_cases,
    optimum,
    party_cases,
    proximal_cases,
    rounds_by_steps,
)
from bench.plots import save
from bench.runs import Record, Spec, Store, make_all, notes_on
from bench.tasks import build, data_name
from securefed.declare import check_integer
from securefed.engine.processes import cores
from securefed.errors import SettingError, require

CREDIT = "Credit-FTL, Default-Credit"
OVERLAP_AUC = "AUC on the shared people (training AUC)"


class Bench:
    """One call: where runs are kept, and how many are made at a time."""

    def __init__(self, store: Store, quick: bool, jobs: int) -> None:
        self.store, self.quick, self.jobs = store, quick, jobs
        self.records: list[Record] = []

    def make(self, specs: Sequence[Spec]) -> dict[Spec, Record]:
        made = make_all(specs, self.store, build, jobs=self.jobs)
        self.records += made.values()
        return made

    def curves(self, cases: Sequence[Case]) -> list[Curve]:
        return curves_of(cases, self.make([spec for case in cases for spec in case.specs]))


Drawn = tuple[Any, dict[str, Any], str]
"""The figure, its numbers, and its finding in a sentence."""


def curves(bench: Bench) -> Drawn:
    cases = curve_cases(bench.quick)
    found = bench.curves(cases)
    data = f"MIMIC-LR, {data_name(cases[0].specs[0])}"
    finding = curves_finding(found)
    return drawing.draw_curves(found, data, finding), {"curves": _as_dicts(found)}, finding


def curves_finding(found: Sequence[Curve]) -> str:
    """Whether more local steps were ahead throughout, after the first rounds and at the end."""
    by = {(curve.panel, curve.label): curve.auc for curve in found}
    panels = dict.fromkeys(panel for panel, _ in by)
    base = {panel: next(curve.auc for curve in found if curve.panel == panel) for panel in panels}
    last = len(next(iter(by.values()))) - 1
    ahead = all(auc[last] >= base[panel][last] for (panel, _), auc in by.items())
    earlier = all(auc[last // 15] >= base[panel][last // 15] for (panel, _), auc in by.items())
    if ahead and earlier:
        return "More local steps reach the same AUC in fewer rounds"
    if ahead:
        return f"More local steps are ahead after {last + 1} rounds, though the largest Q begins behind"
    return "AUC and loss against rounds for several Q"


def sweep_rounds(bench: Bench, sweep: Sweep) -> dict[float, dict[int, float]]:
    made = bench.make(list(sweep.specs.values()))
    return {target: rounds_by_steps(sweep, made, target) for target in sweep.targets}


def best_q(bench: Bench) -> Drawn:
    mimic, credit = mimic_sweep(bench.quick), credit_sweep(bench.quick)
    name = data_name(next(iter(mimic.specs.values())))
    panels = [
        (f"MIMIC-LR, {name}", sweep_rounds(bench, mimic)),
        (f"{CREDIT} (shared people)", sweep_rounds(bench, credit)),
    ]
    finding = optimum_finding([rounds for _, by_target in panels for rounds in by_target.values()])
    numbers = [
        {"panel": words, "target": target, "rounds": _finite(rounds), "best_Q": optimum(rounds)}
        for words, by_target in panels
        for target, rounds in by_target.items()
    ]
    return drawing.draw_optimum(panels, finding), {"rounds": numbers}, finding


def optimum_finding(lines: Sequence[dict[int, float]]) -> str:
    """Whether the best Q lies inside the grid: more steps take more rounds again, or never get there."""
    inside = []
    for rounds in lines:
        best = optimum(rounds)
        inside.append(best is not None and any(rounds[q] > rounds[best] for q in rounds if q > best))
    if all(inside):
        return "Rounds fall with Q down to an optimum, and rise beyond it"
    count = sum(inside)
    return f"Rounds against Q: in {count} of {len(inside)} cases they rise again beyond the best Q"


def proximal(bench: Bench) -> Drawn:
    cases = proximal_cases(bench.quick)
    found = bench.curves(cases)
    name = data_name(cases[0].specs[0])
    words = {
        "MIMIC-LR": (f"MIMIC-LR, {name}, batches of 64", "AUC on test rows"),
        "Credit-FTL": (f"{CREDIT}, full batch", OVERLAP_AUC),
    }
    finding = proximal_finding(found)
    figure = drawing.draw_panels(found, words, finding, pairs=True)
    return (
        figure,
        {"curves": _as_dicts(found), "mu": {"MIMIC-LR": MIMIC_MU, "Credit-FTL": CREDIT_MU}},
        finding,
    )


def proximal_finding(found: Sequence[Curve]) -> str:
    """By the mean AUC over the rounds, for each pair of lines without and with the term."""
    helped: dict[str, list[bool]] = {}
    for without, with_term in zip(found[::2], found[1::2], strict=True):
        mean = [sum(curve.auc) / len(curve.auc) for curve in (without, with_term)]
        helped.setdefault(without.panel, []).append(mean[1] > mean[0])
    parts = [
        f"{'helps' if all(each) else 'does not help' if not any(each) else 'helps some Q'} on {panel}"
        for panel, each in helped.items()
    ]
    return f"Large Q: the proximal term {' and '.join(parts)}"


def parties(bench: Bench) -> Drawn:
    cases = party_cases(bench.quick)
    found = bench.curves(cases)
    name = data_name(cases[0].specs[0])
    words = {case.panel: (f"{case.panel}\nQ = 5, {name}", "AUC on test rows") for case in cases}
    finding = parties_finding(found)
    return drawing.draw_panels(found, words, finding), {"curves": _as_dicts(found)}, finding


def parties_finding(found: Sequence[Curve]) -> str:
    """How far more parties are behind the fewest at most, at the end, for each rate."""
    behind: dict[str, float] = {}
    for panel in dict.fromkeys(curve.panel for curve in found):
        own = [curve.auc[-1] for curve in found if curve.panel == panel]
        rate = panel.split(", ", 1)[1]
        behind[rate] = max(behind.get(rate, -inf), own[0] - min(own))
    rounds = len(found[0].auc)
    parts = [f"{max(0.0, gap):.3f} with {rate.split(',')[0]}" for rate, gap in behind.items()]
    return f"K = 5 and 17 after {rounds} rounds: AUC below that of K = 2 by at most {', '.join(parts)}"


def nus(bench: Bench) -> Drawn:
    cases = nus_cases(bench.quick)
    found = bench.curves(cases)
    name = data_name(cases[0].specs[0])
    words = {case.panel: (f"NUS-FTL, {case.panel}\n{name}", "AUC on people held out") for case in cases}
    finding = nus_finding(found)
    return drawing.draw_panels(found, words, finding, legend="best"), {"curves": _as_dicts(found)}, finding


def nus_finding(found: Sequence[Curve]) -> str:
    """Rounds to what FedSGD reaches in the end, for each Q, without and with the term."""
    parts = []
    for panel in dict.fromkeys(curve.panel for curve in found):
        own = [curve for curve in found if curve.panel == panel]
        goal = own[0].auc[-1]
        rounds = [next((n for n, auc in enumerate(curve.auc, 1) if auc >= goal), None) for curve in own]
        each = ", ".join(
            f"{c.label}: {'never' if n is None else n}" for c, n in zip(own, rounds, strict=True)
        )
        parts.append(f"{panel}, rounds to {goal:.3f}: {each}")
    return "\n".join(parts)


def minutes(bench: Bench) -> Drawn:
    found, records = minutes_of(bench.store, quick=bench.quick, jobs=bench.jobs)
    bench.records += records
    if not found:
        raise SettingError("minutes: no run reached the target; the figure needs FedSGD to get there")
    finding = minutes_finding(found)
    words = f"{CREDIT} (shared people), {SCHEME}, one core a party"
    return drawing.draw_minutes(found, words, finding), {"networks": [asdict(one) for one in found]}, finding


def minutes_finding(found: Sequence[Minutes]) -> str:
    parts = [f"{100 * one.cost_of_guess:.0f}% on {one.network}" for one in found]
    return f"The Q that the planner would choose takes longer than the best one by {', '.join(parts)}"


FIGURES: dict[str, Callable[[Bench], Drawn]] = {
    "curves": curves,
    "optimum": best_q,
    "proximal": proximal,
    "parties": parties,
    "nus": nus,
    "minutes": minutes,
}


def _as_dicts(found: Sequence[Curve]) -> list[dict[str, Any]]:
    return [asdict(curve) for curve in found]


def _finite(rounds: dict[int, float]) -> dict[int, float | None]:
    return {steps: None if number == inf else number for steps, number in rounds.items()}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", choices=tuple(FIGURES), nargs="+", metavar="NAME", default=tuple(FIGURES),
                        help=f"of {', '.join(FIGURES)}; default: all")  # fmt: skip
    parser.add_argument("--jobs", type=int, metavar="N", help="runs at a time; default: the cores")
    parser.add_argument("--out", type=Path, default=Path("bench-out"), metavar="FOLDER")
    parser.add_argument("--fresh", action="store_true", help="measure again what is in the folder")


def run(args: argparse.Namespace) -> int:
    require("matplotlib", extra="plot")  # before minutes of training, not after
    if args.json is not None and not args.json.parent.is_dir():
        raise SettingError(f"{args.json}: there is no directory {args.json.parent}")
    jobs = cores() if args.jobs is None else check_integer("jobs", args.jobs, least=1)
    facts = machine.describe(("numpy", "tenseal", "matplotlib"))
    for name, fact in facts.items():
        print(f"{name:<13}{fact}")
    bench = Bench(Store(args.out / "runs", fresh=args.fresh), args.quick, jobs)
    report: dict[str, Any] = {"machine": facts, "quick": args.quick, "figures": {}, "bars": []}
    tail = "-quick" if args.quick else ""
    for name in dict.fromkeys(args.only):
        figure, numbers, finding = FIGURES[name](bench)
        paths = save(figure, args.out, f"figure-{name}{tail}")
        report["figures"][name] = {"finding": finding, **numbers}
        print(f"\n{name}: {finding}\n  {', '.join(str(path) for path in paths)}", flush=True)
    report["notes"] = notes_on(bench.records)
    for note in report["notes"]:
        print(f"- {note}")
    for path in (args.out / f"figures{tail}.json", args.json):
        if path is not None:
            path.write_text(json.dumps(report, indent=1) + "\n")
    return 0
