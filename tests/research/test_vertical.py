"""Vertical data and transfer tasks: who has what, seeded splits, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from research.data.generated import generated_vertical
from research.data.splits import balanced_rows, column_groups, share_counts, stratified_rows
from research.data.vertical import PartyRows, TransferData, VerticalData, standardise, transfer
from securefed.errors import DataError, SettingError


@pytest.fixture
def two() -> VerticalData:
    return generated_vertical(400, [3, 5], seed=1)


def test_the_label_party_is_last_and_alone_has_labels(two: VerticalData) -> None:
    reordered = replace(two, parts=dict(reversed(two.parts.items())))
    first, last = reordered.parties()
    assert (first.name, last.name) == ("P1", "P2")
    assert first.labels is None
    np.testing.assert_array_equal(last.labels, two.labels)


def test_rows_are_taken_together(two: VerticalData) -> None:
    rows = np.array([5, 3, 399])
    some = two.take(rows)
    assert some.ids.tolist() == ["person-5", "person-3", "person-399"]
    np.testing.assert_array_equal(some.parts["P1"], two.parts["P1"][rows])
    np.testing.assert_array_equal(some.labels, two.labels[rows])


@pytest.mark.parametrize("test", [100, 0.25])
def test_a_split_keeps_the_shares_and_depends_on_its_seed(two: VerticalData, test: float) -> None:
    train, out = two.split(test, seed=3)
    assert (train.rows, out.rows) == (300, 100)
    assert set(train.ids) | set(out.ids) == set(two.ids)
    assert out.labels.mean() == pytest.approx(two.labels.mean(), abs=0.01)
    assert two.split(test, seed=3)[1].ids.tolist() == out.ids.tolist()
    assert two.split(test, seed=4)[1].ids.tolist() != out.ids.tolist()


@pytest.mark.parametrize("test", [0, 400, 1.5, 0.0, -3])
def test_a_split_leaves_both_sides_something(two: VerticalData, test: float) -> None:
    with pytest.raises(DataError, match="test: "):
        two.split(test, seed=0)


def test_standardising_uses_the_training_rows_alone(two: VerticalData) -> None:
    train, out = two.split(100, seed=0)
    fitted, applied = standardise(train, out)
    for name in two.parts:
        np.testing.assert_allclose(fitted.parts[name].mean(axis=0), 0, atol=1e-12)
        np.testing.assert_allclose(fitted.parts[name].std(axis=0), 1)
        mean, deviation = train.parts[name].mean(axis=0), train.parts[name].std(axis=0)
        np.testing.assert_allclose(applied.parts[name], (out.parts[name] - mean) / deviation)


def test_generated_data_cannot_hide_it(two: VerticalData) -> None:
    with pytest.raises(DataError, match=r"\(generated\)"):
        replace(two, name="Patients")
    with pytest.raises(DataError, match=r"\(generated\)"):
        replace(two, generated=False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label_party": "P9"}, "label party 'P9' is not among P1, P2"),
        ({"labels": np.zeros(3, dtype=np.int64)}, "labels of shape"),
        ({"ids": np.arange(3)}, "ids of shape"),
        ({"columns": {"P1": ("a",), "P2": ("b",) * 5}}, "P1: 1 column names for 3 columns"),
        ({"columns": {"P1": ("a",) * 3}}, "columns of P1 for parties P1, P2"),
    ],
)
def test_what_does_not_fit_together(two: VerticalData, change: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        replace(two, **change)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_gaps_are_refused_with_their_column(value: float) -> None:
    with pytest.raises(DataError, match="shop: 1 values are not finite, the first in b"):
        PartyRows("shop", np.array([[1.0, value]]), ("a", "b"), np.array([1]))


# Transfer tasks.


@settings(max_examples=20)
@given(st.integers(0, 10_000), st.integers(2, 60), st.integers(60, 120), st.integers(4, 100))
def test_a_transfer_task_has_the_people_that_were_asked_for(
    seed: int, overlap: int, labelled: int, held_out: int
) -> None:
    data = generated_vertical(400, [3, 5], seed=1)
    task = transfer(data, overlap=overlap, labelled=labelled, held_out=held_out, seed=seed)
    assert (task.a.rows, task.b.rows, task.held_out.rows) == (labelled, labelled, held_out)
    assert task.overlap == overlap
    assert abs(2 * int(task.a.labels.sum()) - labelled) <= 1
    shared = np.isin(task.a.ids, task.b.ids)
    assert abs(2 * int(task.a.labels[shared].sum()) - overlap) <= 1
    assert abs(int(task.held_out.labels.sum()) - held_out / 2) <= 1
    assert not set(task.held_out.ids) & (set(task.a.ids) | set(task.b.ids))


def test_features_and_labels_belong_to_their_ids(two: VerticalData) -> None:
    task = transfer(two, overlap=50, labelled=100, held_out=80, seed=0)
    place = {value: row for row, value in enumerate(two.ids)}
    for side, part in ((task.a, "P2"), (task.b, "P1")):
        raw = two.parts[part][[place[i] for i in side.ids]]
        np.testing.assert_allclose(side.features, (raw - raw.mean(axis=0)) / raw.std(axis=0))
    rows = [place[i] for i in task.held_out.ids]
    np.testing.assert_array_equal(task.held_out.labels, two.labels[rows])
    raw = two.parts["P1"][[place[i] for i in task.b.ids]]
    expected = (two.parts["P1"][rows] - raw.mean(axis=0)) / raw.std(axis=0)
    np.testing.assert_allclose(task.held_out.features, expected)


def test_the_seed_decides_and_the_held_out_number_does_not_move_a(two: VerticalData) -> None:
    def ids(**changes: int) -> list[str]:
        options = {"overlap": 50, "labelled": 100, "held_out": 80, "seed": 0, **changes}
        return sorted(transfer(two, **options).a.ids.tolist())

    assert ids() == ids() == ids(held_out=20)
    assert ids() != ids(seed=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"overlap": 1}, "overlap: 1 given"),
        ({"overlap": 101}, "overlap: 101 given, 2 to 100"),
        ({"labelled": 390}, "a class has 200 rows, 235 are needed"),
    ],
)
def test_more_people_than_there_are(two: VerticalData, options: dict[str, int], message: str) -> None:
    with pytest.raises(DataError, match=message):
        transfer(two, **{"overlap": 50, "labelled": 100, "held_out": 80, "seed": 0, **options})


def test_a_task_of_two(two: VerticalData) -> None:
    with pytest.raises(DataError, match="3 parties"):
        transfer(generated_vertical(100, [1, 1, 1]), overlap=4, labelled=10, held_out=10, seed=0)
    task = transfer(two, overlap=50, labelled=100, held_out=80, seed=0)
    with pytest.raises(DataError, match="labels belong to A"):
        TransferData("t", task.a, replace(task.b, labels=task.a.labels), task.held_out)
    with pytest.raises(DataError, match="other columns"):
        TransferData("t", task.a, task.b, replace(task.held_out, columns=("a", "b", "c")))
    with pytest.raises(DataError, match="share nobody"):
        TransferData("t", task.a, replace(task.b, ids=np.array([f"x{i}" for i in range(100)])), task.held_out)
    known = np.concatenate([task.b.ids[:1], task.held_out.ids[1:]])
    with pytest.raises(DataError, match="held-out people are among"):
        TransferData("t", task.a, task.b, replace(task.held_out, ids=known))


# Rows and columns.


def test_balanced_rows() -> None:
    labels = np.array([0] * 90 + [1] * 10)
    rows = balanced_rows(labels, 15, seed=2)
    assert np.bincount(labels[rows]).tolist() == [8, 7]
    assert len(set(rows.tolist())) == 15
    assert rows.tolist() == balanced_rows(labels, 15, seed=2).tolist()
    with pytest.raises(DataError, match="class 1 has 10 of 11"):
        balanced_rows(labels, 22, seed=2)
    with pytest.raises(SettingError, match="count"):
        balanced_rows(labels, 1, seed=2)


def test_a_class_of_one_cannot_be_split() -> None:
    with pytest.raises(DataError, match="test: "):
        stratified_rows(np.array([0, 0, 0, 1]), 2, seed=0)


@given(st.lists(st.integers(1, 1000), min_size=2, max_size=6), st.integers(0, 2000))
def test_shares_add_up_and_are_near(sizes: list[int], count: int) -> None:
    found = share_counts(sizes, count)
    assert sum(found) == count
    assert all(abs(n - count * size / sum(sizes)) <= 1 for n, size in zip(found, sizes, strict=True))


@pytest.mark.parametrize(("parties", "sizes"), [(2, [8, 9]), (5, [3, 3, 4, 3, 4]), (17, [1] * 17)])
def test_seventeen_variables_over_parties(parties: int, sizes: list[int]) -> None:
    groups = column_groups(17, parties)
    assert [len(group) for group in groups] == sizes
    assert [i for group in groups for i in group] == list(range(17))


@pytest.mark.parametrize("parties", [1, 18])
def test_no_party_without_a_variable(parties: int) -> None:
    with pytest.raises(SettingError, match="parties"):
        column_groups(17, parties)
