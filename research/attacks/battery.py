"""Statistical tests of masks: does what a key-holder sees look like anything but uniform numbers?

`uniform` looks at one sample of masked integers: bits, bytes, the whole distribution, repetitions,
neighbours. `different` looks at two samples, of two secrets: whether anything tells them apart.
`dependent` looks at what was seen beside what was secret. Every test gives a probability of being this
extreme by luck; a finding is one below FALSE_ALARM divided by the number of tests.

What they can find is stated, and tested (tests/audit/test_masks.py): with 2000 openings a bit that is 1
in 60 % of them, a mean that is off by a fifth of a standard deviation, or a correlation of 0.3 over 1000
openings is found with a probability of at least 95 %. A uniform mask is uniform by proof; these tests are
for implementations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import erfc, exp, sqrt

import numpy as np
from numpy.typing import NDArray

FALSE_ALARM = 1e-7
PERMUTATIONS = 200
Array = NDArray[np.float64]
Words = NDArray[np.uint64]


@dataclass(frozen=True)
class Finding:
    """One test, and how likely a result this extreme is if there is nothing to find."""

    test: str
    probability: float


def found(findings: Sequence[Finding]) -> list[str]:
    """The tests that found something."""
    return [f.test for f in findings if f.probability < FALSE_ALARM / len(findings)]


def words(integers: Sequence[int], modulus: int) -> Words:
    """(count, 2): the first 64 bits of each integer as a fraction of the modulus, and its lowest 64 bits."""
    mask = (1 << 64) - 1
    pairs = [((int(m) << 64) // modulus, int(m) & mask) for m in integers]
    return np.array(pairs, dtype=np.uint64)


def uniform(sample: Words) -> list[Finding]:
    """Tests of (count, columns) 64-bit words against independent uniform ones."""
    findings = []
    for column in range(sample.shape[1]):
        word = sample[:, column]
        fraction = word.astype(np.float64) * 2.0**-64
        count = len(word)
        ones = np.array([int(((word >> np.uint64(bit)) & np.uint64(1)).sum()) for bit in range(64)])
        worst = float(np.abs(ones - count / 2).max()) / (sqrt(count) / 2)
        findings.append(Finding(f"bits {column}", min(1.0, 64 * _normal(worst))))
        octets = np.ascontiguousarray(word).view(np.uint8)
        counts = np.bincount(octets, minlength=256)
        expected = len(octets) / 256
        statistic = float(((counts - expected) ** 2).sum() / expected)
        findings.append(Finding(f"bytes {column}", _chi_square(statistic, 255)))
        findings.append(Finding(f"distribution {column}", _kolmogorov(_distance(np.sort(fraction)), count)))
        findings.append(Finding(f"repetitions {column}", 1.0 if len(np.unique(word)) == count else 0.0))
        centred = fraction - 0.5
        serial = float(centred[1:] @ centred[:-1]) / (sqrt(count - 1) / 12)
        findings.append(Finding(f"neighbours {column}", _normal(serial)))
    return findings


def different(first: Words, second: Words, seed: int = 0) -> list[Finding]:
    """Two-sample permutation tests: means, spreads, distributions and bits of two samples."""
    generator = np.random.default_rng(seed)
    findings = []
    for column in range(first.shape[1]):
        both = np.concatenate([first[:, column], second[:, column]])
        fraction = both.astype(np.float64) * 2.0**-64
        bits = (both[:, None] >> np.arange(64, dtype=np.uint64) & np.uint64(1)).astype(np.float64)
        order = np.argsort(fraction, kind="stable")
        mine = np.arange(len(both)) < len(first)

        def statistics(
            mine: NDArray[np.bool_],
            fraction: Array = fraction,
            bits: Array = bits,
            order: NDArray[np.intp] = order,
        ) -> Array:
            sides = (mine / mine.sum(), ~mine / (~mine).sum())
            mean = abs(float((sides[0] - sides[1]) @ fraction))
            spread = abs(float((sides[0] - sides[1]) @ (fraction - 0.5) ** 2))
            steps = np.cumsum((sides[0] - sides[1])[order])
            return np.array(
                [mean, spread, float(np.abs(steps).max()), float((((sides[0] - sides[1]) @ bits) ** 2).sum())]
            )

        drawn = np.array([statistics(generator.permutation(mine)) for _ in range(PERMUTATIONS)])
        seen = statistics(mine)
        for name, value, column_drawn in zip(
            ("mean", "spread", "distribution", "bits"), seen, drawn.T, strict=True
        ):
            findings.append(Finding(f"{name} {column}", _extreme(float(value), column_drawn)))
    return findings


def dependent(seen: Array, secrets: Array, seed: int = 0) -> list[Finding]:
    """Permutation tests of (count, a) numbers that were seen against (count, b) secrets: correlation, and
    that of magnitudes.
    """
    generator = np.random.default_rng(seed)
    findings = []
    for name, change in (("values", _as_they_are), ("magnitudes", _magnitudes)):
        left, right = _standard(change(seen)), _standard(change(secrets))

        def statistic(rows: NDArray[np.intp], left: Array = left, right: Array = right) -> float:
            return float(np.abs(left.T @ right[rows]).max()) / len(rows)

        drawn = np.array([statistic(generator.permutation(len(right))) for _ in range(PERMUTATIONS)])
        findings.append(Finding(name, _extreme(statistic(np.arange(len(right))), drawn)))
    return findings


def _as_they_are(values: Array) -> Array:
    return values


def _magnitudes(values: Array) -> Array:
    return np.abs(values - np.median(values, axis=0))


def _standard(values: Array) -> Array:
    table = values.reshape(len(values), -1)
    spread = table.std(axis=0)
    result: Array = (table - table.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    return result


def _extreme(value: float, drawn: Array) -> float:
    """Where a value lies above permuted ones: by their Gumbel fit, which is heavier than a normal tail."""
    spread = float(drawn.std()) or 1e-300
    scale = spread * sqrt(6.0) / np.pi
    place = float(drawn.mean()) - 0.5772156649 * scale
    return float(-np.expm1(-exp(min(700.0, -(value - place) / scale))))


def _normal(z: float) -> float:
    """Both tails."""
    return erfc(abs(z) / sqrt(2.0))


def _chi_square(statistic: float, freedom: int) -> float:
    """The upper tail, by Wilson and Hilferty's cube root."""
    spread = 2.0 / (9.0 * freedom)
    z = ((statistic / freedom) ** (1.0 / 3.0) - (1.0 - spread)) / sqrt(spread)
    return 0.5 * erfc(z / sqrt(2.0))


def _distance(ordered: Array) -> float:
    count = len(ordered)
    steps = np.arange(count + 1) / count
    return float(max((steps[1:] - ordered).max(), (ordered - steps[:-1]).max()))


def _kolmogorov(distance: float, count: int) -> float:
    """The tail of Kolmogorov's distribution (its first terms are enough for what is rare)."""
    x = distance * (sqrt(count) + 0.12 + 0.11 / sqrt(count))
    tail = 2.0 * sum((-1) ** (k - 1) * exp(-2.0 * (k * x) ** 2) for k in range(1, 20))
    return min(1.0, max(tail, 0.0)) if x > 0.2 else 1.0
