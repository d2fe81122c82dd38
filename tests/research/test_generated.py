"""Generated data: the shape and difficulty that it claims to have, from one seed, and its name."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import StandardScaler

from research.data.generated import generated_mimic, generated_nus_wide, generated_vertical
from research.data.mimic_features import FEATURE_NAMES
from research.data.vertical import VerticalData, transfer
from securefed.errors import DataError, SettingError

pytestmark = pytest.mark.slow


def joined(data: VerticalData) -> np.ndarray:
    return np.hstack(list(data.parts.values()))


@pytest.fixture(scope="module")
def mimic() -> tuple[VerticalData, VerticalData]:
    return generated_mimic(0)


@pytest.fixture(scope="module")
def nus() -> VerticalData:
    return generated_nus_wide(0)


def test_mimic_has_its_shape(mimic: tuple[VerticalData, VerticalData]) -> None:
    train, test = mimic
    assert (train.rows, test.rows) == (17_903, 3_236)
    assert [part.shape[1] for part in train.parts.values()] == [336, 378]
    assert [name for names in train.columns.values() for name in names] == list(FEATURE_NAMES)
    assert train.labels.mean() == pytest.approx(0.13, abs=0.01)
    assert test.labels.mean() == pytest.approx(0.13, abs=0.02)
    assert train.generated and "(generated)" in train.name and "(generated)" in test.name
    assert not set(train.ids) & set(test.ids)


def test_a_central_logistic_regression_on_mimic_gets_about_085(
    mimic: tuple[VerticalData, VerticalData],
) -> None:
    """C = 0.001 is the benchmark's own choice for the real data."""
    train, test = mimic
    model = LogisticRegression(C=0.001, max_iter=200).fit(joined(train), train.labels)
    auc = roc_auc_score(test.labels, model.decision_function(joined(test)))
    assert 0.84 < auc < 0.86


def test_columns_of_a_variable_are_correlated(mimic: tuple[VerticalData, VerticalData]) -> None:
    columns = joined(mimic[0])
    within = np.abs(np.corrcoef(columns[:, 42:84].T))[np.triu_indices(42, 1)].mean()
    across = np.abs(np.corrcoef(columns[:, 42:84].T, columns[:, 420:462].T)[:42, 42:]).mean()
    assert within > 3 * across


def test_mimic_depends_on_its_seed_and_not_on_the_parties(mimic: tuple[VerticalData, VerticalData]) -> None:
    again, other = generated_mimic(0, parties=17)[0], generated_mimic(1)[0]
    np.testing.assert_array_equal(joined(again), joined(mimic[0]))
    assert len(again.parts) == 17
    assert (joined(other)[:5] != joined(mimic[0])[:5]).all()


def test_nus_wide_has_its_shape(nus: VerticalData) -> None:
    assert (nus.parts["B"].shape, nus.parts["A"].shape) == ((10_000, 634), (10_000, 1000))
    assert set(np.unique(nus.parts["A"])) == {0.0, 1.0}
    assert 5 < nus.parts["A"].sum(axis=1).mean() < 9
    assert nus.labels.mean() == pytest.approx(0.5, abs=0.02)
    assert nus.generated and nus.name == "NUS-WIDE (generated)"
    assert nus.label_party == "A"


@pytest.mark.parametrize("party", ["A", "B"])
def test_each_side_of_nus_wide_predicts_the_label(nus: VerticalData, party: str) -> None:
    train, test = nus.split(2000, seed=0)
    scaler = StandardScaler().fit(train.parts[party])
    model = LogisticRegression(C=0.001, max_iter=200).fit(scaler.transform(train.parts[party]), train.labels)
    auc = roc_auc_score(test.labels, model.decision_function(scaler.transform(test.parts[party])))
    assert 0.84 < auc < 0.9


def test_a_transfer_task_from_nus_wide_keeps_its_name(nus: VerticalData) -> None:
    task = transfer(nus, overlap=500, labelled=1000, held_out=500, seed=0)
    assert task.generated
    assert task.name == "NUS-WIDE (generated)"
    assert (task.a.features.shape, task.b.features.shape) == ((1000, 1000), (1000, 634))


def test_small_data_is_predictable_from_all_and_less_from_one() -> None:
    data = generated_vertical(2000, [4, 3, 5], seed=2)
    assert [part.shape for part in data.parts.values()] == [(2000, 4), (2000, 3), (2000, 5)]
    assert data.label_party == "P3"
    assert int(data.labels.sum()) == 1000
    train, test = data.split(500, seed=0)

    def auc(features: np.ndarray, out: np.ndarray) -> float:
        model = LogisticRegression().fit(features, train.labels)
        return float(roc_auc_score(test.labels, model.decision_function(out)))

    whole = auc(joined(train), joined(test))
    assert whole > 0.8
    for name in data.parts:
        assert 0.55 < auc(train.parts[name], test.parts[name]) < whole - 0.03


def test_small_data_depends_on_its_seed() -> None:
    one, same, other = (generated_vertical(10, [1, 2], seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one.parts["P2"], same.parts["P2"])
    assert (one.parts["P2"] != other.parts["P2"]).all()


@pytest.mark.parametrize(("rows", "widths"), [(3, [1, 1]), (10, [0, 1]), (10.5, [1, 1])])
def test_sizes_that_make_no_data(rows: int, widths: list[int]) -> None:
    with pytest.raises(SettingError):
        generated_vertical(rows, widths)
    with pytest.raises(DataError, match="two parties or more"):
        generated_vertical(10, [3])
    with pytest.raises(SettingError, match="rows"):
        generated_nus_wide(rows=1)
