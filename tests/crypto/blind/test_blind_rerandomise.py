"""Re-randomisation: exact products, and uniform replies whatever the key is."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from statistics import NormalDist

import numpy as np
import pytest

from securefed.crypto import shares
from securefed.crypto.blind.evaluation import PAIRS, RESPONSES, Rerandomiser, Zeros, nonce_polynomials
from securefed.crypto.blind.interface import Product
from securefed.crypto.blind.layout import bodies_from_bytes, layout
from securefed.crypto.blind.rlwe import RLWE
from securefed.crypto.lattice.ring import DEGREE, HALF, PRIMES, RING, spectrum
from securefed.crypto.randomness import NORMAL_DEVIATION, key_stream, normals, secret_bytes
from tests.crypto.blind import integer_ring
from tests.crypto.blind.integer_ring import MODULUS, combined
from tests.crypto.blind.noise import convolution_error

SEED, NONCE = bytes(range(32)), bytes(range(1, 33))


def random_key(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.stack([rng.integers(-(p // 2), p // 2 + 1, (PAIRS, DEGREE)) for p in PRIMES]).astype(float)


def test_zeros_are_sums_of_products_in_integers() -> None:
    public, span = random_key(0), 100
    bodies, heads = Rerandomiser(NONCE, public).zeros(key_stream(SEED), span).draw(2)
    drawn = normals(key_stream(SEED), (PAIRS + 1) * 2 * DEGREE).reshape(PAIRS + 1, 2, DEGREE).astype(int)
    randoms = nonce_polynomials(NONCE)
    response = 1
    body, head = drawn[0, response].tolist(), [0] * DEGREE
    for pair in range(PAIRS):
        factor = drawn[pair + 1, response].tolist()
        a = combined(randoms[:, pair].astype(int).tolist())
        b = combined(public[:, pair].astype(int).tolist())
        body = [x + y for x, y in zip(body, integer_ring.multiplied(a, factor), strict=True)]
        head = [x + y for x, y in zip(head, integer_ring.multiplied(b, factor), strict=True)]
    assert combined(bodies[:, response].astype(int).tolist()) == [x % MODULUS for x in body]
    assert combined(heads[:, response].astype(int).tolist()) == [x % MODULUS for x in head[:span]]


def test_rounding_has_a_wide_margin() -> None:
    """Before rounding, errors have a deviation of 0.023: one half is more than 20 deviations away."""
    count = 16
    drawn = normals(key_stream(SEED), count * PAIRS * DEGREE).reshape(count, 1, PAIRS, DEGREE)
    turn = np.exp(-1j * np.pi * np.arange(HALF) / DEGREE)
    sums = np.fft.ifft((spectrum(nonce_polynomials(NONCE)) * spectrum(drawn)).sum(axis=2)) * turn
    errors = np.concatenate([part - np.rint(part) for part in (sums.real, sums.imag)])
    assert np.abs(sums).max() > 2**46
    assert errors.std() < 0.5 / 20
    assert np.abs(errors).max() < 0.5 / 3


def test_products_with_secrets_are_rounded_exactly() -> None:
    """A derived bound for the products a s of encryption, and c1 s of reading; below one half."""
    secret_norm = math.sqrt(DEGREE)
    for residue_norm in (math.sqrt(DEGREE) * max(PRIMES) / 2, math.sqrt(DEGREE) * 2.0**shares.LIMB_BITS):
        assert convolution_error(residue_norm, secret_norm) < 0.01


def test_parameters_of_the_regularity_lemma() -> None:
    """The figures of the module's docstring."""
    log_q = math.log2(MODULUS)
    parameter = math.log2(NORMAL_DEVIATION * math.sqrt(2 * math.pi))
    least = math.log2(2 * math.sqrt(DEGREE)) + log_q * (1 / (PAIRS + 1) + 2 / (DEGREE * (PAIRS + 1)))
    assert 20.05 < least < 20.07 < 20.25 < parameter
    small = sum(DEGREE * float(prime) ** -PAIRS for prime in PRIMES)
    assert math.log2(small) < -131
    each = sum(math.log2(1 + prime) for prime in PRIMES)
    assert each - (PAIRS + 1) * (parameter + 0.5 - math.log2(math.sqrt(DEGREE))) < -13
    assert math.log2(small / 4) / 2 < -66


def arcs(radii: np.ndarray, x: tuple[float, float], y: tuple[float, float]) -> np.ndarray:
    """Which part of each circle lies in a rectangle of the first quadrant."""
    first = np.maximum(np.arccos(np.minimum(1, x[1] / radii)), np.arcsin(np.minimum(1, y[0] / radii)))
    last = np.minimum(np.arccos(np.minimum(1, x[0] / radii)), np.arcsin(np.minimum(1, y[1] / radii)))
    parts: np.ndarray = np.maximum(0, last - first) / (2 * np.pi)
    return parts


def pair_probability(x: int, y: int) -> float:
    """Of values near 0, summed over the grid of radii: u is 1 - j 2**-53 there, and 1 half as often."""
    sides = [(max(each - 0.5, 0.0), each + 0.5) for each in (x, y)]
    symmetric = (1 + (x == 0)) * (1 + (y == 0))
    scale = 2.0**53 / (2 * NORMAL_DEVIATION**2)
    first, last = (scale * math.hypot(*corner) ** 2 for corner in zip(*sides, strict=True))
    steps = np.arange(max(1, math.floor(first) - 1), math.ceil(last) + 2, dtype=np.float64)
    radii = NORMAL_DEVIATION * np.sqrt(-2 * np.log1p(-steps * 2.0**-53))
    result = symmetric * 2.0**-53 * float(arcs(radii, *sides).sum())
    return result + (2.0**-54 if x == y == 0 else 0.0)


def normal_probability(number: int) -> float:
    ends = [(number + side) / NORMAL_DEVIATION / math.sqrt(2) for side in (-0.5, 0.5)]
    return (math.erf(ends[1]) - math.erf(ends[0])) / 2


@pytest.mark.parametrize("pair", [(0, 0), (1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (7, 4)], ids=str)
def test_pairs_near_0_have_the_probability_of_normals(pair: tuple[int, int]) -> None:
    due = normal_probability(pair[0]) * normal_probability(pair[1])
    assert abs(pair_probability(*pair) / due - 1) < (2**-21 if pair == (0, 0) else 2**-23)


def test_radii_are_dense_enough() -> None:
    """1.5 distances of neighbouring radii are less than what the proof allows, from 12 units on."""
    radii = np.geomspace(12 / NORMAL_DEVIATION, 9.42, 100_000)
    u = np.exp(-(radii**2) / 2)
    distances = NORMAL_DEVIATION * np.maximum(2.0**-63, 2.0**-53 * u) / (u * radii)
    allowed = 2.0**-18 * (1 + np.exp(4 * radii**2 / 9) / 9)
    assert (1.5 * distances < allowed).all()
    assert (1.5 * distances[radii < 6.2] < 2.0**-18).all()


@pytest.mark.parametrize("deviations", [4.0, 5.0, 6.0, 6.8, 7.5])
def test_pairs_in_the_tail_are_off_by_less_than_a_grid_point(deviations: float) -> None:
    """Pairs (x, 0), where circles run along the sides of unit squares: the grid is counted exactly."""
    with localcontext(prec=60):
        scale = 2 * Decimal(NORMAL_DEVIATION) ** 2
        for x in range(round(deviations * NORMAL_DEVIATION), round(deviations * NORMAL_DEVIATION) + 5):
            ends = [(-((x + side) ** 2) / scale).exp() * 2**63 for side in (Decimal("-0.5"), Decimal("0.5"))]
            points = math.floor(ends[0] - Decimal("0.5")) - math.floor(ends[1] - Decimal("0.5"))
            error = abs(float(points / (ends[0] - ends[1])) - 1)
            assert error <= 1 / float(ends[0] - ends[1])
            assert error < 2.0**-18 * (1 + math.exp(4 * deviations**2 / 9) / 9)


def test_sampler_and_proof_agree_on_their_margin() -> None:
    """The factor by which the sum over ideals may grow leaves 2**-66."""
    small = sum(DEGREE * float(prime) ** -PAIRS for prime in PRIMES)
    pairs = (PAIRS + 1) * DEGREE
    assert math.log2(small * (1 + 2.0**-17) ** pairs / 4) / 2 < -66


def test_normals_pass_a_chi_square_test() -> None:
    """64 cells of equal probability for each of a pair's numbers, and 4,096 for both together."""
    cells, count, x = 64, 1 << 18, 24.0
    inside = NormalDist(0, NORMAL_DEVIATION)
    ends = np.array([inside.inv_cdf(place / cells) for place in range(1, cells)])
    first, second = np.searchsorted(ends, normals(secret_bytes(), 2 * count)).reshape(2, count)
    for result, many in ((first, cells), (second, cells), (cells * first + second, cells**2)):
        due, degrees = count / many, many - 1
        statistic = float(((np.bincount(result, minlength=many) - due) ** 2).sum() / due)
        assert statistic < degrees + 2 * math.sqrt(degrees * x) + 2 * x


def uniform_by_chi_square(values: np.ndarray, bits: int) -> bool:
    """64 buckets by the highest bits; x = 24 is a false alarm in 10**10 (Laurent and Massart)."""
    counts = np.bincount(values.reshape(-1) >> (bits - 6), minlength=64)
    due, degrees, x = values.size / 64, 63, 24.0
    return bool(((counts - due) ** 2).sum() / due < degrees + 2 * math.sqrt(degrees * x) + 2 * x)


def reply_parts(reply: bytes, product: Product) -> tuple[np.ndarray, np.ndarray]:
    plan = layout(product)
    size = plan.responses * plan.response_bytes
    bodies = bodies_from_bytes(reply[:size], (plan.responses, DEGREE), plan.body_bits)
    return bodies, shares.from_bytes(reply[size:], (shares.LIMBS, product.left, product.right))


CRAFTED = {
    "zero": lambda: np.zeros((5, PAIRS, DEGREE)),
    "one large number": lambda: np.stack([np.full((PAIRS, DEGREE), p // 2) for p in PRIMES]).astype(float),
    "a constant": lambda: np.concatenate(
        [np.full((5, PAIRS, 1), 1000.0), np.zeros((5, PAIRS, DEGREE - 1))], axis=2
    ),
}


@pytest.mark.parametrize("craft", CRAFTED.values(), ids=CRAFTED)
def test_replies_are_uniform_under_a_crafted_key(craft: object) -> None:
    """Even for V = 0, where everything but the re-randomisation and the mask is zero."""
    product = Product(4, 64, 40, 10, 10)
    public = RLWE.load_public(RING.to_bytes(craft()), NONCE)  # type: ignore[operator]
    evaluation = public.evaluate(product)
    message = RLWE.generate().encrypt(product, [0], lambda first, last: np.zeros((last - first, 64)))[0]
    evaluation.add({0: message}, lambda first, last: np.zeros((last - first, 40)))
    reply, _ = evaluation.finish()
    bodies, heads = reply_parts(reply, product)
    for limb in (*bodies, *heads):
        assert uniform_by_chi_square(limb, shares.LIMB_BITS)


def test_without_re_randomisation_a_reply_shows_v(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin that falls: c1 of V = 0 is then zero, and the masks of c0 do not help."""

    product = Product(4, 64, 40, 10, 10)
    (panel,) = layout(product).panels

    def nothing(zeros: Zeros, count: int) -> tuple[np.ndarray, np.ndarray]:
        return np.zeros((5, count, DEGREE)), np.zeros((5, count, panel.span))

    monkeypatch.setattr(Zeros, "draw", nothing)
    key = RLWE.generate()
    evaluation = RLWE.load_public(key.public(NONCE), NONCE).evaluate(product)
    message = key.encrypt(product, [0], lambda first, last: np.zeros((last - first, 64)))[0]
    evaluation.add({0: message}, lambda first, last: np.zeros((last - first, 40)))
    bodies, heads = reply_parts(evaluation.finish()[0], product)
    assert not bodies.any()
    assert all(uniform_by_chi_square(limb, shares.LIMB_BITS) for limb in heads)


def test_each_response_is_re_randomised_by_itself() -> None:
    zeros = Rerandomiser(NONCE, random_key(2)).zeros(key_stream(SEED), HALF)
    result = [
        zeros.draw(count)[0][:, response].tobytes() for count in (RESPONSES, 1) for response in range(count)
    ]
    result += [zeros.draw(RESPONSES)[0][:, response].tobytes() for response in range(RESPONSES)]
    assert len(set(result)) == len(result)
