"""The bars of Table 2 on made runs: each one can pass, and each one can be missed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.table2_bars import bars_of
from bench.table2_rows import Bar, Cells
from securefed.transport.message import NETWORKS
from tests.bench.made_runs import Work, cells

PAPER = NETWORKS["paper"]
ROUNDS = {
    1: {0.7: 17, 0.75: 30, 0.8: 46},
    5: {0.7: 4, 0.75: 8, 0.8: 13},
    10: {0.7: 2, 0.75: 4, 0.8: 7},
}
TARGETS = (0.7, 0.75, 0.8)
QUICK = Work(exchange=0.1, step=0.05, size=100_000, request=400, opening=200)


def bars(
    made: Cells, targets: tuple[float, ...] = TARGETS, *, quick: bool = False, boosting: float | None = None
) -> list[Bar]:
    rows = made.rows(PAPER, targets)
    return bars_of(made, rows, [PAPER], quick=quick, boosting=boosting)


def verdicts(found: list[Bar], part: str) -> list[str]:
    named = [bar.verdict for bar in found if part in bar.name]
    assert named, f"no bar about {part!r} in {[bar.name for bar in found]}"
    return named


def test_the_papers_own_rounds_pass_every_bar() -> None:
    found = bars(cells(ROUNDS, work=QUICK))
    assert {bar.verdict for bar in found} == {"pass"}
    assert len(verdicts(found, "of the paper's")) == 9
    assert len(verdicts(found, "less than 1 min")) == 1


def test_a_total_that_does_not_add_up() -> None:
    made = cells(ROUNDS)
    rows = made.rows(PAPER, TARGETS)
    rows[2] = replace(rows[2], comm_min=99.0)
    found = bars_of(made, rows, [PAPER], quick=True, boosting=None)
    assert verdicts(found, "comp + comm = total") == ["MISSED"]


def test_rounds_that_differ_from_plain() -> None:
    plain = {(q, 0): by for q, by in ROUNDS.items()}
    plain[5, 0] = {0.7: 4, 0.75: 9, 0.8: 13}
    found = bars(cells(ROUNDS, plain=plain))
    assert verdicts(found, "as many rounds as in plain") == ["MISSED"]
    assert next(bar.detail for bar in found if "in plain on" in bar.name) == "Q = 5 to 75%: 8 against 9"


@pytest.mark.parametrize(
    ("change", "computation", "communication"),
    [({}, "pass", "pass"), ({"step": 0.7}, "MISSED", "pass"), ({"size": 3000}, "pass", "MISSED")],
)
def test_costs_that_depend_on_q(change: dict[str, float], computation: str, communication: str) -> None:
    work = {1: Work(), 5: Work(), 10: replace(Work(), **change)}
    found = bars(cells(ROUNDS, work=work))
    assert verdicts(found, "computation a local step") == [computation]
    assert verdicts(found, "communication an exchange") == [communication]


@pytest.mark.parametrize(
    ("target", "q", "rounds", "verdict"),
    [
        (0.7, 1, 10, "MISSED"),
        (0.7, 1, 23, "pass"),
        (0.8, 10, 11, "MISSED"),
    ],
)
def test_rounds_near_the_papers(target: float, q: int, rounds: int, verdict: str) -> None:
    """The larger of 3 rounds and 40%."""
    plain = {(each, 0): dict(by) for each, by in ROUNDS.items()}
    plain[q, 0] = {t: max(n, rounds) if t >= target else n for t, n in plain[q, 0].items()}
    plain[q, 0][target] = rounds
    found = bars(cells(ROUNDS, plain=plain))
    assert verdicts(found, f"rounds to {100 * target:g}% at Q = {q} ") == [verdict]


@pytest.mark.parametrize(("scheme", "limit"), [("ckks", 60.0)])
@pytest.mark.parametrize("over", [False, True])
def test_the_limit_on_minutes_counts_the_setup(scheme: str, limit: float, over: bool) -> None:
    # Seven rounds of ten steps, and a second of setup; nothing travels far.
    work = Work(exchange=0.0, step=(limit - (0.5 if over else 1.5)) / 70, size=1, request=1, opening=1)
    network = replace(PAPER, latency=0.0)
    made = cells(ROUNDS, work=work, scheme=scheme)
    found = bars_of(made, made.rows(network, TARGETS), [network], quick=False, boosting=None)
    assert verdicts(found, "80% at Q = 10 in less than") == ["MISSED" if over else "pass"]


def test_quick_runs_are_held_to_what_does_not_depend_on_size() -> None:
    assert [bar.name.split(" (")[0] for bar in bars(cells(ROUNDS), quick=True)] == [
        "comp + comm = total",
        "as many rounds as in plain on the same seed",
        "computation a local step is the same for every Q within 20%",
        "communication an exchange is the same for every Q within 20%",
    ]
