"""Right factors in digits: as many as their size needs, and the same product in the end."""

from __future__ import annotations

import numpy as np
import pytest

from securefed.crypto import shares
from securefed.crypto.blind.interface import DIGIT_BITS, Product
from securefed.crypto.blind.rlwe import RLWE
from securefed.crypto.shares import WIDTH, centred_digits
from securefed.errors import SettingError
from tests.crypto.blind.cross_cases import cross, distance, limbs
from tests.crypto.blind.noise import error_bound


@pytest.mark.parametrize("digit_bits", [2, 20, DIGIT_BITS, 42])
@pytest.mark.parametrize("bits", [1, 19, 20, 21, 34, 35, 36, 37, 40, 41, 69, 70, 71, 72, 103, 104, 105])
def test_digits_make_up_numbers_of_every_size(bits: int, digit_bits: int) -> None:
    product = Product(1, 1, 1, right_bits=bits, digit_bits=digit_bits)
    assert product.digit_size <= digit_bits
    assert product.digits * product.digit_size >= min(WIDTH, bits + 1)
    assert (product.digits - 1) * digit_bits < bits + 2
    if product.digits == 1:
        return  # such factors are not cut
    integers = [0, 1, -1, (1 << bits) - 1, 1 - (1 << bits), 1 << bits, -(1 << bits), (1 << bits) // 3]
    share = np.stack([shares.from_integer(number) for number in integers], axis=1)
    digits = centred_digits(share, product.digits, product.digit_size)
    half = 1 << (product.digit_size - 1)
    for place, number in enumerate(integers):
        parts = [int(digit[place]) for digit in digits]
        assert all(-half <= part < half for part in parts)
        total = sum(part << (product.digit_size * i) for i, part in enumerate(parts))
        assert (total - number) % (1 << WIDTH) == 0


def test_the_sizes_that_runs_use() -> None:
    assert [(p.digits, p.digit_size) for p in (Product(1, 1, 1), Product(1, 1, 1, right_bits=70))] == [
        (3, 35),
        (2, 36),
    ]
    assert Product(1, 1, 1, right_bits=72, digit_bits=73).digits == 1


@pytest.mark.parametrize(
    ("bits", "digit_bits"),
    [(30, 36), (36, 36), (60, 21), (70, 36), (72, 73), (105, 36), (105, 42), (105, 27)],
)
def test_products_of_digits_add_up(bits: int, digit_bits: int) -> None:
    rng = np.random.default_rng(bits)
    product = Product(21, 5, 4, WIDTH, bits, digit_bits)
    u = shares.uniform(21, 5)
    v = shares.uniform(21, 4) if bits == WIDTH else limbs(rng, bits + 1, 21, 4)
    total = shares.add(*cross(RLWE, product, u, v))
    assert distance(total, u, v).max() <= error_bound(product)


@pytest.mark.parametrize(
    "product",
    [
        Product(4100, 1, 1),
        Product(70, 1, 60, WIDTH, WIDTH, 2),
        Product(70, 7, 40, WIDTH, 20, 2),
        Product(70, 70, 3, WIDTH, 90, 2),
    ],
    ids=str,
)
def test_chunks_of_many_ciphertexts_or_terms_add_up(product: Product) -> None:
    rng = np.random.default_rng(0)
    u = shares.uniform(product.inner, product.left)
    v = limbs(rng, min(WIDTH, product.right_bits + 1), product.inner, product.right)
    total = shares.add(*cross(RLWE, product, u, v))
    assert distance(total, u, v).max() <= error_bound(product)


def test_digits_of_one_bit_are_refused() -> None:
    """They would be 0 and -1: no number above 0 is a sum of those."""
    with pytest.raises(SettingError, match="digit_bits"):
        Product(1, 1, 1, digit_bits=1)


def test_fewer_bits_in_a_digit_mean_less_noise() -> None:
    bounds = [error_bound(Product(100, 50, 50, digit_bits=bits)) for bits in (21, 27, 36, 42)]
    assert bounds == sorted(bounds)
