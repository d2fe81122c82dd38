"""`python -m bench quality`: one table, hostile tables, and the bars."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from bench.hostile import hostile, made
from bench.quality import OF_FILES, OF_PACKAGES, TABLES, Row, bars_of, markdown, measured

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("place", [1, 3])
def test_a_table_is_measured_beside_scikit_learn(place: int) -> None:
    row = measured(TABLES[place], 3, 0, encrypted=False)
    assert row.table == TABLES[place].name and row.parties == 3 and row.scheme == "plain"
    assert row.metric == ("accuracy" if place == 1 else "R2")
    assert row.joined > 0.35 and row.value > row.joined - 0.06


@pytest.mark.parametrize("seed", range(6))
def test_hostile_tables_are_fitted_announced_or_refused(seed: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = hostile(seed)
    assert found.outcome in ("fitted", "announced", "refused"), found.detail


def test_hostile_tables_are_hostile() -> None:
    tables = [made(seed)[0] for seed in range(20)]
    sizes = [abs(table[table != 0]).max() / abs(table[table != 0]).min() for table in tables]
    assert max(sizes) > 1e15 and any(table.shape[0] < table.shape[1] for table in tables)
    assert any((table.std(axis=0) == 0).any() for table in tables)


def test_bars_take_the_worst_number_of_parties() -> None:
    def row(parties: int, value: float, seed: int = 0) -> Row:
        more, joined = {"log loss": 0.13, "Brier": 0.03}, {"log loss": 0.125, "Brier": 0.025}
        return Row(TABLES[0].name, parties, "plain", "AUC", value, 0.99, more, joined, 0.98, seed)

    rows = [row(2, 0.985), row(5, 0.975), row(5, 0.977, 1)]
    auc, far, sure, bad = bars_of(TABLES[:1], rows, ["fitted", "refused", "silently bad"])
    assert auc["value"] == pytest.approx(0.014) and not auc["met"] and "5" in auc["note"]
    assert far["value"] == 1.0 and far["met"]
    assert sure["value"] == 1.0 and sure["met"] and "1 of 1" in sure["note"]
    assert bad["value"] == 1.0 and not bad["met"]
    assert all(set(bar) == {"name", "value", "bar", "better", "met", "note"} for bar in (auc, far, sure, bad))
    table = markdown(TABLES[:1], rows)
    assert "| breast cancer | AUC | 0.9900 | 0.9850 | 0.9760 | 0.1250 / 0.1300 |" in table


def test_a_bar_of_the_metric_itself_asks_for_more() -> None:
    (table,) = (each for each in OF_FILES if each.least is not None)
    values = {2: 0.78, 5: 0.774}
    rows = [Row(table.name, k, "plain", "AUC", v, 0.78, {}, {}, 0.77, 0) for k, v in values.items()]
    gap, least, far = bars_of((table,), rows, [])
    assert gap["met"] and gap["value"] == pytest.approx(0.006) and far["met"]
    assert least["better"] == "more" and least["value"] == 0.774 and not least["met"]


@pytest.mark.parametrize("place", range(len(OF_PACKAGES)))
def test_tables_of_packages_are_what_they_say(place: int) -> None:
    table = OF_PACKAGES[place]
    numbers, labels = table.load()
    assert len(numbers) == len(labels) > 40 and numbers.shape[1] >= 5 and np.isfinite(numbers).all()
    assert table.loss == "linear" or 2 <= len(np.unique(labels)) <= 10
