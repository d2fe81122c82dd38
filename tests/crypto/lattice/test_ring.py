"""The ring in float64 against Python integers."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from securefed.crypto import shares
from securefed.crypto.lattice.ring import (
    DEGREE,
    EXACT_TERMS,
    PRIMES,
    RING,
    YDomain,
    inverse,
    multiply,
    reduce,
    spectrum,
)
from securefed.crypto.randomness import key_stream
from securefed.errors import FormatError
from tests.crypto.blind import integer_ring
from tests.crypto.blind.integer_ring import MODULUS, WIDTH, centred, combined
from tests.crypto.blind.noise import convolution_error

SEED = bytes(range(32))


def test_the_primes_are_the_largest_of_21_bits() -> None:
    result: list[int] = []
    candidate = (1 << 21) + 1
    while len(result) < 5:
        candidate -= 2 * DEGREE
        if all(candidate % divisor for divisor in range(2, int(candidate**0.5) + 1)):
            result.append(candidate)
    assert tuple(result) == PRIMES
    assert 104.4 < np.log2(float(MODULUS)) < 104.5


def test_sums_of_products_stay_exact() -> None:
    """8,192 of the largest products, and what was there before, are what `reduce` takes."""
    assert EXACT_TERMS * ((max(PRIMES) + 1) // 2 + 2) ** 2 + max(PRIMES) < 2**53 - 2**21


@pytest.mark.parametrize("prime", PRIMES)
def test_reduction_is_exact_up_to_2_to_the_53(prime: int) -> None:
    most = 2**53 - 2**21
    values = np.array([0, 1, -1, prime, prime // 2, -prime, most, -most, 2**52 + 7], np.float64)
    reduced = reduce(values.copy(), prime)
    assert all((int(a) - int(b)) % prime == 0 for a, b in zip(values, reduced, strict=True))
    assert np.abs(reduced).max() <= prime // 2 + 2


def test_numbers_and_their_residues() -> None:
    """Uniform modulo q, times an integer, from pieces, and back."""
    source = key_stream(SEED)
    drawn = RING.uniform(source, 100)
    numbers = [centred(number) for number in combined(drawn.astype(int).tolist())]
    assert max(numbers) > 0.4 * MODULUS and min(numbers) < -0.4 * MODULUS
    assert RING.centred(drawn) == pytest.approx([float(number) for number in numbers], rel=2**-50)
    factor = 3**70
    products = [centred(number) for number in combined(RING.scaled(drawn, factor).astype(int).tolist())]
    assert products == [centred(number * factor % MODULUS) for number in numbers]
    high, low = np.array([2**40 + 1, -(2**51), 3, 0]), np.array([-5, 2**50, 1, -7])
    whole = RING.whole(high, 44, low)
    expected = [int(h) * 2**44 + int(v) for h, v in zip(high, low, strict=True)]
    assert [centred(number) for number in combined(whole.astype(int).tolist())] == expected
    assert RING.centred(RING.whole(low, 0)).tolist() == low.tolist()


@pytest.mark.parametrize("roots", [1, 2, 8, 64, 128, 4096])
def test_the_y_domain_has_values_at_the_roots(roots: int) -> None:
    """Against powers of each root, and back."""
    prime, rng = PRIMES[1], np.random.default_rng(0)
    domain = YDomain(prime, roots)
    assert len(set(domain.roots.tolist())) == roots
    coefficients = rng.integers(-(prime // 2), prime // 2 + 1, (roots, 3)).astype(float)
    values = domain.evaluate(coefficients)
    for place in sorted({0, roots // 3, roots - 1}):
        root = int(domain.roots[place])
        assert pow(root, roots, prime) == prime - 1
        due = sum(int(c) * pow(root, -s, prime) for s, c in enumerate(coefficients[:, 2])) % prime
        assert int(values[place, 2]) % prime == due
    # Y**-s is -Y**(t - s).
    due = np.concatenate([coefficients[:1], -coefficients[:0:-1]])
    np.testing.assert_array_equal(domain.interpolate(values) % prime, due % prime)


def test_products_of_polynomials_are_exact() -> None:
    """Residues times a ternary polynomial, and far inside the bound on rounding."""
    rng, prime = np.random.default_rng(1), PRIMES[0]
    polynomials = rng.integers(-(prime // 2), prime // 2 + 1, (2, DEGREE)).astype(float)
    factor = rng.integers(-1, 2, DEGREE).astype(float)
    result = multiply(polynomials, spectrum(factor))
    for each, product in zip(polynomials, result, strict=True):
        due = integer_ring.multiplied(each.astype(int).tolist(), factor.astype(int).tolist(), 1 << 60)
        assert [centred(number, 1 << 60) for number in due] == product.astype(int).tolist()
    assert convolution_error(np.sqrt(DEGREE) * prime / 2, np.sqrt(DEGREE)) < 2**-11
    np.testing.assert_array_equal(multiply(polynomials, spectrum(factor), 100), result[:, :100])
    np.testing.assert_array_equal(inverse(spectrum(polynomials)), polynomials)


def test_residues_of_limbs() -> None:
    numbers = [0, 1, -1, 2**104, -(2**104) + 5, 3**60, 2**105 - 1]
    limbs = np.stack([shares.from_integer(number) for number in numbers], axis=1)
    result, nearest = RING.residues(limbs), RING.residues(limbs, centred=True)
    for index, prime in enumerate(PRIMES):
        for place, number in enumerate(numbers):
            whole = number % (1 << WIDTH)
            assert int(result[index, place]) % prime == whole % prime
            near = whole - (1 << WIDTH) if whole >= 1 << (WIDTH - 1) else whole
            assert int(nearest[index, place]) % prime == near % prime


def test_lifting_rounds_exactly() -> None:
    limbs = np.random.default_rng(2).integers(0, 1 << 21, (5, 400))
    limbs[:, 0], limbs[:, 1] = 0, (1 << 21) - 1
    result = combined(RING.lifted(limbs).astype(int).tolist())
    due = [(2 * MODULUS * m + (1 << WIDTH)) // (2 << WIDTH) % MODULUS for m in shares.to_integers(limbs)]
    assert result == due


@pytest.mark.parametrize(("limbs", "slack"), [(5, 2**-20), (4, 4.0)])
def test_switching_rounds_within_what_is_documented(limbs: int, slack: float) -> None:
    residues = np.stack([np.random.default_rng(3).integers(-(p // 2), p // 2 + 1, 3000) for p in PRIMES])
    residues[:, 0] = 0
    numbers = combined(residues.tolist())
    result = RING.switched(residues.astype(float), limbs)
    step = 1 << (WIDTH - 21 * limbs)
    for place, number in enumerate(numbers):
        kept = sum(int(result[limb, place]) << (21 * limb) for limb in range(limbs)) * step
        error = centred(kept * MODULUS - (number << WIDTH), MODULUS << WIDTH)
        assert abs(error) <= (step / 2 + slack) * MODULUS


def test_expansion_is_what_everybody_computes() -> None:
    for index, prime in enumerate(PRIMES):
        result = RING.expand(SEED, b"label", index, 5000)
        assert (result % prime).astype(int).tolist() == integer_ring.expanded(SEED, b"label", index, 5000)
        assert np.abs(result).max() <= prime // 2
    digest = hashlib.sha256(RING.to_bytes(np.stack([RING.expand(SEED, b"", i, 99) for i in range(5)])))
    assert digest.hexdigest() == "fd2614f543c30d36e98f415267a77da8bf2a7fc23d8537800c804313b8105f11"


def test_bytes_of_residues() -> None:
    residues = np.stack([np.array([-(p // 2), 0, p // 2, 1], dtype=float) for p in PRIMES])
    data = RING.to_bytes(residues.copy())
    np.testing.assert_array_equal(RING.from_bytes(data, (4,)), residues)
    assert integer_ring.unpacked(data, 20) == [
        int(r) + p // 2 for p, row in zip(PRIMES, residues, strict=True) for r in row
    ]


@pytest.mark.parametrize("index", range(5))
def test_a_residue_that_is_not_below_its_prime_is_refused(index: int) -> None:
    words = np.zeros((5, 4), dtype=np.int64)
    words[index, 2] = PRIMES[index]
    with pytest.raises(FormatError, match=f"less than {PRIMES[index]} is allowed"):
        RING.from_bytes(shares.to_bytes(words), (4,))
    words[index, 2] -= 1
    assert RING.from_bytes(shares.to_bytes(words), (4,))[index, 2] == PRIMES[index] // 2
