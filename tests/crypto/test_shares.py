"""Arithmetic of shares beside Python integers modulo 2**105."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from securefed.crypto import shares
from securefed.crypto.shares import LIMB_BITS, LIMB_MASK, LIMBS, WIDTH, Share
from securefed.errors import FormatError, ShapeError

MODULUS = 1 << WIDTH
EDGES = [0, 1, 2, LIMB_MASK, 1 << LIMB_BITS, 1 << (WIDTH - 1), (1 << (WIDTH - 1)) - 1, MODULUS - 1]
numbers = st.integers(0, MODULUS - 1) | st.sampled_from(EDGES)
bits = st.integers(0, WIDTH)


def share_of(integers: list[int]) -> Share:
    """Python integers as limbs: (5, n)."""
    return np.stack([shares.from_integer(each) for each in integers], axis=1)


def known(share: Share) -> list[int]:
    """The integers of limbs that are all in range."""
    assert share.dtype == np.int64 and share.shape[0] == LIMBS
    assert share.size == 0 or (share.min() >= 0 and share.max() <= LIMB_MASK)
    return shares.to_integers(share)


def drawn(*shape: int, seed: int = 0) -> Share:
    return np.random.default_rng(seed).integers(0, 1 << LIMB_BITS, size=(LIMBS, *shape))


# There and back


def test_the_sizes() -> None:
    assert (LIMBS, LIMB_BITS, WIDTH, LIMB_MASK) == (5, 21, 105, 2**21 - 1)
    assert known(shares.zeros(2, 3)) == [0] * 6


@given(st.lists(st.integers(-(1 << 130), 1 << 130), min_size=1, max_size=5))
def test_python_integers(integers: list[int]) -> None:
    assert known(share_of(integers)) == [each % MODULUS for each in integers]


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=1, max_size=6))
def test_machine_integers(integers: list[int]) -> None:
    assert known(shares.from_integers(np.array(integers))) == [each % MODULUS for each in integers]


@given(st.lists(st.integers(-(1 << 61), 1 << 61), min_size=LIMBS, max_size=LIMBS))
def test_carries_of_any_sign_and_size(limbs: list[int]) -> None:
    expected = sum(limb << (LIMB_BITS * place) for place, limb in enumerate(limbs)) % MODULUS
    given_limbs = np.array(limbs).reshape(LIMBS, 1)
    result = shares.carry(given_limbs)
    assert result is given_limbs and known(result) == [expected]


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(0, 100))
@example(0.0, 34)
@example(-0.0, 34)
@example(2.0**-40, 34)
@example(-(2.0**70), 34)
@example(np.nextafter(1.0, 2.0), 52)
def test_floats_are_rounded_and_every_bit_counts(value: float, fraction_bits: int) -> None:
    """Halves may go either way: what is below a float's own last bit is not there to decide."""
    exact = Fraction(value) * (1 << fraction_bits)
    if abs(exact) >= 1 << (WIDTH - 1):
        return
    (result,) = known(shares.from_floats(np.array([value]), fraction_bits))
    signed = result - MODULUS if result >= MODULUS // 2 else result
    assert abs(signed - exact) <= Fraction(1, 2)
    if exact.denominator == 1:
        assert signed == exact


@given(numbers, st.integers(0, 110))
def test_floats_of_numbers_are_nearest_to_zero(number: int, fraction_bits: int) -> None:
    signed = number - MODULUS if number >= MODULUS // 2 else number
    (result,) = shares.to_floats(share_of([number]), fraction_bits)
    exact = Fraction(signed, 1 << fraction_bits)
    assert abs(Fraction(float(result)) - exact) <= abs(exact) * Fraction(1, 1 << 51)


@given(st.floats(-1e6, 1e6), st.integers(0, 60))
def test_a_float_comes_back_within_half_a_unit(value: float, fraction_bits: int) -> None:
    (result,) = shares.to_floats(shares.from_floats(np.array([value]), fraction_bits), fraction_bits)
    assert abs(result - value) <= 2.0 ** -(fraction_bits + 1) + abs(value) * 2.0**-51


# Sums, shifts, products


@given(st.lists(numbers, min_size=1, max_size=6))
def test_sums(integers: list[int]) -> None:
    parts = [share_of([each]) for each in integers]
    kept = parts[0].copy()
    assert known(shares.add(*parts)) == [sum(integers) % MODULUS]
    assert known(shares.negate(parts[0])) == [-integers[0] % MODULUS]
    assert known(shares.subtract(parts[0], parts[-1])) == [(integers[0] - integers[-1]) % MODULUS]
    assert np.array_equal(parts[0], kept)


@given(numbers, bits)
@example(MODULUS - 1, 0)
@example(MODULUS - 1, LIMB_BITS)
@example(MODULUS - 1, WIDTH)
def test_shifts(number: int, places: int) -> None:
    share = share_of([number])
    assert known(shares.shift_left(share, places)) == [(number << places) % MODULUS]
    assert known(shares.shift_right(share, places)) == [number >> places]
    assert known(share) == [number]


@given(st.lists(numbers, min_size=1, max_size=4), st.integers(1 - (1 << 42), (1 << 42) - 1))
@example([MODULUS - 1], (1 << 42) - 1)
@example([MODULUS - 1], 1 - (1 << 42))
@example([5], 0)
def test_products_with_public_factors(integers: list[int], factor: int) -> None:
    share = share_of(integers)
    assert known(shares.times(share, factor)) == [each * factor % MODULUS for each in integers]
    factors = np.array([factor - place * (1 if factor > 0 else -1) for place in range(len(integers))])
    expected = [each * int(one) % MODULUS for each, one in zip(integers, factors, strict=True)]
    assert known(shares.times(share, factors)) == expected


def test_a_factor_that_is_too_large_is_refused() -> None:
    for factor in (1 << 42, -(1 << 42)):
        with pytest.raises(ShapeError, match=r"a factor of 4398046511104 given, less than 2\*\*42"):
            shares.times(share_of([1]), factor)


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 4, 2), (2, 0, 3), (2, 2049, 1)])
def test_matrix_products(shape: tuple[int, int, int]) -> None:
    rows, inner, columns = shape
    left, right = drawn(rows, inner), drawn(inner, columns, seed=1)
    a, b = known(left), known(right)
    expected = [
        sum(a[i * inner + k] * b[k * columns + j] for k in range(inner)) % MODULUS
        for i in range(rows)
        for j in range(columns)
    ]
    assert known(shares.matmul(left, right)) == expected
    assert known(shares.matmul(left.astype(np.float64), right)) == expected


def test_matrix_products_of_the_largest_numbers_are_exact() -> None:
    """As many terms as float64 adds up exactly, each the largest that there is."""
    left = np.full((LIMBS, 1, shares.EXACT_TERMS + 1), LIMB_MASK)
    right = np.full((LIMBS, shares.EXACT_TERMS + 1, 1), LIMB_MASK)
    assert known(shares.matmul(left, right)) == [(shares.EXACT_TERMS + 1) % MODULUS]


def test_matrices_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"a product of \(2, 3\) and \(2, 4\) does not fit"):
        shares.matmul(drawn(2, 3), drawn(2, 4))


# What depends on the holder


@given(st.integers(-(1 << 80), 1 << 80), numbers, st.integers(0, WIDTH - 1))
def test_truncated_shares_add_up_to_the_truncated_number(number: int, mask: int, places: int) -> None:
    """One unit off at most, where the number does not wrap: the first share is at least as large."""
    first, second = mask, (number - mask) % MODULUS
    result = known(
        shares.add(
            shares.truncate(share_of([first]), places, first=True),
            shares.truncate(share_of([second]), places, first=False),
        )
    )[0]
    wraps = first + second - MODULUS != number
    off = (result - (number >> places)) % MODULUS
    if not wraps:
        assert off in (0, MODULUS - 1)  # two floors are at most one below the floor of the sum
    elif places:
        # Wrong by 2**(105 - places): a wrap shows.
        assert (off + (1 << (WIDTH - places))) % MODULUS in (0, 1, MODULUS - 1) or (
            off - (1 << (WIDTH - places))
        ) % MODULUS in (0, 1, MODULUS - 1)


def test_a_wrap_is_as_likely_as_the_number_is_large() -> None:
    """|number| / 2**105, whatever its sign: 2,000 masks at a probability of 1/16."""
    count, places = 2000, 34
    mask = drawn(count, seed=3)
    for sign in (1, -1):
        number = sign * (1 << (WIDTH - 4))
        second = shares.subtract(share_of([number] * count), mask)
        total = shares.add(
            shares.truncate(mask, places, first=True), shares.truncate(second, places, first=False)
        )
        wrong = np.abs(shares.to_floats(total, 0) - (number >> places)) > 1.0
        assert abs(int(wrong.sum()) - count / 16) < 5 * (count / 16 * 15 / 16) ** 0.5
    # The same for a number that is never wrong: 2**-40 a share.
    small = shares.subtract(share_of([1 << (WIDTH - 40)] * count), mask)
    total = shares.add(shares.truncate(mask, places, first=True), shares.truncate(small, places, first=False))
    assert np.abs(shares.to_floats(total, 0) - 2.0 ** (WIDTH - 40 - places)).max() <= 1.0


@given(numbers, bits)
@example(MODULUS - 1, 84)
@example(0, 63)
def test_shares_of_fewer_bits(number: int, places: int) -> None:
    share = share_of([number])
    low = number % (1 << places)
    assert known(shares.reduce_bits(share, places)) == [low]
    expected = (low - (1 << places)) % MODULUS if places < WIDTH else low
    assert known(shares.reduce_bits(share, places, first=False)) == [expected]
    assert known(share) == [number]


@given(st.integers(-(1 << 40), 1 << 40), numbers)
def test_shares_of_fewer_bits_add_up_but_for_wraps(number: int, mask: int) -> None:
    """A model at rest: wrong with |number| / 2**72."""
    second = (number - mask) % MODULUS
    result = known(
        shares.add(
            shares.reduce_bits(share_of([mask]), 72, first=True),
            shares.reduce_bits(share_of([second]), 72, first=False),
        )
    )[0]
    signed = result - MODULUS if result >= MODULUS // 2 else result
    assert (signed - number) % (1 << 72) == 0
    if (mask % (1 << 72)) >= 1 << 40 and (mask % (1 << 72)) < (1 << 72) - (1 << 40):
        assert signed == number


# Digits


def digits_of(number: int, count: int, size: int) -> list[int]:
    digits = shares.centred_digits(share_of([number]), count, size)
    assert len(digits) == count and all(each.dtype == np.float64 for each in digits)
    whole = [int(each[0]) for each in digits]
    assert all(-(1 << (size - 1)) <= each < 1 << (size - 1) for each in whole)
    return whole


@given(numbers, st.integers(3, 8), st.integers(0, 3))
@example(MODULUS - 1, 4, 0)
@example(1 << (WIDTH - 1), 5, 0)
@example((1 << 26) - 1, 4, 0)
def test_digits_are_centred_and_add_up(number: int, count: int, more: int) -> None:
    size = -(-WIDTH // count) + more
    result = digits_of(number, count, size)
    assert sum(each << (size * place) for place, each in enumerate(result)) % MODULUS == number


@given(st.integers(1, 3), st.integers(2, 35), st.data())
def test_few_digits_are_enough_for_small_numbers(count: int, size: int, data: st.DataObject) -> None:
    """Up to half of what the digits could hold, of either sign, they add up without any modulus."""
    most = 1 << max(count * size - 2, 0)
    number = data.draw(st.integers(-most, most) | st.sampled_from([-most, 0, most]))
    if count * size > WIDTH - 1:
        return
    result = digits_of(number % MODULUS, count, size)
    assert sum(each << (size * place) for place, each in enumerate(result)) == number


def test_digits_that_are_too_large_are_refused() -> None:
    with pytest.raises(ShapeError, match="digits of 43 bits given, at most 42 are allowed"):
        shares.centred_digits(share_of([1]), 3, 43)


# Randomness


def test_uniform_numbers_take_all_limbs_from_the_source() -> None:
    words = np.array([[1, 2**63 - 1], [3, (1 << 42) - 1]], dtype="<u8")
    result = shares.uniform_from(lambda size: words.tobytes()[:size], 2)
    assert known(result) == [1 + (3 << 63), MODULUS - 1]
    assert known(shares.uniform_from(lambda size: b"\xff" * size, 1, 2)) == [MODULUS - 1] * 2
    assert shares.uniform(3, 2).shape == (LIMBS, 3, 2)


def test_uniform_numbers_are_even_in_every_bit() -> None:
    count = 4000
    share = shares.uniform(count)
    assert len(set(known(share))) == count
    for limb in range(LIMBS):
        ones = [int(((share[limb] >> bit) & 1).sum()) for bit in range(LIMB_BITS)]
        # Eight deviations: 105 bits are outside once in 10**13 runs.
        assert all(abs(each - count / 2) < 8 * (count / 4) ** 0.5 for each in ones)


# Bytes


@pytest.mark.parametrize("shape", [(5,), (5, 1), (5, 7), (5, 2, 3), (4, 5), (5, 0)])
def test_bytes_and_back(shape: tuple[int, ...]) -> None:
    share = np.random.default_rng(0).integers(0, 1 << LIMB_BITS, size=shape)
    data = shares.to_bytes(share)
    count = int(np.prod(shape))
    assert len(data) == 8 * -(-count // 3) == shares.size_in_bytes(count // shape[0], shape[0])
    assert np.array_equal(shares.from_bytes(data, shape), share)
    assert np.array_equal(shares.from_bytes(memoryview(data), shape), share)
    assert shares.to_bytes(np.asfortranarray(share)) == data


def test_a_known_answer_of_bytes() -> None:
    """Limbs lie in three columns of words: files and peers of other versions have to read them."""
    share = np.arange(1, 6).reshape(LIMBS, 1)
    words = np.frombuffer(shares.to_bytes(share), dtype="<u8").tolist()
    assert words == [1 | 3 << 21 | 5 << 42, 2 | 4 << 21]


@pytest.mark.parametrize("length", [0, 8, 15, 17, 24])
def test_another_length_is_refused(length: int) -> None:
    with pytest.raises(FormatError, match=f"numbers: {length} bytes given, 16 are due"):
        shares.from_bytes(bytes(length), (LIMBS, 1))


def test_a_top_bit_that_is_set_is_refused() -> None:
    data = bytearray(shares.to_bytes(drawn(4)))
    for place in range(7, len(data), 8):
        damaged = bytearray(data)
        damaged[place] |= 0x80
        with pytest.raises(FormatError, match="a bit is set that no number has"):
            shares.from_bytes(bytes(damaged), (LIMBS, 4))


def test_what_arrives_may_be_changed_and_the_message_not() -> None:
    data = shares.to_bytes(drawn(4))
    kept = bytes(data)
    result = shares.from_bytes(data, (LIMBS, 4))
    result[:] = 0
    assert data == kept
