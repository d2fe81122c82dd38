"""What CKKS computes, against numpy, with tolerances derived from flooding and rounding."""

from __future__ import annotations

import numpy as np
import pytest

from securefed.crypto import FixedPoint
from securefed.crypto.ckks.arrays import CkksEncrypted
from securefed.crypto.ckks.form import DATA_BITS, MULTIPLIER_BITS
from securefed.crypto.ckks.layout import CAPACITY_BITS, SLOTS, coefficients
from securefed.crypto.lattice.ring import DEGREE, HALF, PRIMES, spectrum
from securefed.errors import CapacityError, MaskError, RangeError
from tests.covering import all_pairs
from tests.crypto.ckks_cases import ONE, Desk, numbers, tolerance


@pytest.fixture(scope="module")
def desk() -> Desk:
    return Desk.fresh()


def expected(multipliers: np.ndarray, values: np.ndarray) -> np.ndarray:
    table = values.reshape(len(values), -1)
    result = np.einsum("jai,ij->aj", multipliers, table)
    return result if values.ndim == 2 else result[:, 0]


def check(desk: Desk, shape: tuple[int, ...], outputs: int, seed: int = 0) -> float:
    values = numbers(*shape, seed=seed)
    columns = shape[1] if len(shape) == 2 else 1
    multipliers = numbers(columns, outputs, shape[0], seed=seed + 1, bound=3.0)
    result = desk.public.load(desk.holder.encrypt(values, ONE).to_bytes()).contract(multipliers)
    opened = desk.open(result)
    assert opened.shape == ((outputs, columns) if len(shape) == 2 else (outputs,))
    error = float(np.abs(opened - expected(multipliers, values)).max())
    allowed = tolerance(result)
    assert error <= allowed
    return error / allowed


@pytest.mark.parametrize(
    ("rows", "columns", "outputs"), all_pairs([1, 2, 5, 129], [0, 1, 2, 3, 32, 33], [1, 2, 3, 16])
)
def test_contraction(desk: Desk, rows: int, columns: int, outputs: int) -> None:
    check(desk, (rows, columns) if columns else (rows,), outputs)


@pytest.mark.parametrize(
    ("shape", "outputs"),
    [
        ((1032, 32), 19),
        ((2047,), 7),
        ((2048,), 50),
        ((2049,), 2),
        ((5000, 3), 4),
        ((64,), 70),
        ((1024,), 70),
        ((3, 2048), 3),
        ((9, 1024), 2),
        ((17, 513), 5),
    ],
)
def test_contraction_of_larger_arrays(desk: Desk, shape: tuple[int, ...], outputs: int) -> None:
    used = check(desk, shape, outputs)
    # The tolerance is no blank cheque: of many entries, one has an error that comes near it.
    entries = outputs * (shape[1] if len(shape) == 2 else 1)
    assert used > 0.02 or entries < 40


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "outputs"), [((5000, 33), 70), ((4096,), 2500), ((20_000, 8), 40)])
def test_contraction_of_large_arrays(desk: Desk, shape: tuple[int, ...], outputs: int) -> None:
    check(desk, shape, outputs)


def test_the_two_ways_to_encrypt_open_to_the_same(desk: Desk) -> None:
    values = numbers(300, 5)
    for encryptor in (desk.public, desk.holder):
        encrypted = encryptor.encrypt(values, ONE)
        assert np.abs(desk.open(encrypted) - values).max() <= tolerance(encrypted)


@pytest.mark.parametrize("bound", [2.0**-400, 1e-9, 0.7, 1.0, 3.0, 1e12, 2.0**400])
def test_any_declared_range_has_the_same_relative_precision(desk: Desk, bound: float) -> None:
    fixed = FixedPoint(bound, 40 - int(np.ceil(np.log2(bound))))
    values = np.array([bound, -bound, 0.0, bound / 3])
    encrypted = desk.holder.encrypt(values, fixed)
    assert np.abs(desk.open(encrypted) - values).max() <= tolerance(encrypted) < bound * 2.0**-18
    total = encrypted.contract(np.array([[[1.0, 1.0, 5.0, 2.0]]]))
    assert np.abs(desk.open(total) - 2 * bound / 3).max() <= tolerance(total, bound)


@pytest.mark.parametrize("factor", [2.0**-1070, 1e-30, 1.0, 1e30])
def test_any_size_of_multipliers_has_the_same_relative_precision(desk: Desk, factor: float) -> None:
    values, matrix = numbers(40), numbers(3, 40, seed=1)
    result = (matrix * factor) @ desk.holder.encrypt(values, ONE)
    opened = desk.open(result)
    error = np.abs(opened - (matrix * factor) @ values).max()
    if factor < 1e-300:  # below 2^-512 multipliers lose their precision, and never more than that
        assert error <= 2.0**-500
    else:
        assert error <= tolerance(result) <= factor * 1e-4


def test_multipliers_that_no_scale_fits(desk: Desk) -> None:
    encrypted = desk.holder.encrypt(numbers(4), ONE)
    with pytest.raises(CapacityError, match="above 2\\^1000"):
        np.full((1, 4), 1.7e308) @ encrypted
    with pytest.raises(CapacityError, match="out of range"):
        np.full((1, 4), 2.0**999) @ desk.holder.encrypt(numbers(4), FixedPoint(2.0**1000, -970))


def test_multipliers_that_are_zero(desk: Desk) -> None:
    values = numbers(1032, 32)
    encrypted = desk.holder.encrypt(values, ONE)
    multipliers = np.zeros((32, 4, 1032))
    multipliers[:, 1, 500:700] = numbers(32, 200, seed=1)  # other blocks, and other outputs, are zero
    for chosen in (multipliers, np.zeros((32, 3, 1032))):
        result = encrypted.contract(chosen)
        assert np.abs(desk.open(result) - expected(chosen, values)).max() <= tolerance(result)
    # One multiplier too small to be seen beside another: its block is zero after rounding.
    multipliers = np.zeros((1, 1, 5000))
    multipliers[0, 0, 0], multipliers[0, 0, 4999] = 1.0, 1e-30
    long = desk.holder.encrypt(numbers(5000), ONE).contract(multipliers)
    assert np.abs(desk.open(long) - numbers(5000)[0]).max() <= tolerance(long)


def test_sums(desk: Desk) -> None:
    a, b, c = (numbers(50, 3, seed=s) for s in range(3))
    x, y = desk.public.encrypt(a, ONE), desk.holder.encrypt(b, ONE)
    for total, plain in (
        (x + y, a + b),
        (x + c, a + c),
        (x + -c, a - c),
        (x + 0.5, a + 0.5),
        (x + x, 2 * a),
    ):
        assert isinstance(total, CkksEncrypted)
        assert np.abs(desk.open(total) - plain).max() <= tolerance(total)
        assert np.abs(plain).max() <= total.bound


def test_bounds_are_declared_and_not_measured(desk: Desk) -> None:
    x = desk.public.encrypt(numbers(4) * 1e-6, ONE)
    assert (x + x).bound == 2.0
    assert (x + 0.0).bound == 2.0
    assert x.contract(np.full((1, 2, 4), 1e-6), ONE).bound == 4.0
    with pytest.raises(RangeError, match="at most 1 was declared"):
        x + 1.001


def test_arrays_of_different_ranges_add_up_and_can_still_be_multiplied(desk: Desk) -> None:
    a, b = numbers(20), numbers(20, seed=1, bound=100.0)
    small, large = desk.holder.encrypt(a, ONE), desk.holder.encrypt(b, FixedPoint(100.0, 30))
    total = small + large
    assert isinstance(total, CkksEncrypted)
    assert total.bound == 101.0
    assert np.abs(desk.open(total) - (a + b)).max() <= tolerance(total)
    matrix = numbers(3, 20, seed=2)
    product = matrix @ total
    assert isinstance(product, CkksEncrypted)
    assert np.abs(desk.open(product) - matrix @ (a + b)).max() <= tolerance(product, 128.0, total.form.scale)
    far = desk.holder.encrypt(a * 1e-4, FixedPoint(1e-4, 45)) + large
    assert np.abs(desk.open(far) - b - a * 1e-4).max() <= tolerance(far)
    with pytest.raises(CapacityError, match="too far"):
        desk.holder.encrypt(a * 1e-30, FixedPoint(1e-30, 120)) + large


def test_sums_over_rows_do_not_add_up_and_are_not_sent_bare(desk: Desk) -> None:
    sums, other = (numbers(4, 4) @ desk.holder.encrypt(numbers(4), ONE) for _ in range(2))
    for addend in (other, desk.holder.encrypt(numbers(4), ONE)):
        with pytest.raises(CapacityError, match="sums over rows do not add up"):
            sums + addend
    with pytest.raises(MaskError, match="mask them"):
        sums.to_bytes()
    plain = numbers(4, seed=4)
    more = sums + plain
    assert np.abs(desk.open(more) - numbers(4, 4) @ numbers(4) - plain).max() <= 2 * tolerance(more)


def test_one_product_and_no_second(desk: Desk) -> None:
    encrypted = desk.holder.encrypt(numbers(8), ONE)
    with pytest.raises(CapacityError, match="one product is possible"):
        np.ones((2, 8)) @ (np.ones((8, 8)) @ encrypted)


def test_sums_stop_where_the_modulus_ends_and_never_wrap(desk: Desk) -> None:
    values = np.full(4, 1.0)
    total = desk.holder.encrypt(values, ONE)
    doublings = 0
    with pytest.raises(CapacityError, match="add fewer arrays"):
        while True:
            total = total + total
            doublings += 1
    assert doublings == int(CAPACITY_BITS) - DATA_BITS
    assert np.abs(desk.open(total) / 2.0**doublings - 1).max() < 2.0**-20
    # Plain addends add no noise, but size.
    full, doublings = desk.holder.encrypt(values, ONE), 0
    with pytest.raises(CapacityError, match="add fewer arrays"):
        while True:
            full, doublings = full + full.bound, doublings + 1
    assert doublings == int(CAPACITY_BITS) - DATA_BITS
    assert np.abs(desk.open(full) / full.bound - 1).max() < 2.0**-40
    # Products give up bits of the multipliers before they give up.
    encrypted = desk.holder.encrypt(values, ONE)
    bits = []
    with pytest.raises(CapacityError, match="bits are left for multipliers"):
        while True:
            product = np.eye(4) @ encrypted
            assert isinstance(product, CkksEncrypted)
            bits.append(product.form.noise.multiplier_bits - encrypted.form.noise.multiplier_bits)
            assert np.abs(desk.open(product) / encrypted.bound - 1).max() < 2.0**-8
            encrypted = encrypted + encrypted
    assert bits[0] == MULTIPLIER_BITS
    assert bits[-1] == 16
    assert sorted(bits, reverse=True) == bits


def unrounded(sums: np.ndarray) -> np.ndarray:
    """What `inverse` rounds away."""
    turned = np.fft.ifft(sums) * np.exp(-1j * np.pi * np.arange(HALF) / DEGREE)
    parts = np.stack([turned.real, turned.imag])
    return np.asarray(parts - np.rint(parts))


def uniform_residues(*shape: int) -> np.ndarray:
    half = (PRIMES[0] - 1) // 2
    return np.random.default_rng(1).integers(-half, half + 1, (*shape, DEGREE)).astype(float)


def test_transforms_are_rounded_exactly() -> None:
    """The figures of docs/proofs.md: two blocks with the largest multipliers, and a key switch."""
    rng = np.random.default_rng(0)
    for slots in (rng.choice([-1, 1], (8, 2, SLOTS)) * (1 + 1j), np.full((8, 2, SLOTS), 1 + 1j)):
        factors = spectrum(np.rint(coefficients(slots * 2.0**MULTIPLIER_BITS)))
        errors = unrounded((factors * spectrum(uniform_residues(8, 2))).sum(axis=1))
        assert errors.std() < 0.5 / 12
        assert np.abs(errors).max() < 0.5 / 2
    keys, digits = spectrum(uniform_residues(8, 5)), spectrum(uniform_residues(9, 5)[1:])
    errors = unrounded((keys * digits).sum(axis=1))
    assert errors.std() < 0.5 / 20
    assert np.abs(errors).max() < 0.5 / 3
