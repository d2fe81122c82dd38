"""Noise on opened gradients: what it promises, that it is there, and what it does to an attack on labels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from bench.noise_attacks import noise_for
from securefed import GeneralisedLinear, Monitoring, OwnGradient, Party, Plain, SettingError
from securefed.assembly import LinearAssembly
from securefed.crypto import FixedPoint, KeyHolder, generate
from securefed.protocols.agreement import Agreement, Member
from securefed.protocols.own_gradient.openings import (
    PUBLIC_SCALE,
    epsilon,
    label_privacy,
    noise_units,
    normalised,
    participations,
    sums_width,
    with_noise,
)
from securefed.protocols.schedules import Batches
from securefed.settings import LinearSettings

PAILLIER = {"scheme": "paillier"}
CLEAR: dict[str, Any] = {"kind": Plain, "options": {"like": "own-gradient"}}


def agreed(
    noise: float,
    rows: int = 200,
    columns: int = 30,
    *,
    kind: Any = OwnGradient,
    options: Any = PAILLIER,
    **settings: Any,
) -> Agreement:
    members = (Member("shop", columns, True), Member("bank", columns, True))
    protection = kind(dp_noise=noise, **options)
    return LinearAssembly(LinearSettings(protection=protection, **settings)).agreement(members, rows)


# The count.


def test_epsilon_is_that_of_a_gaussian_mechanism() -> None:
    """Against the definition: delta = E max(0, 1 - exp(epsilon - loss)), integrated."""
    for noise, mechanisms, delta in ((1.0, 1, 1e-5), (8.0, 40, 1e-4), (0.7, 3, 1e-3), (300.0, 100, 1e-5)):
        found = epsilon(noise, mechanisms, delta)
        mu = mechanisms**0.5 / noise
        x = np.linspace(-12, 12 + mu, 400_001)
        density = np.exp(-((x - mu) ** 2) / 2) / np.sqrt(2 * np.pi)
        loss = mu * x - mu * mu / 2
        whole = np.trapezoid(density * np.clip(1 - np.exp(np.minimum(found - loss, 0)), 0, None), x)
        assert whole == pytest.approx(delta, rel=1e-3)
        assert noise_for(found, mechanisms, delta) == pytest.approx(noise, rel=1e-6)


def test_epsilon_is_what_dp_accounting_says() -> None:
    accounting = pytest.importorskip("dp_accounting")
    for noise, mechanisms, delta in ((4.0, 20, 1e-5), (20.0, 100, 1e-4)):
        accountant = accounting.pld.PLDAccountant()
        accountant.compose(accounting.GaussianDpEvent(noise), mechanisms)
        assert epsilon(noise, mechanisms, delta) == pytest.approx(accountant.get_epsilon(delta), rel=2e-3)


def test_extremes() -> None:
    assert epsilon(1e6, 1, 1e-3) == 0.0
    assert 1e3 < epsilon(1e-2, 10, 1e-5) < 1e6
    assert epsilon(1e-5, 10, 1e-5) == float("inf")


def test_a_label_counts_in_the_rounds_that_its_row_is_in() -> None:
    assert participations(Batches(50, None, 0), 7) == 7
    assert participations(Batches(50, 10, 0, True), 10) == 2
    drawn = participations(Batches(50, 10, 0), 20)
    assert 4 < drawn < 20
    found = label_privacy(agreed(5.0, rounds=20))
    assert found is not None and found.mechanisms == 40 and found.delta == pytest.approx(1 / 2000)
    assert found.epsilon == epsilon(5.0, 40, found.delta)
    assert label_privacy(agreed(0.0)) is None


# What is opened.


@pytest.fixture(scope="module")
def paillier() -> KeyHolder:
    return generate("paillier", key_bits=2048)


@pytest.mark.parametrize("scheme", ["paillier", "plain"])
def test_the_requester_gets_its_sums_with_noise_of_the_agreed_size(scheme: str, paillier: KeyHolder) -> None:
    holder = paillier if scheme == "paillier" else generate("plain")
    columns, rows = 250, 20
    agreement = agreed(3.0, rows, columns, **({} if scheme == "paillier" else CLEAR))
    rng = np.random.default_rng(1)
    residuals, features = rng.uniform(-1, 1, rows), rng.normal(size=(rows, columns))
    held = holder.public.load(holder.encrypt(residuals, FixedPoint(17.0, 32)).to_bytes())
    multipliers, norm = normalised(features.T[None])
    assert np.sqrt((multipliers[0] ** 2).sum(axis=0)).max() < 1.0
    sums = held.contract(multipliers, PUBLIC_SCALE)
    masked, mask = sums.mask(sums_width(agreement)) if scheme == "paillier" else sums.mask()  # type: ignore[call-arg]
    answer = holder.public.load_opened(with_noise(holder.open(masked), agreement).to_bytes())
    noise = mask.remove(answer) - features.T @ residuals / norm
    # Seven deviations: outside with a chance below 1e-9, the heavier tail of the squares included.
    assert abs(noise.std() - 3.0) < 7 * 3.0 / (2 * columns) ** 0.5
    assert abs(noise.mean()) < 7 * 3.0 / columns**0.5


def test_labels_from_a_gradient_past_the_line() -> None:
    """As many columns as rows: without noise every label is solved for; at epsilon 1 next to none is."""
    rng, rows, runs = np.random.default_rng(2), 60, 100
    areas = {}
    for wanted in (None, 8.0, 1.0):
        truth, scores = [], []
        for _ in range(runs):
            columns, labels = rng.normal(size=(rows, rows)), rng.choice([-1.0, 1.0], rows)
            multipliers, _ = normalised(columns.T[None])
            sums = multipliers[0] @ (-0.5 * labels)
            if wanted is not None:
                noise = noise_for(wanted, 1, 1e-5)
                sums = sums + np.array(noise_units(noise, 1.0, rows, 40)) / 2.0**40
            truth += labels.tolist()
            # The likeliest residuals: ridge regression by what is known of the noise.
            weight = 0.0 if wanted is None else 4 * noise**2
            gram = multipliers[0].T @ multipliers[0] + weight * np.eye(rows)
            scores += (-np.linalg.solve(gram, multipliers[0].T @ sums)).tolist()
        areas[wanted] = roc_auc_score(np.array(truth) > 0, scores)
    assert areas[None] == 1.0
    # One label moves the sums by at most 1, so an attack's expected area is at most Phi(1 / (noise sqrt 2)),
    # 0.576 at epsilon 1. The area of 6,000 labels has a deviation of 0.0075: 0.62 is 5.9 of them away, which
    # luck crosses with a chance of 2e-9. At epsilon 8 the area is 0.80, with a deviation of 0.0055.
    assert areas[1.0] < 0.62 < 0.7 < areas[8.0]


# A run.


def people(rows: int = 300) -> tuple[Party, Party]:
    rng = np.random.default_rng(3)
    shop, bank = rng.normal(size=(rows, 3)), rng.normal(size=(rows, 3))
    return Party("shop", shop), Party("bank", bank, labels=shop[:, 0] + bank[:, 0] > 0)


def test_a_run_with_noise_says_what_it_promises_and_still_learns() -> None:
    model = GeneralisedLinear(
        rounds=4, protection=Plain(like="own-gradient", dp_noise=4.0, batch_size=None)
    ).fit(people(3000))
    assert model.result_.privacy is not None
    assert model.result_.to_dict()["privacy"]["mechanisms"] == 8
    assert 0.5 < model.result_.privacy.epsilon < 4
    assert "epsilon" in str(model.result_.privacy)
    assert model.score(people(3000)) > 0.85


@pytest.mark.slow
def test_under_paillier_too() -> None:
    model = GeneralisedLinear(
        rounds=2, protection=OwnGradient(scheme="paillier", dp_noise=2.0, key_bits=2048)
    ).fit(people(40))
    assert model.result_.privacy is not None and model.result_.settings["dp_noise"] == 2.0


def test_the_same_seed_gives_other_noise() -> None:
    noisy = Plain(like="own-gradient", dp_noise=1.0)
    one, two = (GeneralisedLinear(rounds=1, protection=noisy).fit(people()) for _ in range(2))
    for name in ("shop", "bank"):
        assert not np.allclose(one.shards_[name].parameters, two.shards_[name].parameters)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"options": {"scheme": "ckks"}}, "takes scheme 'paillier'"),
        ({"kind": Plain, "options": {}}, "takes scheme 'paillier'"),
        ({"loss": "linear"}, "a loss of two classes"),
        ({"monitoring": Monitoring(target=0.9)}, "no target and no patience"),
    ],
)
def test_what_the_promise_cannot_be_made_for_is_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(SettingError, match=f"dp_noise: 1 given; .*{why}"):
        agreed(1.0, **options)


def test_networks_are_refused() -> None:
    is_linear = agreed(1.0)
    with pytest.raises(SettingError, match="takes linear local models"):
        replace(is_linear, members=(Member("shop", 4, False), is_linear.members[1]))
    with pytest.raises(SettingError, match="dp_noise must be"):
        agreed(-1.0)
