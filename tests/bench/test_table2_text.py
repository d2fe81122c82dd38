"""Table 2 as text and as plots."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench import table2_plots
from bench.planner import Guess
from bench.table2_rows import Bar, Cells, best_steps
from bench.table2_text import HEAD, markdown, notes
from securefed.extras import require
from securefed.transport import NETWORKS, Network
from tests.bench.made_runs import Work, cells, climb, record

pytestmark = pytest.mark.slow

PAPER = NETWORKS["paper"]
ROUNDS = {1: {0.7: 17, 0.8: 46}, 10: {0.7: 7, 0.8: 8}}


def fields(line: str) -> list[str]:
    return [part.strip() for part in line.strip("|\n").split("|")]


def table(made: Cells, targets: tuple[float, ...], ceiling: float | None = None) -> list[dict[str, str]]:
    text = markdown(made.rows(PAPER, targets), [PAPER], [], [], ceiling)
    lines = [fields(line) for line in text.splitlines() if line.startswith("|")]
    assert [name for name in HEAD if name in lines[0]] == lines[0]
    return [dict(zip(lines[0], line, strict=True)) for line in lines[2:]]


def test_the_table_has_the_papers_layout_and_its_numbers() -> None:
    rows = table(cells(ROUNDS), (0.7, 0.8))
    assert [(row["AUC"], row["algorithm"], row["Q"], row["R"]) for row in rows] == [
        ("70%", "FedSGD", "1", "17"),
        ("70%", "FedBCD-p", "10", "7"),
        ("80%", "FedSGD", "1", "46"),
        ("80%", "FedBCD-p", "10", "8"),
    ]
    assert (rows[3]["R paper"], rows[3]["comm. paper"], rows[3]["total paper"]) == ("7", "5.12", "46.65")
    assert rows[0]["comp."] == f"{17 * 3.5 / 60:.3f}"
    assert rows[1]["MB exchanged"] == f"{2 * 7 * 2000 / 1e6:.2f}"


def test_columns_with_nothing_to_say_are_left_out() -> None:
    assert list(table(cells(ROUNDS), (0.7,))[0]) == list(HEAD[:-1])  # nobody guessed labels in these runs
    smaller = table(cells(ROUNDS, options={"overlap": 40}), (0.7,))[0]
    assert set(HEAD[:-1]) - set(smaller) == {"R paper", "comp. paper", "comm. paper", "total paper"}


def test_the_table_says_where_local_steps_do_not_pay() -> None:
    """3.5 s a round for FedSGD, 8 s for Q = 10."""
    rows = table(cells(ROUNDS), (0.7, 0.8))
    assert [row["against FedSGD"] for row in rows] == ["", "-6%", "", "-60%"]
    slower = table(cells({1: {0.7: 17}, 10: {0.7: 16}}), (0.7,))
    assert slower[1]["against FedSGD"] == "+115% (longer)"


def test_a_target_beyond_every_model_says_so() -> None:
    made = cells({1: {0.74: 50}, 10: {0.74: 9}}, kind="held-out")
    last = table(made, (0.74, 0.76, 0.8), ceiling=0.783)[-1]
    assert (last["R"], last["AUC here"]) == ("no model", "0.740 (boosting 0.783)")
    assert table(made, (0.74, 0.76, 0.8), ceiling=0.783)[2]["R"] == "not reached"


def test_the_interval_of_the_median_stands_beside_it() -> None:
    plain = {(q, s): {0.7: 10 + s, 0.8: 50} for q in (1, 10) for s in range(9)}
    assert table(cells(ROUNDS, plain=plain), (0.7,))[0]["R plain"] == "14 (11 to 17)"
    never = {(q, s): {0.6: 1} if s > 4 else {0.7: 10 + s} for q in (1, 10) for s in range(9)}
    assert table(cells(ROUNDS, plain=never), (0.7,))[0]["R plain"] == "14 (11 and more)"


def told(made: Cells, network: Network, targets: tuple[float, ...], guess: Guess | None = None) -> list[str]:
    made.rows(network, targets)
    best = {network.name: {t: best_steps(made, network, t) for t in targets}}
    guesses = {} if guess is None else {network.name: dict.fromkeys(targets, guess)}
    return notes(made, [network], targets, best, guesses)


def test_notes_name_the_q_that_would_pay_and_the_planners() -> None:
    guess = Guess(3, {1: 1.0, 3: 0.5, 10: 0.7})
    plain = {(1, 0): {0.7: 17}, (3, 0): {0.7: 5}, (10, 0): {0.7: 16}}
    lines = told(cells({1: {0.7: 17}, 10: {0.7: 16}}, plain=plain), PAPER, (0.7,), guess)
    assert lines[0].startswith("paper, 70%: FedBCD-p does not lower the total at Q = 10 (")
    assert lines[1].startswith("paper, 70%: Q = 3 has the shortest total of Q = 1, 3, 10 (")
    assert lines[2] == (
        "paper, 70%: the planner, told FedSGD's 17 rounds and no more, would choose Q = 3"
        " (0.500 min by its estimate)"
    )
    pays = told(cells(ROUNDS), PAPER, (0.8,))
    assert not any("does not lower" in line for line in pays)


def test_notes_say_what_the_ledger_found() -> None:
    entry = {"party": "B", "block": "C and M", "equations": 5120, "unknowns": 3728, "ratio": 1.4}
    advice = {"party": "B", "block": "labels", "equations": 900, "unknowns": 100, "ratio": 9.0}
    ledger = [{**entry, "verdict": "determined"}, {**advice, "verdict": "possibly determined"}]
    run = {(10, 0): record(climb({0.7: 2}), 10, Work(), ledger=ledger)}
    lines = told(Cells("overlap", "ckks", (10,), run, run), PAPER, (0.7,))
    assert any(line.startswith("ledger, determined: at Q = 10 B opens 5,120 sums over 3,7") for line in lines)
    assert any(line.startswith("ledger, possibly determined: at Q = 10 B opens 900") for line in lines)
    assert told(cells(ROUNDS), PAPER, (0.7,))[-1] == "ledger: nothing is determined"


def test_bars_and_notes_stand_below() -> None:
    made = cells(ROUNDS)
    bars = [Bar.of("adds up", True, "in 2 rows"), Bar.of("fast", False, "9 min")]
    text = markdown(made.rows(PAPER, (0.7,)), [PAPER], bars, ["load 0.5"])
    assert text.endswith("- pass: adds up: in 2 rows\n- MISSED: fast: 9 min\n- load 0.5\n")


def test_plots_exist_and_are_not_blank(tmp_path: Path) -> None:
    made = cells(ROUNDS)
    networks = [PAPER, Network("1e6,0.01", 1e6, 0.01)]
    rows = [row for network in networks for row in made.rows(network, (0.7, 0.8))]
    paths = table2_plots.draw(made, rows, networks, tmp_path, "t")
    assert sorted(path.name for path in paths) == sorted(
        f"t-{network}-{what}.{kind}"
        for network in ("paper", "1e6_0_01")
        for what in ("auc", "minutes")
        for kind in ("png", "svg")
    )
    image = require("matplotlib.image", extra="plot")
    for path in paths:
        if path.suffix == ".png":
            pixels = np.asarray(image.imread(path))[..., :3].reshape(-1, 3)
            inked = np.mean(np.any(pixels < 0.9, axis=1))
            assert 0.01 < inked < 0.6
            coloured = np.ptp(pixels, axis=1) > 0.2  # not the axes alone
            assert np.mean(coloured) > 0.001
            assert len(np.unique((pixels[coloured] * 8).astype(int), axis=0)) >= 2
        else:
            assert path.stat().st_size > 10_000


@pytest.mark.parametrize("kind", ["held-out", "linear"])
def test_plots_of_the_other_readings(kind: str, tmp_path: Path) -> None:
    made = cells(ROUNDS, kind=kind, openings=1 if kind == "linear" else None)
    assert len(table2_plots.draw(made, made.rows(PAPER, (0.7,)), [PAPER], tmp_path, "t")) == 4
    # A target that nobody reaches has no minutes to draw.
    assert len(table2_plots.draw(made, made.rows(PAPER, (0.9,)), [PAPER], tmp_path, "t")) == 2
