"""Where values lie, for many shapes: every value once, sums at places that do not meet."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from securefed.crypto.ckks.layout import (
    LEAST_STRIDE,
    SLOTS,
    RowLayout,
    SumLayout,
    coefficients,
    layout_of,
)
from securefed.crypto.lattice.ring import DEGREE
from securefed.errors import CapacityError, FormatError

shapes = st.one_of(
    st.tuples(st.integers(1, 9000)),
    st.tuples(st.integers(1, 300), st.integers(1, 100)),
    st.tuples(st.integers(1, 4), st.integers(1, SLOTS)),
)


@given(shapes)
def test_rows_keep_every_value(shape: tuple[int, ...]) -> None:
    layout = RowLayout(shape)
    values = np.random.default_rng(0).normal(size=shape)
    slots = layout.slots(values)
    assert slots.shape == (layout.ciphertexts, SLOTS)
    assert layout.height * layout.copies * layout.width == SLOTS
    assert (layout.ciphertexts - 1) * layout.height < layout.rows <= layout.ciphertexts * layout.height
    assert np.count_nonzero(slots) == values.size * layout.copies
    lower = coefficients(slots)[:, :SLOTS]
    assert np.abs(layout.values(lower.ravel()) - values).max() < 1e-10


@pytest.mark.parametrize(
    ("shape", "ciphertexts", "copies"),
    [
        ((1,), 1, 2048),
        ((2048,), 1, 1),
        ((2049,), 2, 1),
        ((1024,), 1, 2),
        ((1032, 32), 17, 1),
        ((64, 32), 1, 1),
        ((65, 32), 2, 1),
        ((16, 32), 1, 4),
        ((3, 2048), 3, 1),
        ((5, 33), 1, 4),
    ],
)
def test_sizes(shape: tuple[int, ...], ciphertexts: int, copies: int) -> None:
    assert (RowLayout(shape).ciphertexts, RowLayout(shape).copies) == (ciphertexts, copies)


def test_too_many_columns() -> None:
    with pytest.raises(CapacityError, match="2049 columns given, at most 2048"):
        RowLayout((2, 2049))
    with pytest.raises(CapacityError):
        layout_of((2, 2049), 3)


@given(st.integers(1, 5000), st.integers(1, 70), st.integers(1, 300))
def test_sums_lie_apart_and_come_back(rows: int, columns: int, outputs: int) -> None:
    layout = RowLayout((rows, columns)).contracted(outputs)
    assert layout == layout_of(layout.shape, layout.code)
    assert [len(places) for places in layout.places] == [
        2 * layout.groups * len(layout.members(i)) for i in range(layout.ciphertexts)
    ]
    assert sum(len(places) for places in layout.places) == layout.coefficients
    for places in layout.places:
        assert len(set(places.tolist())) == len(places)
        assert places.min() >= 0 and places.max() < DEGREE
    # As many coefficients as sums, up to the rounding of columns and outputs to powers of two.
    assert layout.coefficients < 2 * layout.width * (outputs + 2 * layout.copies)
    values = np.random.default_rng(0).normal(size=(outputs, columns))
    polynomials = layout.polynomials(values)
    useful = polynomials[:, :: layout.stride]
    assert np.count_nonzero(polynomials) == np.count_nonzero(useful)
    assert np.abs(layout.values(useful.ravel()) - values).max() < 1e-9


def test_the_layouts_of_the_protocols() -> None:
    transfer = RowLayout((1032, 32)).contracted(19)
    assert (transfer.units, transfer.ciphertexts, transfer.coefficients) == (10, 1, 640)
    linear = RowLayout((2048,)).contracted(50)
    assert (linear.units, linear.ciphertexts, linear.coefficients) == (25, 1, 50)
    scores = RowLayout((32,)).contracted(1000)
    assert (scores.copies, scores.units, scores.coefficients) == (64, 8, 1024)


@pytest.mark.parametrize(("shape", "code"), [((4,), 14), ((4,), -1), ((4, 3), 2), ((2,), 2), ((3, 3), 5)])
def test_layouts_that_return_too_much_or_too_little_are_refused(shape: tuple[int, ...], code: int) -> None:
    with pytest.raises(FormatError, match="layout"):
        layout_of(shape, code)


def test_a_full_ciphertext_of_units() -> None:
    layout = SumLayout((20_000,), 1)
    assert layout.units_each == SLOTS // LEAST_STRIDE
    assert layout.ciphertexts == -(-10_000 // 512)
    assert [len(layout.members(i)) for i in (0, 19)] == [512, 10_000 - 19 * 512]
