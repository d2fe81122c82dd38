"""Several targets in one blind run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from securefed import GeneralisedLinear, Labels, Party, Plain, TransferLearner
from securefed.errors import DataError, SettingError

RNG = np.random.default_rng(0)
SHOP, BANK = RNG.normal(size=(120, 5)), RNG.normal(size=(120, 3))
TARGETS = np.column_stack(
    [
        1e4 + 500 * (SHOP[:, 0] - BANK[:, 0]) + 50 * RNG.normal(size=120),
        0.01 * (SHOP[:, 1] + 2 * BANK[:, 1]) + 0.003 * RNG.normal(size=120),
    ]
)


def given(labels: Any = None) -> list[Party]:
    return [Party("shop", SHOP), Party("bank", BANK, labels=labels)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::securefed.protocols.own_gradient.ledger.LedgerWarning")
def test_each_is_predicted_in_its_own_unit_and_saved(tmp_path: Any) -> None:
    model = GeneralisedLinear("linear", rounds=5).fit(given(TARGETS))
    joined = Ridge(alpha=1.0).fit(np.hstack([SHOP, BANK]), TARGETS).predict(np.hstack([SHOP, BANK]))
    found = model.predict(given())
    assert found.shape == (120, 2)
    spread = TARGETS.std(axis=0)
    assert (np.sqrt(np.mean((found - joined) ** 2, axis=0)) < 0.15 * spread).all()
    held = model.result_.holdout
    assert held is not None and held.metric == "R2" and held.value > 0.8 > held.alone
    assert set(held.more) == {"R2 of target 0", "R2 of target 1"}
    model.save(tmp_path)
    again = GeneralisedLinear.load(tmp_path)
    assert (np.abs(again.predict(given()) - found) < 1e-3 * spread).all()


@pytest.mark.parametrize("kind", [GeneralisedLinear, TransferLearner])
def test_classes_are_one_column(kind: Any) -> None:
    parties = [Party("shop", SHOP, ids=range(120)), Party("bank", BANK, labels=TARGETS > 0, ids=range(120))]
    with pytest.raises((DataError, SettingError), match=r"labels: 2 columns given|bank: labels"):
        kind().fit(parties)


@pytest.mark.parametrize(
    ("settings", "labels", "message"),
    [
        ({"loss": "logistic"}, (TARGETS > 0.0), "labels: 2 columns given, the loss 'logistic' takes one"),
        ({"protection": Plain()}, TARGETS, "labels: 2 columns given; several targets take Blind"),
        ({"labels": Labels(family="poisson")}, TARGETS, "need exactly one label column"),
        ({}, np.zeros((120, 2, 2)), "bank: labels of shape"),
        ({}, np.where(TARGETS > 1e4, np.nan, TARGETS), "labels must be finite"),
    ],
)
def test_what_is_refused(settings: dict[str, Any], labels: Any, message: str) -> None:
    with pytest.raises((SettingError, DataError), match=message):
        GeneralisedLinear(**{"loss": "linear", "rounds": 1, **settings}).fit(given(labels))
