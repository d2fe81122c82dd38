"""The noise bound, against noise that is measured with the secret key."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

import numpy as np
import pytest

from securefed.crypto.ckks.arrays import CkksEncrypted
from securefed.crypto.ckks.form import (
    FRESH_DEVIATION,
    MOST_REPLIES,
    PUBLIC_TERMS,
    SECURITY_BITS,
    SWITCH_DEVIATION,
    TAIL,
    Noise,
    flood_deviation,
    noise_bound,
)
from securefed.crypto.ckks.layout import RowLayout, SumLayout, merge
from securefed.crypto.lattice.ring import RING
from securefed.crypto.randomness import ERROR_DEVIATION
from securefed.errors import CapacityError, FormatError
from tests.crypto.ckks_cases import ONE, Desk, numbers

TRIALS = 6


@pytest.fixture(scope="module")
def desk() -> Desk:
    return Desk.fresh()


def signs(*shape: int) -> np.ndarray:
    """Multipliers as large as they can be, everywhere."""
    return np.random.default_rng(0).choice([-1.0, 1.0], shape)


def bound_of(encrypted: CkksEncrypted) -> float:
    layout = encrypted.form.layout
    return noise_bound(encrypted.form.noise, layout.coefficients, layout.units, layout.levels)


def contraction(rows: int, columns: int, outputs: int) -> Callable[[CkksEncrypted], CkksEncrypted]:
    return lambda zero: zero.contract(signs(columns, outputs, rows))


CASES: dict[str, tuple[tuple[int, ...], Callable[[CkksEncrypted], CkksEncrypted]]] = {
    "fresh": ((2048,), lambda zero: zero),
    "sum": ((2048,), lambda zero: zero + zero + zero),
    "one output": ((2048,), contraction(2048, 1, 1)),
    "linear": ((2048,), contraction(2048, 1, 50)),
    "transfer": ((1032, 32), contraction(1032, 32, 19)),
    "wide": ((40, 300), contraction(40, 300, 6)),
    "small": ((5,), contraction(5, 1, 3)),
}


@pytest.mark.parametrize("name", CASES)
def test_measured_noise_is_below_the_bound_and_not_far(desk: Desk, name: str) -> None:
    shape, compute = CASES[name]
    ratios = []
    for _ in range(TRIALS):
        # Zeros under the public key: what comes out of the phase is noise and nothing else.
        result = compute(desk.public.encrypt(np.zeros(shape), ONE))
        noise = RING.centred(desk.phase(result))
        assert noise.shape == (result.form.layout.coefficients,)
        ratios.append(float(np.linalg.norm(noise)) / bound_of(result))
    assert max(ratios) <= 1.0
    # The bound is the typical norm plus a tail of 2^-60; what is typical has to be typical.
    layout = result.form.layout
    tail = sqrt(layout.units) * TAIL
    typical = sqrt(layout.coefficients) / (sqrt(layout.coefficients) + tail)
    # Few coefficients are a few draws of one Gaussian: six of them average below 0.01 with a chance of 2e-11.
    least = 0.5 if layout.coefficients > 16 else 0.01
    assert least * typical <= np.mean(ratios) <= 2.0 * typical


def test_the_owner_has_less_noise(desk: Desk) -> None:
    noise = RING.centred(desk.phase(desk.holder.encrypt(np.zeros(2048), ONE)))
    # Its own errors of 3.2, and the encryption of zero that masking adds.
    expected = sqrt(ERROR_DEVIATION**2 + FRESH_DEVIATION**2)
    assert 0.8 * expected < noise.std() < 1.1 * expected


def test_the_deviation_of_a_fresh_encryption(desk: Desk) -> None:
    encrypted = desk.public.encrypt(np.zeros(2048 * 4), ONE)
    noise = RING.centred(desk.phase(encrypted))
    # Two of them, since masking adds one. The key's norm is six deviations above its mean in the constant.
    assert 0.9 * FRESH_DEVIATION < noise.std() / sqrt(2) < 1.03 * FRESH_DEVIATION


@pytest.mark.parametrize(
    ("outputs", "rows"), [(4, 2048), (6, 2048), (10, 2048), (50, 2048), (6, 1024), (1001, 1024)]
)
def test_merging_adds_what_was_said_and_changes_nothing_else(desk: Desk, outputs: int, rows: int) -> None:
    """Merged ciphertexts against each unit by itself."""
    values, matrix = numbers(rows), numbers(outputs, rows, seed=1)
    result = matrix @ desk.holder.encrypt(values, ONE)
    assert isinstance(result, CkksEncrypted)
    layout = result.form.layout
    assert isinstance(layout, SumLayout)
    chosen = range(min(layout.units, 40))
    units = result.residues[:, :, chosen]
    alone = np.concatenate([_whole(desk, units[:, :, i])[:, :: layout.stride] for i in chosen], axis=1)
    part = SumLayout((len(chosen) * 2 * layout.copies,), layout.groups)
    merged = _whole(desk, merge(units, layout.stride, desk.public.apply_galois))[:, part.places[0]]
    difference = RING.centred(RING.reduced(merged - alone))
    levels = (len(chosen) - 1).bit_length()
    allowed = SWITCH_DEVIATION * 2.0**levels
    assert 0 < np.abs(difference).max() < 8 * allowed
    assert difference.std() < allowed


def _whole(desk: Desk, unit: np.ndarray) -> np.ndarray:
    """The whole phase of one ciphertext, (5, N)."""
    return RING.reduced(unit[:, 0] + desk.secret._times(unit[:, 1:])[:, 0])


def test_the_flood_follows_the_formula() -> None:
    noise = Noise(terms=2, multiplier_bits=32, blocks=9)
    expected = sqrt(12 * MOST_REPLIES) * 2.0 ** (SECURITY_BITS / 2) * noise_bound(noise, 640, 10, 4)
    assert flood_deviation(noise, 640, 10, 4) == pytest.approx(expected)
    # The divergence of all replies of a key together, from ones without noise.
    divergence = MOST_REPLIES * noise_bound(noise, 640, 10, 4) ** 2 / (2 * expected**2)
    assert divergence <= 2.0**-SECURITY_BITS / 24 * 1.001


def test_the_flood_of_an_opening_is_there(desk: Desk) -> None:
    zero = desk.public.encrypt(np.zeros(2048), ONE)
    masked, mask = zero.mask()
    opened = desk.secret.open(desk.public.load_masked(masked.to_bytes()))
    layout = RowLayout((2048,))
    deviation = flood_deviation(Noise(PUBLIC_TERMS), layout.coefficients, 1, 0)
    seen = RING.centred(RING.reduced(opened.residues - mask._residues))
    assert 0.9 * deviation < seen.std() < 1.1 * deviation


def test_bounds_grow_with_everything() -> None:
    base = noise_bound(Noise(2, 20, 3), 64, 2, 1)
    for larger in (
        noise_bound(Noise(3, 20, 3), 64, 2, 1),
        noise_bound(Noise(2, 21, 3), 64, 2, 1),
        noise_bound(Noise(2, 20, 4), 64, 2, 1),
        noise_bound(Noise(2, 20, 3), 128, 2, 1),
        noise_bound(Noise(2, 20, 3), 64, 3, 1),
        noise_bound(Noise(2, 20, 3), 64, 2, 2),
    ):
        assert larger > base


@pytest.mark.parametrize("bad", [(0, 0, 1), (-1, 0, 1), (1 << 31, 0, 1), (1, -1, 1), (1, 61, 1), (1, 0, 0)])
def test_numbers_that_no_array_has(bad: tuple[int, int, int]) -> None:
    with pytest.raises(FormatError, match="noise"):
        Noise(*bad)


def test_noise_that_no_flood_can_cover() -> None:
    with pytest.raises(CapacityError, match="cannot be flooded"):
        flood_deviation(Noise(1 << 30, 60, 1 << 20), 8192, 16, 4)
