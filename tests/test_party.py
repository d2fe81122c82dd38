"""A party's data: what is taken, what is refused, and how rows find each other."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.preprocessing import StandardScaler

from securefed import DataError, Party, SettingError
from securefed.api.party import align, label_party
from securefed.labels.quality import QualityWarning

X = np.arange(12.0).reshape(4, 3)


@pytest.mark.parametrize(
    ("features", "shape"),
    [
        (X, (4, 3)),
        (X.tolist(), (4, 3)),
        (X.astype(np.float32), (4, 3)),
        (X.astype(int), (4, 3)),
        (X > 3, (4, 3)),
        (X[:, 0], (4, 1)),
        ([["1.5", "2"], ["3", "4"]], (2, 2)),  # numbers written as words
    ],
)
def test_features_of_many_forms(features: Any, shape: tuple[int, int]) -> None:
    party = Party("shop", features)
    numbers = party.fitted()[0].features
    assert numbers.shape == shape and numbers.dtype == np.float64
    assert party.rows == shape[0]


@pytest.mark.parametrize(
    ("features", "named"),
    [
        ([[1, 2], [3]], "shop: the rows of data have different lengths"),
        (np.zeros((2, 2, 2)), "shop: data has shape (2, 2, 2)"),
        (np.zeros((0, 3)), "shop: data has shape (0, 3)"),
        (np.zeros((3, 0)), "shop: data has shape (3, 0)"),
        ([], "shop: data has shape"),
        (5, "shop: data has shape ()"),
    ],
)
def test_features_that_cannot_be_used(features: Any, named: str) -> None:
    with pytest.raises(DataError) as caught:
        Party("shop", features)
    assert str(caught.value).startswith(named)
    assert all("\n" not in line for line in caught.value.problems)


@pytest.mark.parametrize(
    ("features", "named"),
    [
        (
            np.where(X == 4, np.nan, X),
            "shop: 1 of 4 values of column '1' are missing or infinite, the first in row 2",
        ),
        (np.where(X > 9, np.inf, X), "shop: 2 problems in the data"),
        ([[None, 1.0], [2.0, 1.0]], "shop: 1 of 2 values of column '0' are missing or infinite"),
        ([["1"]] * 9 + [["<4.0"]], "shop: column '0' holds numbers, but 1 field is not ('<4.0' in row 10)"),
    ],
)
def test_values_that_cannot_be_used_are_refused_by_a_training(features: Any, named: str) -> None:
    with pytest.raises(DataError) as caught:
        Party("shop", features).fitted()
    assert str(caught.value).startswith(named)
    assert all("\n" not in line for line in caught.value.problems)


@pytest.mark.parametrize("name", ["shop", "Bank-2", "a_b.c", "7"])
def test_names(name: str) -> None:
    assert Party(name, X).name == name


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "a b", "ä", "a\n", None, 3, "../x"])
def test_names_that_are_not_allowed(name: Any) -> None:
    with pytest.raises(SettingError, match=r"name: .* letters, digits and - _ \. are allowed"):
        Party(name, X)


@pytest.mark.parametrize("labels", [[1, 0, 1, 0], np.array([[1], [0], [1], [0]]), ["a", "b", "a", None]])
def test_labels(labels: Any) -> None:
    party = Party("shop", X, labels=labels)
    assert party.labels is not None and party.labels.shape == (4,)


@pytest.mark.parametrize("labels", [[1, 0, 1], np.zeros((4, 2, 2)), 1, [[1, 0, 1, 0]]])
def test_labels_that_do_not_fit(labels: Any) -> None:
    with pytest.raises(DataError, match=r"shop: labels of shape .* given for 4 rows"):
        Party("shop", X, labels=labels)


@pytest.mark.parametrize(
    ("ids", "named"),
    [
        ([1, 2, 3], "shop: (3,) ids given for 4 rows"),
        ([1, 2, 2, 3], "shop: 1 ids occur more than once ('2')"),
        (["a", "a", "b", "b"], "shop: 2 ids occur more than once ('a', 'b')"),
        ([[1], [2], [3], [4]], "shop: (4, 1) ids given for 4 rows"),
    ],
)
def test_ids_that_do_not_fit(ids: Any, named: str) -> None:
    with pytest.raises(DataError) as caught:
        Party("shop", X, ids=ids)
    assert str(caught.value).startswith(named)


def test_a_party_says_what_it_is_and_not_what_it_holds() -> None:
    assert repr(Party("shop", X)) == "<Party shop: 4 rows, 3 columns>"
    assert repr(Party("shop", X, labels=[1, 0, 1, 0])) == "<Party shop: 4 rows, 3 columns, labels>"


def test_taking_rows() -> None:
    party = Party("shop", X, labels=[1, 0, 1, 0], ids=["a", "b", "c", "d"])
    few = party.take(np.array([2, 0]))
    assert few.features.tolist() == [[6, 7, 8], [0, 1, 2]]
    assert (few.ids.tolist(), few.labels.tolist()) == (["c", "a"], [1, 1])
    assert party.rows == 4


# Alignment.


@given(st.lists(st.permutations(range(9)), min_size=2, max_size=4), st.data())
def test_alignment_finds_the_people_that_all_know(orders: list[list[int]], data: st.DataObject) -> None:
    known = [order[: data.draw(st.integers(1, 9))] for order in orders]
    parties = [
        Party(f"p{k}", [[10.0 * person + k] for person in people], ids=[f"#{person}" for person in people])
        for k, people in enumerate(known)
    ]
    common = set.intersection(*map(set, known))
    if not common:
        with pytest.raises(DataError, match="have no id in common"):
            align(parties, "p1")
        return
    aligned = align(parties, "p1")
    expected = [person for person in known[1] if person in common]
    for k, party in enumerate(aligned):
        assert party.name == f"p{k}"
        assert party.features[:, 0].tolist() == [10.0 * person + k for person in expected]


def test_alignment_without_ids_takes_the_rows_as_they_are() -> None:
    parties = [Party("a", X), Party("b", X + 1)]
    assert align(parties, "b") == parties
    with pytest.raises(DataError, match=r"need equally many rows, \{'a': 4, 'b': 3\} given; pass ids"):
        align([Party("a", X), Party("b", X[1:])], "a")


def test_all_have_ids_or_nobody() -> None:
    with pytest.raises(DataError, match="ids: b has none while others have"):
        align([Party("a", X, ids=range(4)), Party("b", X)], "a")


def test_exactly_one_has_labels() -> None:
    y = [1, 0, 1, 0]
    assert label_party([Party("a", X), Party("b", X, labels=y)]).name == "b"
    for parties, named in (
        ([Party("a", X)], "parties: 1 given"),
        ([Party("a", X), Party("a", X, labels=y)], "names have to differ"),
        ([Party("a", X), Party("b", X)], "nobody does"),
        ([Party("a", X, labels=y), Party("b", X, labels=y)], "a, b does"),
    ):
        with pytest.raises(DataError, match=named):
            label_party(parties)


# Transforms.


@pytest.mark.parametrize("transform", ["scale", StandardScaler(), StandardScaler, 3])
def test_a_transform_is_one_of_two_words(transform: Any) -> None:
    with pytest.raises(SettingError, match="shop: transform must be one of 'none', 'auto', not"):
        Party("shop", X, transform=transform)


def test_columns_are_taken_by_name_and_without_names_in_their_order() -> None:
    table = pd.DataFrame(X, columns=["age", "height", "income"])
    ready, fitted = Party("shop", table).fitted()
    turned = Party("shop", table[["income", "age", "height"]]).transformed(fitted)
    assert np.array_equal(turned.features, ready.features)
    with pytest.warns(UserWarning, match="shop: columns without names given, training had them with"):
        assert np.array_equal(Party("shop", X).transformed(fitted).features, ready.features)
    with pytest.raises(DataError, match="shop: 2 columns given, the model has 3"):
        Party("shop", X[:, :2]).transformed(fitted)
    with pytest.raises(DataError, match="shop: no column 'income'"):
        Party("shop", table[["age", "height"]]).transformed(fitted)
    _, unnamed = Party("shop", X).fitted()
    with pytest.warns(UserWarning, match="shop: columns with names given, training had them without"):
        Party("shop", table).transformed(unnamed)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Party("shop", pd.DataFrame(X)).transformed(unnamed)


# pandas, where it is installed.


def test_tables_and_series_are_taken() -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(X, columns=["age", "height", "income"], index=[7, 5, 3, 1])
    party = Party(
        "shop",
        table,
        labels=pandas.Series(["n", "y", "n", "y"], index=[7, 5, 3, 1]),
        ids=pandas.Series([10, 11, 12, 13]),
    )
    assert party.columns == ["age", "height", "income"]
    assert np.array_equal(party.features, X)
    assert party.labels is not None and party.labels.tolist() == ["n", "y", "n", "y"]
    assert party.ids is not None and party.ids.tolist() == [10, 11, 12, 13]
    assert Party("shop", table, ids=table.index).ids.tolist() == [7, 5, 3, 1]
    with pytest.raises(DataError, match=r"1 of 4 values of column 'height' are missing .* fill or drop them"):
        Party("shop", table.replace(4.0, np.nan)).fitted()


def test_the_missing_values_of_pandas_are_missing() -> None:
    pandas = pytest.importorskip("pandas")
    from securefed.labels.label_model import binary_labels

    labels = pandas.Series([1, 0, None, 1], dtype="Int64")
    signs, classes = binary_labels(np.asarray(labels), "bank", allow_missing=True)
    assert classes.tolist() == [0, 1]
    assert np.array_equal(signs, [1.0, -1.0, np.nan, 1.0], equal_nan=True)
    with pytest.raises(DataError, match="bank: 1 of 4 labels are missing"):
        binary_labels(np.asarray(labels), "bank", allow_missing=False)


def test_a_label_that_was_left_among_the_columns_is_noticed() -> None:
    rng = np.random.default_rng(0)
    shop, bank = rng.normal(size=(100, 2)), rng.normal(size=(100, 2))
    late = shop[:, 0] + bank[:, 0] > 0
    table = {"a": bank[:, 0], "paid": np.where(late, 0.0, 12.5)}
    parties = [Party("shop", shop), Party("bank", pd.DataFrame(table), labels=late)]
    with pytest.warns(QualityWarning, match="bank: column 'paid' alone tells the two classes apart"):
        parties[1].fitted()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parties[0].fitted()
        Party("bank", bank, labels=late).fitted()
        Party("bank", bank[:12], labels=np.arange(12) > 3).fitted()
