"""Ids in one form at every party; what cannot be one is refused with a count and examples."""

from __future__ import annotations

import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from securefed.data.ids import normalise_id, normalise_ids
from securefed.errors import DataError


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (17, "17"),
        (17.0, 17),
        ("746.0", "746"),
        (np.int64(17), "17"),
        (-3, "-3"),
        (2**80, str(2**80)),
        ("  ann ", "ann"),
        ("ann  lee", "ann lee"),
        ("ann\u00a0lee", "ann lee"),
        ("\tann\n", "ann"),
        ("Zoe\u0308", "Zo\u00eb"),
    ],
)
def test_the_same_person_in_two_spellings(one: object, other: object) -> None:
    assert normalise_id(one) == normalise_id(other)


@pytest.mark.parametrize(
    ("one", "other"), [("017", "17"), ("Ann", "ann"), ("x²", "x2"), ("17.5", 17), ("\uff11\uff17", "17")]
)
def test_what_is_not_folded(one: object, other: object) -> None:
    assert normalise_id(one) != normalise_id(other)


@given(st.text(alphabet=st.characters(exclude_categories=("Cc", "Cs"))))
def test_the_form_is_stable_and_canonical(text: str) -> None:
    form = normalise_id(text)
    assert normalise_id(form) == form
    assert unicodedata.is_normalized("NFC", form) or form != form.strip()
    assert form == normalise_id(unicodedata.normalize("NFD", text))


@pytest.mark.parametrize("value", [True, 1.5, 2.0**53, float("inf"), b"17", ("a",), "a\x00b", "a\ud800"])
def test_what_cannot_be_an_id(value: object) -> None:
    with pytest.raises(DataError, match=r"shop: 1 of 2 ids cannot be used \(row 1: "):
        normalise_ids(["a", value], "shop")


@pytest.mark.parametrize("value", ["", "  \t", None, float("nan")])
def test_an_empty_id_is_refused_with_its_row(value: object) -> None:
    with pytest.raises(DataError, match=r"^shop: 2 of 3 ids are empty \(row 0, row 2\)"):
        normalise_ids([value, "a", value], "shop")


def test_duplicates_are_refused_with_the_count_and_a_few_examples() -> None:
    ids = [*"abcdefg", *"abcde", " a "]
    with pytest.raises(DataError, match=r"^shop: 5 ids occur more than once \('a', 'b', 'c', \.\.\.\)$"):
        normalise_ids(ids, "shop")
    with pytest.raises(DataError, match=r"1 ids occur more than once \('17'\)"):
        normalise_ids([17, "17"], "shop")


def test_no_ids_at_all() -> None:
    with pytest.raises(DataError, match=r"^shop: no ids given$"):
        normalise_ids([], "shop")


def test_arrays_are_taken_and_the_order_stays() -> None:
    assert normalise_ids(np.array([3, 1, 2]), "shop") == ["3", "1", "2"]
    assert normalise_ids(np.array(["b", "a"]), "shop") == ["b", "a"]


def test_a_long_id_is_shown_in_part() -> None:
    with pytest.raises(DataError) as caught:
        normalise_ids(["x" * 500] * 2, "shop")
    assert len(str(caught.value)) < 120
