"""The battery of statistical tests on masked openings: ours pass it, naive masks do not, and its power is as
said.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence

import numpy as np
import phe
import pytest

from bench.scenes import linear_scene
from research.attacks.battery import Finding, dependent, different, found, uniform, words
from research.attacks.blind import honest_keys, reply, rows_of
from securefed.crypto import FixedPoint, KeyHolder, generate, shares
from securefed.crypto.blind.interface import Product
from securefed.crypto.blind.rlwe import RlweKey
from securefed.crypto.lattice.ring import PRIMES, RING
from securefed.crypto.randomness import SEED_BYTES
from tests.audit.naive.paillier import float_masked
from tests.audit.ring import from_residues
from tests.audit.views import masked_phase, paillier_factors, paillier_public
from tests.protocols.federation import FULL_KEYS

OPENINGS = 2000
FIXED = FixedPoint(bound=1.0, fraction_bits=32)


@pytest.fixture(scope="module")
def small() -> KeyHolder:
    """A key of 512 bits: masks are drawn and removed by the same code at every size."""
    return generate("paillier", key_bits=512, allow_small=True)


def opened_paillier(holder: KeyHolder, value: float, count: int) -> np.ndarray:
    """What the key-holder sees of `count` openings of one value, each under its own mask."""
    n = int(np.prod(np.array(paillier_factors(holder), dtype=object)))
    encrypted = holder.encrypt([value], FIXED)
    integers = [holder.open(encrypted.mask()[0]).integers[0] for _ in range(count)]  # type: ignore[attr-defined]
    return words(integers, n)


def opened_ckks(holder: KeyHolder, value: float, count: int) -> np.ndarray:
    """The masked coefficients, scaled to 64 bits, and their low halves."""
    seen: list[int] = []
    while len(seen) < count:
        masked, _ = holder.encrypt(np.full(64, value), FIXED).mask()
        phase = masked_phase(holder, holder.public.load_masked(masked.to_bytes()))
        seen += (from_residues(phase, PRIMES) % RING.modulus).tolist()
    pairs = [((int(v) << 64) // RING.modulus, (int(v) << 32) % (1 << 64)) for v in seen[:count]]
    table = np.array(pairs, dtype=np.uint64)
    # The low 32 bits of a number fill the upper half of their word; the rest of it is drawn here.
    filler = np.random.default_rng(1).integers(0, 1 << 32, count, dtype=np.uint64)
    table[:, 1] |= filler
    return table


# Ours


@pytest.mark.parametrize("value", [0.0, 0.75])
def test_openings_of_paillier_are_uniform(small: KeyHolder, value: float) -> None:
    assert found(uniform(opened_paillier(small, value, OPENINGS))) == []


@pytest.mark.slow
def test_openings_of_two_secrets_under_paillier_are_the_same(small: KeyHolder) -> None:
    first, second = (opened_paillier(small, value, OPENINGS) for value in (0.0, 1.0))
    assert found(different(first, second)) == []


@pytest.mark.parametrize("value", [0.0, 0.75])
def test_openings_of_ckks_are_uniform(ckks: KeyHolder, value: float) -> None:
    assert found(uniform(opened_ckks(ckks, value, 4 * OPENINGS))) == []


def test_openings_of_two_secrets_under_ckks_are_the_same(ckks: KeyHolder) -> None:
    first, second = (opened_ckks(ckks, value, OPENINGS) for value in (0.0, 1.0))
    assert found(different(first, second)) == []


def seen_of_blind(value: float, masks: bool = True) -> np.ndarray:
    """What the label party reads of products with one value in a blind run: its share, modulo 2**105."""
    key = RlweKey(os.urandom(SEED_BYTES))
    product = Product(1, OPENINGS, 1, 51, 20)
    (block,) = key.encrypt(product, [0], rows_of(np.ones((1, OPENINGS))))
    data, share = reply(product, [block], np.array([[value]]), honest_keys(key))
    read = key.read(product, data)
    if not masks:
        read = shares.add(read, share)
    return words(shares.to_integers(read[:, :, 0]), 1 << shares.WIDTH)


def test_shares_of_two_secrets_are_uniform_and_the_same() -> None:
    first, second = (seen_of_blind(value) for value in (0.0, 2.0**19))
    assert found(uniform(first)) == [] and found(different(first, second)) == []
    naive = [seen_of_blind(value, masks=False) for value in (0.0, 2.0**19)]
    assert found(uniform(naive[0])) != [] and found(different(*naive)) != []


@pytest.mark.parametrize("scheme", ["paillier", "ckks"])
@pytest.mark.slow
def test_what_the_key_holder_sees_is_independent_of_the_gradient(scheme: str) -> None:
    """A whole run: the key-holder's opened numbers beside the gradients that lie under them."""
    scene = linear_scene(scheme, FULL_KEYS, rows=40, batch=10, rounds=40, columns=(4, 2))
    holder = FULL_KEYS.holder(scheme, 1)
    seen = []
    for message in scene.views["p1"].of("opening-request"):
        masked = holder.public.load_masked(message.payload)
        if scheme == "paillier":
            (integer,) = holder._secret._owner.decrypt(masked.integers)  # type: ignore[attr-defined]
            n = int(paillier_public(holder).n)
            seen.append([int(integer) / n, (int(integer) % 2**64) / 2**64])
        else:
            phase = from_residues(masked_phase(holder, masked)[:, :4], PRIMES)
            seen.append([float(v) / RING.modulus for v in phase])
    gradients = np.array([opening.sums for opening in scene.views["p0"].opened])
    assert found(dependent(np.array(seen), gradients)) == []


# Naive masks


def test_float_masks_are_found(phe_key: phe.PaillierPrivateKey) -> None:
    """FATE's masks, floats from -1024 to 1024: the low bits of every opening are those of the value."""
    opened: dict[float, list[int]] = {}
    for value in (0.3, 0.7):
        number = phe_key.public_key.encrypt(value)
        opened[value] = [float_masked(phe_key, number, 0.5).mantissa for _ in range(120)]
    width = max(abs(m) for numbers in opened.values() for m in numbers).bit_length()
    tables = [words([m + (1 << width) for m in numbers], 1 << (width + 1)) for numbers in opened.values()]
    assert {"bits 1", "bytes 1", "repetitions 1"} <= set(found(uniform(tables[0])))
    assert "bits 1" in found(different(*tables))


def sample(values: Sequence[int] | np.ndarray, bits: int) -> np.ndarray:
    return words([int(v) for v in values], 1 << bits)


def test_masks_without_room_are_found() -> None:
    """A mask of the value's own width: the sum's distribution moves with the value."""
    generator = np.random.default_rng(0)
    masks = generator.integers(0, 1 << 40, (2, OPENINGS))
    small, large = sample(masks[0], 42), sample(masks[1] + (1 << 38), 42)
    assert {"mean 0", "distribution 0"} <= set(found(different(small, large)))


def test_one_mask_for_all_is_found() -> None:
    mask = secrets.randbits(128)
    values = [mask + secrets.randbits(16) for _ in range(200)]
    assert "bits 0" in found(uniform(words(values, 1 << 129)))


def test_masks_from_a_bad_generator_are_found() -> None:
    """A counter with large steps: even, and predictable from its neighbour."""
    values = [(i << 117) % (1 << 128) for i in range(OPENINGS)]
    assert "neighbours 0" in found(uniform(words(values, 1 << 128)))
    assert "repetitions 1" in found(uniform(words(values, 1 << 128)))


def test_a_gradient_under_a_small_mask_is_found() -> None:
    generator = np.random.default_rng(1)
    gradients = generator.normal(size=(200, 4))
    weak = gradients + generator.uniform(-1.0, 1.0, size=(200, 4))
    assert "values" in found(dependent(weak, gradients))
    assert found(dependent(generator.uniform(size=(200, 4)), gradients)) == []


# What the battery can find, as its documentation says


def share(findings: list[list[Finding]]) -> float:
    return float(np.mean([bool(found(each)) for each in findings]))


def random_words(generator: np.random.Generator, count: int) -> np.ndarray:
    return generator.integers(0, 2**64, (count, 2), dtype=np.uint64)


def test_power_against_a_biased_bit() -> None:
    generator, runs = np.random.default_rng(2), []
    for _ in range(40):
        table = random_words(generator, OPENINGS)
        heads = generator.random(OPENINGS) < 0.6
        bit = np.uint64(1 << 17)
        table[:, 1] = np.where(heads, table[:, 1] | bit, table[:, 1] & ~bit)
        runs.append(uniform(table))
    assert share(runs) >= 0.95


@pytest.mark.slow
def test_power_against_a_shifted_mean() -> None:
    generator, runs = np.random.default_rng(3), []
    for _ in range(40):
        first, second = random_words(generator, OPENINGS), random_words(generator, OPENINGS)
        fraction = second[:, 0].astype(np.float64) * 2.0**-64
        moved = np.clip(fraction + 0.2 / np.sqrt(12), 0, 1 - 2.0**-50)
        second[:, 0] = (moved * 2.0**64).astype(np.uint64)
        runs.append(different(first, second))
    assert share(runs) >= 0.95


def test_power_against_a_correlation() -> None:
    generator, runs = np.random.default_rng(4), []
    for _ in range(40):
        hidden = generator.normal(size=(1000, 1))
        runs.append(dependent(0.3 * hidden + np.sqrt(1 - 0.09) * generator.normal(size=(1000, 1)), hidden))
    assert share(runs) >= 0.95


@pytest.mark.slow
def test_false_alarms_are_rare() -> None:
    generator = np.random.default_rng(5)
    alarms = 0
    for _ in range(60):
        first, second = random_words(generator, 500), random_words(generator, 500)
        numbers = generator.normal(size=(2, 200, 3))
        alarms += sum(
            map(len, (found(uniform(first)), found(different(first, second)), found(dependent(*numbers))))
        )
    assert alarms == 0
    # And the probabilities are about what they say: of 600 tests about 6 below 1 %.
    low = [f.probability < 0.01 for _ in range(60) for f in uniform(random_words(generator, 400))]
    assert 0 < sum(low) < 20
