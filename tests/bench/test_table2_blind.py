"""`bench table2 --reveal nothing`: bars from made runs, a quick table, B's guess at labels."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import bench.__main__ as dispatch
from bench import table2
from bench.blind_transfer import Observer
from bench.table2_bars import blind_bars
from securefed.models.local import with_ones
from securefed.transport.message import get_network
from tests.bench import made_runs
from tests.bench.test_table2 import CONTRACT, table

__all__ = ["table"]  # a fixture

SEEN = {"label_inference_auc": 0.52, "label_inference_chance": 0.1, "label_inference_if_opened": 0.9}


@pytest.mark.parametrize(
    ("rounds", "seen", "missed"),
    [
        ({1: 46, 5: 13, 10: 7}, 0.52, []),
        ({1: 46, 5: 13, 10: 8}, 0.52, ["rounds to 80% at Q = 10", "80% at Q = 10 in less than 1"]),
        ({1: 46, 5: 13, 10: 7}, 0.61, ["label inference by B"]),
        ({1: 46, 5: 13, 10: 7}, 0.39, ["label inference by B"]),
    ],
)
def test_bars_of_runs_that_reveal_nothing(rounds: dict[int, int], seen: float, missed: list[str]) -> None:
    cells = made_runs.cells({q: {0.8: number} for q, number in rounds.items()})
    for record in cells.measured.values():
        for point in record.points:
            point |= {**SEEN, "label_inference_auc": seen}
    paper = get_network("paper")
    rows = cells.rows(paper, [0.8])
    assert all(row.label_inference_auc == seen for row in rows)
    bars = blind_bars(cells, rows, [paper], quick=False)
    assert len(bars) == 8
    found = [bar.name for bar in bars if bar.verdict != "pass"]
    assert len(found) == len(missed) and all(map(str.startswith, found, missed))
    for record in cells.measured.values():
        record.points[-1]["label_inference_if_opened"] = 0.58
    weak = blind_bars(cells, rows, [paper], quick=False)  # even opened numbers tell nothing: no bar on it
    assert len(weak) == 7 and not any(bar.name.startswith("label inference") for bar in weak)
    for bar in (bar.to_dict() for bar in bars):
        assert {"name", "value", "bar", "better", "met", "note"} <= bar.keys()
        assert bar["met"] == (bar["value"] <= bar["bar"] if bar["better"] == "less" else bar["value"] >= 1)


def test_the_observer_finds_labels_in_opened_numbers_and_not_in_random_ones() -> None:
    rng = np.random.default_rng(0)
    features, signs = with_ones(rng.normal(size=(80, 30))), np.where(rng.random(80) > 0.5, 1.0, -1.0)
    observer = Observer(features, signs)
    opened = features.T @ signs[:, None] / 80
    assert observer.guess(opened, opened)[0] > 0.8 > 0.5 + observer.chance
    by_chance = observer.guess(*rng.uniform(-1, 1, (2, 31, 200)))
    assert np.mean(np.abs(by_chance - 0.5) > observer.chance) < 0.02


@pytest.mark.slow
def test_a_quick_blind_table(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table2.table2_plots, "draw", lambda *given: None)  # tested by itself
    rows = tmp_path / "rows.json"
    options = ["--reveal", "nothing", "--quick", "--jobs", "1", "--Q", "2", "--targets", "0.55"]
    files = ["--data", str(table), "--out", str(tmp_path), "--json", str(rows)]
    assert dispatch.main(["table2", *options, *files]) == 0
    report = json.loads(rows.read_text())
    (row,) = report["rows"]
    assert {*CONTRACT, "reveal", "label_inference_auc"} <= row.keys()
    assert row["reveal"] == "nothing" and row["reached"] and row["R"] == row["R_plain"]
    assert row["bytes_exchange"] > 0 and row["bytes_open"] == 0 and row["total_min"] > row["setup_min"]
    assert all(bar["met"] for bar in report["bars"])


def test_what_is_not_blind_transfer_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch.main(["table2", "--reveal", "nothing", "--scheme", "plain"]) == 2
    assert "reveal: nothing given, for transfer learning under ckks or paillier" in capsys.readouterr().err
