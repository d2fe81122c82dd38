"""Columns as numbers: what is fitted, kept, matched by name, refused and counted."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.linear_model import Ridge
from sklearn.metrics import r2_score
from sklearn.preprocessing import SplineTransformer

from securefed import Party
from securefed.data.column import DEGREE, FEW, _spline
from securefed.data.columns import FARTHEST, FittedColumns
from securefed.errors import DataError
from tests.data.fitting import apply, fit

RNG = np.random.default_rng(0)
AGE, CODE = RNG.normal(40, 10, 400), RNG.choice([1.0, 2.0, 5.0], 400)
REGION = RNG.choice(["north", "south", "east"], 400)
REGION[:3] = ["isle", "cape", "isle"]
TABLE: dict[str, NDArray[Any]] = {"age": AGE, "code": CODE, "region": REGION}


def test_auto_makes_splines_levels_rare_ones_and_indicators() -> None:
    gaps = {**TABLE, "age": np.where(RNG.random(400) < 0.1, np.nan, AGE)}
    columns, numbers = fit(gaps, transform="auto")
    names = columns.names
    assert names[0] == "age" and "age~1" in names and "age?" in names
    assert {"code=1", "code=2", "code=5", "region=north", "region=(rare)"} <= set(names)
    assert "region=isle" not in names
    assert np.abs(numbers.mean(axis=0)).max() < 1e-9
    assert np.isfinite(numbers).all() and len(names) == numbers.shape[1]


def test_derived_columns_weigh_a_thirtieth_in_an_automatic_penalty() -> None:
    plain, _ = fit(TABLE)
    assert plain.weight == len(plain.names)  # words are one column a category
    bent, _ = fit({"x": AGE, "y": np.cos(AGE)}, transform="auto")
    assert bent.weight == 2 < len(bent.names)


def test_other_rows_are_matched_by_name_and_survive_arrays() -> None:
    columns, numbers = fit(TABLE, transform="auto")
    again = FittedColumns.from_arrays(columns.to_arrays())
    turned = {name: TABLE[name] for name in reversed(TABLE)}
    found, unknown = apply(again, turned)
    assert np.array_equal(found, numbers) and not unknown


def test_unknown_categories_are_counted_where_there_is_no_place_for_them() -> None:
    columns, _ = fit({"region": np.array(["a", "b"] * 50)}, transform="auto")
    found, unknown = apply(columns, {"region": np.array(["a", "c", "c"])})
    assert unknown == {"region": 2}
    assert np.allclose(found[1] * columns.scale + columns.mean, 0)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ({"age": AGE, "code": CODE}, r"no column 'region' \(a feature\)"),
        ({**TABLE, "age": REGION}, "column 'age' holds numbers, but 400 fields are not"),
        ({**TABLE, "age": np.where(AGE > 60, np.nan, AGE)}, "missing or infinite"),
    ],
)
def test_rows_of_another_kind_are_refused(rows: dict[str, NDArray[Any]], said: str) -> None:
    _, fitted = Party("shop", Frame(TABLE)).fitted()
    with pytest.raises(DataError, match=said):
        Party("shop", Frame(rows)).transformed(fitted)


def test_scales_do_not_matter_and_nothing_is_far_away() -> None:
    wild = {str(e): RNG.standard_cauchy(300) * 10.0**e for e in (-300, -9, 0, 9, 300)}
    _, numbers = fit(wild)
    assert np.isfinite(numbers).all() and np.abs(numbers).max() <= FARTHEST
    assert numbers.std(axis=0).min() > 0.1
    _, constant = fit({"x": np.full(20, 7.3), "y": np.zeros(20)})
    assert not constant.any()


def test_splines_bend_what_a_line_cannot() -> None:
    x = RNG.uniform(-3, 3, 500)
    y = np.cos(2 * x)
    _, line = fit({"x": x})
    _, bent = fit({"x": x}, transform="auto")
    fits = [r2_score(y, Ridge(1e-3).fit(part, y).predict(part)) for part in (line, bent)]
    assert fits[0] < 0.2 < 0.45 < fits[1]


@pytest.mark.parametrize("knots", [[0.0, 1.0], [-1.0, 0.1, 3.0], [1e-300, 1.0, 1.5, 1e9]])
def test_splines_are_those_of_scikit_learn(knots: list[float]) -> None:
    ends = np.array(knots)
    x = np.concatenate([ends, RNG.uniform(ends[0], ends[-1], 200), ends[[0, -1]] + [-5.0, 5.0]])
    theirs = SplineTransformer(
        degree=DEGREE, knots=ends[:, None], extrapolation="constant", include_bias=False
    )
    expected = theirs.fit(ends[:, None]).transform(x[:, None])
    np.testing.assert_allclose(_spline(x, ends), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("knots", [[0.0, 5e-324, 1.0], [1 - 2**-53, 1.0]])
def test_splines_between_neighbouring_floats_are_numbers(knots: list[float]) -> None:
    made = _spline(np.array([-1.0, *knots, 2.0]), np.array(knots))
    assert ((made >= 0.0) & (made <= 1.0)).all()


def test_few_values_keep_their_order_too() -> None:
    x = RNG.integers(0, FEW, 500).astype(float)
    columns, _ = fit({"x": x}, transform="auto")
    assert columns.names[0] == "x" and len(columns.names) == FEW + 1


class Frame:
    """What is used of a DataFrame, so that the test needs no pandas."""

    def __init__(self, columns: dict[str, NDArray[Any]]) -> None:
        self._held, self.columns = columns, list(columns)
        self.shape, self.ndim = (len(next(iter(columns.values()))), len(columns)), 2
        self.iloc = self

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: Any = None) -> NDArray[Any]:
        return np.column_stack(list(self._held.values())).astype(dtype or object)

    def __getitem__(self, place: Any) -> Any:
        return np.asarray(self._held[self.columns[place[1]]]).view(Values)


class Values(np.ndarray):
    def to_numpy(self) -> NDArray[Any]:
        return np.asarray(self)


def test_swapped_columns_of_a_frame_find_their_place() -> None:
    _, fitted = Party("shop", Frame({"age": AGE, "code": CODE})).fitted()
    right = Party("shop", Frame({"age": AGE, "code": CODE})).transformed(fitted).features
    swapped = Party("shop", Frame({"code": CODE, "age": AGE}))
    assert np.array_equal(swapped.transformed(fitted).features, right)


def test_a_renamed_column_is_refused_by_name() -> None:
    _, fitted = Party("shop", Frame({"age": AGE, "code": CODE})).fitted()
    with pytest.raises(DataError, match=r"shop: no column 'age' \(a feature\); it has years, code"):
        Party("shop", Frame({"years": AGE, "code": CODE})).transformed(fitted)


def test_names_that_come_or_go_are_told() -> None:
    _, fitted = Party("shop", Frame({"age": AGE, "code": CODE})).fitted()
    with pytest.warns(UserWarning, match="without names given, training had them with"):
        Party("shop", np.column_stack([AGE, CODE])).transformed(fitted)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Party("shop", Frame({"age": AGE, "code": CODE})).transformed(fitted)


def test_auto_takes_a_frame_of_numbers_and_words_and_says_what_it_does_not_know() -> None:
    party = Party("shop", Frame(TABLE), transform="auto")
    ready, fitted = party.fitted()
    assert ready.features.shape[0] == 400 and list(fitted.kinds) == list(TABLE)
    plain = {"region": np.array(["a", "b"] * 20)}
    _, fitted = Party("shop", Frame(plain), transform="auto").fitted()
    new = Party("shop", Frame({"region": np.array(["a", "z"])}), transform="auto")
    with pytest.warns(UserWarning, match="1 of 2 values of column 'region' were not there in training"):
        new.transformed(fitted)


def test_what_auto_derives_is_penalised_more_than_the_column() -> None:
    """In the scale of its numbers: a spline's are sqrt(30) smaller, the column itself has variance 1."""
    columns, numbers = fit({"x": np.random.default_rng(0).normal(size=400)}, transform="auto")
    spread = dict(zip(columns.names, numbers.std(axis=0), strict=True))
    assert spread.pop("x") == pytest.approx(1.0)
    assert list(spread.values()) == pytest.approx([30.0**-0.5] * len(spread))
