"""A further fit that begins where the last one ended: the same as one longer fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from securefed import (
    Blind,
    FedBCD,
    GeneralisedLinear,
    OwnGradient,
    Party,
    Plain,
    SettingError,
    VerticalClassifier,
)
from securefed.audit import audit
from securefed.protocols.scoring.score_ledger import ScoreRefusal
from tests.api.cases import parties

pytestmark = pytest.mark.filterwarnings("ignore")
STEPS: dict[str, Any] = {"algorithm": FedBCD(3), "learning_rate": 0.2, "holdout": 0.0}
RELEASED: dict[str, Any] = {**STEPS, "protection": Blind(release=True)}


def weights(model: GeneralisedLinear) -> NDArray[np.float64]:
    return np.concatenate([model.shards_[name].parameters for name in model.parties_])


def plain(**settings: Any) -> GeneralisedLinear:
    return GeneralisedLinear(protection=Plain(like="blind"), **{**STEPS, **settings})


def test_two_fits_are_one_of_as_many_rounds() -> None:
    model = plain(rounds=3, warm_start=True).fit(parties())
    assert np.array_equal(weights(model), weights(plain(rounds=3).fit(parties())))  # the first begins at 0
    longer = weights(plain(rounds=6).fit(parties()))
    assert np.array_equal(weights(model.fit(parties())), longer)
    assert not np.array_equal(weights(model.set_params(warm_start=False).fit(parties())), longer)


@pytest.mark.parametrize("count", [2, 3])
def test_so_are_two_blind_ones_whose_parameters_nobody_knows_in_between(count: int) -> None:
    model = GeneralisedLinear(rounds=2, warm_start=True, **STEPS).fit(parties(count))
    model.set_params(protection=Blind(release=True)).fit(parties(count))
    assert audit(model.result_.transcripts, model.result_.to_dict()).passed
    twin = plain(rounds=4).fit(parties(count))
    assert np.abs(weights(model) - weights(twin)).max() < 1e-3
    assert np.abs(weights(model) - weights(plain(rounds=2).fit(parties(count)))).max() > 1e-2


def test_a_blind_one_goes_on_with_more_rows_and_automatic_steps() -> None:
    """Steps follow from the rows; the parameters are the same in the new basis."""
    settings: dict[str, Any] = {**STEPS, "learning_rate": "auto"}
    model = GeneralisedLinear(rounds=3, warm_start=True, **settings).fit(parties(rows=30))
    model.set_params(rounds=2, protection=Blind(release=True)).fit(parties(rows=45))
    twin = plain(rounds=3, warm_start=True, learning_rate="auto").fit(parties(rows=30))
    twin.set_params(rounds=2).fit(parties(rows=45))
    assert np.abs(weights(model) - weights(twin)).max() < 1e-3
    anew = plain(rounds=2, learning_rate="auto").fit(parties(rows=45))
    assert np.abs(weights(model) - weights(anew)).max() > 1e-2


def test_columns_are_prepared_as_in_the_first_fit() -> None:
    model = plain(rounds=2, warm_start=True).fit(parties())
    first = model.transforms_["p0"]
    assert model.fit(parties(seed=1)).transforms_["p0"] is first


def test_held_out_rows_stay_unseen() -> None:
    settings: dict[str, Any] = {"rounds": 6, "holdout": 0.3, "learning_rate": "auto"}
    rows = parties(rows=100)
    model = plain(warm_start=True, **settings).fit(rows)
    assert model.fit(rows).result_.holdout is not None
    with pytest.raises(SettingError, match="30 of 100 rows would be held out by seed 1, 30 of 100 by seed 0"):
        model.set_params(seed=1).fit(rows)
    model.set_params(holdout=0.0).fit(rows)
    learnt = plain(**settings).fit(rows)
    with pytest.raises(SettingError, match=r"learnt from the rows that it held out \(refit\)"):
        learnt.set_params(warm_start=True).fit(rows)


def test_the_score_ledger_goes_on_too() -> None:
    """Held-out people of few columns are scored by two models, and not by a third one as well."""
    model = GeneralisedLinear(rounds=1, warm_start=True).fit(parties(rows=100))
    model.fit(parties(rows=100))
    with pytest.raises(ScoreRefusal):
        model.fit(parties(rows=100))


@pytest.mark.parametrize("warm", [True, False])
def test_a_fit_that_fails_leaves_the_model_that_was_there(warm: bool) -> None:
    """Its label party had begun to count in another unit, and answered in that."""
    model = plain(loss="linear", rounds=3, warm_start=warm, holdout=0.3).fit(parties(rows=100))
    asked, other = parties(rows=5, seed=3), parties(rows=100, seed=1)
    before = model.predict(asked)
    other[-1] = Party(other[-1].name, other[-1].features, labels=1000.0 * np.arange(100))
    bad = {"seed": 1} if warm else {"learning_rate": 1e9}
    with pytest.raises(SettingError):
        model.set_params(**bad).fit(other)
    assert np.array_equal(model.predict(asked), before)


CANNOT: dict[str, tuple[dict[str, Any], str]] = {
    "loss": ({"loss": "linear"}, "loss linear given, the fit before had logistic"),
    "intercept": ({"fit_intercept": False}, "parameters 3, 3 given, the fit before had 3, 4"),
    "scheme": ({"protection": Blind()}, "scheme ckks given, the fit before had plain"),
    "gradients": ({"protection": OwnGradient(scheme="paillier")}, "openings of gradients are counted"),
    "word": ({"warm_start": "yes"}, "warm_start must be True or False, not 'yes'"),
}


def test_nothing_begins_with_what_was_released() -> None:
    model = GeneralisedLinear(rounds=1, warm_start=True, **RELEASED).fit(parties())
    with pytest.raises(SettingError, match="the difference of two released models is a gradient"):
        model.fit(parties())


@pytest.mark.parametrize("case", CANNOT)
def test_what_cannot_begin_there_is_named(case: str) -> None:
    model = plain(rounds=1, warm_start=True).fit(parties())
    settings, said = CANNOT[case]
    with pytest.raises(SettingError, match=said):
        model.set_params(**settings).fit(parties())


def test_nor_can_loaded_models_and_what_clones_its_estimator(tmp_path: Path) -> None:
    model = GeneralisedLinear(rounds=1, warm_start=True, **STEPS).fit(parties())
    model.save(tmp_path)
    loaded = GeneralisedLinear.load(tmp_path, warm_start=True)
    with pytest.raises(SettingError, match="a model that was loaded has nothing to begin with"):
        loaded.fit(parties())
    several = parties()
    several[-1] = several[-1].relabelled(np.arange(several[-1].rows) % 3)
    for fit in (
        lambda: model.fit(several),
        lambda: VerticalClassifier(estimator=model).fit(np.eye(8), np.arange(8) % 2),
    ):
        with pytest.raises(SettingError, match="begins every fit anew"):
            fit()


def test_a_far_smaller_rate_is_named() -> None:
    """The change of basis grows with the root of the quotient of the rates."""
    model = GeneralisedLinear(rounds=2, warm_start=True, **{**STEPS, "learning_rate": 0.3}).fit(parties())
    with pytest.raises(SettingError, match="because of a smaller learning rate or of other columns"):
        model.set_params(learning_rate=1e-10).fit(parties())
