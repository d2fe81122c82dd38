"""Names of version 0.1 keep working for one version, and say the new form."""

from __future__ import annotations

from typing import Any

import pytest
from sklearn.base import clone

from securefed import (
    Blind,
    GeneralisedLinear,
    Labels,
    Monitoring,
    MultiClass,
    OwnGradient,
    Plain,
    SettingError,
    Simulation,
    TransferLearner,
)
from tests.api.cases import parties

OLD: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"scheme": "paillier"}, {"protection": Blind(scheme="paillier")}),
    ({"reveal": "own-gradient", "batch_size": 9}, {"protection": OwnGradient(batch_size=9)}),
    ({"scheme": "plain"}, {"protection": Plain()}),
    ({"scheme": "plain", "loss_form": "taylor"}, {"protection": Plain(like="blind")}),
    (
        {"scheme": "plain", "reveal": "own-gradient", "loss_form": "taylor"},
        {"protection": Plain(like="own-gradient"), "refit": False},
    ),
    ({"release": True, "key_bits": 2048}, {"protection": Blind(release=True, key_bits=2048)}),
    ({"evaluate_every": 2, "target": 0.9}, {"monitoring": Monitoring(evaluate_every=2, target=0.9)}),
    (
        {"class_weight": "balanced", "threshold": "f1"},
        {"labels": Labels(class_weight="balanced", threshold="f1")},
    ),
    ({"network": "wan", "engine": "serial"}, {"simulation": Simulation(network="wan", engine="serial")}),
]


@pytest.mark.parametrize(("old", "new"), OLD)
def test_old_names_become_values(old: dict[str, Any], new: dict[str, Any]) -> None:
    with pytest.warns(DeprecationWarning, match="will go with the next version; write ") as told:
        model = GeneralisedLinear(**old)
    assert model.get_params() == GeneralisedLinear(**new).get_params()
    group = next(name for name in new if name != "refit")
    assert f"{group}={new[group]!r}" in str(told[0].message)
    assert told[0].filename == __file__
    with pytest.warns(DeprecationWarning, match="will go"):
        later = GeneralisedLinear().set_params(**old)
    assert later.get_params() == model.get_params() and clone(later).get_params() == model.get_params()


def test_a_scheme_in_third_place_and_a_key_holder() -> None:
    third: Any = "plain"
    with pytest.warns(DeprecationWarning, match="scheme"):
        assert GeneralisedLinear("linear", GeneralisedLinear().algorithm, third).protection == Plain()
    words: dict[str, Any] = {"key_holder": "notary"}
    with pytest.warns(DeprecationWarning, match="key_holder"):
        assert TransferLearner(**words).protection == Blind(helper="notary")


def test_what_a_protection_does_not_have_is_refused_by_name() -> None:
    with pytest.raises(SettingError, match=r"batch_size: 9 given, Blind\(\.\.\.\) has none"):
        GeneralisedLinear(batch_size=9)
    with pytest.raises(TypeError, match="'roundz' is not a parameter"):
        GeneralisedLinear(roundz=3)
    with pytest.raises(TypeError, match="batch_size"):
        Blind(batch_size=9)  # type: ignore[call-arg]


def test_multi_class_is_its_estimator() -> None:
    with pytest.warns(DeprecationWarning, match="take three classes and more by themselves"):
        model = MultiClass(GeneralisedLinear(rounds=2, protection=Plain(like="blind")))
    assert isinstance(model, GeneralisedLinear) and model.fit(parties()).predict(parties()).shape == (30,)
