"""`python -m bench table2`: Credit-FTL under real encryption, in the layout of the paper's Table 2, beside
its numbers.

One training run for each algorithm and seed serves all targets: it goes on until the highest one, and each
row is read off at the first round that reaches its own. Minutes are on the critical path and without the
setup (keys are exchanged once, and told apart), but with it where nothing is revealed: such a run encrypts
in its setup, for all its rounds. Computation is as measured, communication as the network's
bandwidth and latency make it, comp + comm = total. A network changes nothing that was measured, so all
networks are told from the same runs (bench.replay). The same is trained in plain on the same seeds: the
encrypted runs have to take as many rounds.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from bench import machine, table2_plots
from bench.arguments import numbers, seed_list
from bench.planner import Guess, Planner
from bench.runs import Spec, Store, make_all, notes_on
from bench.table2_bars import bars_of, blind_bars, boosting_auc
from bench.table2_rows import Bar, Best, Cells, Row, best_steps
from bench.table2_text import markdown, notes
from bench.tasks import DEFAULTS, build
from securefed.crypto.paillier.keys import LEAST_BITS, MOST_BITS
from securefed.declare import check_integer
from securefed.engine.processes import cores
from securefed.errors import SettingError, require
from securefed.transport.message import Network, get_network

TASKS = {"overlap": "credit-overlap", "held-out": "credit-held-out", "linear": "credit-linear"}
TARGETS = {
    "overlap": (0.70, 0.75, 0.80),
    "held-out": (0.70, 0.73, 0.74, 0.75, 0.80),
    "linear": (0.69, 0.70, 0.705),
}
OUT_OF_REACH = {"held-out": 0.78}
"""No model gets there on these columns; a row for it says so, and no run waits for it."""
GRID = {
    "overlap": (1, 2, 3, 5, 7, 10, 15, 20, 30),
    "held-out": (1, 5, 10, 20, 50),
    "linear": (1, 2, 3, 5, 7, 10, 15, 20, 30),
}
"""Further Q, in plain, to say which one is best on a network; fewer where a run takes long."""
QUICK = {
    "overlap": {"overlap": 40, "labelled": 400, "hidden": 8, "held_out": 1000},
    "held-out": {"overlap": 200, "labelled": 1000, "hidden": 8, "held_out": 1000},
    "linear": {"batch": 128, "held_out": 1000},
}
QUICK_TARGETS = {"overlap": (0.65, 0.70), "held-out": (0.62, 0.66), "linear": (0.67, 0.69)}
"""Paillier's transfer runs stop at the first."""
BLIND_TARGETS = {"overlap": (0.70, 0.75, 0.80), "held-out": (0.70, 0.73, 0.75, 0.76)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--scheme", choices=("paillier", "ckks", "plain"), default="ckks")
    parser.add_argument("--key-bits", type=int, default=2048, help="Paillier; default %(default)s")
    parser.add_argument(
        "--network",
        nargs="+",
        default=["paper"],
        metavar="NAME",
        help="lan, wan, paper, loopback or BANDWIDTH,LATENCY (bit/s, s); default: paper",
    )
    parser.add_argument(
        "--reading",
        choices=("overlap", "held-out"),
        default="overlap",
        help="on whom the AUC is taken, and who has which columns; default %(default)s",
    )
    parser.add_argument(
        "--objective",
        choices=("transfer", "linear"),
        default="transfer",
        help="linear: logistic regression with linear local models; default %(default)s",
    )
    parser.add_argument(
        "--reveal",
        choices=("own-gradient", "nothing"),
        default="own-gradient",
        help="nothing: blind transfer learning on the same people and columns; default %(default)s",
    )
    parser.add_argument(
        "--seeds",
        type=seed_list,
        metavar="LIST",
        help="of the encrypted runs, as 0,3 or 0-4; default: 0-4; with Paillier and held-out the one whose"
        " rounds in plain are nearest to the medians",
    )
    parser.add_argument(
        "--plain-seeds",
        type=seed_list,
        metavar="LIST",
        help="of the plain runs that the rounds' median is taken over; default: 0-24 by the reading overlap,"
        " whose rounds vary most, else 0-4",
    )
    parser.add_argument("--Q", type=numbers(int), default=(1, 5, 10), metavar="LIST", help="default 1,5,10")
    parser.add_argument("--targets", type=numbers(float), metavar="LIST", help="AUC, as 0.7,0.75")
    parser.add_argument("--overlap", type=int, metavar="N", help="people that A and B share")
    parser.add_argument("--data", metavar="FILE", help="the Default-Credit table; default: as found")
    parser.add_argument("--jobs", type=int, metavar="N", help="runs at a time; default: the cores")
    parser.add_argument(
        "--workers",
        type=int,
        default=1,
        metavar="N",
        help="processes a party; more than one is timed by the wall; default %(default)s",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("bench-out"),
        metavar="FOLDER",
        help="for runs, table and plots; default %(default)s",
    )
    parser.add_argument("--fresh", action="store_true", help="measure again what is in the folder")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a bar is missed")
    parser.add_argument(
        "--real",
        action="store_true",
        help="parties as processes over gRPC on this machine, and the model beside it",
    )


class Plan:
    """Which runs a call of the bench needs."""

    def __init__(self, args: argparse.Namespace) -> None:
        check_integer("seed", args.seed, least=0)
        check_integer("key-bits", args.key_bits, least=LEAST_BITS, most=MOST_BITS)
        check_integer("workers", args.workers, least=1)
        self.kind: str = "linear" if args.objective == "linear" else args.reading
        self.reveal: str = args.reveal
        if self.blind and (self.kind == "linear" or args.scheme == "plain" or args.real):
            raise SettingError(
                "reveal: nothing given, for transfer learning under ckks or paillier, simulated"
            )
        self.task = TASKS[self.kind] + ("-blind" if self.blind else "")
        self.quick: bool = args.quick
        self.scheme: str = args.scheme
        quicker = args.quick and args.scheme == "paillier" and self.kind != "linear"
        usual = QUICK_TARGETS if args.quick else BLIND_TARGETS if self.blind else TARGETS
        targets = args.targets or usual[self.kind]
        if quicker and not args.targets:
            targets = targets[:1]
        self.targets = tuple(sorted(targets))
        if self.targets[-1] >= 1:
            raise SettingError(f"targets: {self.targets[-1]:g} given, an AUC below 1 is allowed")
        reach = OUT_OF_REACH.get(self.kind, 1.01)
        self.within = tuple(target for target in self.targets if target < reach)
        if not self.within:
            raise SettingError(f"targets: {targets} given, below {reach} is allowed for {self.kind}")
        self.steps: tuple[int, ...] = tuple(sorted(set(args.Q)))
        few = args.scheme == "paillier" or (self.kind == "held-out" and not self.blind)
        self.seeds: tuple[int, ...] = args.seeds or ((args.seed,) if args.quick else tuple(range(5)))
        self.choose = few and not args.quick and args.seeds is None
        """One seed, the most typical of the plain ones."""
        more = args.plain_seeds or tuple(range(25 if self.kind == "overlap" else 5))
        self.plain_seeds = self.seeds if args.quick else tuple(sorted({*self.seeds, *more}))
        options: dict[str, Any] = dict(QUICK[self.kind]) if args.quick else {}
        if self.blind:
            options.pop("hidden", None)
        if quicker:
            options["overlap"] = QUICK["overlap"]["overlap"]
            options |= {"raw": True} if self.blind else {}
        if args.overlap is not None:
            if self.kind == "linear":
                raise SettingError("overlap: of the transfer objective only")
            options["overlap"] = args.overlap
        if args.data is not None:
            options["data"] = str(Path(args.data).resolve())
        self.options = tuple(sorted(options.items()))
        self.key_bits, self.workers = args.key_bits, args.workers
        self.settings = {**DEFAULTS[self.task], **options}

    @property
    def blind(self) -> bool:
        return self.reveal == "nothing"

    def cap(self, steps: int) -> int:
        """Rounds after which a run gives up."""
        most = 60.0 if self.blind else {"overlap": 200.0, "held-out": 300.0, "linear": 150.0}[self.kind]
        fewer: float = steps**0.8
        return max(15, int((0.3 if self.quick else 1.0) * most / fewer))

    def plain(self, steps: int, seed: int) -> Spec:
        return Spec(
            self.task,
            steps,
            seed=seed,
            rounds=self.cap(steps),
            target=self.within[-1],
            timed=self.scheme == "plain",
            options=self.options,
        )

    def plain_specs(self) -> list[Spec]:
        grid = () if self.quick or self.blind else GRID[self.kind]
        return [self.plain(q, seed) for seed in self.plain_seeds for q in sorted({*self.steps, *grid})]

    def watched(self, steps: int, seed: int) -> Spec:
        """The parties evaluate after each round, and the label party stops the run."""
        return Spec(
            self.task,
            steps,
            seed=seed,
            scheme=self.scheme,
            key_bits=self.key_bits,
            workers=self.workers,
            rounds=self.cap(steps),
            target=self.within[-1],
            timed=True,
            options=self.options,
        )

    def encrypted(self, steps: int, seed: int, plain_rounds: int) -> Spec:
        """The parties stop by their own evaluation where it is cheap (the 100 shared people). Else the run
        gets as many rounds as the plain one took, and the bench computes the AUC of 7,500 people; and where
        nothing is revealed, since the scores that the label party gets then are blurred: people with the same
        columns are no longer tied.
        """
        spec = self.watched(steps, seed)
        return (
            spec
            if self.kind == "overlap" and not self.blind
            else replace(spec, rounds=plain_rounds, target=None)
        )


def run(args: argparse.Namespace) -> int:
    require("matplotlib", extra="plot")  # before minutes of measuring, not after
    networks = [get_network(name) for name in args.network]
    plan = Plan(args)
    if args.json is not None and not args.json.parent.is_dir():
        raise SettingError(f"{args.json}: there is no directory {args.json.parent}")
    if args.real:
        from bench.real import run_real

        return run_real(plan, args)
    facts = machine.describe(("numpy", "gmpy2", "tenseal", "scikit-learn"))
    for name, fact in facts.items():
        print(f"{name:<13}{fact}")
    store = Store(args.out / "runs", fresh=args.fresh)
    jobs = cores() if args.jobs is None else check_integer("jobs", args.jobs, least=1)
    print(f"\n{plan.task}, {plan.scheme}, {plan.settings}", flush=True)
    plain = {
        (spec.local_steps, spec.seed): record
        for spec, record in make_all(plan.plain_specs(), store, build, jobs=jobs).items()
    }
    if plan.choose:
        plan.seeds = (Cells(plan.kind, plan.scheme, plan.steps, {}, plain).typical_seed(plan.within),)
        print(f"seed {plan.seeds[0]}: its rounds in plain are the nearest to the medians", flush=True)
    measured = {key: record for key, record in plain.items() if key[0] in plan.steps and key[1] in plan.seeds}
    if plan.scheme != "plain":
        specs = [
            plan.encrypted(q, seed, len(plain[q, seed].points)) for seed in plan.seeds for q in plan.steps
        ]
        made = make_all(specs, store, build, jobs=jobs)
        measured = {(spec.local_steps, spec.seed): record for spec, record in made.items()}
    cells = Cells(plan.kind, plan.scheme, plan.steps, measured, plain, plan.reveal)
    rows = [row for network in networks for row in cells.rows(network, plan.targets)]
    best = {n.name: {t: best_steps(cells, n, t) for t in plan.within} for n in networks}
    guesses = planned(plan, cells, networks)
    boosting = boosting_auc(args.data) if plan.targets != plan.within and not plan.quick else None
    if plan.blind:
        bars = blind_bars(cells, rows, networks, quick=plan.quick)
    else:
        bars = bars_of(cells, rows, networks, quick=plan.quick, boosting=boosting)
    told = [*notes(cells, networks, plan.within, best, guesses), *notes_on(list(measured.values()))]
    if boosting is not None:
        told.append(
            f"no model reaches 80% on these columns: gradient boosting on all 33 of them, in the clear, gets"
            f" {boosting:.3f} (5-fold)"
        )
    table = markdown(rows, networks, bars, told, boosting)
    print("\n" + table, flush=True)
    size = "" if args.overlap is None else f"-n{args.overlap}"
    blind, quick = "-blind" if plan.blind else "", "-quick" if plan.quick else ""
    name = f"table2-{plan.kind}{size}-{plan.scheme}{blind}{quick}"
    (args.out / f"{name}.md").write_text(table)
    report = report_of(plan, facts, rows, cells, bars, told, boosting, best, guesses)
    for path in (args.out / f"{name}.json", args.json):
        if path is not None:
            path.write_text(json.dumps(report, indent=2) + "\n")
    table2_plots.draw(cells, rows, networks, args.out, name)
    print(f"table, rows and plots: {args.out}/{name}.*")
    return 1 if args.strict and any(bar.verdict == "MISSED" for bar in bars) else 0


def planned(plan: Plan, cells: Cells, networks: list[Network]) -> dict[str, dict[float, Guess]]:
    """What the planner would choose on each network for each target, from FedSGD's rounds alone."""
    at_one = {t: cells.plain_median(1, t, cells.grid_seeds) for t in plan.within if 1 in cells.grid}
    if plan.blind or plan.scheme == "plain" or not any(at_one.values()):
        return {}
    task = build(plan.watched(1, plan.seeds[0]))
    planner = Planner(task, plan.scheme, plan.key_bits, task.columns)
    return {
        network.name: {
            t: planner.guess(network, rounds, GRID[plan.kind]) for t, rounds in at_one.items() if rounds
        }
        for network in networks
    }


def report_of(
    plan: Plan,
    facts: dict[str, str],
    rows: list[Row],
    cells: Cells,
    bars: list[Bar],
    told: list[str],
    boosting: float | None,
    best: dict[str, dict[float, Best | None]],
    guesses: dict[str, dict[float, Guess]],
) -> dict[str, Any]:
    return {
        "machine": facts,
        "settings": {"task": plan.task, "quick": plan.quick, "seeds": plan.seeds, **plan.settings},
        "rows": [row.to_dict() for row in rows],
        "rounds_in_plain": cells.plain_rounds(plan.within),
        "costs": cells.costs_by_network,
        "best_Q": {
            name: {f"{t:g}": None if found is None else asdict(found) for t, found in by.items()}
            for name, by in best.items()
        },
        "planner_Q": {
            name: {f"{t:g}": asdict(guess) for t, guess in by.items()} for name, by in guesses.items()
        },
        "gradient_boosting_auc": boosting,
        "ledger": cells.ledger(),
        "bars": [bar.to_dict() for bar in bars],
        "notes": told,
    }
