"""The noise that scores are blurred by: uniform over a step at full resolution, and kept for a question."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from securefed import Blind, GeneralisedLinear, Party, Simulation
from securefed.errors import SettingError
from securefed.protocols.schedules import FedBCD
from securefed.protocols.scoring.blur import blur, on_grid
from securefed.protocols.scoring.score_ledger import ScoreGuard
from tests.protocols import federation
from tests.protocols.federation import FULL_KEYS, Keys, Recorder, blobs, split
from tests.protocols.scenarios import prediction

Array = NDArray[np.float64]
KEY = bytes(range(32))
QUESTION: dict[str, Any] = {"key": KEY, "context": b"model", "precision_bits": 10, "fraction_bits": 76}


@pytest.fixture
def keys() -> Keys:
    """Of full size: a prediction reads no others."""
    return FULL_KEYS


def rows(count: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=(count, 3))


def test_a_known_answer() -> None:
    """Another noise for an old question would let it be averaged: the function must not change."""
    noise = blur(np.array([[1.0, 2.0], [0.5, -3.0]]), **{**QUESTION, "fraction_bits": 42})
    assert noise == KNOWN


KNOWN = [-1429827764, -447259302]


@pytest.mark.parametrize("fraction_bits", [11, 32, 64, 76, 120, 522])
def test_it_is_uniform_over_one_step_of_the_precision_at_full_resolution(fraction_bits: int) -> None:
    width = fraction_bits - 10
    noise = blur(rows(4000), **{**QUESTION, "fraction_bits": fraction_bits})
    assert all(-(1 << (width - 1)) <= n < 1 << (width - 1) for n in noise)
    # A fixed key: the verdict is the same on every machine.
    shares = [(n + (1 << (width - 1))) / (1 << width) for n in noise]
    if width > 10:
        assert stats.kstest(shares, "uniform").pvalue > 1e-3
    for bit in {0, 1, width // 2, width - 1} - {width}:
        ones = sum(((n + (1 << (width - 1))) >> bit) & 1 for n in noise)
        assert abs(ones - 2000) < 5 * 1000**0.5


def test_what_is_opened_says_nothing_of_what_is_below_the_precision() -> None:
    """exact + noise modulo a step is uniform whatever the exact number is."""
    noise = blur(rows(4000), **{**QUESTION, "fraction_bits": 12})
    for exact in (0, 1, 2, 3):
        counts = np.bincount([(exact + n) % 4 for n in noise], minlength=4)
        assert stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize(
    "other",
    [
        {"key": bytes(32)},
        {"context": b"another model"},
        {"precision_bits": 11},
        {"fraction_bits": 77},
    ],
)
def test_another_question_gets_another_noise(other: dict[str, Any]) -> None:
    noise, different = blur(rows(50), **QUESTION), blur(rows(50), **{**QUESTION, **other})
    assert blur(rows(50), **QUESTION) == noise
    low = [(a ^ b) & 0xFFFF for a, b in zip(noise, different, strict=True)]
    assert len(set(low)) > 40


def test_it_follows_from_the_rows_content_and_not_from_its_place() -> None:
    given = rows(6)
    noise = blur(given, **QUESTION)
    assert blur(given[::-1], **QUESTION) == noise[::-1]
    assert blur(np.asfortranarray(given), **QUESTION) == noise
    assert blur(given[2:3], **QUESTION) == noise[2:3]
    nudged = given.copy()
    nudged[0, 0] = np.nextafter(nudged[0, 0], 1.0)
    assert blur(nudged, **QUESTION)[0] != noise[0]
    assert blur(np.zeros((1, 2)), **QUESTION) == blur(-np.zeros((1, 2)), **QUESTION)


def test_what_is_not_allowed_is_named() -> None:
    with pytest.raises(SettingError, match="precision_bits"):
        blur(rows(1), **{**QUESTION, "precision_bits": 25})
    with pytest.raises(SettingError, match="fraction_bits: 10 given, 1 to 512 more than"):
        blur(rows(1), **{**QUESTION, "fraction_bits": 10})
    with pytest.raises(SettingError, match="score key: 3 bytes given, 32 are allowed"):
        ScoreGuard(b"abc")
    assert "key" not in repr(ScoreGuard())
    assert ScoreGuard().key != ScoreGuard().key


def test_on_the_grid_sums_are_exact() -> None:
    values, noise = rows(5)[:, 0], [1, -(2**21), 0, 7, 2**21]
    blurred = on_grid(values, noise, 32)
    assert [round(v * 2**32) for v in blurred] == [
        round(v * 2**32) + n for v, n in zip(values.tolist(), noise, strict=True)
    ]


@pytest.mark.parametrize("scheme", ["paillier", "ckks"])
def test_asking_again_gets_the_same_answer_and_another_model_another_noise(scheme: str, keys: Keys) -> None:
    features, labels = blobs(6, 6)
    parts = split(features, 3)
    made = federation.linear(parts, labels, keys, scheme=scheme, algorithm=FedBCD(1))
    given = {f"p{k}": part for k, part in enumerate(parts)}

    def noise(start: int) -> Array:
        found = prediction(made, given, start=start).run().outcomes["p2"]
        exact = sum(side.model.forward(part) for side, part in zip(made.sides.values(), parts, strict=True))
        return np.asarray(found - exact)

    first, again, other = noise(1), noise(1), noise(2)
    assert np.abs(first - again).max() < 1e-5  # CKKS adds its own flood, far below the blur
    assert np.abs(first - other).max() > 2.0**-14


def test_a_precision_is_agreed_and_the_transcript_says_how_wide_the_noise_is(keys: Keys) -> None:
    features, labels = blobs(6, 6)
    parts = split(features, 3)
    made = federation.linear(parts, labels, keys, scheme="paillier", score_precision=4)
    assert made.agreement.to_dict()["score_precision"] == 4
    recorder = Recorder()
    run = prediction(made, {f"p{k}": part for k, part in enumerate(parts)}).run(tap=recorder)
    exact = sum(side.model.forward(part) for side, part in zip(made.sides.values(), parts, strict=True))
    assert 2.0**-8 < np.abs(run.outcomes["p2"] - exact).max() <= 2 * 2.0**-5
    for name in ("p0", "p1"):
        (entry,) = (e for e in run.links[name].transcript.of("sent") if e.kind == "score-part")
        assert entry.detail["facts"]["blur"] == {"precision_bits": 4, "noise_bits": 28}


class Unblurred(ScoreGuard):
    """What ours is compared with: the same scores without noise."""

    def noises(
        self,
        rows: Array,
        context: bytes,
        outputs: int,
        *,
        scoring: bytes = b"",
        place: bytes = b"",
        **sizes: Any,
    ) -> tuple[list[list[int]], dict[str, Any]]:
        self.asked = (rows, context, sizes)
        return [[0] * len(rows) for _ in range(outputs)], {}


def test_every_output_of_a_model_has_noise_of_its_own_and_is_counted() -> None:
    """Under one noise the difference of two outputs would be exact."""
    guard = ScoreGuard(KEY, column_bits=300.0)
    noises, _ = guard.noises(rows(5), b"m", 3, precision_bits=10, fraction_bits=76)
    assert len({value for each in noises for value in each}) == 15
    assert guard.total_bits == 5 * 3 * 16
    assert guard.noises(rows(5), b"m", 3, precision_bits=10, fraction_bits=76)[0] == noises


@pytest.mark.parametrize(("count", "scheme"), [(2, "ckks"), (3, "ckks"), (5, "ckks"), (2, "paillier")])
def test_a_blind_models_scores_are_blurred_by_every_other_party(count: int, scheme: str) -> None:
    people = 8 if scheme == "paillier" else 64
    features, labels = blobs(people, 2 * count, seed=4)
    parts = split(features, count)

    def parties(labelled: bool) -> list[Party]:
        last = labels if labelled else None
        return [Party(f"p{k}", part, labels=last if k == count - 1 else None) for k, part in enumerate(parts)]

    model = GeneralisedLinear(
        rounds=1, protection=Blind(scheme=scheme, key_bits=2048), simulation=Simulation(engine="serial")
    ).fit(parties(True))
    blurred, expected = model.decision_function(parties(False)), np.zeros(people)
    guards = dict(model.score_guards_)
    model.score_guards_ = {name: Unblurred() for name in guards}
    exact = model.decision_function(parties(False))
    for name, guard in guards.items():
        asked, context, sizes = model.score_guards_[name].asked
        noise = blur(asked, key=guard.key, context=bytes(4) + context, **sizes)
        expected += np.ldexp(np.array(noise, dtype=np.float64), -sizes["fraction_bits"])
    assert len(guards) == count - 1
    told = (blurred - exact) / model._label_model.link.step  # a score is told in units of a step
    assert np.abs(told - expected).max() < 2.0**-24  # the error of a product, far below the blur
    assert np.abs(expected).max() > 2.0**-13
