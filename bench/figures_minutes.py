"""Total minutes against Q on several networks: the figure that the paper lacks.

Rounds are the medians of Table 2's plain runs; what a round takes comes from its encrypted runs, replayed on
each network: computation as measured, communication as bandwidth and latency make it, a line in Q through the
Q that were run encrypted. Beside it the planner's guess, which knows sizes, this machine's speed and FedSGD's
rounds, and none of the other runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench import table2
from bench.figures_runs import CREDIT_SEEDS, table2_plan
from bench.planner import Planner
from bench.runs import Record, Spec, Store, make_all
from bench.table2_rows import Cells, best_steps
from bench.tasks import build
from securefed.transport.message import get_network

NETWORKS = ("paper", "lan", "wan")
SCHEME = "ckks"


@dataclass(frozen=True)
class Minutes:
    """One network: minutes to the target by Q, with measured rounds and by the planner."""

    network: str
    bandwidth: float
    latency: float
    target: float
    measured: dict[int, float]
    best: int
    encrypted: dict[int, float]
    """The Q that were run encrypted, as measured: medians over the seeds."""
    guessed: dict[int, float]
    guess: int

    @property
    def cost_of_guess(self) -> float:
        """How much longer the planner's choice takes than the best Q, as a part of the latter."""
        return self.measured[self.guess] / self.measured[self.best] - 1.0


def minutes_of(
    store: Store, *, quick: bool, jobs: int, networks: Sequence[str] = NETWORKS
) -> tuple[list[Minutes], list[Record]]:
    """Made or found runs, and what they take to the highest target of Table 2."""
    plan = table2_plan(quick, SCHEME)
    # One seed when nothing is there yet; the seeds that Table 2 encrypted when they are.
    grid = plan.steps if quick else tuple(sorted({*plan.steps, *table2.GRID["overlap"]}))
    seeds = plan.seeds if quick else CREDIT_SEEDS
    plain = _by_key(make_all([plan.plain(q, seed) for q in grid for seed in seeds], store, build, jobs=jobs))
    wanted = [plan.watched(q, seed) for seed in plan.seeds for q in plan.steps]
    if not all(store.find(spec) for spec in wanted):
        wanted = [plan.watched(q, plan.seeds[0]) for q in plan.steps]
    measured = _by_key(make_all(wanted, store, build, jobs=jobs))
    cells = Cells(plan.kind, SCHEME, plan.steps, measured, plain)
    target = plan.within[-1]
    task = build(plan.watched(1, plan.seeds[0]))
    planner = Planner(task, SCHEME, plan.key_bits, task.columns)
    found = []
    for name in networks:
        network = get_network(name)
        rows = {row.Q: row.total_min for row in cells.rows(network, [target])}
        best = best_steps(cells, network, target)
        at_one = cells.plain_median(1, target, cells.grid_seeds)
        if best is None or at_one is None:
            continue
        guess = planner.guess(network, at_one, list(best.all_min))
        found.append(
            Minutes(
                name,
                network.bandwidth,
                network.latency,
                target,
                best.all_min,
                best.Q,
                {q: total for q, total in rows.items() if total is not None},
                dict(guess.minutes),
                guess.Q,
            )
        )
    return found, [*measured.values(), *plain.values()]


def _by_key(made: dict[Spec, Record]) -> dict[tuple[int, int], Record]:
    return {(spec.local_steps, spec.seed): record for spec, record in made.items()}
