"""Generated data: stand-ins of the shape of data sets that cannot be had freely, and small ones for demos.

No person stands behind a row, and the names say "(generated)". What a stand-in has in common with its model
is stated at each function and checked by a test; results on it are about algorithms and not about patients
or images.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from research.data.mimic import by_variable
from research.data.mimic_features import PER_VARIABLE, VARIABLES
from research.data.nus_wide import FEATURES, TAGS
from research.data.vertical import VerticalData, standardise
from securefed.declare import check_integer
from securefed.errors import DataError

Array = NDArray[np.float64]

MIMIC_ROWS = (17_903, 3_236)
_MIMIC_POSITIVES = 0.132
# The part of stays in which a variable is measured at all; the others are gaps, and get the mean.
_MEASURED = dict.fromkeys(VARIABLES, 0.98) | {
    "Capillary refill rate": 0.2,
    "Fraction inspired oxygen": 0.45,
    "Height": 0.2,
    "Weight": 0.75,
    "pH": 0.6,
}

_WEIGHTS = np.array([1.0, 1.0, 1.0, 1.2, 1.5, 1.5])
_MIMIC_SLOPE = 1.82

_TOPICS = 20
_TAGS_AN_IMAGE = 7.0
_NUS_SLOPE = 3.2
_IMAGE_SIGNAL = 0.18
_TAG_SIGNAL = 1.5


def generated_mimic(seed: int = 0, *, parties: int = 2) -> tuple[VerticalData, VerticalData]:
    """A stand-in for MIMIC-III in-hospital mortality: 17 variables x 42 features, 17,903 training and 3,236
    test rows, 13% positives, standardised, divided over the parties by variable like the real one.

    Six factors stand behind a variable's 42 features, as level, spread, trend and number of measurements do
    behind the real ones, so columns are strongly correlated; whole variables are missing for some. A
    centralised logistic regression reaches a test AUC of about 0.85, as on the real data.
    """
    rng = np.random.default_rng([seed, 17])
    count = sum(MIMIC_ROWS)
    illness = rng.standard_normal(count)
    blocks: list[Array] = []
    score = np.zeros(count)
    for variable in VARIABLES:
        factors = rng.standard_normal((count, 6)) * [1.0, 0.7, 0.5, 0.4, 0.3, 0.25]
        factors[:, :2] += np.outer(illness, rng.normal(0.0, 0.35, 2))
        loadings = rng.standard_normal((6, PER_VARIABLE))
        noise = rng.standard_normal((count, PER_VARIABLE)) * 0.2
        measured = rng.random(count) < _MEASURED[variable]
        score += measured * (factors @ (rng.standard_normal(6) * _WEIGHTS))
        blocks.append((factors @ loadings + noise) * measured[:, None])
    score /= score.std()
    labels = _labels(rng, _MIMIC_SLOPE * score, _MIMIC_POSITIVES)
    ids = np.array([f"generated-{row}" for row in range(count)])
    data = by_variable("MIMIC-III (generated)", np.hstack(blocks), labels, ids, parties, generated=True)
    train = MIMIC_ROWS[0]
    first, second = standardise(data.take(np.arange(train)), data.take(np.arange(train, count)))
    return first, second


def generated_nus_wide(seed: int = 0, *, rows: int = 10_000) -> VerticalData:
    """A stand-in for NUS-WIDE with two concepts: B has 634 image features, A 1,000 tags, zero or one, about
    seven an image and some of them far more frequent than others, and the labels, half of them 1.

    Twenty topics stand behind both sides and behind the label, so that each side alone predicts it: a
    logistic regression on 8,000 rows reaches an AUC of about 0.87 from either side's columns. Not
    standardised.
    """
    check_integer("rows", rows, least=10)
    rng = np.random.default_rng([seed, 634])
    topics = rng.standard_normal((rows, _TOPICS))
    labels = _labels(rng, _NUS_SLOPE * topics[:, 0], 0.5)
    width = sum(FEATURES.values())
    style = rng.standard_normal((rows, _TOPICS)) @ rng.standard_normal((_TOPICS, width))
    images = topics @ rng.standard_normal((_TOPICS, width)) * _IMAGE_SIGNAL
    images += style + 2.0 * rng.standard_normal((rows, width))
    weights = np.sqrt(
        [0.5, *[0.5 / (_TOPICS - 1)] * (_TOPICS - 1)]
    )  # tags are about the first topic above all
    pull = _TAG_SIGNAL * (topics * weights) @ rng.standard_normal((_TOPICS, TAGS))
    frequency = 1.0 / np.arange(2.0, TAGS + 2.0)
    frequency *= _TAGS_AN_IMAGE / frequency.sum()
    # exp of a normal variable has mean exp(variance / 2): taken off, so that the frequencies stay.
    odds = frequency * np.exp(pull - _TAG_SIGNAL**2 / 2)
    tags = (rng.random((rows, TAGS)) < odds / (1.0 + odds)).astype(np.float64)
    columns = {
        "B": tuple(f"{kind}_{place}" for kind, size in FEATURES.items() for place in range(size)),
        "A": tuple(f"tag_{place}" for place in range(TAGS)),
    }
    parts = {"B": images, "A": tags}
    return VerticalData("NUS-WIDE (generated)", parts, columns, labels, "A", np.arange(rows), generated=True)


def generated_vertical(rows: int, columns_per_party: Sequence[int], seed: int = 0) -> VerticalData:
    """A small table for demos and tests: parties P1, P2, ... with so many columns each, the last one with
    the labels.

    The label depends on every party's columns, on each about equally; half of the labels are 1.
    """
    check_integer("rows", rows, least=4)
    widths = [check_integer("columns_per_party", width, least=1) for width in columns_per_party]
    if len(widths) < 2:
        raise DataError(f"columns_per_party: {widths} given, two parties or more are allowed")
    rng = np.random.default_rng([seed, rows, *widths])
    shared = rng.standard_normal((rows, 3))
    parts: dict[str, Array] = {}
    score = np.zeros(rows)
    for place, width in enumerate(widths, 1):
        part = rng.standard_normal((rows, width)) + 0.5 * shared @ rng.standard_normal((3, width))
        weights = rng.standard_normal(width)
        score += part @ weights / np.linalg.norm(weights)
        parts[f"P{place}"] = part
    order = np.argsort(2.0 * score / score.std() + rng.logistic(size=rows))
    labels = np.zeros(rows, dtype=np.int64)
    labels[order[rows // 2 :]] = 1
    columns = {name: tuple(f"{name}_x{i}" for i in range(part.shape[1])) for name, part in parts.items()}
    ids = np.array([f"person-{row}" for row in range(rows)])
    name = f"{rows} rows over {len(widths)} parties (generated)"
    return VerticalData(name, parts, columns, labels, f"P{len(widths)}", ids, generated=True)


def _labels(rng: np.random.Generator, score: Array, positives: float) -> NDArray[np.int64]:
    """Labels drawn with probability 1 / (1 + exp(-(score + c))), with c such that `positives` of them are
    1.
    """
    low, high = -50.0, 50.0
    for _ in range(60):
        middle = (low + high) / 2
        if float(np.mean(1.0 / (1.0 + np.exp(-(score + middle))))) < positives:
            low = middle
        else:
            high = middle
    chance = 1.0 / (1.0 + np.exp(-(score + low)))
    return (rng.random(len(score)) < chance).astype(np.int64)
